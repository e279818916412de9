"""`Pipeline`: a slice program made callable."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutinefunction, isfunction, isgeneratorfunction, ismethod, isroutine, unwrap
from time import perf_counter
from typing import Any, Literal

import numpy as np

from ..errors import InputError, formatted, repr_of
from ..ranks.header import Header
from ..ranks.interrupts import held_signals
from ..ranks.objects import Described, Uncopied
from .load import Load
from .requests.learning import replayed
from .requests.operations import Persistent, Request, Several
from .requests.requests import AsyncComm
from .scheduling.job import Job
from .threads.threads import COMMUNICATOR_THREAD, INLINE, PlacementChoice, Threads
from .trace import CALLS

SHORT_S = 500e-6  # calls that take less are compared by more trials: their times are noisy
TRIALS, SHORT_TRIALS = 2, 6  # calls in each way to wait, before one is chosen
HEADERS = 8  # headers kept, each for one number of slices

SliceProgram = Callable[..., Coroutine[Any, Any, Any]]
Skeleton = Callable[..., Any]
"""A slice program that awaits what slices await, or a function that returns a request or an iterable of them."""


@dataclass(frozen=True)
class PipelineOptions:
    """Options of a pipeline, see `Runtime.pipelined`.

    If it is `local` there is nothing to hide, and slices wait for each other only by an `await`.
    """

    depth: int
    wait: str
    in_flight: int
    polls: int
    local: bool


class Pipeline(Uncopied, Described):
    """A slice program made callable: see `Runtime.pipelined`.

    Attributes
    ----------
    wait : str
        The way to wait that the last call used; `"auto"` before the first one.
    depth : int
    slots : list
        The slots' buffers, `depth` of them, or None each.
    load : Load
        How long this rank has computed and waited in its calls.

    Examples
    --------
    >>> with overlap.Runtime(comm) as rt:
    ...     @rt.pipelined(buffers=lambda: np.empty(1))
    ...     async def total(i, received, factor):
    ...         await rt.comm.Allreduce(np.full(1, factor * i), received)
    ...     total(range(16), 2.0)
    ...     total.depth
    8
    """

    def __init__(
        self,
        threads: Threads,
        program: SliceProgram,
        buffers: Callable[[], Any] | None,
        skeleton: Skeleton | Literal["agree"] | None,
        options: PipelineOptions,
        problem: str | None = None,
    ) -> None:
        self.depth = options.depth
        self.wait = self._way = options.wait
        if _is_plain(program):
            raise InputError(f"expected a coroutine function (`async def`) as program, received {repr_of(program)}")
        # Making a pipeline is not collective: an error here is reported to all ranks by the pipeline's first call.
        problem = problem or _functions_problem(program, buffers, skeleton)
        self._error: BaseException | None = None if problem is None else InputError(problem)
        self.slots = [None] * options.depth
        if buffers is not None and problem is None:
            try:
                self.slots = _made_slots(buffers, options.depth, threads.coordinator.comms)
            except KeyboardInterrupt:
                raise  # the user wants to stop now, not at a call that may never be made
            except BaseException as error:
                self._error = error
        self._options = options
        self._threads = threads
        self._program = program
        self._skeleton = skeleton
        self._has_buffers = buffers is not None
        self._name = str(getattr(program, "__qualname__", None) or type(program).__qualname__)
        self._call = f"a call of the pipeline {self._name}"
        self._used = threads.coordinator.exclusive.used(self._call)
        self._placements = PlacementChoice(threads.workers, options.local)
        self.load = Load()
        self._headers: dict[tuple[int, str], Header] = {}  # headers of calls without `agree`
        ways = ("poll", "block", "off") if threads.workers == 1 else ("poll", "block")
        self._trial: dict[str, list[float]] | None = {way: [] for way in ways} if options.wait == "auto" else None

    def _title(self) -> str:
        size = self._threads.coordinator.size
        return f"Pipeline {self._name} over {size} rank(s), depth {self.depth}, wait {self.wait!r}"

    def _has_ended(self) -> bool:
        return self._threads.coordinator.closed

    def __call__(
        self,
        slices: Iterable[Any],
        *args: Any,
        agree: Any = None,
        problem: str | Exception | None = None,
        **kwargs: Any,
    ) -> list[Any] | None:
        """Run all slices to their end (collective).

        Parameters
        ----------
        slices : sequence
            One entry per slice, as many on every rank.
        args, kwargs
            Passed to the program.
        agree : dict or object, optional
            What must be equal on all ranks, besides the number of slices and the options.
        problem : str or Exception, optional
            An error in this rank's input, or a failure on this rank: if there is one, nothing runs on any rank.

        Returns
        -------
        list or None
            What this rank's slices have returned, in the order of `slices`; None if no slice returned anything.

        Raises
        ------
        InputError
            Before anything ran, on all ranks.
        RankError
            Before anything ran, on all ranks: a rank could not read its slices, or make the slots' buffers.
        SliceError
            A slice failed on some rank; the same on all ranks. The runtime is usable again.

        Notes
        -----
        What a signal handler raises meanwhile (Ctrl-C) fails the slices like any other exception. The rank that
        received the signal raises the exception itself when all ranks have ended the call. The deadline does not cover
        the wait for ranks that have not made the call yet; see `Runtime`.
        """
        threads = self._threads
        coordinator = threads.coordinator
        with held_signals(), self._used:
            coordinator.check_idle()
            keys, error = _listed(slices)
            count = len(keys)
            wait = self._next_wait(count)
            placement = self._placements.next(count, wait)
            if problem is not None:
                error = problem if isinstance(problem, Exception) else InputError(problem)
            if self._error is not None:
                error = self._error
            if error is None:
                try:
                    job, waiting = self._job(keys, wait, placement, args, kwargs)
                except Exception as failure:
                    error = failure
            header = self._headers.get((count, wait)) if agree is None else None
            if header is not None:
                coordinator.synchronize_here(header, error, not coordinator.nested)
            else:
                self._meet(count, wait, agree, error)
            self.wait = wait
            started = perf_counter()
            computing_s = threads.run(job, waiting, placement)
            ended = perf_counter()
            took_s = ended - started
            if threads.trace is not None:
                threads.trace.add(CALLS, "call", f"{self._name}: {wait}, depth {self.depth}", started, ended)
            for load in (self.load, threads.load):
                load.add(took_s, computing_s, 1 if placement == INLINE else threads.workers)
            self._placements.took(count, wait, placement, took_s)
            if self._trial is not None and count > 1:
                self._judge(self._trial, wait, count, took_s / count)
            return [job.returned.get(number) for number in range(count)] if job.returned else None

    def _meet(self, count: int, wait: str, agree: Any, error: BaseException | None) -> None:
        """Exchange the header of a call with a new number of slices, way to wait, or `agree`."""
        self._threads.coordinator.enter(self._call, self._agreed(count, wait, agree), error)
        if agree is None and len(self._headers) < HEADERS:
            self._headers[count, wait] = Header(self._call, self._agreed(count, wait, None))

    def _agreed(self, count: int, wait: str, agree: Any) -> dict[str, Any]:
        options = self._options
        return {
            "slices": count,
            "depth": options.depth,
            "wait": wait,
            "in_flight": options.in_flight,
            "polls": options.polls,
            **(agree if isinstance(agree, dict) else {"agree": agree}),
        }

    def _job(
        self, keys: list[Any], wait: str, placement: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Make a `Job` and its way to wait (local)."""
        threads, options, skeleton = self._threads, self._options, self._skeleton
        executor, workers = threads.executor, threads.pool(placement, wait)
        source = partial(self._slice, args, kwargs)
        if callable(skeleton):
            skeleton = partial(self._awaits, skeleton, args, kwargs)
        job = Job(keys, source, skeleton, self.slots, self.depth, workers, threads.trace, executor.lock)
        issues_here = placement != COMMUNICATOR_THREAD
        return job, executor.waiting(wait, job, workers, options.in_flight, options.polls, issues_here)

    def _slice(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any, buffers: Any) -> Any:
        """Make the coroutine of a slice from its key and its slot's buffers."""
        first_args = (key, buffers) if self._has_buffers else (key,)
        made = self._program(*first_args, *args, **kwargs)
        coroutine = made.begun() if isinstance(made, Several) else made
        if not hasattr(coroutine, "send"):
            raise TypeError(
                f"expected {self._name} to be a coroutine function (`async def`), received "
                f"one that returned {repr_of(coroutine)}"
            )
        return coroutine

    def _awaits(self, skeleton: Skeleton, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any, buffers: Any) -> Any:
        """Make the coroutine that awaits what a slice awaits, from a skeleton that is a program or lists requests."""
        first_args = (key, buffers) if self._has_buffers else (key,)
        awaited = skeleton(*first_args, *args, **kwargs)
        if isinstance(awaited, Request):
            awaited = [awaited]
        return awaited if isawaitable(awaited) else replayed(awaited, buffers)

    def _next_wait(self, count: int) -> str:
        if self._trial is None:
            return self._way
        if count == 1:
            return "off"  # nothing to hide it behind
        trial = self._trial
        return min(trial, key=lambda wait: len(trial[wait]))

    def _judge(self, trial: dict[str, list[float]], wait: str, count: int, seconds_per_slice: float) -> None:
        """Note a call's time; after some calls in each way to wait, all ranks choose the way with the fastest call."""
        trial[wait].append(seconds_per_slice)
        calls = {len(seconds) for seconds in trial.values()}
        if calls not in ({TRIALS}, {SHORT_TRIALS}):
            return
        best = np.array([min(seconds) for seconds in trial.values()])
        best = self._threads.coordinator.maximum(best)
        if calls == {SHORT_TRIALS} or best.min() * count > SHORT_S:
            self._way = list(trial)[int(np.argmin(best))]
            self._trial = None


def _made_slots(buffers: Callable[[], Any], depth: int, comms: list[Any]) -> list[Any]:
    """Make the buffers of all slots; persistent requests made with them get references to those of the other slots."""
    slots: list[Any] = []
    comms = [comm for comm in comms if isinstance(comm, AsyncComm)]
    counterparts: dict[tuple[int, int], dict[int, Persistent]] = {}
    for _ in range(depth):
        before = [len(comm.persistent) for comm in comms]
        slots.append(buffers())
        for which, (comm, first) in enumerate(zip(comms, before)):
            for place, request in enumerate(comm.persistent[first:]):
                request.of_slots = counterparts.setdefault((which, place), {})
                request.of_slots[id(slots[-1])] = request
    return slots


def _is_plain(program: Any) -> bool:
    """Return whether a program is a function by `def` that makes no coroutine, as far as that is known without a call.

    A lambda may pass on the coroutine of another function.
    """
    while isinstance(program, partial):
        program = program.func
    program = unwrap(program) if isroutine(program) else program
    return (
        (isfunction(program) or ismethod(program))
        and program.__name__ != "<lambda>"
        and not iscoroutinefunction(program)
        and not isgeneratorfunction(program)
    )


def _functions_problem(program: Any, buffers: Any, skeleton: Any) -> str | None:
    """Return what is wrong with the functions that make a pipeline, as text, or None."""
    if not callable(program):
        return f"expected a coroutine function as program, received {repr_of(program)}"
    if buffers is not None and not callable(buffers):
        return f"expected buffers to be a function that makes one slot's buffers, or None, received {repr_of(buffers)}"
    if skeleton is None or callable(skeleton) or (isinstance(skeleton, str) and skeleton == "agree"):
        return None
    return f'expected skeleton to be a function, "agree" or None, received {repr_of(skeleton)}'


def _listed(slices: Iterable[Any]) -> tuple[list[Any], BaseException | None]:
    """Return the slices as a list, and what is wrong with them, or None."""
    try:
        return list(slices), None
    except BaseException as error:  # the call is collective: the other ranks are about to make it
        return [], error if not isinstance(error, TypeError) else InputError(
            f"expected a sequence of slices, received one that fails: {formatted(error)[0]}"
        )
