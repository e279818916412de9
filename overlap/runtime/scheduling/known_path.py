"""The straight path of a call that does the same every time: its steps and MPI calls were written down when it was
made.

For calls so short that to find out anew what they do takes longer than to do it. On the wire it is the pipeline's call:
the same header, operations and agreement, so other ranks may have come to it through their pipeline.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..requests.agreement import Agreements
from ..requests.operations import Operation
from .scheduler import Scheduler
from .straight import StraightPath, _pause
from .waiting import Label, NotIssued, made, wait_for

if TYPE_CHECKING:
    from .job import Job
    from .waiting import Waiting


class KnownPath(StraightPath):
    """One call, which can be run again.

    Parameters
    ----------
    scheduler : Scheduler
    steps : sequence of (object, callable or Operation)
        What is done in turn, each with the slice that it is of.
    in_flight : int
        0: blocking MPI calls; else nonblocking ones, as of `StraightPath`.
    job : callable
        Makes a `Job` without slices, and its way to wait: to agree on an error.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        steps: Sequence[tuple[Any, Callable[[], object] | Operation]],
        in_flight: int,
        job: Callable[[], tuple[Job, Waiting]],
    ) -> None:
        super().__init__(scheduler, [], None, [], in_flight, False, job)  # type: ignore[arg-type]
        self._known: list[tuple[Any, Any, bool]] = [(key, step, isinstance(step, Operation)) for key, step in steps]
        self._sums = self._noted().summands(False)

    def _noted(self):
        """Agreements that know what this call issues."""
        agreements = Agreements(self._scheduler.control, self)
        for _, step, issued in self._known:
            if issued:
                agreements.note(step)
        return agreements

    def run(self) -> Exception | None:
        self.job, self._failure, self._waiting_s, self._issued = None, None, 0.0, 0
        started = perf_counter()
        for key, step, issued in self._known:
            if issued:
                self._wait_for(key, step)
                self._issued += 1
            elif self._failure is None:
                try:
                    step()
                except BaseException as error:
                    self.fail(key, error)
        sums = array("Q", self._sums)
        sums[0] = self._failure is not None
        self.reduced(self._scheduler.control, sums, MPI.SUM)
        self.computing_s = perf_counter() - started - self._waiting_s
        if not (sums[0] or sums[1]):
            return None
        agreements = self._noted()
        self._problem, self._over = agreements.judged(sums, agreements.issued), True
        return self._leave(agreements, [])

    def _wait_for(self, key, operation):
        """Make an operation; where MPI refuses it, its like on other buffers, for which the other ranks wait."""
        outstanding, blocking = self._scheduler.outstanding, not self._in_flight
        label = Label(operation, key)
        started = outstanding[label] = perf_counter()
        try:
            try:
                error = made(operation, blocking)
            except NotIssued as refusal:
                self.fail(key, refusal.__cause__)
                operation = operation.on_scratch()
                error = made(operation, blocking)
            if not blocking and operation.made:
                wait_for(operation.made[0].Test, _pause)
        except MPI.Exception as failure:
            error = failure
        finally:
            del outstanding[label]
            self._waiting_s += perf_counter() - started
        operation.made = []
        if error is not None:
            self.fail(key, error)
