"""Whole calls: short calls of a pipeline that are always the same, made by compiled code.

Interpreting the steps of such a call would take longer than the steps themselves. The ranks exchange the same messages
as in the pipeline's call (header, operations, agreement), so another rank may make the call through its pipeline. As
long as nothing fails, compiled code (`overlap.fft.engine.compiled_call`) does everything. It shares two arrays of words
with this module: the MPI library's functions and handles, and the state of the call. If it stops early, this module
issues the operations for which the other ranks still wait, and agrees with them on an error.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ...lowlevel.mpi import handle_of, mpi_function
from ..coordinator.hot_wait import LONGEST_SLEEP_S, SHORTEST_SLEEP_S
from ..coordinator.rendezvous import agreement_word, header_word
from ..requests.agreement import AGREEMENT, Agreements
from ..requests.operations import Operation, label_of
from .host import ARGUMENT_ERRORS, issue

if TYPE_CHECKING:
    from ..coordinator.coordinator import Coordinator
    from ..coordinator.header import Header
    from ..coordinator.rendezvous import Rendezvous
    from ..load import Load
    from .executor import Executor
    from .job import Job
    from .waiting import Waiting

# Words of the state.
BUSY, AGREES, PHASE, SINCE, STEP, STARTED, CODE, BEGAN, WAITED, ENDED, REQUEST = range(11)
NUMBERS, SUMS, CLOCK, FLAG = 11, 14, 17, 19  # three of a header; three of an agreement; two; MPI's status
STAMPS = 32  # address of the times at which the rows have ended; 0: no trace
OUTCOME = 33  # how the call has ended
LOADS, WORDS = 34, 36  # addresses of two loads, which count a call that ends without an error
IDLE, ENTERING, WAITING = range(3)  # phases: no wait for MPI, at the header, for an operation
# Words of the table of MPI: functions, handles, whether exchanges are nonblocking and polled, for how long without
# sleep, the address of the rendezvous' state (0: no board), and the numbers reduced at the beginning and at the end.
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
    HOT_NS,
    IPROBE,
    ANY_SOURCE,
    ANY_TAG,
    RENDEZVOUS,
    HEADER_WORD,
    AGREEMENT_WORD,
    REDUCED,  # six words: three of the header, three of the agreement
) = range(20)
# How a call has ended: without an error; another thread is in it; according to the header some rank has failed or makes
# another call; MPI has rejected an operation; according to the agreement some rank has failed or has issued other
# operations; or the other ranks know already what has failed.
OVER, BUSY_ELSEWHERE, UNLIKE, REFUSED, FAILED, CONCLUDED = range(6)
UNFINISHED = UNLIKE, REFUSED, FAILED
SHORTEST_SLEEP_US, LONGEST_SLEEP_US = int(SHORTEST_SLEEP_S * 1e6), int(LONGEST_SLEEP_S * 1e6)


class WholeCall:
    """A whole call, which can be made any number of times.

    Parameters
    ----------
    executor : Executor
    coordinator : Coordinator
    header : Header or None
        None: there are no other ranks.
    operations : sequence of (int, object, Operation)
        The operations to issue, each with the index of its step and its slice, on buffers of its own.
    wait : str
        ``"poll"``: nonblocking MPI calls; else blocking ones.
    loads : tuple of Load
        The loads of the pipeline and of the runtime, which count the call if it ends without an error.
    traced : sequence of (str, str), optional
        The kind and label of every row, to be traced.

    Attributes
    ----------
    mpi, state : ndarray of int64
        For compiled code.
    kept : object
        Keeps alive what MPI reads.
    """

    def __init__(
        self,
        executor: Executor,
        coordinator: Coordinator,
        header: Header | None,
        operations: Sequence[tuple[int, Any, Operation]],
        wait: str,
        loads: tuple[Load, Load],
        traced: Sequence[tuple[str, str]] | None,
    ) -> None:
        self._executor, self._coordinator = executor, coordinator
        self._operations, self.wait = operations, wait
        self.header = header
        self.kept: Any = None
        # An array beside the ndarray, because Python reads single words of it much faster.
        self._words = array("q", bytes(8 * WORDS))
        self.state = np.frombuffer(self._words, np.int64)
        self._loads = loads
        for place, load in enumerate(loads, LOADS):
            self._words[place] = load.words.buffer_info()[0]
        self._traced = traced
        if traced is not None:
            self._stamps = array("q", bytes(8 * len(traced)))
            self.state[STAMPS] = self._stamps.buffer_info()[0]
        self.mpi = np.zeros(0, np.int64)
        if header is not None:
            self.state[AGREES] = 1
            sums = self._noted(None).summands(False)
            numbers = array("q", (True, header.signature, -header.signature))
            self.mpi = _table(coordinator.rendezvous, wait == "poll", numbers, sums)
            coordinator.watchdog.watch(self)

    @property
    def numbers(self) -> list[int]:
        """Return the numbers to which the header has reduced those of all ranks.

        Raises
        ------
        MPI.Exception
            The reduction has failed.
        """
        if self.state[PHASE] == ENTERING:
            self.state[PHASE] = IDLE
            assert self.header is not None
            raise self._coordinator.failed(MPI.Exception(int(self.state[CODE])), self.header.call)
        return list(map(int, self.state[NUMBERS:SUMS]))

    def conclude(self, job: Job, waiting: Waiting) -> Exception | None:
        """Issue the operations that the other ranks wait for after compiled code has stopped, and agree on an error.

        Parameters
        ----------
        job : Job
            Without slices.
        waiting : Waiting

        Returns
        -------
        Exception or None
            The error of all ranks.
        """
        state = self.state
        agreements = self._noted(waiting)
        sums = array("Q", state[SUMS : SUMS + 3].view(np.uint64).tolist())
        if state[CODE]:
            self._refused(job, waiting, MPI.Exception(int(state[CODE])))
            sums[0] = 1
            agreements.total(sums)
        return self._executor.conclude(job, waiting, agreements, agreements.judged(sums, agreements.issued))

    def _refused(self, job: Job, waiting: Waiting, error: MPI.Exception) -> None:
        """Issue the operations from the rejected one on, which is left out if MPI may have sent it."""
        step, begun = int(self.state[STEP]), bool(self.state[STARTED])
        left = [(key, operation) for number, key, operation in self._operations if number >= step]
        guard = self._coordinator.guard
        if guard is not None and (lost := guard.loss(error, label_of(*left[0][::-1]) if left else AGREEMENT)):
            raise lost from error
        if not left:
            raise error  # the agreement itself has failed
        job.issued = len(self._operations) - len(left)
        job.fail(left[0][0], error)
        if begun or error.Get_error_class() not in ARGUMENT_ERRORS:
            left = left[1:]
        for key, operation in left:
            # As on the other ranks: blocking and nonblocking collectives do not match each other.
            problem, blocking = None, self.wait != "poll"
            try:
                with waiting.watched(label := label_of(operation, key)):
                    problem = issue(operation, blocking)
                if not blocking:
                    waiting.wait(operation.requests[0], label)
            except MPI.Exception as failure:
                problem = failure
            operation.requests = []
            if problem is not None:
                job.fail(key, problem)

    def _noted(self, waiting: Any) -> Agreements:
        """Make `Agreements` in which the call's operations are noted."""
        agreements = Agreements(self._executor.coordinator, waiting, self._executor.rendezvous)
        for _, _, operation in self._operations:
            agreements.note(operation)
        return agreements

    @property
    def outcome(self) -> int:
        """Return how the last call has ended: OVER, ..."""
        return self._words[OUTCOME]

    @outcome.setter
    def outcome(self, outcome: int) -> None:
        self._words[OUTCOME] = outcome

    def spans(self) -> Iterator[tuple[str, str, float, float]]:
        """Yield the spans of the last call: kind, label, start and end in seconds."""
        started = self._words[BEGAN]
        for (kind, label), ended in zip(self._traced or (), self._stamps if self._traced else ()):
            yield kind, label, started * 1e-9, ended * 1e-9
            started = ended

    def under_way(self) -> tuple[bool, str, float] | None:
        """Return, for the watchdog, whether the call waits at a header, for what it waits, and since when.

        None: it does not wait.
        """
        phase, since, step = map(int, self.state[PHASE : STEP + 1])
        if phase == IDLE:
            return None
        if phase == ENTERING:
            assert self.header is not None
            return not self._coordinator.nested, self.header.call, since * 1e-9
        labels = (label_of(operation, key) for number, key, operation in self._operations if number == step)
        return False, next(labels, AGREEMENT), since * 1e-9


def _table(rendezvous: Rendezvous, polls: bool, numbers: Sequence[int], sums: Sequence[int]) -> np.ndarray:
    """Return the table of MPI: its functions and handles as words, and the numbers that are reduced."""
    words = [
        *map(mpi_function, ("Allreduce", "Iallreduce", "Alltoallv", "Ialltoallv", "Test")),
        *map(handle_of, (rendezvous.comm, MPI.LONG_LONG, MPI.UNSIGNED_LONG_LONG, MPI.MIN, MPI.SUM)),
        int(MPI.IN_PLACE),
        polls,
        int(rendezvous.hot_s * 1e9),
        mpi_function("Iprobe"),
        MPI.ANY_SOURCE,
        MPI.ANY_TAG,
        rendezvous.state.buffer_info()[0] if rendezvous.has_board else 0,
        header_word(numbers),
        agreement_word(sums),
        *numbers,
        *sums,
    ]
    return np.array([word % 2**64 for word in words], np.uint64).view(np.int64)
