"""The three ways to wait, on a communicator thread and without one.

`Blocking` makes the blocking call and holds a core token meanwhile, `Polling` keeps several nonblocking
calls in flight and sleeps between polls. `Inline` and `PollingInline` make the same MPI calls in the calling
thread, which also runs the slices' steps: for ``wait="off"``, and for jobs too short to wake a thread for.
Which thread it is, each rank decides by itself.
"""

from threading import Lock, current_thread
from time import perf_counter

from mpi4py import MPI

from ..errors import text_of
from .signatures import is_receive, is_send

SHORTEST_SLEEP_S = 20e-6
LONGEST_SLEEP_S = 500e-6
HOT_S = 150e-6  # exchanges that take less are polled for without sleep, if no step runs meanwhile
POLLS_PER_EXCHANGE = 8  # by default
EVERY = object()  # in a slot's place: the communicator thread waits until no slot runs

# Raised by a blocking call before anything was sent; any other error class comes after.
ARGUMENT_ERRORS = frozenset((
    MPI.ERR_ARG, MPI.ERR_BUFFER, MPI.ERR_COMM, MPI.ERR_COUNT, MPI.ERR_OP, MPI.ERR_RANK,
    MPI.ERR_ROOT, MPI.ERR_TAG, MPI.ERR_TYPE))


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


class NotIssued(Exception):
    """MPI was not asked for an operation, or has refused its arguments; the cause says why."""


class _Waiting:
    """What the ways to wait share.

    `outstanding` maps what MPI has not finished to its start. ``_awaited`` is the slot whose item the
    communicator thread sleeps for (or `EVERY` slot to stop running), guarded by `Job.lock`.

    `overlap.timing.simulate` runs these classes on a virtual clock: it puts its own in place of `WakeEvent`,
    `clock` and `Polling.test_some`, and 0 in place of `Polling.hot_s`.
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
        self._requests = []  # in flight
        job.posted = self.posted
        job.resume = self.resume

    def posted(self, slot):
        """A worker has left a slot: wake the communicator thread if that is what it sleeps for."""
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

        If no slot runs and nothing is in flight, only the slot's own gate keeps it, and nobody is left
        to open that: a wait that can never end is seen at once.
        """
        job = self._job
        while True:
            with job.lock:
                item, slot.item = slot.item, None
                self._awaited = None if item is not None else slot
                never = item is None and not (job.running or self._requests)
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
            self.wait(request, Label(operation, slot.current.key))
        except MPI.Exception as failure:
            error = failure
        self.completed(slot, error)

    def make_room(self):
        """Wait until one more operation may be started."""

    def finish(self):
        """Wait until nothing is in flight."""

    def abandon(self):
        """Give up what is in flight and may never end; returns the requests of it that go on."""
        return []

    def reduced(self, comm, values, op):
        """Reduce an array over all ranks, in place: the library's own agreements."""
        with self.watched("agreement of all ranks"):
            comm.Allreduce(MPI.IN_PLACE, values, op)

    def _look(self):
        self._wake_event.sleep()

    def _begin(self, label):
        self._outstanding[label] = self.clock()

    def _end(self, label):
        started = self._outstanding.pop(label)
        trace = self._job.trace
        if trace is not None:
            trace.add(current_thread().name, "communicate", str(label), started, self.clock())

    def watched(self, label):
        """Have the watchdog watch what is done meanwhile: a ``with`` block."""
        return _Watched(self, label)


class _Watched:
    """The time in which the communicator is in MPI, or waits for it."""

    __slots__ = ("_label", "_waiting")

    def __init__(self, waiting, label):
        self._waiting, self._label = waiting, label

    def __enter__(self):
        self._waiting._begin(self._label)

    def __exit__(self, *exc_info):
        self._waiting._end(self._label)


class _OneThread(_Waiting):
    """Steps run on the thread that talks to MPI, when it has nothing else to do."""

    def __init__(self, job, outstanding, workers, *options):
        super().__init__(job, outstanding, workers, *options)
        self._ready = set()

    def _submit(self, slot):
        self._ready.add(slot)  # a `take` advances it

    def _advance(self):
        """Run a step: of the slot that is waited for, or the next in the issue order; False if none is ready."""
        if not self._ready:
            return False
        ready = self._awaited if self._awaited in self._ready else min(
            self._ready, key=lambda slot: slot.place)
        self._ready.remove(ready)
        ready.advance()
        return True

    def quiet(self):
        pass


class Inline(_OneThread):
    """`off`: steps and blocking calls one after another on the calling thread."""

    def _look(self):
        if not self._advance():
            self._wake_event.sleep()  # workers have the parts of a slice

    def issue(self, slot, operation):
        with self.watched(Label(operation, slot.current.key)):
            error = made(operation, operation.call)
        self.completed(slot, error)

    def wait(self, request, label):
        with self.watched(label):
            request.Wait()


class Blocking(_Waiting):
    """The blocking MPI call, as in the GKV document; it takes one of the workers' core tokens."""

    def issue(self, slot, operation):
        with self._workers.core_tokens, self.watched(Label(operation, slot.current.key)):
            error = made(operation, operation.call)
        self.completed(slot, error)

    def wait(self, request, label):
        with self._workers.core_tokens, self.watched(label):
            request.Wait()

    def reduced(self, comm, values, op):
        with self._workers.core_tokens:
            super().reduced(comm, values, op)


class Polling(_Waiting):
    """Nonblocking calls, several in flight, and sleep in between: the core is given back.

    The sleep follows the exchanges: a `polls`-th of the time between two completions, so that
    looking costs little and a finished exchange waits little, between 20 and 500 us. Exchanges shorter
    than a sleep are polled for without any, while no step of this rank runs.
    """

    test_some = staticmethod(MPI.Request.Testsome)
    hot_s = HOT_S

    def __init__(self, job, outstanding, workers, limit, polls=POLLS_PER_EXCHANGE):
        super().__init__(job, outstanding, workers)
        self._limit = limit
        self._polls = polls
        self._in_flight = []  # (slot, label), in the order of `_requests`
        self._sleep_s = SHORTEST_SLEEP_S
        self._interval_s = 0.0  # between the last completions
        self._last_completion = None

    def make_room(self):
        while len(self._requests) >= self._limit:
            self._look()

    def issue(self, slot, operation):
        self.make_room()
        error = made(operation, operation.start)
        if not operation.made:
            self.completed(slot, error)
            return
        request, operation.made = operation.made[0], []
        if error is not None:
            self._job.fail(slot.current.key, error)
        self.adopt(slot, operation, request)

    def adopt(self, slot, operation, request):
        label = Label(operation, slot.current.key)
        self._begin(label)
        if not self._requests:
            self._last_completion = self.clock()
        self._in_flight.append((slot, label))
        self._requests.append(request)

    def wait(self, request, label):
        with self.watched(label):
            wait_for(request, self._wake_event.sleep, 0.0 if self._job.running else self.hot_s,
                     self.clock)

    def reduced(self, comm, values, op):
        self.wait(comm.Iallreduce(MPI.IN_PLACE, values, op), "agreement of all ranks")

    def finish(self):
        while self._requests:
            self._look()

    def abandon(self):
        left = []
        for place, (_, label) in enumerate(self._in_flight):
            request = self._requests[place]
            if is_receive(label.operation):
                request.Cancel()  # then it ends
            elif is_send(label.operation):
                left.append(place)  # it reads its buffer only, and keeps it alive
        requests = [self._requests[place] for place in left]
        for place in reversed(left):
            self._end(self._in_flight[place][1])
            del self._in_flight[place], self._requests[place]
        self.finish()
        return requests

    def _look(self):
        """Collect what has completed; if nothing has, sleep until the next look or item."""
        if not self._requests:
            self._wake_event.sleep()
        elif not self._collected():
            self._pause(self._job.running)

    def _pause(self, busy):
        """Until the next look: no time at all while exchanges are short and nothing else is to do."""
        hot = (not busy and self._interval_s < self.hot_s
               and self.clock() - self._last_completion < self.hot_s)
        self._wake_event.sleep(0.0 if hot else self._sleep_s)

    def _collected(self):
        """Collect what has completed; False if nothing has."""
        done, error = self._done()
        if not done:
            return False
        now = self.clock()
        interval = (now - self._last_completion) / len(done)
        self._last_completion, self._interval_s = now, interval
        self._sleep_s = min(max(interval / self._polls, 0.5 * self._sleep_s,
                                SHORTEST_SLEEP_S), 2 * self._sleep_s, LONGEST_SLEEP_S)
        finished = [self._in_flight[place] for place in done]
        for place in sorted(done, reverse=True):
            del self._in_flight[place], self._requests[place]
        for slot, label in finished:
            self._end(label)
            self.completed(slot, error)
        return True

    def _done(self):
        """Places of the requests that have completed, and what MPI says is wrong with them, or None."""
        try:
            return self.test_some(self._requests), None
        except MPI.Exception as failure:
            # MPI does not tell which has completed well and which has not: what it took is lost.
            done = [place for place, request in enumerate(self._requests)
                    if request == MPI.REQUEST_NULL]
            if not done:  # the error is of none in particular
                self._job.fail(None, failure)
            return done, failure


class PollingInline(_OneThread, Polling):
    """`Polling` on the calling thread: it looks between steps, and hot for a while before it sleeps."""

    def _look(self):
        """Collect what has completed; if nothing has, run a step; if none is ready, look again or sleep."""
        if self._requests and self._collected() or self._advance():
            return
        if not self._requests:
            self._wake_event.sleep()  # workers have the parts of a slice
        else:
            self._pause(False)


def wait_for(request, sleep, hot_s=HOT_S, clock=perf_counter):
    """Wait for a request: hot for `hot_s` seconds, then with longer and longer sleeps."""
    if request.Test():
        return
    cold_s, sleep_s = clock() + hot_s, SHORTEST_SLEEP_S
    while not request.Test():
        if clock() < cold_s:
            sleep(0.0)
        else:
            sleep(sleep_s)
            sleep_s = min(2 * sleep_s, LONGEST_SLEEP_S)


def made(operation, make):
    """Make a call; returns an exception that came when MPI may have sent something, or None.

    Raises
    ------
    NotIssued
        Nothing was sent: the other ranks still wait for this operation.
    """
    operation.made = []
    try:
        make()
    except BaseException as error:
        # Made, and then an exception from elsewhere; or MPI itself failed in the middle.
        if operation.made or (isinstance(error, MPI.Exception)
                              and error.Get_error_class() not in ARGUMENT_ERRORS):
            return error
        raise NotIssued from error
    return None


class Label:
    """An operation under way, as text only when somebody asks (deadline, trace)."""

    __slots__ = ("_key", "operation")

    def __init__(self, operation, key):
        self.operation = operation
        self._key = key

    def __str__(self):
        return f"{self.operation} of slice {text_of(self._key)}"
