"""Slices in flight: each slot runs its share of the slices, one after another.

Slot ``i`` of ``depth`` runs slices ``i``, ``i + depth``, ``i + 2 depth``, ... in this order. The
assignment is fixed, so the requests a slot posts are a stream that is the same on every rank, and a
slot starts its next slice the moment the last one ends, without asking the communicator. (Giving the
next unstarted slice to the slot that is free first is the same order when slices await equally often,
but would make a worker wait for the communicator's visit.)

Who touches what: between being resumed and its `post`, the slot belongs to the one
worker that advances it; between `post` and the next `resume`, to the communicator.
"""

from collections import deque
from time import perf_counter

from ..errors import repr_of, text_of
from .requests import Barrier, Parallel, WaitForSlices, _Request

END = "end of the slices"  # posted when a slot has no slice left
AT_BARRIER = "barrier()"  # posted when all slices left in a slot wait at a barrier
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


class Slot:
    """One slice's place in the pipeline."""

    def __init__(self, job, index, resources, keys):
        self.index = index
        self.resources = resources
        # Posted for the communicator: an Operation or Turn, END, AT_BARRIER or FAILED.
        self.item = None
        self.gate = None  # the `WaitForSlices` that the current slice waits for, while it does
        self.taken = 0  # items the communicator has taken
        self.busy = False  # a worker has it, or will have
        self.current = None
        self._job = job
        self._waiting = deque(keys)
        self._parked = deque()

    @property
    def place(self):
        """Where its next item comes in the issue order."""
        return self.taken * self._job.depth + self.index

    def release_barrier(self):
        """All slots are at the barrier: the parked slices go on, in their order."""
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
                        f"barrier() in a program with slot buffers needs all slices in flight: "
                        f"expected at most {self._job.depth} slices (the depth), "
                        f"received {self._job.slices}"))
            elif isinstance(request, Parallel):
                if not self._job.split(self, request):
                    return
            elif isinstance(request, WaitForSlices):
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
                job.traced(f"slice {text_of(run.key)}", started)
        if not isinstance(request, _Request):
            job.fail(run.key, TypeError(
                "a slice program can await the runtime's own calls only: "
                "expected comm.Alltoall(...), barrier(), parallel(...), wait_for_slices(...) or take_turn(), "
                f"received {repr_of(request)}"))
            return self._drain(run)
        if isinstance(request, WaitForSlices):
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
            if isinstance(request, (Parallel, WaitForSlices)):
                continue
            if count == 0:
                yield request
            else:
                count -= 1
    finally:
        coroutine.close()
