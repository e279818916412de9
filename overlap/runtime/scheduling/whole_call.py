"""Whole calls: short ones that do the same every time, which compiled code makes.

To find out anew what such a call does would take longer than to do it. On the wire it is the pipeline's call: the same
header, operations and agreement, so other ranks may have come to it through their pipeline. Compiled code
(`overlap.fft.engine.recorded`) does all of it as long as all goes well. It shares two arrays of words with this module:
the MPI library's functions and handles, and the state of the call. Where it stops, this module goes on: it issues what
the other ranks still wait for, and agrees with them on an error.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ...lowlevel.mpi import handle_of, mpi_function
from ..requests.agreement import Agreements
from ..requests.operations import Operation
from .straight import StraightPath, _pause
from .waiting import ARGUMENT_ERRORS, HOT_S, LONGEST_SLEEP_S, SHORTEST_SLEEP_S, Label, made, wait_for

if TYPE_CHECKING:
    from ..control.control import Control
    from ..control.header import Header
    from .job import Job
    from .scheduler import Scheduler
    from .waiting import Waiting

# Words of a state.
BUSY, AGREES, PHASE, SINCE, STEP, STARTED, CODE, BEGAN, WAITED, ENDED, REQUEST = range(11)
NUMBERS, SUMS, CLOCK, FLAG, WORDS = 11, 14, 17, 19, 32  # three of a header; three of an agreement; two; MPI's status
IDLE, ENTERING, WAITING = range(3)  # phases: MPI is waited for at the header, or for what was issued
# Words of a table of MPI: functions, handles, and whether exchanges are started and polled for.
(
    ALLREDUCE,
    IALLREDUCE,
    ALLTOALLV,
    IALLTOALLV,
    TEST,
    CONTROL,
    SIGNED,
    UNSIGNED,
    MIN,
    SUM,
    IN_PLACE,
    POLLS,
) = range(12)
# How a call has ended: well; another thread is in it; the header tells that some rank is not well, or wants something
# else; MPI has refused something; the agreement tells that some rank has failed, or has issued something else.
OVER, BUSY_ELSEWHERE, UNLIKE, REFUSED, FAILED = range(5)
HOT_NS = int(HOT_S * 1e9)
SHORTEST_SLEEP_US, LONGEST_SLEEP_US = int(SHORTEST_SLEEP_S * 1e6), int(LONGEST_SLEEP_S * 1e6)


class WholeCall:
    """One call, which can be made again and again.

    Parameters
    ----------
    scheduler : Scheduler
    control : Control
    header : Header or None
        None: there are no other ranks.
    operations : sequence of (int, object, Operation)
        What is issued: each with the number of its step and its slice, on buffers of its own.
    in_flight : int
        0: blocking MPI calls; else nonblocking ones, as of `StraightPath`.
    job : callable
        Makes a `Job` without slices, and its way to wait: to agree on an error.

    Attributes
    ----------
    mpi, state : ndarray of int64
        For compiled code.
    kept : object
        What MPI reads, besides.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        control: Control,
        header: Header | None,
        operations: Sequence[tuple[int, Any, Operation]],
        in_flight: int,
        job: Callable[[], tuple[Job, Waiting]],
    ) -> None:
        self._scheduler, self._control = scheduler, control
        self._operations, self._in_flight, self._make_job = operations, in_flight, job
        self.header = header
        self.kept: Any = None
        self._words = array("q", bytes(8 * WORDS))  # Python reads single words of it much faster than of an ndarray
        self.state = np.frombuffer(self._words, np.int64)
        self.mpi = np.zeros(0, np.int64)
        if header is not None:
            self.mpi = _table(scheduler.control, in_flight > 0)
            self.state[AGREES] = 1
            sums = self.rest().noted().summands(False)
            numbers = array("q", (True, header.signature, -header.signature))
            self._told = np.concatenate([np.array(numbers), np.array(sums).view(np.int64)])
            control.watchdog.watch(self)

    @property
    def numbers(self) -> list[int]:
        """What the header has reduced them to.

        Raises
        ------
        MPI.Exception
            MPI could not.
        """
        if self.state[PHASE] == ENTERING:
            self.state[PHASE] = IDLE
            raise self._control.mark(MPI.Exception(int(self.state[CODE])))
        return list(map(int, self.state[NUMBERS:SUMS]))

    def rest(self) -> _Rest:
        """Make what goes on where compiled code has stopped."""
        return _Rest(self._scheduler, self._operations, self._in_flight, self._make_job, self.state)

    def make(self, execute: Callable[..., int], arguments: tuple[Any, ...]) -> int:
        """Have compiled code make the call on several ranks; how it has ended.

        The caller holds signals, and knows that nobody else is in MPI.
        """
        self.state[NUMBERS : SUMS + 3] = self._told
        return execute(*arguments)

    def under_way(self) -> tuple[bool, str, float] | None:
        """Tell the watchdog whether it waits at the header of a public call, for what, and since when.

        None: it does not wait.
        """
        phase, since, step = map(int, self.state[PHASE : STEP + 1])
        if phase == IDLE:
            return None
        if phase == ENTERING:
            assert self.header is not None
            return not self._control.nested, self.header.call, since * 1e-9
        labels = (str(Label(operation, key)) for number, key, operation in self._operations if number == step)
        return False, next(labels, "agreement of all ranks"), since * 1e-9

    @property
    def took_s(self) -> tuple[float, float]:
        """How long the last call has taken since all ranks had come to it, and how much of that it has computed."""
        began, waited, ended = self._words[BEGAN : ENDED + 1]
        return (ended - began) * 1e-9, (ended - began - waited) * 1e-9


class _Rest(StraightPath):
    """The rest of a call that compiled code has left: an error on all ranks."""

    def __init__(self, scheduler, operations, in_flight, job, state):
        super().__init__(scheduler, [], None, [], in_flight, False, job)
        self._operations, self._state = operations, state

    def noted(self):
        """Agreements that know what the call issues."""
        agreements = Agreements(self._scheduler.control, self)
        for _, _, operation in self._operations:
            agreements.note(operation)
        return agreements

    def run(self):
        """Issue what the other ranks wait for, if anything, and agree; returns the error of all ranks."""
        state = self._state
        sums = array("Q", state[SUMS : SUMS + 3].view(np.uint64).tolist())
        if state[CODE]:
            self._refused(MPI.Exception(int(state[CODE])), int(state[STEP]), bool(state[STARTED]))
            sums[0] = 1
            self.reduced(self._scheduler.control, sums, MPI.SUM)
        agreements = self.noted()
        self._problem, self._over = agreements.judged(sums, agreements.issued), True
        return self._leave(agreements, [])

    def _refused(self, error, step, begun):
        """MPI has refused the operation of a step: issue it, unless MPI had it, and those that follow."""
        left = [(key, operation) for number, key, operation in self._operations if number >= step]
        if not left:
            raise error  # the agreement itself
        self._issued = len(self._operations) - len(left)
        self.fail(left[0][0], error)
        if begun or error.Get_error_class() not in ARGUMENT_ERRORS:
            left = left[1:]
        for key, operation in left:
            self._watched(Label(operation, key), self._made, key, operation)

    def _made(self, key, operation):
        try:
            error = made(operation, not self._in_flight)
            if self._in_flight and operation.made:
                wait_for(operation.made[0].Test, _pause)
        except MPI.Exception as failure:
            error = failure
        operation.made = []
        if error is not None:
            self.fail(key, error)


def _table(control: MPI.Comm, polls: bool) -> np.ndarray:
    """List the MPI library's functions and handles as words."""
    words = [
        *map(mpi_function, ("Allreduce", "Iallreduce", "Alltoallv", "Ialltoallv", "Test")),
        *map(handle_of, (control, MPI.LONG_LONG, MPI.UNSIGNED_LONG_LONG, MPI.MIN, MPI.SUM)),
        int(MPI.IN_PLACE),
        polls,
    ]
    return np.array([word % 2**64 for word in words], np.uint64).view(np.int64)
