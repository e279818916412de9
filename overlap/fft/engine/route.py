"""Routes and directions: the order of a transform's FFTs and exchanges, and the options of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...arrays import AxisSwap


@dataclass(frozen=True)
class Direction:
    """The common options of all stages of a transform.

    Attributes
    ----------
    forward : bool
    effort : str or None
        FFTW planning effort.
    turned : int or None
        The axis that the first source (backward) or the last target (forward) has last in memory, if not
        the last one.
    by_index : bool
        A unit is one index of the axis that is cut.
    """

    forward: bool
    effort: str | None
    turned: int | None = None
    by_index: bool = False


Route = list[Any]
"""Tuples of axes, with an `AxisSwap` or None between two of them; see `arrays.stages`."""


def for_stages(route: Route, real: int | None, forward: bool) -> Route:
    """Return the route in one direction, divided such that each stage can be cut along some axis.

    Parameters
    ----------
    route : list
    real : int or None
        The axis of a real-to-complex transform. In the forward direction only cosine and sine transforms may precede
        it.
    forward : bool
    """
    if len(route) == 1:
        *first, last = route[0]
        if not first:
            return [(last,), None, ()]
        if real is not None and not forward:
            return [(last,), None, tuple(first[::-1])]
        return [tuple(first), None, (last,)]
    if forward:
        return route
    route = [
        step.reversed() if isinstance(step, AxisSwap) else step if step is None else step[::-1] for step in route[::-1]
    ]
    if isinstance(route[1], AxisSwap) and len(route[0]) > 1:
        kept = tuple(axis for axis in route[0] if axis == route[1].split)
        before = tuple(axis for axis in route[0] if axis not in kept)
        if real in route[0]:  # after some of these, before the others
            return [route[0][:1], None, route[0][1:], *route[1:]]
        if real is not None:  # its axis comes later
            return [before, None, kept, *route[1:]]
        return [kept, route[1], (*route[2], *before), *route[3:]]
    return route
