"""Waiting in MPI's blocking calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..requests.agreement import AGREEMENT
from ..requests.operations import Operation
from .host import issue
from .waiting import Waiting

if TYPE_CHECKING:
    from .slots import Slot


class Blocking(Waiting):
    """Waits in blocking MPI calls, as in the GKV application note; a communicator thread needs a core token for it."""

    def issue(self, slot: Slot, operation: Operation) -> None:
        slot.operation = operation
        token = self._token
        if token is not None:
            token.__enter__()
        started = self._outstanding[slot] = self._clock()
        try:
            error = issue(operation)
        finally:
            del self._outstanding[slot]
            ended = self._clock()
            self.waited_s += ended - started
            if token is not None:
                token.__exit__()
        if self._job.trace is not None:
            self._trace(slot, started, ended)
        self.completed(slot, error)

    def track(self, slot: Slot, operation: Operation, request: Any) -> None:
        slot.operation = operation
        error = None
        try:
            self.wait(request, slot)
        except MPI.Exception as failure:
            error = failure
        self.completed(slot, error)

    def wait(self, request: Any, label: object) -> None:
        with self.watched(label):
            request.Wait()

    def reduced(self, comm: Any, values: Any, op: Any) -> None:
        with self.watched(AGREEMENT):
            comm.Allreduce(MPI.IN_PLACE, values, op)
