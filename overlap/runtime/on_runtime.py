"""`OnRuntime`: the base class of objects on a runtime of their own or a shared one, made and closed by all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Self

from ..ranks.resource import Calls, Resource, Telling, closed_error
from .requests.requests import AsyncComm
from .runtime import Runtime

PlanComm = Any
"""What an object is made of: an mpi4py.MPI.Intracomm, a `Runtime` or an `AsyncComm`."""


class OnRuntime(Resource):
    """An object on a runtime, which it closes if it has made the runtime."""

    _kind: str  # name of the class for users
    _named = "a plan"  # in messages

    def __init__(self, comm: PlanComm) -> None:
        super().__init__()
        self.closed = False
        self._owns_runtime = not isinstance(comm, Runtime | AsyncComm)
        if self._owns_runtime:
            self.runtime = Runtime(comm)  # raises if `comm` is no communicator
            self._comm = self.runtime.comm
        else:
            self.runtime, self._comm = (comm, comm.comm) if isinstance(comm, Runtime) else (comm.runtime, comm)
            self.runtime.check_open()
        self.comm = self._comm.source  # the ranks over which the arrays are split

    def __enter__(self) -> Self:
        self._check_in_use()
        return self

    def _has_ended(self) -> bool:
        return self.closed or self.runtime.closed

    def close(self) -> None:
        """Free what the object holds (collective); closes the runtime if the object made it.

        Raises
        ------
        BusyError
            A call of the object or of its runtime is under way; nothing is freed.
        """
        if self.closed:
            return
        # ExitStack runs all steps, even if one of them raises.
        with self.runtime.coordinator.closing(f"closing {self._named}"), ExitStack() as closing:
            self.closed = True
            if self._owns_runtime:
                closing.callback(self.runtime.close)
            self._release(closing)

    def _release(self, closing: ExitStack) -> None:
        """Have `closing` release, as its last steps, what belongs to this object."""

    def _end(self) -> None:
        self.close()

    def _fail(self, error: BaseException) -> Telling | None:
        if self.closed:
            return None
        with self.runtime.coordinator.closing(f"closing {self._named}"):
            self.closed = True
            with ExitStack() as closing:
                self._release(closing)
            # A runtime that others use, too, stays open; it only notifies the other ranks.
            return self.runtime._fail(error) if self._owns_runtime else self.runtime.coordinator.notify(error)

    @property
    def _calls(self) -> Calls:
        return self.runtime.coordinator._calls

    def _ending_calls(self) -> AbstractContextManager[bool]:
        return self.runtime.coordinator.ending_calls()

    def _closed_by_fork(self) -> None:
        super()._closed_by_fork()
        self.closed = True

    @contextmanager
    def _making(self) -> Iterator[None]:
        """Return the ``with`` block of the constructor: a failure on one rank is one on all, and closes the plan."""
        with self.runtime.collective_section(f"making a plan, {self._kind}", self.close):
            self._number = self.runtime.coordinator.next_number()
            yield

    def _compared(self) -> str:
        """Return a description of the plan that is the same on all ranks of the runtime."""
        return self._kind

    @property
    def _known_as(self) -> str:
        """A text that is the same on all ranks of the runtime, and different for any two of its plans."""
        return f"{self._compared()}, plan {self._number} of the runtime"

    def _check_in_use(self) -> None:
        if self.closed:
            raise closed_error(self._kind, "closed", self._forked)

    def _check_ranks(self) -> str | None:
        """Return what is wrong with the communicator, or None."""
        if self.runtime.comm.same_ranks(self.comm):
            return None
        return (
            f"expected a communicator of all {self.runtime.comm.size} ranks of the runtime, in "
            f"their order, received another one, of {self.comm.size} rank(s)"
        )

    def _sharers(self) -> str:
        return f"over {self.runtime.comm.size} rank(s), {self.runtime.workers} worker(s) each"
