"""Routes of an array through several transposes, with axes transformed in between, and their division into stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .layout import AxisSwap

Route = list[Any]
"""Tuples of axes, with an `AxisSwap` or None between two of them."""


@dataclass(frozen=True)
class StageAxes:
    """Describes a stage: one exchange, cut into units along an axis, with the axes that are transformed unit by unit
    before and after it."""

    first: tuple[int, ...]  # axes transformed before the exchange, in order
    transpose: AxisSwap | None  # None: the stage ends in the rank's own memory
    then: tuple[int, ...]  # axes transformed after the exchange, in order
    along: int  # the axis that is cut; it is transformed neither before nor after the exchange

    def in_words(self, names: Sequence[str]) -> str:
        """Describe the operations of the stage in order, with the names of their axes."""
        exchange = (
            []
            if self.transpose is None
            else [f"exchange that makes {names[self.transpose.joined]} whole and splits {names[self.transpose.split]}"]
        )
        return ", ".join([*ffts_along(self.first, names), *exchange, *ffts_along(self.then, names)])


def axis_names(dimensions: int) -> tuple[str, ...]:
    """Return the names of an array's axes: the batch (axis 0), and the axes of a field with `dimensions` dimensions."""
    fields = ("z", "y", "x")[-dimensions:] if dimensions <= 3 else tuple(f"axis {axis}" for axis in range(dimensions))
    return ("the batch", *fields)


def ffts_along(axes: Sequence[int], names: Sequence[str]) -> list[str]:
    """Describe the FFTs along some axes in order; empty if there are no axes."""
    return ["FFTs along " + " and ".join(names[axis] for axis in axes)] if axes else []


def stages(
    route: Route,  # all axes of a group are whole at that point; None ends a stage without an exchange
    # The axes along which a stage may be cut, the best ones first. Axis 0 is never transformed: stages that are cut
    # along it alone leave nothing to be done when they are complete.
    axes: Sequence[int],
    last: int | None = None,  # the axis that is transformed last: for a real result, the half axis
    # The best axis to cut along may wait until the last stage is complete, if that joins it and nothing else is left
    # but `last`: without that, it is transformed where it is.
    in_place: bool = False,
) -> tuple[list[StageAxes], tuple[int, ...]]:
    """Split a route through exchanges into stages; return them, and the axes that remain to be transformed when the
    last one is complete."""
    transposes = []
    pending = route[0]
    for link, group in zip(route[1::2], route[2::2]):
        choices = []
        for along in axes if link is not None else (*axes, 0):
            if along in pending or (link is not None and along == link.split):
                continue
            then = ()
            if link is None and tuple(axes) == (0,):
                then = group
            elif link is not None and along != link.joined:
                waits = {along, last} if along in group else {along}
                then = tuple(axis for axis in group if axis not in waits)
            choices.append(StageAxes(pending, link, then, along))
        completed = in_place and group is route[-1] and axes[0] in group and set(group) <= {axes[0], last}
        stage = choices[0] if completed else max(choices, key=lambda stage: len(stage.then))
        transposes.append(stage)
        pending = tuple(axis for axis in group if axis not in stage.then)
    return transposes, pending


def for_stages(route: Route, real: int | None, forward: bool) -> Route:
    """Return the route in one direction, divided such that each stage can be cut along some axis.

    `real` is the axis of a real-to-complex transform. In the forward direction only cosine and sine transforms may
    precede it.
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
