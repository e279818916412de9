"""Routes: the axes of a transform in the order of its FFTs, and the exchanges in between."""

from __future__ import annotations

from typing import Any

from ...arrays import AxisSwap

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
