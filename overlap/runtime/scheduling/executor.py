"""The executor: issues the MPI operations of a pipeline in an order that needs no messages.

Issue order. MPI matches collectives by call order, so the order must be a pure function of the
program. The issuing thread visits the slots in a fixed rotation; at each visit it takes the slot's
next item, waiting for its step if need be. A slot at its end leaves the rotation; slots at a
barrier leave it together until the last one has arrived.

Agreement. A rank on which a slice failed keeps issuing what the others wait for (`Slot` drains),
until all ranks have agreed that one of them failed. The agreement is a nonblocking reduction every so many
operations, looked at one interval later, when it has long arrived; and one at the end. All ranks see
the same at the same place in the issue order.

The end after a failure. From there on no slice begins, and each that has issued an operation drains to its
end, so that what matches within a slice has matched on all ranks, and nothing is left on the communicators.
A program that sends and receives by separate calls is drained to the end of all slices: there a message may go
from one slice to another. Where something is left all the same (while learning, or by an operation that only
some ranks could start), all ranks see that and take new communicators.

Learning. A program without a `skeleton` shows with its first slice what slices await (`learning`). Until
this has ended, every item is agreed on before it is issued, and every operation is known to have started
on all ranks before any rank waits for it. If a rank fails in that time, all stop at once.
"""

from __future__ import annotations

import pickle
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ...errors import CommunicatorsExhausted, RankLost, SliceError
from ..requests.agreement import Agreements
from ..requests.operations import Pending, Persistent, Start
from ..requests.requests import TakeTurn
from .blocking import Blocking
from .host import HOST, Host, NotIssued, try_start
from .polling import Polling
from .slots import AT_BARRIER, END, FAILED, Slot
from .waiting import Waiting

if TYPE_CHECKING:
    from ...losses import Guard
    from ..coordinator.rendezvous import Rendezvous
    from .job import Job
    from .ready_steps import ReadySteps

COMMUNICATORS_LEFT_BEHIND = 500  # at most, by one process: MPI libraries have about 2,000 of them
_left_behind = 0
_NEVER = np.iinfo(np.int64).max


class Executor:
    """Issues the operations of one job at a time.

    Parameters
    ----------
    coordinator : mpi4py.MPI.Comm
        Carries the agreements and nothing else, so that they always match.
    comms : list of AsyncComm
        All communicators that programs may use.
    outstanding : dict
        What MPI has not finished yet, to its start (`time.perf_counter`); read by the watchdog.
    agree_every : int
        Operations between two agreements.
    host : Host
    rendezvous : Rendezvous or None
        Where the ranks of `coordinator` meet.
    guard : Guard or None
        That of `coordinator` and `comms`.
    """

    def __init__(
        self,
        coordinator: Any,
        comms: list[Any],
        outstanding: dict[Any, float],
        agree_every: int,
        host: Host = HOST,
        rendezvous: Rendezvous | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.coordinator = coordinator
        self.comms = comms
        self.outstanding = outstanding
        self.agree_every = agree_every
        self.lock = RLock()  # of the job that runs
        self._host, self.rendezvous, self._guard = host, rendezvous, guard
        self._abandoned: list[Any] = []  # requests that may never complete: MPI may still read their buffers
        self._exhausted: str | None = None  # why no job can be run any more
        self._job: Any = None
        self._waiting: Any = None
        self._agreements: Any = None

    def waiting(
        self, wait: str, job: Job, workers: ReadySteps | None, in_flight: int, polls: int, here: bool = False
    ) -> Waiting:
        """Make the way to wait called `wait`: ``"off"``, ``"block"`` or ``"poll"``; the others as of `Waiting`."""
        way = Polling if wait == "poll" else Blocking
        return way(job, self.outstanding, workers, here, in_flight, polls, self._host, self._guard)

    def run(self, job: Job, waiting: Waiting) -> Exception | None:
        """Issue all operations of `job`; returns the error of all ranks, or None.

        Raises
        ------
        RankLost
            No other rank hears of this one any more.
        """
        clock = self._host.clock
        started = clock()
        agreements = Agreements(self.coordinator, waiting, self.rendezvous)
        try:
            if not self._begin(job, waiting, agreements):
                return CommunicatorsExhausted(self._exhausted)
            job.slots = [Slot(job, index) for index in range(min(job.depth, job.slices))]
            if not self._issue_all():
                self._cut()
            self._is_well(agreements.ended())  # the last one may still be under way
            problem = agreements.at_once(job.failure is not None)
            if job.timed:
                job.computing_s = sum(slot.computing_s for slot in job.slots)
            else:
                job.computing_s = clock() - started - waiting.waited_s
            return self._outcome(problem)
        except (MPI.Exception, RankLost) as error:
            lost = None if self._guard is None else self._guard.loss(error, "a pipeline")
            if lost is None:
                raise
            self._let_go(job, waiting)
            raise lost from (None if lost is error else error)
        finally:
            self._forget(job)

    def conclude(self, job: Job, waiting: Waiting, agreements: Agreements, problem: str | None) -> Exception | None:
        """End a job whose last agreement has found a `problem` (see `Agreements.ended`): the error of all ranks."""
        try:
            if not self._begin(job, waiting, agreements):
                return CommunicatorsExhausted(self._exhausted)
            return self._outcome(problem)
        finally:
            self._forget(job)

    def _begin(self, job: Job, waiting: Waiting, agreements: Agreements) -> bool:
        """Take up a job; False if none can be run any more."""
        self._job, self._waiting, self._agreements = job, waiting, agreements
        self._stopping = False  # all ranks know of a failure
        self._ending = False  # no slice begins any more, on any rank
        self._dirty = False  # something is left on the communicators
        if self._abandoned:
            self._abandoned = [request for request in self._abandoned if not _is_over(request)]
        return self._exhausted is None

    def _forget(self, job: Job) -> None:
        job.release()
        self._job = self._waiting = self._agreements = None

    # ---- the rotation ------------------------------------------------------------------------

    def _issue_all(self) -> bool:
        """Run the rotation. False if the ranks agreed to stop at once."""
        job, waiting = self._job, self._waiting
        rotation, issued = job.slots, 0
        parked: list[Slot] = []
        unknown = job.skeleton is None  # at first: then every item is looked at
        for slot in rotation:
            waiting.resume(slot)
        while rotation or parked:
            if not rotation:  # the last slot has arrived at the barrier
                rotation = sorted(parked, key=lambda slot: slot.index)
                parked = []
                for slot in rotation:
                    slot.release_barrier()
                    waiting.resume(slot)
            visited, rotation = rotation, []
            for slot in visited:
                item = waiting.take(slot)
                if (self._ending or unknown) and (item := self._taken(slot, item)) is None:
                    return False
                if item is END:
                    slot.over = True
                    continue
                if item is AT_BARRIER:
                    parked.append(slot)
                    slot.taken += 1
                    continue
                rotation.append(slot)
                slot.current.begun = True
                slot.taken += 1
                issued += 1
                job.issued = issued  # before its result can be used by any slice
                if not self._issue(slot, item):
                    return False
                agreeing = issued % self.agree_every == 0 and not self._stopping
                if agreeing and not self._agree(self._agreements.ended()):
                    return False
        self._finish()
        return True

    def _agree(self, problem: str | None) -> bool:
        """Begin the next agreement after one that has ended; False if all ranks stop at once."""
        if self._is_well(problem):
            self._agreements.start(self._job.failure is not None)
            return True
        if self._dirty:
            return False
        self._stopping = True
        self._ending = not self._agreements.messages
        self._job.stop(closing=self._ending)
        return True

    def _is_well(self, problem: str | None) -> bool:
        """Tell whether all ranks are well, as an agreement has found."""
        if problem:
            self._differ(problem)
        return problem is None

    def _differ(self, problem: str) -> None:
        """Note that the ranks have issued different operations: these may not have matched."""
        self._job.fail(None, RuntimeError(problem))
        self._dirty = True

    def _taken(self, slot: Slot, item: Any) -> Any:
        """Look at a slot's next item, where that may not simply be issued.

        Returns
        -------
        object or None
            The item that comes instead, if no slice begins any more. None: while learning, some rank failed.
        """
        job, waiting = self._job, self._waiting
        while self._ending and not (item is END or item is AT_BARRIER or slot.current.begun):
            slot.drop()
            waiting.resume(slot)
            item = waiting.take(slot)
        if job.skeleton is None:
            learned = job.recorded is not None and slot.index == 0 and job.first_ended and not job.stopping
            if not self._same_everywhere(item, learned):
                return None
            if learned:
                job.learned()
                for other in job.slots:
                    if other.over:
                        self._check(other)
        if job.recorded is not None and job.skeleton is not None and not slot.known:
            # What its slices did before may have been wrong on some ranks only, or may not show yet.
            self._check(slot)
            if not self._same_everywhere(item, False):
                return None
        return item

    def _same_everywhere(self, item: Any, learned: bool) -> bool:
        """While learning: whether no rank has failed, and all are about to do the same."""
        job = self._job
        problem = self._agreements.same(not job.stopping and item is not FAILED, item, learned)
        if problem:
            job.fail(None, RuntimeError(problem))
        return problem is None

    def _check(self, slot: Slot) -> None:
        """Hold a slot's slices to the program from now on, and what they awaited before that too."""
        for run, error in self._job.recorded.problems(slot.unchecked):
            self._job.fail(run.key, error)
        slot.unchecked.clear()
        slot.known = True

    def _drained(self, slot: Slot, error: BaseException) -> Any:
        """In place of a slice's last request, what the other ranks issue: from its skeleton."""
        run = slot.current
        run.error = error
        run.awaited -= 1
        self._job.issued -= 1  # it is issued on scratch: what this does elsewhere comes after the failure
        self._job.fail(run.key, error)
        self._job.issued += 1
        self._waiting.resume(slot)
        return self._waiting.take(slot)

    def _issue(self, slot: Slot, operation: Any) -> bool:
        """Issue one operation; False if, while learning, it did not start on all ranks."""
        job, waiting = self._job, self._waiting
        kind = type(operation)
        if kind is TakeTurn:
            waiting.completed(slot)
            return True
        if kind is Pending:
            waiting.wait_pending(slot, operation)
            return True
        if job.skeleton is None:
            return self._start_on_all(slot, operation)
        while True:
            try:
                if type(operation) is Start:
                    waiting.start(slot, operation.operation)
                    operation = operation.operation
                else:
                    waiting.issue(slot, operation)
                break
            except NotIssued as refusal:
                error = refusal.__cause__
                assert error is not None
                # The others issue it: so must this rank, on buffers from the skeleton.
                if slot.current.draining:
                    raise error  # noqa: B904 (the user's error, with a cause of its own)
                operation = self._drained(slot, error)
        self._agreements.note(operation)
        return True

    def _start_on_all(self, slot: Slot, operation: Any) -> bool:
        """While learning: start an operation; False if it did not start on all ranks."""
        job, waiting = self._job, self._waiting
        track = waiting.track
        if type(operation) is Start:
            operation, track = operation.operation, waiting.track_pending
        else:
            waiting.make_room()
        if type(operation) is Persistent:
            waiting.wait_unused(operation)
        requests, error = try_start(operation)
        if error is not None:
            job.fail(slot.current.key, error)
        started = self._agreements.sum([len(requests)])[0]
        if started < self.coordinator.size:
            if started:  # it can never complete
                self._abandoned += requests
                self._dirty = True
            return False
        self._agreements.note(operation)
        track(slot, operation, requests[0])
        return True

    # ---- the end -----------------------------------------------------------------------------

    def _let_go(self, job: Job, waiting: Waiting) -> None:
        """End a job here: a rank is lost. Workers leave its slots, and what is under way in MPI is kept."""
        waiting.stopped = True
        self._abandoned += waiting.let_go()
        job.lock_gates()
        job.stop(closing=True)
        waiting.quiet()
        for slot in job.slots:
            slot.close()

    def _cut(self) -> None:
        """All ranks stop here: let what is under way end, and drop the rest."""
        job, waiting = self._job, self._waiting
        job.lock_gates()
        job.stop(closing=True)
        waiting.stopped = self._stopping = True
        self._finish()
        waiting.quiet()
        for slot in job.slots:
            slot.close()

    def _finish(self) -> None:
        """Let what is under way end, but for messages that nobody will receive."""
        if self._stopping and self._agreements.sum([self._agreements.unmatched])[0]:
            self._leave_behind()
        if self._waiting.forgotten():
            self._leave_behind()
        self._waiting.finish()

    def _leave_behind(self) -> None:
        """Messages are left that nobody will receive."""
        self._dirty = True
        self._abandoned += self._waiting.abandon()

    def _outcome(self, problem: str | None) -> Exception | None:
        """Return the same error on all ranks, or None if the job has ended well on all."""
        job, rank, size = self._job, self.coordinator.rank, self.coordinator.size
        if problem is None:
            return None
        if problem:
            self._differ(problem)
        # The first cause, not what its scratch values have caused elsewhere: see `Failure.issued`.
        origin = self._least(job.failure.issued * size + rank if job.failure is not None else _NEVER) % size
        text = b""
        if rank == origin:
            failure = job.failure
            text = pickle.dumps((failure.place, rank, failure.key, failure.summary, failure.traceback_text))
        with self._waiting.watched("the report of what failed"):
            length = np.array([len(text)], dtype=np.int64)
            self.coordinator.Bcast(length, root=origin)
            data = np.frombuffer(text, dtype=np.uint8).copy() if rank == origin else np.empty(length[0], dtype=np.uint8)
            self.coordinator.Bcast(data, root=origin)
        place, *told = pickle.loads(data.tobytes())
        error = SliceError(*told)
        own = job.failure
        job.failed_itself = own is not None and (rank == origin or (place is not None and own.place == place))
        dirty = self._dirty or any(comm.broken for comm in self.comms)
        if self._agreements.sum([dirty])[0] and not self._renew(error):
            return CommunicatorsExhausted(self._exhausted)
        return error

    def _renew(self, error: Exception) -> bool:
        """Take new communicators for those on which something is left; False if there are too few."""
        global _left_behind
        left_behind = -self._least(-_left_behind) + len(self.comms)
        if left_behind > COMMUNICATORS_LEFT_BEHIND:
            self._exhausted = (
                "expected failures that leave no messages behind on the communicators, received so many that do: "
                f"{left_behind - len(self.comms)} communicators had to be replaced, of about 2,000 that MPI has; "
                f"this runtime can only be closed. The last failure was: {error}"
            )
            return False
        _left_behind = left_behind
        with self._waiting.watched("new communicators on all ranks"):
            for comm in self.comms:
                comm.renew()
        return True

    def _least(self, value: int) -> int:
        least = np.array([value], dtype=np.int64)
        self._waiting.reduced(self.coordinator, least, MPI.MIN)
        return int(least[0])


def _is_over(request: Any) -> bool:
    """Tell whether MPI has finished with a request, so that its buffers may go."""
    try:
        return request.Test()
    except MPI.Exception:
        return True
