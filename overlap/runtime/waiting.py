"""The communicator's three ways to wait."""

from contextlib import contextmanager
from threading import Lock, current_thread
from time import perf_counter

from mpi4py import MPI

from ..errors import text_of

SHORTEST_SLEEP_S = 20e-6
LONGEST_SLEEP_S = 500e-6
POLLS_PER_EXCHANGE = 8  # by default


class WakeEvent:
    """Wakes one sleeping thread; a ring while nobody sleeps ends the next sleep at once.

    Not a `queue.SimpleQueue`: its ``get(timeout=)`` can sleep for ever in CPython 3.11, when a token
    left from an earlier item wakes it and the timeout has just run out.
    """

    def __init__(self):
        self._lock = Lock()
        self._lock.acquire()

    def ring(self):
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it has been rung already

    def sleep(self, seconds=-1):
        """Sleep until a ring, at most `seconds` if given; True if it rang."""
        return self._lock.acquire(timeout=seconds)


class _Waiting:
    """What the ways to wait share.

    `outstanding` maps what MPI has not finished to its start. `_awaited` is the slot whose item the
    communicator sleeps for: it is set before the item is looked for, and a worker looks at it after
    it has posted the item, so no wake-up is lost.

    `overlap.timing.simulate` runs these classes on a virtual clock: it puts its own in place of `WakeEvent`,
    `clock` and `Polling.test_some`.
    """

    WakeEvent = WakeEvent
    clock = staticmethod(perf_counter)
    stopped = False  # the ranks have agreed to stop: slots do not go on

    def __init__(self, job, outstanding, workers):
        self._job = job
        self._outstanding = outstanding
        self._workers = workers
        self._awaited = None
        self._wake_event = self.WakeEvent()
        job.posted = self.posted
        job.resume = self.resume

    def posted(self, slot):
        awaited = self._awaited
        if slot is awaited or (awaited is not None and awaited.gate is not None):
            self._wake_event.ring()

    def resume(self, slot):
        """Have a worker advance the slot; among ready ones the next in the issue order first."""
        slot.busy = True
        self._workers.submit(slot.place, slot.advance)

    def take(self, slot):
        """Wait until the slot has an item."""
        self._awaited = slot
        while slot.item is None:
            self._check_gate(slot)
            self._look()
        self._awaited = None

    def _check_gate(self, slot):
        """Fail a wait that could never end: for a slice whose operation comes after `slot`'s."""
        gate = slot.gate
        if gate is None:
            return
        for other in self._job.slots:
            run = other.current
            if (other.item is not None and run is not None
                    and gate.start <= run.ordinal < gate.stop):
                self._job.fail(slot.current.key, RuntimeError(
                    f"{gate} waits for slice {text_of(run.key)}, whose operation comes later in the "
                    "issue order: expected one operation, or take_turn(), in every slice"))
                return

    def quiet(self, slot):
        """Wait until no worker has the slot."""
        self._awaited = slot
        while slot.busy:
            self._look()
        self._awaited = None

    def completed(self, slot, error=None):
        """An operation of `slot` is over: have its slice go on, unless the pipeline has ended."""
        if error is not None:
            slot.current.error = error
            self._job.fail(slot.current.key, error)
        if not self.stopped:
            self.resume(slot)

    def adopt(self, slot, operation, request):
        """Take over an operation that has been started."""
        error = None
        try:
            self.wait(request, Label(operation, slot))
        except MPI.Exception as failure:
            error = failure
        self.completed(slot, error)

    def make_room(self):
        """Wait until one more operation may be started."""

    def finish(self):
        """Wait until nothing is in flight."""

    def _look(self):
        self._wake_event.sleep()

    def _begin(self, label):
        self._outstanding[label] = self.clock()

    def _end(self, label):
        started = self._outstanding.pop(label)
        trace = self._job.trace
        if trace is not None:
            trace.add(current_thread().name, "communicate", str(label), started, self.clock())

    @contextmanager
    def watched(self, label):
        """Have the watchdog watch what is done meanwhile."""
        self._begin(label)
        try:
            yield
        finally:
            self._end(label)


class Inline(_Waiting):
    """`off`: steps and blocking calls one after another on the calling thread."""

    def __init__(self, job, outstanding, workers):
        super().__init__(job, outstanding, workers)
        self._ready = set()

    def resume(self, slot):
        self._ready.add(slot)  # a `take` advances it

    def _look(self):
        ready = self._awaited if self._awaited in self._ready else min(
            tuple(self._ready), key=lambda slot: slot.place)
        self._ready.remove(ready)
        ready.advance()

    def quiet(self, slot):
        pass

    def issue(self, slot, operation):
        with self.watched(Label(operation, slot)):
            operation.call()
        self.completed(slot)

    def wait(self, request, label):
        with self.watched(label):
            request.Wait()


class Blocking(_Waiting):
    """The blocking MPI call, as in the GKV document; it takes one of the workers' core tokens."""

    def issue(self, slot, operation):
        with self._workers.core_tokens, self.watched(Label(operation, slot)):
            operation.call()
        self.completed(slot)

    def wait(self, request, label):
        with self._workers.core_tokens, self.watched(label):
            request.Wait()


class Polling(_Waiting):
    """Nonblocking calls, several in flight, and sleep in between: the core is given back.

    The sleep follows the exchanges: a `polls`-th of the time between two completions, so that
    looking costs little and a finished exchange waits little, between 20 and 500 us.
    """

    test_some = staticmethod(MPI.Request.Testsome)

    def __init__(self, job, outstanding, workers, limit, polls=POLLS_PER_EXCHANGE):
        super().__init__(job, outstanding, workers)
        self._limit = limit
        self._polls = polls
        self._in_flight = []  # (slot, label)
        self._requests = []  # the MPI requests, in the same order
        self._sleep_s = SHORTEST_SLEEP_S
        self._last_completion = None

    def make_room(self):
        while len(self._requests) >= self._limit:
            self._look()

    def issue(self, slot, operation):
        self.make_room()
        self.adopt(slot, operation, operation.start())

    def adopt(self, slot, operation, request):
        label = Label(operation, slot)
        self._begin(label)
        if not self._requests:
            self._last_completion = self.clock()
        self._in_flight.append((slot, label))
        self._requests.append(request)

    def wait(self, request, label):
        with self.watched(label):
            sleep_s = SHORTEST_SLEEP_S
            while not request.Test():
                self._wake_event.sleep(sleep_s)
                sleep_s = min(2 * sleep_s, LONGEST_SLEEP_S)

    def finish(self):
        while self._requests:
            self._look()

    def _look(self):
        """Collect what has completed; if nothing has, sleep until the next look or item."""
        if not self._requests:
            self._wake_event.sleep()
            return
        error = None
        try:
            done = self.test_some(self._requests)
        except MPI.Exception as failure:
            # MPI does not tell which has completed well and which has not: what it took is lost.
            error = failure
            done = [position for position, request in enumerate(self._requests)
                    if request == MPI.REQUEST_NULL]
        if not done:
            self._wake_event.sleep(self._sleep_s)
            return
        now = self.clock()
        interval = (now - self._last_completion) / len(done)
        self._last_completion = now
        self._sleep_s = min(max(interval / self._polls, 0.5 * self._sleep_s,
                                SHORTEST_SLEEP_S), 2 * self._sleep_s, LONGEST_SLEEP_S)
        finished = [self._in_flight[position] for position in done]
        for position in sorted(done, reverse=True):
            del self._in_flight[position], self._requests[position]
        for slot, label in finished:
            self._end(label)
            self.completed(slot, error)


class Label:
    """An operation under way, as text only when somebody asks (deadline, trace)."""

    __slots__ = ("_operation", "_key")

    def __init__(self, operation, slot):
        self._operation = operation
        self._key = slot.current.key

    def __str__(self):
        return f"{self._operation} of slice {text_of(self._key)}"
