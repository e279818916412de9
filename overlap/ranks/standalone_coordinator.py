"""`StandaloneCoordinator`: watched collectives for objects that a user makes from a communicator, without a runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from mpi4py import MPI

from ..checks import number_problem
from ..errors import InputError
from . import departure
from .coordinator import Coordinator
from .door import enter
from .holding import DropWarning
from .interrupts import holding_signals
from .watchdog import Watchdog

_MAKING = "making an object on all ranks"


class StandaloneCoordinator(Coordinator):
    """A `Coordinator` with a watchdog of its own; its deadline covers the beginning of a call, too.

    A rank that has waited for others for `deadline_s` seconds (None: for ever) prints the stacks of all its threads and
    aborts the job. The warning is given when the object is dropped that has made the coordinator.

    Raises
    ------
    InputError
        `comm` is no intracommunicator; on all ranks: the deadline of one rank is not valid.
    """

    frees_after_failure = False  # calls without a header may have left messages behind

    @holding_signals
    def __init__(self, comm: MPI.Intracomm, deadline_s: float | None, warning: DropWarning | None) -> None:
        if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
            raise InputError(f"expected an intracommunicator, received {type(comm).__name__}")
        problem = number_problem("deadline_s", deadline_s, positive=True, none=True)
        self.deadline_s = 60.0 if problem else deadline_s
        watchdog = Watchdog(self.deadline_s, covers_entries=True)
        self.door = enter(comm, watchdog, _MAKING)
        try:
            super().__init__(comm, watchdog, warning=warning)
        except BaseException:
            watchdog.stop()
            raise
        self.holding.drop_with(self, end=watchdog.stop)
        with self.collective_section("the check of deadline_s", self.close, problem):
            self.free_dropped()

    @classmethod
    def of(
        cls, comm: MPI.Intracomm | StandaloneCoordinator, deadline_s: float | None, name: str
    ) -> StandaloneCoordinator | Self:
        """Make a coordinator of a communicator; a coordinator is returned as it is, and then belongs to the caller."""
        return comm if isinstance(comm, StandaloneCoordinator) else cls(comm, deadline_s, DropWarning(name))

    def check(self, call: str, problem: str | None, **agreed: Any) -> None:
        """Raise an `InputError` on all ranks if one has a problem or if values differ. Collective."""
        self.synchronize(call, agreed, error=None if problem is None else InputError(problem))

    def leave(self, error: BaseException, ended: Callable[[], object]) -> departure.Departure | None:
        def over() -> None:
            self.watchdog.close()
            ended()

        return super().leave(error, over)

    @holding_signals
    def alltoall(self, values: list[Any]) -> list[Any]:
        """Exchange lists of one value for each rank; return the values that all ranks have for this one."""
        self.synchronize("alltoall")
        with self.watching("alltoall") as comm:
            return comm.alltoall(values)

    # These have no header, for loops in which all ranks take the same branch and every microsecond counts.

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Add up the numbers of all ranks, in place."""
        with self.watchdog.watching("a sum over all ranks"):
            self.comm.Allreduce(MPI.IN_PLACE, values)
        return values

    def start_sum(self, values: np.ndarray, sums: np.ndarray) -> MPI.Request:
        """Start adding up the numbers of all ranks; `end_sum` waits for the result."""
        with self.watchdog.watching("the start of a sum over all ranks"):
            return self.comm.Iallreduce(values, sums)

    def end_sum(self, request: MPI.Request) -> None:
        """Wait for the sums that `start_sum` has started."""
        with self.watchdog.watching("a sum over all ranks"):
            request.Wait()

    def abandon(self) -> None:
        """End this rank's part without a last header, because all ranks know that one has left (local)."""
        if not self.closed:
            departure.leave(self._member)
            self.drop()
            self.watchdog.close()
