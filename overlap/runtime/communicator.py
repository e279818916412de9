"""The communicator: issues the MPI operations of a pipeline in an order that needs no messages.

Issue order. MPI matches collectives by call order, so the order must be a pure function of the
program. The communicator visits the lanes in a fixed rotation; at each visit it takes the lane's
next item, waiting for its worker if need be. A lane at its end leaves the rotation; lanes at a
barrier leave it together until the last one has arrived.

Agreement. A rank on which a slice failed keeps issuing what the others wait for (`Lane` drains),
until all ranks have agreed that one of them failed. The agreement is a nonblocking reduction of one
flag every so many operations, looked at one interval later, when it has long arrived; and one at
the end. All ranks see the same flags at the same place in the issue order and stop there together.

Learning. To drain, a rank must know what its slices still await. A program without a `skeleton`
shows that with its first slice. Until this has ended, every item is agreed on before it is issued,
and every operation is known to have started on all ranks before any rank waits for it.

Three ways to wait (design section 4), one small class each: `Inline` has no threads at all,
`Blocking` makes the blocking call and holds a seat meanwhile, `Polling` keeps several nonblocking
calls in flight and sleeps between looks.
"""

import pickle
import zlib
from contextlib import contextmanager
from threading import Lock, current_thread
from time import perf_counter

import numpy as np
from mpi4py import MPI

from ..errors import SliceError
from .lanes import AT_BARRIER, END, FAILED
from .requests import Turn

SHORTEST_SLEEP_S = 20e-6
LONGEST_SLEEP_S = 500e-6
LOOKS_PER_EXCHANGE = 8  # by default

# Raised by a blocking call before anything was sent; any other error class comes after.
ARGUMENT_ERRORS = frozenset((
    MPI.ERR_ARG, MPI.ERR_BUFFER, MPI.ERR_COMM, MPI.ERR_COUNT, MPI.ERR_OP, MPI.ERR_RANK,
    MPI.ERR_ROOT, MPI.ERR_TAG, MPI.ERR_TYPE))


class Bell:
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

    `outstanding` maps what MPI has not finished to its start. `_awaited` is the lane whose item the
    communicator sleeps for: it is set before the item is looked for, and a worker looks at it after
    it has posted the item, so no wake-up is lost.

    `overlap.simulate` runs these classes on a virtual clock: it puts its own in place of `Bell`,
    `clock` and `Polling.test_some`.
    """

    Bell = Bell
    clock = staticmethod(perf_counter)
    stopped = False  # the ranks have agreed to stop: lanes do not go on

    def __init__(self, job, outstanding, workers):
        self._job = job
        self._outstanding = outstanding
        self._workers = workers
        self._awaited = None
        self._bell = self.Bell()
        job.posted = self.posted
        job.resume = self.resume

    def posted(self, lane):
        awaited = self._awaited
        if lane is awaited or (awaited is not None and awaited.gate is not None):
            self._bell.ring()

    def resume(self, lane):
        """Have a worker advance the lane; among ready ones the next in the issue order first."""
        lane.busy = True
        self._workers.submit(lane.turn, lane.advance)

    def take(self, lane):
        """Wait until the lane has an item."""
        self._awaited = lane
        while lane.item is None:
            self._check_gate(lane)
            self._look()
        self._awaited = None

    def _check_gate(self, lane):
        """Fail a wait that could never end: for a slice whose operation comes after `lane`'s."""
        gate = lane.gate
        if gate is None:
            return
        for other in self._job.lanes:
            run = other.current
            if (other.item is not None and run is not None
                    and gate.start <= run.ordinal < gate.stop):
                self._job.fail(lane.current.key, RuntimeError(
                    f"{gate} waits for slice {run.key}, whose operation comes later in the "
                    "issue order: expected one operation, or turn(), in every slice"))
                return

    def quiet(self, lane):
        """Wait until no worker has the lane."""
        self._awaited = lane
        while lane.busy:
            self._look()
        self._awaited = None

    def completed(self, lane, error=None):
        """An operation of `lane` is over: have its slice go on, unless the pipeline has ended."""
        if error is not None:
            lane.current.error = error
            self._job.fail(lane.current.key, error)
        if not self.stopped:
            self.resume(lane)

    def adopt(self, lane, operation, request):
        """Take over an operation that has been started."""
        error = None
        try:
            self.wait(request, Label(operation, lane))
        except MPI.Exception as failure:
            error = failure
        self.completed(lane, error)

    def make_room(self):
        """Wait until one more operation may be started."""

    def finish(self):
        """Wait until nothing is in flight."""

    def _look(self):
        self._bell.sleep()

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

    def resume(self, lane):
        self._ready.add(lane)  # a `take` advances it

    def _look(self):
        ready = self._awaited if self._awaited in self._ready else min(
            tuple(self._ready), key=lambda lane: lane.turn)
        self._ready.remove(ready)
        ready.advance()

    def quiet(self, lane):
        pass

    def issue(self, lane, operation):
        with self.watched(Label(operation, lane)):
            operation.call()
        self.completed(lane)

    def wait(self, request, label):
        with self.watched(label):
            request.Wait()


class Blocking(_Waiting):
    """The blocking MPI call, as in the GKV document; it takes one of the workers' seats."""

    def issue(self, lane, operation):
        with self._workers.seats, self.watched(Label(operation, lane)):
            operation.call()
        self.completed(lane)

    def wait(self, request, label):
        with self._workers.seats, self.watched(label):
            request.Wait()


class Polling(_Waiting):
    """Nonblocking calls, several in flight, and sleep in between: the core is given back.

    The sleep follows the exchanges: a `looks`-th of the time between two completions, so that
    looking costs little and a finished exchange waits little, between 20 and 500 us.
    """

    test_some = staticmethod(MPI.Request.Testsome)

    def __init__(self, job, outstanding, workers, limit, looks=LOOKS_PER_EXCHANGE):
        super().__init__(job, outstanding, workers)
        self._limit = limit
        self._looks = looks
        self._in_flight = []  # (lane, label)
        self._requests = []  # the MPI requests, in the same order
        self._sleep_s = SHORTEST_SLEEP_S
        self._last_completion = None

    def make_room(self):
        while len(self._requests) >= self._limit:
            self._look()

    def issue(self, lane, operation):
        self.make_room()
        self.adopt(lane, operation, operation.start())

    def adopt(self, lane, operation, request):
        label = Label(operation, lane)
        self._begin(label)
        if not self._requests:
            self._last_completion = self.clock()
        self._in_flight.append((lane, label))
        self._requests.append(request)

    def wait(self, request, label):
        with self.watched(label):
            sleep_s = SHORTEST_SLEEP_S
            while not request.Test():
                self._bell.sleep(sleep_s)
                sleep_s = min(2 * sleep_s, LONGEST_SLEEP_S)

    def finish(self):
        while self._requests:
            self._look()

    def _look(self):
        """Collect what has completed; if nothing has, sleep until the next look or item."""
        if not self._requests:
            self._bell.sleep()
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
            self._bell.sleep(self._sleep_s)
            return
        now = self.clock()
        interval = (now - self._last_completion) / len(done)
        self._last_completion = now
        self._sleep_s = min(max(interval / self._looks, 0.5 * self._sleep_s,
                                SHORTEST_SLEEP_S), 2 * self._sleep_s, LONGEST_SLEEP_S)
        finished = [self._in_flight[position] for position in done]
        for position in sorted(done, reverse=True):
            del self._in_flight[position], self._requests[position]
        for lane, label in finished:
            self._end(label)
            self.completed(lane, error)


class Label:
    """An operation under way, as text only when somebody asks (deadline, trace)."""

    __slots__ = ("_operation", "_key")

    def __init__(self, operation, lane):
        self._operation = operation
        self._key = lane.current.key

    def __str__(self):
        return f"{self._operation} of slice {self._key}"


class Communicator:
    """Issues the operations of one job at a time.

    Parameters
    ----------
    control : mpi4py.MPI.Comm
        Carries the agreements and nothing else, so that they always match.
    comms : list of AsyncComm
        All communicators that programs may use.
    outstanding : dict
        What MPI has not finished yet, to its start (`time.perf_counter`); read by the watchdog.
    agree_every : int
        Operations between two agreements.
    """

    def __init__(self, control, comms, outstanding, agree_every):
        self.control = control
        self.comms = comms
        self.outstanding = outstanding
        self.agree_every = agree_every
        self._abandoned = []  # requests that can never complete: MPI may still write their buffers

    def waiting(self, wait, job, workers, in_flight, looks):
        """The way to wait called `wait`: ``"off"``, ``"block"`` or ``"poll"``."""
        if wait == "off":
            return Inline(job, self.outstanding, None)
        if wait == "block":
            return Blocking(job, self.outstanding, workers)
        return Polling(job, self.outstanding, workers, in_flight, looks)

    def run(self, job, waiting):
        """Issue all operations of `job`; returns the `SliceError` of all ranks, or None."""
        self._job = job
        self._waiting = waiting
        self._agreement = None
        self._spoilt = False
        for lane in job.lanes:
            waiting.resume(lane)
        if not self._issue_all():
            self._stop()
        return self._outcome()

    def _issue_all(self):
        """The rotation. False if the ranks agreed to stop early."""
        job, waiting = self._job, self._waiting
        rotation = list(job.lanes)
        parked = []
        issued = 0
        while rotation or parked:
            if not rotation:  # the last lane has arrived at the barrier
                rotation = sorted(parked, key=lambda lane: lane.index)
                parked = []
                for lane in rotation:
                    lane.release_barrier()
                    waiting.resume(lane)
            visited, rotation = rotation, []
            for lane in visited:
                item = self._take(lane)
                if item is None:
                    return False
                if item is END:
                    continue
                if item is AT_BARRIER:
                    parked.append(lane)
                    continue
                rotation.append(lane)
                if not self._issue(lane, item):
                    return False
                issued += 1
                if issued % self.agree_every == 0 and not self._agree():
                    return False
        waiting.finish()
        return self._agreement is None or self._agreed()

    def _take(self, lane):
        """The lane's next item; None if, while learning, some rank failed."""
        job, waiting = self._job, self._waiting
        waiting.take(lane)
        if lane.index == 0 and job.skeleton is None and job.first_ended and not job.stopping:
            learned = True
        else:
            learned = False
        if job.skeleton is None and not self._same_everywhere(lane.item, learned):
            return None
        if learned:
            job.learned()
        while lane.item is FAILED:  # posted before the skeleton was known
            lane.item = None
            waiting.resume(lane)
            waiting.take(lane)
        item, lane.item = lane.item, None
        lane.taken += 1
        return item

    def _issue(self, lane, operation):
        """Issue one operation; False if, while learning, it did not start on all ranks."""
        job, waiting = self._job, self._waiting
        if isinstance(operation, Turn):
            waiting.completed(lane)
            return True
        if job.skeleton is None:
            waiting.make_room()
            request = None
            try:
                request = operation.start()
            except Exception as error:
                job.fail(lane.current.key, error)
            if not self._minimum([request is not None])[0]:
                # Where it did start it can never complete: leave the communicators behind.
                self._spoilt = True
                self._abandoned.append((request, waiting))
                return False
            waiting.adopt(lane, operation, request)
            return True
        while True:
            try:
                waiting.issue(lane, operation)
                return True
            except Exception as error:
                # The others issue it: so must this rank, on buffers from the skeleton.
                if isinstance(error, MPI.Exception) and (
                        error.Get_error_class() not in ARGUMENT_ERRORS):
                    waiting.completed(lane, error)
                    return True
                run = lane.current
                if run.draining:
                    raise
                run.error = error
                run.awaited -= 1
                job.fail(run.key, error)
                waiting.resume(lane)
                waiting.take(lane)
                operation, lane.item = lane.item, None

    def _same_everywhere(self, item, learned):
        """While learning: has no rank failed, and do all ranks take the same item here?"""
        job = self._job
        signature = zlib.crc32(f"{item} {learned}".encode())
        healthy, smallest, largest = self._minimum(
            [not job.stopping and item is not FAILED, signature, -signature])
        if healthy and smallest != -largest:
            job.fail("?", RuntimeError(
                "the slice programs of the ranks await different operations: expected the same on "
                f"all ranks, rank {self.control.rank} received {item}"))
            return False
        return bool(healthy)

    def _minimum(self, values):
        """Element-wise minimum over the ranks of a few integers."""
        values = np.array(values, dtype=np.int64)
        request = self.control.Iallreduce(MPI.IN_PLACE, values, MPI.MIN)
        self._waiting.wait(request, "agreement of all ranks")
        return values

    def _agree(self):
        """Look at the last agreement and start the next one; False if a rank had failed."""
        if self._agreement is not None and not self._agreed():
            return False
        flag = np.array([self._job.failure is None], dtype=np.int64)
        request = self.control.Iallreduce(MPI.IN_PLACE, flag, MPI.MIN)
        self._agreement = request, flag
        return True

    def _agreed(self):
        request, flag = self._agreement
        self._agreement = None
        self._waiting.wait(request, "agreement of all ranks")
        return bool(flag[0])

    def _stop(self):
        """All ranks stop here: let what is under way end, and drop the rest."""
        job, waiting = self._job, self._waiting
        job.stopping = True
        job.lock_gates()
        waiting.stopped = True
        waiting.finish()
        for lane in job.lanes:
            waiting.quiet(lane)
        for lane in job.lanes:
            lane.close()

    def _outcome(self):
        """The same SliceError on all ranks, or None if the job has ended well on all."""
        job = self._job
        if self._spoilt:
            with self._waiting.watched("new communicators on all ranks"):
                for comm in self.comms:
                    comm.renew()
        rank, size = self.control.rank, self.control.size
        failed = job.failure is not None
        origin = int(self._minimum([rank if failed else size])[0])
        if origin == size:
            return None
        text = b""
        if rank == origin:
            failure = job.failure
            text = pickle.dumps((rank, failure.key, failure.summary, failure.traceback_text))
        with self._waiting.watched("the report of what failed"):
            length = np.array([len(text)], dtype=np.int64)
            self.control.Bcast(length, root=origin)
            data = np.frombuffer(text, dtype=np.uint8).copy() if rank == origin else np.empty(
                length[0], dtype=np.uint8)
            self.control.Bcast(data, root=origin)
        return SliceError(*pickle.loads(data.tobytes()))

