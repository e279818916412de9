"""`Pipeline`: a slice program made callable."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import InputError, formatted
from .interrupts import held_signals
from .job import AGREE

if TYPE_CHECKING:
    from .runtime import Runtime

SliceProgram = Callable[..., Coroutine[Any, Any, Any]]


@dataclass(frozen=True)
class PipelineOptions:
    """How a pipeline runs.

    Attributes
    ----------
    depth : int
        Slots: slices in flight.
    wait : {"auto", "block", "poll", "off"}
    in_flight : int
        With ``"poll"``: exchanges in flight at once.
    polls : int
        With ``"poll"``: polls per expected time of an exchange.
    """

    depth: int
    wait: str
    in_flight: int
    polls: int


class Pipeline:
    """A slice program made callable: see `Runtime.pipelined`.

    Attributes
    ----------
    wait : str
        The way to wait that the last call used; `"auto"` before the first one.
    depth : int
    slots : list
        The slots' buffers, `depth` of them, or None each.
    """

    def __init__(self, runtime: Runtime, program: SliceProgram,
                 buffers: Callable[[], Any] | None, skeleton: SliceProgram | Literal["agree"] | None,
                 options: PipelineOptions, problem: str | None = None) -> None:
        self.depth = options.depth
        self.wait = options.wait
        # To make a pipeline is no collective: what is wrong with it here, all ranks are told by its
        # first call.
        self._error: Exception | None = None if problem is None else InputError(problem)
        self.slots = [None] * options.depth
        if buffers is not None and problem is None:
            try:
                self.slots = [buffers() for _ in range(options.depth)]
            except Exception as error:
                self._error = error
        self._options = options
        self._runtime = runtime
        self._program = program
        self._skeleton = skeleton
        self._has_buffers = buffers is not None
        self._name = str(getattr(program, "__qualname__", None) or type(program).__qualname__)
        self._call = f"a call of the pipeline {self._name}"
        ways = ("poll", "block", "off") if runtime.workers == 1 else ("poll", "block")
        self._trial: dict[str, list[float]] | None = (
            {way: [] for way in ways} if options.wait == "auto" else None)

    def __call__(self, slices: Iterable[Any], *args: Any, agree: Any = None,
                 problem: str | None = None, **kwargs: Any) -> None:
        """Run all slices to their end (collective).

        Parameters
        ----------
        slices : sequence
            One entry per slice, as many on every rank.
        args, kwargs
            Passed to the program.
        agree : dict or object, optional
            What must be equal on all ranks, besides the number of slices and the options.
        problem : str, optional
            What is wrong with this rank's input: then nothing runs on any rank.

        Raises
        ------
        InputError
            Before anything ran, on all ranks.
        RankError
            Before anything ran, on all ranks: one of them could not read its slices, or make the
            slots' buffers.
        SliceError
            A slice failed on some rank; the same on all ranks. The runtime is usable again.

        Notes
        -----
        What a signal handler raises meanwhile (Ctrl-C) fails the slices like any other exception. It
        is raised itself on the rank that received the signal when all ranks have come to the end.
        The deadline does not cover the wait for ranks that have not come yet; see `Runtime`.
        """
        runtime = self._runtime
        control = runtime.control
        with held_signals(), control.exclusive.used(self._call):
            control.check_idle()
            wait = self._next_wait()
            options = replace(self._options, wait=wait)
            keys, error = _listed(slices)
            if problem is not None:
                error = InputError(problem)
            job: tuple[Any, ...] = ()
            try:
                job = runtime._job(keys, self._bound(self._program, args, kwargs),
                                   self._bound(self._skeleton, args, kwargs),
                                   self.slots, options)
            except Exception as failure:
                error = error or failure
            runtime.enter(self._call, {"slices": len(keys), "depth": options.depth, "wait": wait,
                                       "in_flight": options.in_flight, "polls": options.polls,
                                       **(agree if isinstance(agree, dict) else {"agree": agree})},
                          self._error or error)
            started = perf_counter()
            runtime._run(*job)
            if self._trial is not None and keys:
                self._judge(wait, (perf_counter() - started) / len(keys))

    def _bound(self, function, args, kwargs):
        if function is None or function == AGREE:  # in a skeleton's place
            return function
        if self._has_buffers:
            return lambda key, buffers: function(key, buffers, *args, **kwargs)
        return lambda key, buffers: function(key, *args, **kwargs)

    def _next_wait(self):
        if self._trial is None:
            return self.wait
        return min(self._trial, key=lambda wait: len(self._trial[wait]))

    def _judge(self, wait, seconds_per_slice):
        """After two calls every way, all ranks keep the way whose better call was the fastest."""
        self._trial[wait].append(seconds_per_slice)
        if all(len(seconds) == 2 for seconds in self._trial.values()):
            best = np.array([min(seconds) for seconds in self._trial.values()])
            best = self._runtime.control.maximum(best)
            self.wait = list(self._trial)[int(np.argmin(best))]
            self._trial = None


def _listed(slices: Iterable[Any]) -> tuple[list[Any], Exception | None]:
    """The slices as a list, and what is wrong with them, or None."""
    try:
        return list(slices), None
    except Exception as error:
        return [], error if not isinstance(error, TypeError) else InputError(
            f"expected a sequence of slices, received one that fails: {formatted(error)[0]}")
