"""`Waiting`: the common part of the ways to wait for MPI, which are `Blocking` and `Polling`.

`Blocking` makes the blocking call; `Polling` keeps several nonblocking calls in flight and polls them. Both serve every
placement of the work, which two arguments select:

* no workers: the issuing thread runs the slices' steps itself, when it has nothing else to do;
* workers and `here`: the issuing thread does so too, and workers run steps beside it;
* workers alone: the issuing thread is the communicator thread, which only calls MPI and sleeps.

The MPI calls are the same in all placements, so each rank chooses its own.
"""

from __future__ import annotations

from threading import current_thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..requests.agreement import AGREEMENT
from ..requests.operations import Operation, Pending, Persistent
from ..requests.requests import WaitForSlices
from ..requests.signatures import is_receive, is_send
from .host import HOST, Host, WakeEvent, issue
from .slots import at_await

if TYPE_CHECKING:
    from ...ranks.losses import Guard
    from .job import Job
    from .ready_steps import ReadySteps
    from .slots import Slice, Slot

EVERY = object()  # instead of a slot: the issuing thread waits until no slot runs


class Waiting:
    """Base class of the ways to wait; for `limit` and `polls` see `Polling`.

    Without `workers` the issuing thread runs the steps; with `here` it does so beside them.
    """

    naps = False  # whether the issuing thread sleeps between polls
    stopped = False  # the ranks have agreed to stop, so slots do not go on

    def __init__(
        self,
        job: Job,
        outstanding: dict[Any, float],
        workers: ReadySteps | None,
        here: bool,
        limit: int,
        polls: int,
        host: Host = HOST,
        guard: Guard | None = None,
    ) -> None:
        self._job, self._guard = job, guard
        self._limit, self._polls = limit, polls
        self._outstanding = outstanding
        self._workers = workers
        self._here = here
        self._host = host
        self._awaited: Any = None  # the slot for which the issuing thread sleeps, or `EVERY`; guarded by `Job.lock`
        self._ready: list[Slot] = []  # slots with a step to run, if no workers take steps
        self._requests: list[Any] = []  # requests in flight
        self._in_flight: list[Any] = []  # the `Slot` or the `Pending` that waits for each request
        self._pending: list[Pending] = []  # operations that slices have started and not awaited yet
        self._wake_event: Any = None  # wakes the issuing thread, which sleeps while workers run steps
        self.waited_s = 0.0  # that the issuing thread has spent in MPI, where it runs all steps itself
        # Taken by a communicator thread that spins in MPI. A thread that also computes counts as a worker and takes
        # none.
        self._token = None if here or workers is None else workers.core_tokens
        if workers is not None:
            self._wake_event = WakeEvent()
            if here:
                workers.wake = self._wake_event.ring
        job.posted = self.posted
        job.resume = self.resume

    # ---- steps -------------------------------------------------------------------------------

    def posted(self, slot: Slot) -> None:
        """Note, with `Job.lock` held, that a worker has left a slot; wake the issuing thread if it sleeps for that."""
        if self._awaited is slot or (self._awaited is not None and not self._job.running):
            self._wake_event.ring()

    def resume(self, slot: Slot) -> None:
        """Have the slot's next step run; of several ready steps the one that is next in the issue order runs first."""
        if self._workers is None:
            self._ready.append(slot)
            return
        with self._job.lock:
            self._job.running += 1
        self._workers.submit(slot.place, slot.advance)

    def take(self, slot: Slot) -> Any:
        """Wait until the slot has an item, and take it.

        If no slot runs and no slice awaits anything in flight, only the slot's own gate keeps it, and nothing can open
        the gate any more. So a wait that can never end is detected at once.
        """
        job = self._job
        while True:
            if slot in self._ready:  # without workers; run before MPI is polled, which costs as much as the step
                self._run(slot)
                if slot.item is not None:  # without workers no other thread touches the slot
                    item, slot.item = slot.item, None
                    return item
            with job.lock:
                item, slot.item = slot.item, None
                self._awaited = None if item is not None else slot
                # The completion of operations that are started and not awaited yet does not let any slice go on.
                never = item is None and self._idle() and len(self._requests) <= len(self._pending)
            if item is not None:
                return item
            if never:
                self._never(slot)
            else:
                self._poll()

    def _never(self, slot: Slot) -> None:
        """Fail a wait that can never end, because no slot runs and nothing is under way in MPI."""
        job = self._job
        with job.lock:
            gate, run = slot.gate, slot.current
            if job.running or (gate is None and job.stopping):
                return  # a signal handler has failed the job meanwhile, which opens all gates
        if not isinstance(gate, WaitForSlices):
            raise RuntimeError(f"slot {slot.index} neither runs nor waits for anything that it may wait for")
        missing = job.which_ended.find(0, gate.start, gate.stop)
        why = "has not ended and can never end"
        for other in job.slots:
            if other.current is not None and other.current.ordinal == missing:
                if other.gate is not None:
                    why = f"waits for others itself ({other.gate})"
                elif other.item is not None:
                    why = (
                        "has an operation that comes later in the issue order: expected one "
                        "operation, or take_turn(), in every slice"
                    )
        if any(other.has_parked(missing) for other in job.slots):
            why = "waits at a barrier() for this one"
        job.fail(run.key, RuntimeError(f"{gate} waits for ever: slice number {missing} {why}"))

    def _idle(self) -> bool:
        """Return whether no step runs and none is ready."""
        return not self._job.running and not self._ready

    def quiet(self) -> None:
        """Wait until no worker has a slot."""
        if self._workers is None:
            return
        while True:
            with self._job.lock:
                running = self._job.running
                self._awaited = EVERY if running else None
            if not running:
                return
            self._poll()

    def _poll(self) -> None:
        """Make progress: complete an operation, run a step in this thread, or sleep."""
        if not self._collected() and not self._advanced():
            self._pause()

    def _advanced(self) -> bool:
        """Run a step of the slot waited for, or the next one in the issue order; return False if none is ready."""
        if self._ready:
            self._run(self._awaited if self._awaited in self._ready else min(self._ready, key=lambda slot: slot.place))
            return True
        if not self._here or self._workers is None or (step := self._workers.next_step()) is None:
            return False
        self._leave_mpi()
        step()
        return True

    def _run(self, slot: Slot) -> None:
        self._ready.remove(slot)
        self._leave_mpi()
        slot.advance()

    def _leave_mpi(self) -> None:
        """Prepare for a step in this thread, which calls MPI only when the step has ended."""

    def _collected(self) -> bool:
        """Collect completed requests; return False if there are none."""
        return False

    def _pause(self) -> None:
        """Sleep until there may be something to do."""
        self._wake_event.sleep()

    # ---- operations --------------------------------------------------------------------------

    def issue(self, slot: Slot, operation: Operation) -> None:
        """Issue an operation that the slot's slice awaits; raise `NotIssued` as `host.issue` does."""
        raise NotImplementedError

    def track(self, slot: Slot, operation: Operation, request: Any) -> None:
        """Wait, on behalf of the slot, for an operation that has been started."""
        raise NotImplementedError

    def wait(self, request: Any, label: object) -> None:
        """Wait for a request of the library itself."""
        raise NotImplementedError

    def completed(self, slot: Slot, error: BaseException | None = None) -> None:
        """Note that the slot's operation has completed; let its slice go on unless the ranks have agreed to stop."""
        if error is not None:
            slot.current.error = error
            self._failed(slot, error)
        if not self.stopped:
            self.resume(slot)

    def _failed(self, slot: Slot | None, error: BaseException) -> None:
        """Note that a slot's operation has failed in MPI; raise `RankLost` if a rank is lost: no job can go on then."""
        if self._guard is not None and (lost := self._guard.loss(error, "a pipeline" if slot is None else str(slot))):
            raise lost from error
        if slot is None:
            self._job.fail(None, error)
        else:
            self._job.fail(slot.current.key, at_await(error, slot.current.source))

    def make_room(self) -> None:
        """Wait until one more operation may be started."""

    def wait_unused(self, operation: Operation) -> None:
        """Wait until a persistent operation is not under way for another slice."""
        for pending in tuple(self._pending):
            if pending.operation is operation:
                self._finish(pending)

    def start(self, slot: Slot, operation: Operation) -> None:
        """Start an operation that is awaited later; raise `NotIssued` as `issue` does."""
        request = self._started(slot, operation)
        if request is not None:
            self.track_pending(slot, operation, request)

    def _started(self, slot: Slot, operation: Operation) -> Any:
        """Start an operation; return its request, or None if it has completed already."""
        if type(operation) is Persistent:
            self.wait_unused(operation)
        slot.operation = operation
        started = slot.since_s = self._outstanding[slot] = perf_counter()
        try:
            error = issue(operation, blocking=False)
        finally:
            del self._outstanding[slot]
            self.waited_s += perf_counter() - started
        if not operation.requests:
            self.completed(slot, error)
            return None
        request, operation.requests = operation.requests[0], []
        if error is not None:
            self._failed(slot, error)
        return request

    def track_pending(self, slot: Slot, operation: Operation, request: Any) -> None:
        """Keep an operation that has been started, to be awaited later; its slice goes on."""
        run = slot.current
        pending = run.answer = Pending(operation, len(run.pending))
        pending.request = request
        self._keep(run, pending)
        self.completed(slot)

    def _keep(self, run: Slice, pending: Pending) -> None:
        """Keep an operation that a slice has started until it has completed."""
        run.pending.append(pending)
        self._pending.append(pending)

    def wait_pending(self, slot: Slot, pending: Pending) -> None:
        """Have a slice await an operation that it has started."""
        slot.operation = pending
        self._finish(pending)
        self.completed(slot, pending.error)

    def _finish(self, pending: Pending) -> None:
        """Wait until an operation that a slice has started has completed."""
        if not pending.done:
            try:
                self.wait(pending.request, str(pending))
            except MPI.Exception as failure:
                pending.error = failure
            self._over(pending)

    def _over(self, pending: Pending) -> None:
        pending.done, pending.request = True, None
        self._pending.remove(pending)

    def forgotten(self) -> bool:
        """Return whether messages are under way for which no slice waits and which no rank may ever receive or send."""
        return bool(self._pending) and any(
            is_receive(pending.operation) or is_send(pending.operation)
            for pending in self._pending
            if not pending.waited
        )

    def finish(self) -> None:
        """Wait until nothing is in flight."""
        for pending in tuple(self._pending):
            self._finish(pending)

    def abandon(self) -> list[Any]:
        """Cancel requests in flight that may never complete; return those that cannot be cancelled."""
        left: list[Any] = []
        for pending in tuple(self._pending):
            if is_receive(pending.operation):
                pending.request.Cancel()  # then it completes
            elif is_send(pending.operation):
                left.append(pending.request)  # the send only reads its buffer, which the request keeps alive
                self._over(pending)
        self.finish()
        return left

    def forget(self) -> list[Any]:
        """Forget and return the requests in flight, which never complete because a rank is lost."""
        left = [*self._requests, *(pending.request for pending in self._pending if pending.request is not None)]
        self._requests.clear()
        self._pending.clear()
        return left

    def reduced(self, comm: Any, values: Any, op: Any) -> None:
        """Reduce an array over all ranks, in place, for the library's own agreements."""
        raise NotImplementedError

    def watched(self, label: object) -> _Wait:
        """Return a ``with`` block that the watchdog watches."""
        return _Wait(self, label)

    def _end(self, label: object, started: float, ended: float) -> None:
        """Note that an operation has ended: remove it from the watchdog and add it to the trace."""
        self._outstanding.pop(label, None)
        if self._job.trace is not None:
            self._trace(label, started, ended)

    def _trace(self, label: object, started: float, ended: float) -> None:
        trace = self._job.trace
        assert trace is not None
        trace.add(current_thread().name, "communicate", str(label), started, ended)


class _Wait:
    """A ``with`` block in which MPI is waited for; a thread that spins in MPI holds a core token meanwhile."""

    __slots__ = ("_label", "_started", "_waiting")

    def __init__(self, waiting: Waiting, label: object) -> None:
        self._waiting, self._label = waiting, label

    def __enter__(self) -> None:
        waiting = self._waiting
        if waiting._token is not None:
            waiting._token.__enter__()
        self._started = waiting._outstanding[self._label] = perf_counter()

    def __exit__(self, *exc_info: object) -> None:
        waiting, started = self._waiting, self._started
        ended = perf_counter()
        waiting.waited_s += ended - started
        waiting._end(self._label, started, ended)
        if waiting._token is not None:
            waiting._token.__exit__()


class Blocking(Waiting):
    """Waits in blocking MPI calls, as in the GKV application note; a communicator thread needs a core token for it."""

    def issue(self, slot: Slot, operation: Operation) -> None:
        slot.operation = operation
        token = self._token
        if token is not None:
            token.__enter__()
        started = self._outstanding[slot] = perf_counter()
        try:
            error = issue(operation)
        finally:
            del self._outstanding[slot]
            ended = perf_counter()
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
