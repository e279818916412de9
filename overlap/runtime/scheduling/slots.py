"""Slots, each of which runs its share of the slices one after another.

Slot ``i`` of ``depth`` runs slices ``i``, ``i + depth``, ``i + 2 depth``, ... in this order. The assignment is fixed,
so a slot posts the same stream of requests on every rank, and begins its next slice as soon as the last one ends,
without asking the issuing thread. (If instead the first free slot took the next slice, a worker would have to wait for
the issuing thread's visit.)

Ownership. A slot that is *running* (from `Waiting.resume` to `Slot.post`, or to a gate) belongs to the one thread that
advances it; otherwise to the issuing thread. Both changes of owner happen under `Job.lock`, so each owner sees what the
one before has written, on any Python.

Draining. If a slice has failed, all slices of its rank go on with their skeletons: they compute nothing and await the
operations that the other ranks wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from threading import Lock
from time import perf_counter
from types import TracebackType
from typing import Any

from ...errors import repr_of, text_of
from ..requests.learning import Follows
from ..requests.operations import Collective, Operation, Pending, Persistent, Start, label_of, not_awaited, steps
from ..requests.requests import Barrier, Parallel, Request, TakeTurn, WaitForSlices
from .job import Job

END = "end of the slices"  # posted when a slot has no slices left
AT_BARRIER = "barrier()"  # posted when all remaining slices of a slot wait at a barrier
FAILED = "a failed slice"  # posted when a slice has failed before it is known what it awaits
_RUNTIME = __name__.rpartition(".scheduling")[0]
_ENDED = object()  # returned instead of a request when the slice has ended
_ISSUED = frozenset((Collective, Operation, Persistent, Start, TakeTurn))
_NOT_COMPARED = frozenset((Parallel, WaitForSlices, type(FAILED)))


class Slice:
    """One slice: its source of requests and its progress."""

    __slots__ = (
        "answer",
        "awaited",
        "begun",
        "draining",
        "ended",
        "error",
        "identity",
        "key",
        "ordinal",
        "pending",
        "source",
    )

    def __init__(self, key: Any, ordinal: int) -> None:
        self.key = key
        self.ordinal = ordinal  # the slice's index in the call; what slice 0 awaits is recorded
        self.identity = object()  # stands for the slice in its requests, which must not keep the slice alive
        self.source: Any = None  # ``source.send(answer)`` gives the next request; made by the first step
        self.awaited = 0  # operations, turns and barriers posted so far
        self.begun = False  # the issuing thread has taken the first operation or turn
        self.draining = self.ended = False
        self.error: BaseException | None = None  # to be raised from the slice's await in its next step
        self.pending: list[Pending] = []  # the operations that the slice has started, in this order
        self.answer: Any = None  # the value that the slice's await returns


class Slot:
    """Holds one slice in flight, with the slot's buffers."""

    def __init__(self, job: Job, index: int) -> None:
        self.index = index
        self.resources = job.resources[index]
        self.item: Any = None  # posted for the issuing thread, until that thread takes it
        self.gate: WaitForSlices | Follows | None = None  # the wait for other slices in which the current slice is
        self.operation: Any = None  # the `Operation` or `Pending` for which the current slice waits,
        self.since_s = 0.0  # and since when
        self.taken = 0  # number of items that the issuing thread has taken
        self.computing_s = 0.0  # time of the steps of the slot's slices
        self.current: Any = None
        self._job = job
        self._come_to: Any = None  # what the slice has come to, while it waits until that can be compared
        self._waiting: deque[Slice | int] = deque(range(index, job.slices, job.depth))  # slices, or their numbers
        self._parked: deque[Slice | int] = deque()

    def __str__(self) -> str:
        """Name the operation for which the slot waits, for the watchdog and the trace."""
        operation, current = self.operation, self.current
        if type(operation) is Pending:
            operation = operation.operation
        return label_of(operation, current and current.key)

    @property
    def place(self) -> int:
        """Return the position of the slot's next item in the issue order."""
        return self.taken * self._job.depth + self.index

    def release_barrier(self) -> None:
        """Let the parked slices go on, in their order, when all slots have reached the barrier."""
        self._waiting, self._parked = self._parked, self._waiting

    def has_parked(self, ordinal: int) -> bool:
        """Return whether the slice with this index waits at the barrier."""
        return any(isinstance(run, Slice) and run.ordinal == ordinal for run in self._parked)

    def drop(self) -> None:
        """Give up the current slice, none of whose operations has been issued."""
        run, self.current, self.item, self._come_to = self.current, None, None, None
        _close(run, self._job)

    def close(self) -> None:
        """Drop the unfinished sources."""
        for run in (self.current, *self._parked, *self._waiting):
            if isinstance(run, Slice) and not run.ended:
                _close(run, self._job)

    def advance(self) -> None:
        """Run the current slice up to its next request, through slices that end, and post it."""
        job = self._job
        while True:
            run = self.current
            if run is None:
                run = self.current = self._next()
                if run is None:
                    self.post(AT_BARRIER if self._parked else END)
                    return
            request, self._come_to = self._come_to, None
            if request is None:
                request = self._step(run)
            if job.recorded is not None and run.ordinal and not run.draining and type(request) not in _NOT_COMPARED:
                if not job.recorded.reaches(run.awaited):
                    self._come_to = request
                    if not job.passes(self, Follows(job.recorded, run.awaited)):
                        return
                    self._come_to = None
                request = self._compared(run, request)
            if type(request) in _ISSUED:
                run.awaited += 1
                self.post(request)
                return
            if request is _ENDED:
                run.ended = True
                self.current = None
                job.ended(run.ordinal)
            elif isinstance(request, Barrier):
                run.awaited += 1
                job.record(run, request)
                self._parked.append(run)
                self.current = None
                if self.resources is not None and self._waiting:
                    # Another slice in this slot would overwrite the parked slice's buffers.
                    job.fail(
                        run.key,
                        RuntimeError(
                            f"barrier() in a program with slot buffers needs all slices in flight: "
                            f"expected at most {job.depth} slices (the depth), "
                            f"received {job.slices}"
                        ),
                    )
            elif isinstance(request, Parallel):
                if not self._split(request):
                    return
            elif isinstance(request, WaitForSlices):
                if not job.passes(self, request):
                    return
            else:
                if type(request) is Pending:
                    run.awaited += 1
                    request.waited = True
                self.post(request)
                return

    def post(self, item: Any) -> None:
        """Hand the slot to the issuing thread."""
        job = self._job
        if job.alone:  # this is the issuing thread
            self.item = item
            return
        with job.lock:
            self.item = item
            job.leave(self)

    def _next(self) -> Slice | None:
        """Return the slice that runs next in this slot, or None."""
        while self._waiting:
            run = self._waiting.popleft()
            if not isinstance(run, Slice):
                run = Slice(self._job.keys[run], run)
            if run.begun or not self._job.closing:
                return run
            _close(run, self._job)
        return None

    def _step(self, run: Slice) -> Any:
        """Run the slice up to its next request, or to its end."""
        job = self._job
        if (job.stopping or run.error is not None) and not run.draining:
            return self._drain(run)
        timed = job.timed and not run.draining
        started = perf_counter() if timed else 0.0
        steps.owner, steps.dropped = run.identity, None
        try:
            if run.source is None:
                run.source = job.source(run.key, self.resources)
            answer, run.answer = run.answer, None
            request = run.source.send(answer)
            answer = None
        except StopIteration as end:
            request = _ENDED
            if end.value is not None and not run.draining:
                job.returned[run.ordinal] = end.value
        except BaseException as error:
            if run.draining:
                raise
            job.fail(run.key, error)
            return self._drain(run)
        finally:
            steps.owner = None
            if timed:
                ended_s = perf_counter()
                self.computing_s += ended_s - started
                if job.trace is not None:
                    job.traced(f"slice {text_of(run.key)}", started, ended_s)
        # The usual case needs no further check.
        if steps.dropped is None and (type(request) in _ISSUED or (request is _ENDED and not run.pending)):
            return request
        problem = self._problem(run, request)
        if problem is not None:
            job.fail(run.key, at_await(problem, run.source))
            return self._drain(run)
        return request

    def _compared(self, run: Slice, request: Any) -> Any:
        """Return what a slice has come to, if the first slice has come to the same; else what its rank drains."""
        job = self._job
        assert job.recorded is not None
        if not job.stopping:
            problem = job.recorded.problem(run.awaited, None if request is _ENDED else request)
            if problem is None:
                return request
            job.fail(run.key, at_await(problem, run.source))
        return self._drain(run)

    def _split(self, request: Parallel) -> bool:
        """Run the parts of a `Parallel` request; return True if all of them are done by then."""
        job, run = self._job, self.current
        if not request.parts:
            return True
        if job.workers is None:
            for part in request.parts:
                self.computing_s += self._part(run, request.function, part)
            return True
        remaining = len(request.parts)
        lock = Lock()

        def task(part: Any) -> None:
            nonlocal remaining
            took_s = self._part(run, request.function, part)
            with lock:
                remaining -= 1
                self.computing_s += took_s
                last = remaining == 0
            if last:
                self.advance()

        for part in request.parts:
            job.workers.submit(self.place, partial(task, part))
        return False

    def _part(self, run: Slice, function: Callable[[Any], object], part: Any) -> float:
        """Run one part and return the time that it took."""
        job = self._job
        started = perf_counter()
        try:
            if run.error is None and not job.stopping:
                function(part)
        except BaseException as error:
            with job.lock:
                if run.error is None:
                    run.error = error
            job.fail(run.key, error)
        ended = perf_counter()
        if job.trace is not None:
            job.traced(f"slice {text_of(run.key)} part", started, ended)
        return ended - started

    def _problem(self, run: Slice, request: Any) -> BaseException | None:
        """Return why the slice must not await this request, or end; None if it may."""
        kind, ended = type(request), request is _ENDED
        if not run.draining:
            if steps.dropped is not None:
                return not_awaited(steps.dropped)
            left = [str(pending.operation) for pending in run.pending if not pending.waited] if ended else ()
            if left:
                return RuntimeError(
                    "expected a slice to await all operations that it has started, received its end "
                    f"with {', '.join(left)} pending"
                )
            if kind is Pending and (request.waited or request not in run.pending):
                return RuntimeError(f"expected a slice to await its own operations, each once, received {request}")
        if not ended and not issubclass(kind, Request):
            return TypeError(
                "a slice program can await the runtime's own calls only: "
                "expected comm.Alltoall(...), barrier(), parallel(...), wait_for_slices(...) or "
                f"take_turn(), received {repr_of(request)}"
            )
        if issubclass(kind, WaitForSlices) and request.stop > run.ordinal and not run.draining:
            return RuntimeError(
                f"expected slice number {run.ordinal} to wait for earlier slices only, received {request}"
            )
        return None

    def _drain(self, run: Slice) -> Any:
        """Stop computing in this slice; go on with the requests of its skeleton."""
        if not run.draining:
            _close(run, self._job)
            skeleton = self._job.skeleton_of(run.ordinal, run.awaited)
            if skeleton is None:
                return FAILED
            run.answer = None
            run.source = _skip(skeleton(run.key, self.resources), run.awaited, run.pending)
            run.draining = True
        return self._step(run)


def at_await(error: BaseException, source: Any) -> BaseException:
    """Return an operation's error with a traceback that begins at the slice's `await`, without the runtime's frames."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_globals.get("__name__", "").startswith(_RUNTIME):
        traceback = traceback.tb_next
    frames = []
    while source is not None:  # the slice's coroutine, and those that it awaits
        frame = getattr(source, "cr_frame", None) or getattr(source, "gi_frame", None)
        if frame is not None and not frame.f_globals.get("__name__", "").startswith(_RUNTIME):
            frames.append(frame)
        source = getattr(source, "cr_await", None) or getattr(source, "gi_yieldfrom", None)
    for frame in reversed(frames):
        traceback = TracebackType(traceback, frame, frame.f_lasti, frame.f_lineno)
    return error.with_traceback(traceback)


def _close(run: Slice, job: Job) -> None:
    """End a slice's source early; raise the error in it if one of its awaits has failed."""
    if run.source is None:
        return
    raised, traceback = run.error, None if run.error is None else run.error.__traceback__
    try:
        if raised is not None:
            run.source.throw(raised)
        run.source.close()
    except BaseException as error:
        job.fail(run.key, error)
        if error is raised:
            error.__traceback__ = traceback  # `throw` has added the same lines once more
    run.error = None


def _skip(source: Any, count: int, pending: list[Pending]) -> Generator[Any, Any, None]:
    """Yield what a skeleton awaits, without the first `count` requests, which have started `pending`."""
    answer, started = None, 0
    try:
        while True:
            try:
                request = source.send(answer)
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
                    if started == len(pending):  # MPI has rejected it, or the slice has awaited something else
                        pending.append(Pending(request.operation, started))
                        pending[-1].done = True
                    answer = pending[started]
                    started += 1
    finally:
        source.close()
