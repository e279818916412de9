"""The executor, which issues the MPI operations of a pipeline in an order that needs no messages.

Issue order. MPI matches collectives by the order of calls, so the order must be a pure function of the program. The
issuing thread visits the slots in a fixed rotation; at each visit it takes the slot's next item, and waits for the
slot's step if need be. A slot without further slices leaves the rotation; slots at a barrier leave it until the last
slot has arrived.

Agreement. A rank on which a slice has failed keeps issuing the operations that the others wait for (its slots drain),
until all ranks have agreed that one of them has failed. An agreement is a nonblocking reduction, started every
`agree_every` operations and completed one interval later, when its result has long arrived; the last one is made at the
end. All ranks get the same result at the same position in the issue order.

The end after a failure. From that position on no slice begins, and each slice that has issued an operation drains to
its end. So operations of one slice have matched on all ranks, and no message is left on the communicators. If a program
sends and receives by separate calls, all slices are drained, because a message may go from one slice to another. If a
message is left nevertheless (while learning, or by an operation that only some ranks could start), all ranks learn of
it and make new communicators.

Learning. If a program has no `skeleton`, the runtime learns from the first slice what slices await (`learning`). Until
that slice has ended, the ranks agree on every item of its slot before it is issued, and on every operation's start
before any rank waits for it. The other slices follow: they await nothing that the first slice has not awaited, so they
drain as far as it has come. If a rank has failed, all ranks stop at the first slice's next item.
"""

from __future__ import annotations

import pickle
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ...errors import CommunicatorsExhausted, RankLost, SliceError
from ..requests.agreement import Agreements
from ..requests.operations import Pending, Persistent, Start
from ..requests.requests import TakeTurn
from .host import HOST, Host, NotIssued, try_start
from .polling import Polling
from .slots import AT_BARRIER, END, FAILED, Slot, at_await
from .waiting import Blocking, Waiting

if TYPE_CHECKING:
    from ...ranks.losses import Guard
    from ...ranks.rendezvous import Rendezvous
    from .job import Job
    from .ready_steps import ReadySteps

COMMUNICATORS_LEFT_BEHIND = 500  # largest number that a process replaces: MPI libraries have about 2,000
_left_behind = 0
_NEVER = np.iinfo(np.int64).max


class Executor:
    """Issues the operations of one job at a time, with an agreement every `agree_every` of them.

    The communicator `coordinator` carries the agreements and nothing else, so that they always match; `comms` are all
    that programs may use. `outstanding` maps what MPI has not finished yet to its start (`time.perf_counter`); the
    watchdog reads it.
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
        self.lock = RLock()  # the lock of the job that runs
        self._host, self.rendezvous, self._guard = host, rendezvous, guard
        self._abandoned: list[Any] = []  # requests that may never complete: MPI may still read their buffers
        self._kept: list[object] = []  # calls with such requests
        self._exhausted: str | None = None  # why no job can be run any more
        self._job: Any = None
        self._waiting: Any = None
        self._agreements: Any = None

    def waiting(
        self, wait: str, job: Job, workers: ReadySteps | None, in_flight: int, polls: int, here: bool = False
    ) -> Waiting:
        """Make the way to wait named `wait`, ``"off"``, ``"block"`` or ``"poll"``, with the arguments of `Waiting`."""
        way = Polling if wait == "poll" else Blocking
        return way(job, self.outstanding, workers, here, in_flight, polls, self._host, self._guard)

    def run(self, job: Job, waiting: Waiting) -> Exception | None:
        """Issue all operations of `job`; return the error of all ranks, or None.

        Raises `RankLost` if a rank is lost, so that the ranks cannot agree on an error.
        """
        started = perf_counter()
        agreements = Agreements(self.coordinator, waiting, self.rendezvous, job.issued_before)
        self._job, self._waiting, self._agreements = job, waiting, agreements
        self._stopping = False  # all ranks know of a failure
        self._ending = False  # no slice begins any more, on any rank
        self._dirty = False  # messages are left on the communicators
        try:
            if self._abandoned:
                self._abandoned = [request for request in self._abandoned if not _is_over(request)]
            if self._exhausted is not None:
                return CommunicatorsExhausted(self._exhausted)
            job.slots = [Slot(job, index) for index in range(min(job.depth, job.slices))]
            if not self._issue_all():
                self._cut()
            self._none_failed(agreements.ended())  # the last agreement may still be under way
            problem = agreements.at_once(job.failure is not None)
            if job.timed:
                job.computing_s = sum(slot.computing_s for slot in job.slots)
            else:
                job.computing_s = perf_counter() - started - waiting.waited_s
            return self._outcome(problem)
        except (MPI.Exception, RankLost) as error:
            lost = None if self._guard is None else self._guard.loss(error, "a pipeline")
            if lost is None:
                raise
            self._cut(lost=True)
            raise lost from (None if lost is error else error)
        finally:
            job.release()
            self._job = self._waiting = self._agreements = None

    def keep(self, call: object) -> None:
        """Keep a call alive that a lost rank has ended: MPI may still read and write its memory."""
        self._kept.append(call)

    # ---- the rotation ------------------------------------------------------------------------

    def _issue_all(self) -> bool:
        """Run the rotation; return False if the ranks have agreed to stop at once."""
        job, waiting = self._job, self._waiting
        rotation, issued = job.slots, 0
        parked: list[Slot] = []
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
                if self._ending or job.skeleton is None or item is FAILED:
                    item = self._taken(slot, item)
                    if item is None:
                        return False
                if item is END:
                    continue
                if item is AT_BARRIER:
                    parked.append(slot)
                    slot.taken += 1
                    continue
                rotation.append(slot)
                slot.current.begun = True
                slot.taken += 1
                issued += 1
                job.issued = issued  # before any slice can use the operation's result
                if not self._issue(slot, item):
                    return False
                agreeing = issued % self.agree_every == 0 and not self._stopping
                if agreeing and not self._agree(self._agreements.ended()):
                    return False
        self._finish()
        return True

    def _agree(self, problem: str | None) -> bool:
        """Begin the next agreement after one that has ended; return False if all ranks stop at once."""
        if self._none_failed(problem):
            self._agreements.start(self._job.failure is not None)
            return True
        if self._dirty:
            return False
        self._stopping = True
        self._ending = not self._agreements.messages
        self._job.stop(closing=self._ending)
        return True

    def _none_failed(self, problem: str | None) -> bool:
        """Return whether, according to an agreement, no rank has failed."""
        if problem:
            self._differ(problem)
        return problem is None

    def _differ(self, problem: str) -> None:
        """Note that the ranks have issued different operations, which may not have matched."""
        self._job.fail(None, RuntimeError(problem))
        self._dirty = True

    def _taken(self, slot: Slot, item: Any) -> Any:
        """Return what to do with a slot's next item while learning or after a failure.

        That is the item, or the one that replaces it if no slice begins any more. None: some rank has failed while
        learning.
        """
        job, waiting = self._job, self._waiting
        while self._ending and not (item is END or item is AT_BARRIER or slot.current.begun):
            slot.drop()
            waiting.resume(slot)
            item = waiting.take(slot)
        if job.agrees_on(slot):
            learned = job.recorded is not None and job.recorded.complete and not job.stopping
            problem = self._agreements.same(not job.stopping and item is not FAILED, item, learned)
            if problem is not None:
                if problem:
                    job.fail(None, RuntimeError(problem))
                return None
            if learned:
                job.learned()
        elif item is FAILED:  # the first slice is ahead of this one now, so it is known how this one drains
            waiting.resume(slot)
            item = waiting.take(slot)
        return item

    def _drained(self, slot: Slot, error: BaseException) -> Any:
        """Return, from the skeleton, the request that the other ranks issue in place of a slice's last one."""
        run = slot.current
        run.error = at_await(error, run.source)
        run.awaited -= 1
        self._job.issued -= 1  # it is issued on scratch: failures that it causes elsewhere come after this one
        self._job.fail(run.key, error)
        self._job.issued += 1
        self._waiting.resume(slot)
        return self._waiting.take(slot)

    def _issue(self, slot: Slot, operation: Any) -> bool:
        """Issue one operation; return False if, while learning, it did not start on all ranks."""
        job, waiting = self._job, self._waiting
        kind = type(operation)
        if kind is TakeTurn or kind is Pending:
            job.record(slot.current, operation)
        if kind is TakeTurn:
            waiting.completed(slot)
            return True
        if kind is Pending:
            waiting.wait_pending(slot, operation)
            return True
        if job.agrees_on(slot):
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
                # MPI has rejected the call here. The other ranks issue it, so this rank issues an equivalent operation
                # on scratch buffers, from the skeleton, so that they do not block.
                if slot.current.draining:
                    raise error  # noqa: B904 (the user's error, with a cause of its own)
                operation = self._drained(slot, error)
        self._agreements.note(operation)
        return True

    def _start_on_all(self, slot: Slot, operation: Any) -> bool:
        """Start an operation while learning; return False if it did not start on all ranks."""
        job, waiting, awaited = self._job, self._waiting, operation
        track = waiting.track
        if type(operation) is Start:
            operation, track = operation.operation, waiting.track_pending
        else:
            waiting.make_room()
        if type(operation) is Persistent:
            waiting.wait_unused(operation)
        requests, error = try_start(operation)
        if error is not None:
            job.fail(slot.current.key, at_await(error, slot.current.source))
        started = self._agreements.sum([len(requests)])[0]
        if started < self.coordinator.size:
            if started:  # it can never complete
                self._abandoned += requests
                self._dirty = True
            return False
        self._agreements.note(operation)
        job.record(slot.current, awaited)
        track(slot, operation, requests[0])
        return True

    # ---- the end -----------------------------------------------------------------------------

    def _cut(self, lost: bool = False) -> None:
        """Stop at once, as all ranks do, or because a rank is `lost`; what cannot complete is kept and abandoned."""
        job, waiting = self._job, self._waiting
        waiting.stopped = self._stopping = True
        job.lock_gates()
        job.stop(closing=True)
        if lost:
            self._abandoned += waiting.forget()
        else:
            self._finish()
        waiting.quiet()
        for slot in job.slots:
            slot.close()

    def _finish(self) -> None:
        """Wait until everything under way has completed, except messages that no rank will receive."""
        if self._stopping and self._agreements.sum([self._agreements.unmatched])[0]:
            self._leave_behind()
        if self._waiting.forgotten():
            self._leave_behind()
        self._waiting.finish()

    def _leave_behind(self) -> None:
        """Abandon messages that no rank will receive."""
        self._dirty = True
        self._abandoned += self._waiting.abandon()

    def _outcome(self, problem: str | None) -> Exception | None:
        """Return the same error on all ranks, or None if no rank has failed."""
        job, rank, size = self._job, self.coordinator.rank, self.coordinator.size
        if problem is None:
            return None
        if problem:
            self._differ(problem)
        # The first cause, not a failure that a draining rank's scratch values have caused: see `Failure.issued`.
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
        place, *report = pickle.loads(data.tobytes())
        error = SliceError(*report)
        own = job.failure
        job.failed_itself = own is not None and (rank == origin or (place is not None and own.place == place))
        dirty = self._dirty or any(comm.broken for comm in self.comms)
        if self._agreements.sum([dirty])[0] and not self._renew(error):
            return CommunicatorsExhausted(self._exhausted)
        return error

    def _renew(self, error: Exception) -> bool:
        """Replace the communicators on which messages are left; return False if MPI has too few."""
        global _left_behind
        left_behind = -self._least(-_left_behind) + len(self.comms)
        if left_behind > COMMUNICATORS_LEFT_BEHIND:
            self._exhausted = (
                "expected few failures that leave messages behind on communicators, received so many that "
                f"{left_behind - len(self.comms)} of MPI's about 2,000 communicators had to be replaced: this runtime "
                f"can only be closed. The last failure was: {error}"
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
    """Return whether MPI has finished with a request, so that its buffers may be freed."""
    try:
        return request.Test()
    except MPI.Exception:
        return True
