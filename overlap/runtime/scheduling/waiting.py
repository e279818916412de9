"""The ways to wait, on a communicator thread and without one.

`Blocking` makes the blocking call and holds a core token meanwhile; `Polling` (in `polling`) keeps several nonblocking
calls in flight and sleeps between polls. `Inline` and `PollingInline` make the same MPI calls in the calling thread,
which also runs the slices' steps, alone or with workers beside it: for ``wait="off"``, and for jobs too short to wake
all threads for. Which thread it is, each rank decides by itself.
"""

from threading import Lock, current_thread
from time import perf_counter
from typing import Any

from mpi4py import MPI

from ...errors import text_of
from ..requests.operations import Pending, Persistent
from ..requests.signatures import is_receive, is_send

SHORTEST_SLEEP_S = 20e-6
LONGEST_SLEEP_S = 500e-6
HOT_S = 150e-6  # exchanges that take less are polled for without sleep, if no step runs meanwhile
EVERY = object()  # in a slot's place: the communicator thread waits until no slot runs

# Raised by a blocking call before anything was sent; any other error class comes after.
ARGUMENT_ERRORS = frozenset(
    (
        MPI.ERR_ARG,
        MPI.ERR_BUFFER,
        MPI.ERR_COMM,
        MPI.ERR_COUNT,
        MPI.ERR_OP,
        MPI.ERR_RANK,
        MPI.ERR_ROOT,
        MPI.ERR_TAG,
        MPI.ERR_TYPE,
    )
)


class WakeEvent:
    """Wakes one sleeping thread; a ring while nobody sleeps ends the next sleep at once.

    Not a `queue.SimpleQueue`: its ``get(timeout=)`` can sleep for ever in CPython 3.11, when a token
    left from an earlier item wakes it and the timeout has just run out.
    """

    def __init__(self):
        self._lock = Lock()
        self._lock.acquire()

    def ring(self):
        try:  # noqa: SIM105 (takes a fraction of the time)
            self._lock.release()
        except RuntimeError:
            pass  # it has been rung already

    def sleep(self, seconds=-1):
        """Sleep until a ring, at most `seconds` if given; True if it rang."""
        return self._lock.acquire(timeout=seconds)


class NotIssued(Exception):
    """MPI was not asked for an operation, or has refused its arguments; the cause says why."""


class Waiting:
    """What the ways to wait share.

    `outstanding` maps what MPI has not finished to its start. ``_awaited`` is the slot whose item the
    communicator thread sleeps for (or `EVERY` slot to stop running), guarded by `Job.lock`.

    `overlap.timing.simulate` runs these classes on a virtual clock: it puts its own in place of `WakeEvent`,
    `clock` and `Polling.test_some`, and 0 in place of `Polling.hot_s`.
    """

    WakeEvent = WakeEvent
    clock = staticmethod(perf_counter)
    naps = False  # sleeps between polls
    stopped = False  # the ranks have agreed to stop: slots do not go on

    def __init__(self, job, outstanding, workers):
        self._job = job
        self._outstanding = outstanding
        self._workers = workers
        self._awaited = None
        self._wake_event = self.WakeEvent()
        self._requests = []  # in flight
        self._pending = []  # what slices have started and not waited for yet
        job.posted = self.posted
        job.resume = self.resume

    def posted(self, slot):
        """Note that a worker has left a slot: wake the communicator thread if that is what it sleeps for."""
        if self._awaited is slot or (self._awaited is not None and not self._job.running):
            self._wake_event.ring()

    def resume(self, slot):
        """Have a worker advance the slot; among ready ones the next in the issue order first."""
        with self._job.lock:
            self._job.running += 1
        self._submit(slot)

    def _submit(self, slot):
        self._workers.submit(slot.place, slot.advance)

    def take(self, slot):
        """Wait until the slot has an item, and take it.

        If no slot runs and nothing is in flight that a slice awaits, only the slot's own gate keeps it, and nobody is
        left to open that: a wait that can never end is seen at once.
        """
        job = self._job
        while True:
            with job.lock:
                item, slot.item = slot.item, None
                self._awaited = None if item is not None else slot
                # What was started, and is not awaited yet, has no slice go on when it is over.
                never = item is None and not job.running and len(self._requests) <= len(self._pending)
            if item is not None:
                return item
            if never:
                job.never(slot)
            else:
                self._look()

    def quiet(self):
        """Wait until no worker has a slot."""
        while True:
            with self._job.lock:
                running = self._job.running
                self._awaited = EVERY if running else None
            if not running:
                return
            self._look()

    def completed(self, slot, error=None):
        """Note that an operation of `slot` is over: have its slice go on, unless the pipeline has ended."""
        if error is not None:
            slot.current.error = error
            self._job.fail(slot.current.key, error)
        if not self.stopped:
            self.resume(slot)

    def adopt(self, slot, operation, request):
        """Take over an operation that has been started."""
        error = None
        try:
            self.wait(request, Label(operation, slot.current.key))
        except MPI.Exception as failure:
            error = failure
        self.completed(slot, error)

    def make_room(self):
        """Wait until one more operation may be started."""

    def wait_unused(self, operation):
        """Wait until an operation is not under way: a persistent one may be, for another slice."""
        if type(operation) is Persistent:
            for pending in tuple(self._pending):
                if pending.operation is operation:
                    self._finish(pending)

    def start(self, slot, operation):
        """Start an operation that is awaited later; `NotIssued` as of `made`."""
        request = self._started(slot, operation)
        if request is not None:
            self.adopt_pending(slot, operation, request)

    def _started(self, slot, operation):
        """Start an operation; returns its request, or None if it is over already."""
        self.wait_unused(operation)
        error = made(operation, blocking=False)
        if not operation.made:
            self.completed(slot, error)
            return None
        request, operation.made = operation.made[0], []
        if error is not None:
            self._job.fail(slot.current.key, error)
        return request

    def adopt_pending(self, slot, operation, request):
        """Take over an operation that has been started, to be awaited later; its slice goes on."""
        run = slot.current
        pending = run.answer = Pending(operation, len(run.pending))
        pending.request = request
        self.keep(run, pending)
        self.completed(slot)

    def keep(self, run, pending):
        """Keep what a slice has started, until it is over."""
        run.pending.append(pending)
        if not pending.done:
            self._pending.append(pending)

    def wait_pending(self, slot, pending):
        """Have a slice await what it has started."""
        self._finish(pending)
        self.completed(slot, pending.error)

    def _finish(self, pending):
        """Wait until what a slice has started is over."""
        if not pending.done:
            try:
                self.wait(pending.request, str(pending))
            except MPI.Exception as failure:
                pending.error = failure
            self._over(pending)

    def _over(self, pending):
        pending.done, pending.request = True, None
        self._pending.remove(pending)

    def forgotten(self):
        """Whether messages are under way that no slice waits for, and that may never meet their other half."""
        return any(
            is_receive(pending.operation) or is_send(pending.operation)
            for pending in self._pending
            if not pending.waited
        )

    def finish(self):
        """Wait until nothing is in flight."""
        for pending in tuple(self._pending):
            self._finish(pending)

    def abandon(self):
        """Give up what is in flight and may never end; returns the requests of it that go on."""
        left: list[Any] = []
        for pending in tuple(self._pending):
            if is_receive(pending.operation):
                pending.request.Cancel()  # then it ends
            elif is_send(pending.operation):
                left.append(pending.request)  # it reads its buffer only, and keeps it alive
                self._over(pending)
        self.finish()
        return left

    def reduced(self, comm, values, op):
        """Reduce an array over all ranks, in place: the library's own agreements."""
        with self.watched("agreement of all ranks"):
            comm.Allreduce(MPI.IN_PLACE, values, op)

    def _look(self):
        self._wake_event.sleep()

    def begin(self, label):
        self._outstanding[label] = self.clock()

    def end(self, label):
        started = self._outstanding.pop(label)
        trace = self._job.trace
        if trace is not None:
            trace.add(current_thread().name, "communicate", str(label), started, self.clock())

    def watched(self, label):
        """Have the watchdog watch what is done meanwhile: a ``with`` block."""
        return _Wait(self, label)


class _Wait:
    """The time in which MPI is waited for, for `begin` and `end` of a way to wait: a ``with`` block."""

    __slots__ = ("_label", "_waiting")

    def __init__(self, waiting, label):
        self._waiting, self._label = waiting, label

    def __enter__(self):
        self._waiting.begin(self._label)

    def __exit__(self, *exc_info):
        self._waiting.end(self._label)


class OneThread(Waiting):
    """Steps run on the thread that talks to MPI, when it has nothing else to do; and on workers beside it, if there
    are.
    """

    def __init__(self, job, outstanding, workers, *options):
        super().__init__(job, outstanding, workers, *options)
        self._ready = set()  # where no workers take some
        if workers is not None:
            workers.wake = self._wake_event.ring

    def _submit(self, slot):
        if self._workers is None:
            self._ready.add(slot)  # a `take` advances it
        else:
            super()._submit(slot)

    def _advance(self):
        """Run a step: of the slot that is waited for, or the next in the issue order; False if none is ready."""
        if self._workers is not None:
            return self._workers.take_step()
        if not self._ready:
            return False
        ready = self._awaited if self._awaited in self._ready else min(self._ready, key=lambda slot: slot.place)
        self._ready.remove(ready)
        ready.advance()
        return True

    def quiet(self):
        if self._workers is not None:
            super().quiet()


class Inline(OneThread):
    """`off`: steps and blocking calls one after another on the calling thread."""

    def _look(self):
        if not self._advance():
            self._wake_event.sleep()  # workers have steps

    def issue(self, slot, operation):
        with self.watched(Label(operation, slot.current.key)):
            error = made(operation)
        self.completed(slot, error)

    def wait(self, request, label):
        with self.watched(label):
            request.Wait()


class Blocking(Waiting):
    """The blocking MPI call, as in the GKV document; it takes one of the workers' core tokens."""

    def issue(self, slot, operation):
        with self._workers.core_tokens, self.watched(Label(operation, slot.current.key)):
            error = made(operation)
        self.completed(slot, error)

    def wait(self, request, label):
        with self._workers.core_tokens, self.watched(label):
            request.Wait()

    def reduced(self, comm, values, op):
        with self._workers.core_tokens:
            super().reduced(comm, values, op)


def wait_for(test, sleep, hot_s=HOT_S, clock=perf_counter):
    """Wait until `test()` is true: hot for `hot_s` seconds, then with longer and longer sleeps."""
    if test():
        return
    cold_s, sleep_s = clock() + hot_s, SHORTEST_SLEEP_S
    while not test():
        if clock() < cold_s:
            sleep(0.0)
        else:
            sleep(sleep_s)
            sleep_s = min(2 * sleep_s, LONGEST_SLEEP_S)


def made(operation, blocking=True):
    """Make an operation; returns an exception that came when MPI may have sent something, or None.

    Raises
    ------
    NotIssued
        Nothing was sent: the other ranks still wait for this operation.
    """
    operation.made = []
    try:
        operation.make(blocking)
    except BaseException as error:
        # Made, and then an exception from elsewhere; or MPI itself failed in the middle.
        if operation.made or (isinstance(error, MPI.Exception) and error.Get_error_class() not in ARGUMENT_ERRORS):
            return error
        raise NotIssued from error
    return None


def tried(operation):
    """Start an operation while all ranks learn whether it starts; what MPI has returned, in a list, and what was
    raised, or None.
    """
    error = None
    operation.made = []
    try:
        operation.make(blocking=False)
    except BaseException as caught:
        error = caught
    made, operation.made = operation.made, []
    return made, error


class Label:
    """An operation under way, as text only when somebody asks (deadline, trace)."""

    __slots__ = ("_key", "operation")

    def __init__(self, operation, key):
        self.operation = operation
        self._key = key

    def __str__(self):
        return f"{self.operation} of slice {text_of(self._key)}"
