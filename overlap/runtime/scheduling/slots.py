"""Slices in flight: each slot runs its share of the slices, one after another.

Slot ``i`` of ``depth`` runs slices ``i``, ``i + depth``, ``i + 2 depth``, ... in this order. The
assignment is fixed, so the requests a slot posts are a stream that is the same on every rank, and a
slot starts its next slice the moment the last one ends, without asking the communicator thread. (Giving
the next unstarted slice to the slot that is free first is the same order when slices await equally often,
but would make a worker wait for the communicator thread's visit.)

Who touches what. A slot that is *running* (from `Waiting.resume` to `Slot.post`, or to a gate) belongs to
the one worker that advances it; else to the communicator thread. Both changes of hands happen under
`Job.lock`, so what one has written the other sees, on any Python.

Draining. A slice that has failed, and every slice of a rank on which one has, goes on with its skeleton:
it computes nothing and awaits what the other ranks wait for.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter

from ...errors import repr_of, text_of
from ..requests.operations import Pending, Start, not_awaited, steps
from ..requests.requests import Barrier, Parallel, Request, WaitForSlices

END = "end of the slices"  # posted when a slot has no slice left
AT_BARRIER = "barrier()"  # posted when all slices left in a slot wait at a barrier
FAILED = "a failed slice"  # posted when a slice failed before the runtime knew what it awaits


class SliceRun:
    """One slice's coroutine, and how far it has come."""

    __slots__ = (
        "answer",
        "awaited",
        "begun",
        "coroutine",
        "draining",
        "ended",
        "error",
        "identity",
        "key",
        "ordinal",
        "pending",
    )

    def __init__(self, key, ordinal):
        self.key = key
        self.identity = object()  # what its requests know it by: they must not keep it alive
        self.ordinal = ordinal  # its place in the call; what slice 0 awaits is recorded
        self.coroutine = None  # made by the first step
        self.awaited = 0  # operations, turns and barriers posted so far
        self.begun = False  # the communicator thread has taken the first of its operations or turns
        self.draining = False
        self.error = None  # to be raised from the await, at the next step
        self.pending = []  # what it has started, in this order
        self.answer = None  # what its await gives
        self.ended = False


class Slot:
    """One slice's place in the pipeline.

    Attributes
    ----------
    item : Operation, TakeTurn, END, AT_BARRIER, FAILED or None
        Posted for the communicator thread, until it takes it.
    gate : WaitForSlices or None
        What the current slice waits for, while it does.
    taken : int
        Items that the communicator thread has taken.
    known : bool
        The last item was taken when the program was known already: the slot's slices are held to it.
        The same on all ranks at the same place, which `Job.skeleton`, read by a worker, is not.
    over : bool
        The communicator thread has taken its `END`.
    computing_s : float
        Time that steps of its slices have taken.
    unchecked : list of (SliceRun, int, Request or None)
        What was awaited before that: the slice, the position, the request; None is its end.
    """

    def __init__(self, job, index, resources, keys):
        self.index = index
        self.resources = resources
        self.item = None
        self.gate = None
        self.taken = 0
        self.known = False
        self.over = False
        self.computing_s = 0.0
        self.unchecked = []
        self.current = None
        self._job = job
        self._waiting = deque(keys)
        self._parked = deque()

    @property
    def place(self):
        """Where its next item comes in the issue order."""
        return self.taken * self._job.depth + self.index

    def go_on(self, ended, taken, coroutine, awaited, error):
        """Go on with slices that have begun elsewhere.

        Parameters
        ----------
        ended : int
            The first so many have ended.
        taken : int
        coroutine : coroutine or None
            The next one, if it has begun.
        awaited : int
            Its operations and turns that were issued.
        error : BaseException or None
            What the last of these is to raise.
        """
        for _ in range(ended):
            ordinal, _ = self._waiting.popleft()
            self._job.ended(ordinal)
        self.taken = taken
        if coroutine is not None:
            ordinal, key = self._waiting.popleft()
            self.current = run = SliceRun(key, ordinal)
            run.coroutine = coroutine
            run.awaited = awaited
            run.begun = awaited > 0
            run.error = error

    def release_barrier(self):
        """All slots are at the barrier: the parked slices go on, in their order."""
        self._waiting, self._parked = self._parked, self._waiting

    def has_parked(self, ordinal):
        """Whether this slice waits at the barrier."""
        return any(run.ordinal == ordinal for run in self._parked)

    def drop(self):
        """Give up the current slice, none of whose operations has been issued."""
        run, self.current, self.item = self.current, None, None
        _close(run, self._job)

    def close(self):
        """Drop the unfinished coroutines."""
        for run in (self.current, *self._parked, *self._waiting):
            if isinstance(run, SliceRun) and not run.ended:
                _close(run, self._job)

    def advance(self):
        """Run the current slice up to its next request, through slices that end, and post it."""
        while True:
            if self.current is None:
                self.current = self._next()
                if self.current is None:
                    self.post(AT_BARRIER if self._parked else END)
                    return
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
                    self._job.fail(
                        run.key,
                        RuntimeError(
                            f"barrier() in a program with slot buffers needs all slices in flight: "
                            f"expected at most {self._job.depth} slices (the depth), "
                            f"received {self._job.slices}"
                        ),
                    )
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
        """Hand the slot to the communicator thread."""
        job = self._job
        with job.lock:
            self.item = item
            job.leave(self)

    def _next(self):
        """Return the slice to go on with, or None."""
        while self._waiting:
            run = self._waiting.popleft()
            if not isinstance(run, SliceRun):
                ordinal, key = run
                run = SliceRun(key, ordinal)
            if run.begun or not self._job.closing:
                return run
            _close(run, self._job)
        return None

    def _step(self, run):
        """Run the slice up to its next request; None when it has ended."""
        job = self._job
        if (job.stopping or run.error is not None) and not run.draining:
            return self._drain(run)
        started = perf_counter()
        request = None
        steps.owner, steps.dropped = run.identity, None
        try:
            if run.coroutine is None:
                run.coroutine = job.coroutine(run.key, self.resources)
            answer, run.answer = run.answer, None
            request = run.coroutine.send(answer)
            answer = None
            ended = False
        except StopIteration:
            ended = True
        except BaseException as error:
            if run.draining:
                raise
            job.fail(run.key, error)
            return self._drain(run)
        finally:
            steps.owner = None
            if not run.draining:
                ended_s = perf_counter()
                self.computing_s += ended_s - started
                if job.trace is not None:
                    job.traced(f"slice {text_of(run.key)}", started, ended_s)
        problem = self._problem(run, request, ended)
        if problem is not None:
            job.fail(run.key, problem)
            return self._drain(run)
        if not ended and not isinstance(request, (Parallel, WaitForSlices)):
            run.awaited += 1
            if type(request) is Pending:
                request.waited = True
        return request

    def _problem(self, run, request, ended):
        """Why the slice cannot go on with this request, or end; None if it can."""
        kind = type(request)
        if not run.draining:
            if steps.dropped is not None:
                return not_awaited(steps.dropped)
            left = [str(one.operation) for one in run.pending if not one.waited] if ended else ()
            if left:
                return RuntimeError(
                    "expected a slice to await all that it has started, received its end "
                    f"with {', '.join(left)} pending"
                )
            if kind is Pending and (request.waited or request not in run.pending):
                return RuntimeError(f"expected a slice to await what it has started itself, once, received {request}")
        if not ended and not issubclass(kind, Request):
            return TypeError(
                "a slice program can await the runtime's own calls only: "
                "expected comm.Alltoall(...), barrier(), parallel(...), wait_for_slices(...) or "
                f"take_turn(), received {repr_of(request)}"
            )
        if issubclass(kind, Parallel):
            return None
        if issubclass(kind, WaitForSlices):
            if request.stop > run.ordinal and not run.draining:
                return RuntimeError(f"expected slice number {run.ordinal} to wait for earlier ones, received {request}")
            return None
        recorded = self._job.recorded
        if recorded is None or run.draining:
            return None
        if self.known:
            return recorded.problem(run, run.awaited, request)
        if run.ordinal == 0 and not ended:
            recorded.requests.append(request)
        self.unchecked.append((run, run.awaited, request))
        return None

    def _drain(self, run):
        """Stop computing in this slice; go on with what the other ranks wait for."""
        if not run.draining:
            _close(run, self._job)
            skeleton = self._job.skeleton
            if skeleton is None:
                return FAILED
            run.answer = None
            run.coroutine = _skip(skeleton(run.key, self.resources), run.awaited, run.pending)
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


def _skip(coroutine, count, pending):
    """Iterate over what a skeleton posts, without the first `count`; what they started is `pending`."""
    answer, started = None, 0
    try:
        while True:
            try:
                request = coroutine.send(answer)
            except StopIteration:
                return
            answer = None
            if isinstance(request, (Parallel, WaitForSlices)):
                continue
            if count == 0:
                answer = yield request
            else:
                count -= 1
                if isinstance(request, Start):
                    if started == len(pending):  # MPI has refused it, or the slice has awaited something else
                        pending.append(Pending(request.operation, started))
                        pending[-1].done = True
                    answer = pending[started]
                    started += 1
    finally:
        coroutine.close()
