"""Whole calls: short ones that do the same every time, which compiled code makes.

To find out anew what such a call does would take longer than to do it. On the wire it is the pipeline's call: the same
header, operations and agreement, so other ranks may have come to it through their pipeline. Compiled code
(`overlap.fft.engine.compiled_call`) does all of it as long as all goes well. It shares two arrays of words with this
module: the MPI library's functions and handles, and the state of the call. Where it stops, this module goes on: it
issues what the other ranks still wait for, and agrees with them on an error.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ...lowlevel.mpi import handle_of, mpi_function
from ..coordinator.hot_wait import HOT_S, LONGEST_SLEEP_S, SHORTEST_SLEEP_S
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

# Words of a state.
BUSY, AGREES, PHASE, SINCE, STEP, STARTED, CODE, BEGAN, WAITED, ENDED, REQUEST = range(11)
NUMBERS, SUMS, CLOCK, FLAG = 11, 14, 17, 19  # three of a header; three of an agreement; two; MPI's status
STAMPS = 32  # where the times stand at which the rows have ended; 0: nobody wants to know
OUTCOME = 33  # how it has ended
LOADS, WORDS = 34, 36  # where two loads stand, in which a call that ends well is counted
IDLE, ENTERING, WAITING = range(3)  # phases: MPI is waited for at the header, or for what was issued
# Words of a table of MPI: functions, handles, and whether exchanges are started and polled for; where the state of the
# ranks' meeting is, 0 if they have no board, and what is written there at the beginning and at the end.
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
    IPROBE,
    ANY_SOURCE,
    ANY_TAG,
    MEETING,
    HEADER_WORD,
    AGREEMENT_WORD,
    TOLD,  # six words: three of the header, three of the agreement
) = range(19)
# How a call has ended: well; another thread is in it; the header tells that some rank is not well, or wants something
# else; MPI has refused something; the agreement tells that some rank has failed, or has issued something else. Or the
# other ranks know what has failed.
OVER, BUSY_ELSEWHERE, UNLIKE, REFUSED, FAILED, CONCLUDED = range(6)
UNFINISHED = UNLIKE, REFUSED, FAILED
HOT_NS = int(HOT_S * 1e9)
SHORTEST_SLEEP_US, LONGEST_SLEEP_US = int(SHORTEST_SLEEP_S * 1e6), int(LONGEST_SLEEP_S * 1e6)


class WholeCall:
    """One call, which can be made again and again.

    Parameters
    ----------
    executor : Executor
    coordinator : Coordinator
    header : Header or None
        None: there are no other ranks.
    operations : sequence of (int, object, Operation)
        What is issued: each with the number of its step and its slice, on buffers of its own.
    wait : str
        ``"poll"``: nonblocking MPI calls; else blocking ones.
    loads : tuple of Load
        Count it when it has ended well: that of the pipeline, and that of the runtime.
    traced : sequence of (str, str), optional
        The kind and label of every row: their times are wanted.

    Attributes
    ----------
    mpi, state : ndarray of int64
        For compiled code.
    kept : object
        What MPI reads, besides.
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
        self._words = array("q", bytes(8 * WORDS))  # Python reads single words of it much faster than of an ndarray
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
        """Tell what the header has reduced them to.

        Raises
        ------
        MPI.Exception
            MPI could not.
        """
        if self.state[PHASE] == ENTERING:
            self.state[PHASE] = IDLE
            assert self.header is not None
            raise self._coordinator.failed(MPI.Exception(int(self.state[CODE])), self.header.call)
        return list(map(int, self.state[NUMBERS:SUMS]))

    def conclude(self, job: Job, waiting: Waiting) -> Exception | None:
        """Go on where compiled code has stopped: issue what the other ranks wait for, and agree on an error with them.

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
        """MPI has refused the operation of a step: issue it, unless MPI had it, and those that follow."""
        step, begun = int(self.state[STEP]), bool(self.state[STARTED])
        left = [(key, operation) for number, key, operation in self._operations if number >= step]
        guard = self._coordinator.guard
        if guard is not None and (lost := guard.loss(error, label_of(*left[0][::-1]) if left else AGREEMENT)):
            raise lost from error
        if not left:
            raise error  # the agreement itself
        job.issued = len(self._operations) - len(left)
        job.fail(left[0][0], error)
        if begun or error.Get_error_class() not in ARGUMENT_ERRORS:
            left = left[1:]
        for key, operation in left:
            problem, blocking = None, self.wait != "poll"  # as the other ranks do: the two kinds do not match
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
        """Agreements that know what the call issues."""
        agreements = Agreements(self._executor.coordinator, waiting, self._executor.rendezvous)
        for _, _, operation in self._operations:
            agreements.note(operation)
        return agreements

    @property
    def outcome(self) -> int:
        """Tell how the last call has ended: OVER, ..."""
        return self._words[OUTCOME]

    @outcome.setter
    def outcome(self, outcome: int) -> None:
        self._words[OUTCOME] = outcome

    def spans(self) -> Iterator[tuple[str, str, float, float]]:
        """Yield what the last call has done: kind, label, start and end in seconds."""
        started = self._words[BEGAN]
        for (kind, label), ended in zip(self._traced or (), self._stamps if self._traced else ()):
            yield kind, label, started * 1e-9, ended * 1e-9
            started = ended

    def under_way(self) -> tuple[bool, str, float] | None:
        """Tell the watchdog whether it waits at the header of a public call, for what, and since when.

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
    """List the MPI library's functions and handles as words, and what is told at a meeting."""
    words = [
        *map(mpi_function, ("Allreduce", "Iallreduce", "Alltoallv", "Ialltoallv", "Test")),
        *map(handle_of, (rendezvous.comm, MPI.LONG_LONG, MPI.UNSIGNED_LONG_LONG, MPI.MIN, MPI.SUM)),
        int(MPI.IN_PLACE),
        polls,
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
