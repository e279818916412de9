"""Slices in flight: each lane runs its share of the slices, one after another.

Lane ``i`` of ``depth`` runs slices ``i``, ``i + depth``, ``i + 2 depth``, ... in this order. The
assignment is fixed, so the requests a lane posts are a stream that is the same on every rank, and a
lane starts its next slice the moment the last one ends, without asking the communicator (the
design's "next unstarted slice takes its place" is the same order when slices await equally often,
but would make a worker wait for the communicator's visit).

Who touches what: between being resumed and its `post`, the lane belongs to the one
worker that advances it; between `post` and the next `resume`, to the communicator.
"""

import traceback
from collections import deque
from threading import Lock, RLock, current_thread
from time import perf_counter

from .requests import After, Barrier, Operation, Parallel, _Request

END = "end of the slices"  # posted when a lane has no slice left
AT_BARRIER = "barrier()"  # posted when all slices left in a lane wait at a barrier
FAILED = "a failed slice"  # posted when a slice failed before the runtime knew what it awaits


class SliceRun:
    """One slice's coroutine, and how far it has come."""

    __slots__ = ("key", "ordinal", "coroutine", "awaited", "draining", "error", "ended")

    def __init__(self, key, ordinal):
        self.key = key
        self.ordinal = ordinal  # what the rank's first slice awaits is recorded
        self.coroutine = None  # made by the first step
        self.awaited = 0  # operations, turns and barriers posted so far
        self.draining = False
        self.error = None  # to be raised from the await, at the next step
        self.ended = False


class Lane:
    """One slice's place in the pipeline."""

    def __init__(self, job, index, resources, keys):
        self.index = index
        self.resources = resources
        # Posted for the communicator: an Operation or Turn, END, AT_BARRIER or FAILED.
        self.item = None
        self.gate = None  # the `After` that the current slice waits for, while it does
        self.taken = 0  # items the communicator has taken
        self.busy = False  # a worker has it, or will have
        self.current = None
        self._job = job
        self._waiting = deque(keys)
        self._parked = deque()

    @property
    def turn(self):
        """Where its next item comes in the issue order."""
        return self.taken * self._job.depth + self.index

    def release_barrier(self):
        """All lanes are at the barrier: the parked slices go on, in their order."""
        self._waiting, self._parked = self._parked, self._waiting

    def close(self):
        """Drop the unfinished coroutines."""
        for run in (self.current, *self._parked, *self._waiting):
            if isinstance(run, SliceRun) and not run.ended:
                _close(run, self._job)

    def advance(self):
        """Run the current slice up to its next request, through slices that end, and post it."""
        while True:
            if self.current is None:
                if not self._waiting:
                    self.post(AT_BARRIER if self._parked else END)
                    return
                self.current = self._start(self._waiting.popleft())
            run = self.current
            request = self._step(run)
            if request is None:
                run.ended = True
                self.current = None
                self._job.ended(run.ordinal)
            elif isinstance(request, Barrier):
                self._parked.append(run)
                self.current = None
                if self.resources is not None and self._waiting:
                    # It would overwrite the parked slice's buffers.
                    self._job.fail(run.key, RuntimeError(
                        f"barrier() in a program with lane buffers needs all slices in flight: "
                        f"expected at most {self._job.depth} slices (the depth), "
                        f"received {self._job.slices}"))
            elif isinstance(request, Parallel):
                if not self._job.split(self, request):
                    return
            elif isinstance(request, After):
                if not self._job.passes(self, request):
                    return
            else:
                self.post(request)
                return

    def post(self, item):
        self.item = item
        self.busy = False
        self._job.posted(self)

    def _start(self, key_or_run):
        if isinstance(key_or_run, SliceRun):
            return key_or_run
        ordinal, key = key_or_run
        return SliceRun(key, ordinal)

    def _step(self, run):
        """Run the slice up to its next request; None when it has ended."""
        job = self._job
        if (job.stopping or run.error is not None) and not run.draining:
            return self._drain(run)
        trace = job.trace
        started = perf_counter() if trace is not None else 0.0
        try:
            if run.coroutine is None:
                run.coroutine = job.coroutine(run.key, self.resources)
            request = run.coroutine.send(None)
        except StopIteration:
            return None
        except BaseException as error:
            if run.draining:
                raise
            job.fail(run.key, error)
            return self._drain(run)
        finally:
            if trace is not None and not run.draining:
                job.traced(f"slice {run.key}", started)
        if not isinstance(request, _Request):
            job.fail(run.key, TypeError(
                "a slice program can await the runtime's own calls only: "
                "expected comm.Alltoall(...), barrier(), parallel(...), after(...) or turn(), "
                f"received {request!r}"))
            return self._drain(run)
        if isinstance(request, After):
            if request.stop > run.ordinal:
                job.fail(run.key, RuntimeError(
                    f"expected slice number {run.ordinal} to wait for earlier ones, received "
                    f"{request}"))
                return self._drain(run)
        elif not isinstance(request, Parallel):
            run.awaited += 1
            if run.ordinal == 0:
                job.record(request)
        return request

    def _drain(self, run):
        """Stop computing in this slice; go on with what the other ranks wait for."""
        if not run.draining:
            _close(run, self._job)
            skeleton = self._job.skeleton
            if skeleton is None:
                return FAILED
            run.coroutine = _skip(skeleton(run.key, self.resources), run.awaited)
            run.draining = True
        return self._step(run)


def _close(run, job):
    """End a slice's coroutine early, showing it the error if it was an await that failed."""
    if run.coroutine is None:
        return
    try:
        if run.error is not None:
            run.coroutine.throw(run.error)
        run.coroutine.close()
    except BaseException as error:
        job.fail(run.key, error)
    run.error = None


def _skip(coroutine, count):
    """Iterate over what a skeleton posts, without the first `count`."""
    try:
        while True:
            try:
                request = coroutine.send(None)
            except StopIteration:
                return
            if isinstance(request, (Parallel, After)):
                continue
            if count == 0:
                yield request
            else:
                count -= 1
    finally:
        coroutine.close()


class Failure:
    """The first thing that went wrong on this rank."""

    def __init__(self, key, error):
        self.key = "?" if key is None else str(key)
        self.error = error
        self.summary = "".join(traceback.format_exception_only(error)).strip()
        self.traceback_text = "".join(traceback.format_exception(error))


class Job:
    """One run of a pipeline on this rank: its lanes and its state.

    Parameters
    ----------
    keys : sequence
        The slices.
    coroutine : callable
        ``coroutine(key, resources)`` makes a slice's coroutine.
    skeleton : callable or None
        Same arguments; a coroutine that awaits what the slice awaits and computes nothing. None:
        learned from the first slice, whose operations are agreed on one by one.
    resources : list
        One entry per lane; None where the program has no lane buffers.
    workers : Workers or None
        None: everything runs inline.
    trace : Trace or None

    Attributes
    ----------
    posted : callable
        ``posted(lane)`` tells the communicator that the lane has an item, or waits at a gate; set
        by it.
    resume : callable
        ``resume(lane)`` has a worker advance the lane; set by the communicator.
    """

    def __init__(self, keys, coroutine, skeleton, resources, depth, workers, trace):
        self.slices = len(keys)
        self.depth = depth
        self.coroutine = coroutine
        self.skeleton = skeleton
        self.posted = self.resume = None
        self.trace = trace
        self.failure = None
        self.first_ended = False
        self.stopping = False  # no more computing: this rank failed, or all have agreed to stop
        self._workers = workers
        self._lock = RLock()  # a signal handler may fail the job as well
        self._recorded = []
        self._ended = bytearray(len(keys))  # which slices have
        self._gates = {}  # lanes that wait for some of them; None: they stay
        numbered = list(enumerate(keys))
        self.lanes = [Lane(self, index, resources[index], numbered[index::depth])
                      for index in range(min(depth, len(keys)))]

    def fail(self, key, error):
        """Keep the first failure of this rank; from now on the lanes drain."""
        with self._lock:
            if self.failure is None:
                self.failure = Failure(key, error)
            self.stopping = True
            self._open_gates()

    def ended(self, ordinal):
        """A slice has ended: those that waited for it go on."""
        if ordinal == 0:
            self.first_ended = True
        with self._lock:
            self._ended[ordinal] = True
            self._open_gates()

    def passes(self, lane, gate):
        """Whether the slices of an `After` have ended; if not, the lane is resumed when they have."""
        with self._lock:
            if self._is_open(gate):
                return True
            lane.gate = gate
            lane.busy = False
            if self._gates is not None:
                self._gates[lane] = True
        self.posted(lane)
        return False

    def lock_gates(self):
        """From now on no lane is resumed at a gate."""
        with self._lock:
            self._gates = None

    def _is_open(self, gate):
        return self.stopping or self._ended.find(0, gate.start, gate.stop) < 0

    def _open_gates(self):
        for lane in tuple(self._gates or ()):
            # A signal handler that fails the job may have opened it meanwhile.
            if self._is_open(lane.gate) and self._gates.pop(lane, False):
                lane.gate = None
                self.resume(lane)

    def record(self, request):
        if self.skeleton is None:
            self._recorded.append(request)

    def learned(self):
        """The first slice has ended on all ranks: what it awaited stands for every slice."""
        recorded = self._recorded

        async def skeleton(key, resources):
            for request in recorded:
                await (request.on_scratch() if isinstance(request, Operation) else request)

        self.skeleton = skeleton

    def traced(self, label, started):
        self.trace.add(current_thread().name, "compute", label, started, perf_counter())

    def split(self, lane, request):
        """Run the parts of a `Parallel` request; True if they are done on return."""
        run = lane.current
        if not request.parts:
            return True
        if self._workers is None:
            for part in request.parts:
                self._part(run, request.function, part)
            return True
        remaining = len(request.parts)
        lock = Lock()

        def task(part):
            nonlocal remaining
            self._part(run, request.function, part)
            with lock:
                remaining -= 1
                last = remaining == 0
            if last:
                lane.advance()

        for part in request.parts:
            self._workers.submit(lane.turn, lambda part=part: task(part))
        return False

    def _part(self, run, function, part):
        started = perf_counter()
        try:
            if run.error is None and not self.stopping:
                function(part)
        except BaseException as error:
            run.error = error
            self.fail(run.key, error)
        if self.trace is not None:
            self.traced(f"slice {run.key} part", started)
