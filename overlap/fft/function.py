"""The user's function of real-space planes or fields: its parameters and its calls."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .arguments import integers
from .engine.axis import REAL_KINDS

SPECIAL = ("out", "index", "rows")  # parameters that are not fields

Dealias = str | Sequence[int] | None


def fine_points(points: Sequence[int], dealias: Dealias) -> tuple[int, ...]:
    """Return the points of the real-space grid per direction, for a valid `dealias`; see `FFT2.pointwise`."""
    if dealias is None:
        return tuple(points)
    if isinstance(dealias, str):
        return tuple(-(-3 * n // 2) for n in points)
    return tuple(map(operator.index, dealias))


def dealias_problem(points: Sequence[int], dealias: Dealias, kinds: Sequence[str] = ()) -> str | None:
    """Return what is wrong with `dealias` for a plan with these points and kinds of transforms, or None."""
    if dealias is None:
        return None
    three_halves = isinstance(dealias, str) and dealias == "3/2"
    fine = fine_points(points, dealias) if three_halves else None if isinstance(dealias, str) else integers(dealias)
    if fine is None or len(fine) != len(points) or any(m < n for m, n in zip(fine, points)):
        return f"expected dealias to be None, '3/2' or at least {tuple(points)} points, received {dealias!r}"
    if walls := [kind for kind, n, m in zip(kinds, points, fine) if kind in REAL_KINDS and n != m]:
        return (
            f"expected dealias to be None, or points that are the plan's (it has {tuple(points)}) along axes of "
            f"{' and '.join(map(repr, walls))}, which have no finer grid, received {dealias!r}"
        )
    return None


class Function:
    """A function made to act on slices."""

    def __init__(
        self,
        # Returns its results, or has a parameter ``out`` and fills it (if it returns something other than ``out``, that
        # is its result); may have parameters ``index`` and ``rows``.
        function: Callable[..., Any],
        inputs: int | None,  # by default the function's positional parameters
        outputs: int,
        shared: int,
        dealias: Dealias,  # see `FFT2.pointwise`
        points: Sequence[int],  # of the resolved grid in real space
        kinds: Sequence[str] = (),  # of the transforms along these axes
    ) -> None:
        parameters = inspect.signature(function).parameters
        if inputs is None:
            inputs = sum(
                name not in SPECIAL and parameter.default is parameter.empty for name, parameter in parameters.items()
            )
        counts = integers((inputs, outputs, shared))
        if counts is not None:
            inputs, outputs, shared = counts
        self.problem = dealias_problem(points, dealias, kinds)  # what is wrong with the arguments
        self.agreed = dict(inputs=inputs, outputs=outputs, shared=shared, dealias=dealias)
        if self.problem is None and (counts is None or not 0 <= shared < inputs or outputs < 1):
            self.problem = (
                f"expected integers inputs > shared >= 0 and outputs >= 1, received "
                f"inputs={inputs}, shared={shared}, outputs={outputs}"
            )
        elif self.problem is None:
            self.inputs = inputs - shared  # number of inputs without the shared ones
        if self.problem is None and _is_async(function):
            self.problem = (
                f"expected an ordinary function, received {_name_of(function)}, an async one: a "
                "function of real-space fields awaits nothing"
            )
        self.outputs, self.shared = outputs, shared
        self.takes_out = "out" in parameters
        self._takes_index = "index" in parameters
        self._takes_rows = "rows" in parameters
        # Whether all of its arguments are planes, with results last.
        self.simple = not (self._takes_index or self._takes_rows) and (
            not self.takes_out or list(parameters)[-1] == "out"
        )
        self.function = function
        self.compiled: dict[Any, Any] = {}  # for the compiled loop, by the places of its fields

    def fill(self, results: Sequence[np.ndarray], *args: Any) -> None:
        """Call the function and store its results in `results`; `args` are those of `__call__`."""
        for place, result in zip(results, self(args[0], args[1], results, *args[2:])):
            if place is not result:
                np.copyto(place, result)  # raises for complex numbers if real ones are expected

    def __call__(
        self,
        fields: Sequence[np.ndarray],
        shared: Sequence[np.ndarray],
        results: Sequence[np.ndarray],  # arrays that a function with ``out`` fills
        batch: tuple[int, ...],
        number: int,  # index of the slice in the batch of this shape
        rows: slice | None = None,  # range of these rows among this rank's rows
    ) -> Sequence[np.ndarray]:
        """Return the results for one slice."""
        options: dict[str, Any] = {}
        if self.takes_out:
            options["out"] = results[0] if len(results) == 1 else tuple(results)
        if self._takes_index:
            index = np.unravel_index(number, batch) if batch else ()
            options["index"] = int(index[0]) if len(index) == 1 else tuple(map(int, index))
        if self._takes_rows:
            options["rows"] = rows
        returned = self.function(*fields, *map(_read_only, shared), **options)
        if self.takes_out and (returned is None or returned is options["out"]):
            return results
        results = returned if isinstance(returned, tuple) else (returned,)
        if len(results) != self.outputs or any(np.shape(result) != fields[0].shape for result in results):
            kind = "block" if fields[0].ndim == 2 else "field"
            raise ValueError(
                f"expected the function to return {self.outputs} {kind}(s) of shape "
                f"{fields[0].shape}{', or nothing' if self.takes_out else ''}, received {len(results)} of "
                f"{[np.shape(r) for r in results]}"
            )
        if any(isinstance(result, np.ma.MaskedArray) for result in results):
            raise ValueError("expected the function to return arrays without masks, received a masked array")
        return results


def _read_only(field: np.ndarray) -> np.ndarray:
    """Return a read-only view, because all slices receive the same field."""
    view = field.view()
    view.flags.writeable = False
    return view


def _is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call of `function` returns an awaitable or an asynchronous generator instead of results."""
    while isinstance(function, functools.partial):
        function = function.func
    return any(
        is_async(called)
        for called in (function, getattr(function, "__call__", None))  # noqa: B004 (the method is looked at)
        for is_async in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    )


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__qualname__)
