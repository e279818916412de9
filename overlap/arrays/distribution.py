"""`Distribution`: the part of a global array that this rank holds, and the parts that views of it hold.

Pure integer arithmetic. Every rule gives the same result on all ranks, although each rank knows only its own part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from operator import index as as_integer
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .partition import block, length_of
from .weights import Shares, Weights, combined


@dataclass(frozen=True)
class Distribution:
    """Describes this rank's part of a global array.

    Attributes
    ----------
    global_shape : tuple of int
    axes : tuple of int
        The axes that are split over the ranks; all others are whole on every rank.
    local_slice : tuple of slice
        Place of the local part in the global array.

    Examples
    --------
    >>> with overlap.FFT2(comm, (4, 16, 16)) as plan:
    ...     where = plan.real.distribution
    >>> where.global_shape, where.axes
    ((4, 16, 16), (1,))
    """

    global_shape: tuple[int, ...]
    axes: tuple[int, ...]
    local_slice: tuple[slice, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the local part."""
        return tuple(map(length_of, self.local_slice))

    def __str__(self) -> str:
        held = ", ".join(f"{part.start}:{part.stop}" for part in self.local_slice)
        return f"global shape {self.global_shape}, split along axes {self.axes}, with [{held}] here"

    def problem(self) -> str | None:
        """Return what is wrong with the values, as text, or None."""
        axes = range(len(self.global_shape))
        try:
            lengths = tuple(map(as_integer, self.global_shape))
            good = (
                len(self.local_slice) == len(lengths)
                and set(self.axes) <= set(axes)
                and len(set(self.axes)) == len(self.axes)
                and all(
                    isinstance(part, slice)
                    and part.step in (None, 1)
                    and 0 <= as_integer(part.start) <= as_integer(part.stop) <= length
                    and (axis in self.axes or (part.start, part.stop) == (0, length))
                    for axis, part, length in zip(axes, self.local_slice, lengths)
                )
            )
        except TypeError:
            good = False
        if good:
            return None
        return (
            "expected a shape, different axes that are split, and a slice with start and stop for each axis, which "
            f"covers an axis that is not split, received {self.global_shape}, {self.axes} and {self.local_slice}"
        )

    def agrees_with(self, other: Distribution) -> bool:
        """Return whether arrays with these two distributions can be combined element by element; unsplit axes of length
        1 are broadcast."""
        for own_axis, others in zip(self._from_the_end(), other._from_the_end()):
            if own_axis != others and (1, False) not in (own_axis[:2], others[:2]):
                return False
        return True

    def _from_the_end(self) -> list[tuple[int, bool, slice]]:
        """Return for every axis, the last one first, its length, whether it is split, and this rank's part."""
        return [
            (length, axis in self.axes, part)
            for axis, (length, part) in enumerate(zip(self.global_shape, self.local_slice))
        ][::-1]

    def transposed(self, order: Sequence[int]) -> Distribution:
        """Return the distribution of ``array.transpose(order)``."""
        axes = [axis % len(self.global_shape) for axis in order]
        return Distribution(
            tuple(self.global_shape[axis] for axis in axes),
            tuple(sorted(axes.index(axis) for axis in self.axes)),
            tuple(self.local_slice[axis] for axis in axes),
        )

    def indexed(self, index: Any) -> Distribution | None:
        """Return the distribution of ``array[index]``, or None if the result is no distributed array.

        An unsplit axis can be indexed by an integer or any slice, which must be the same on all ranks (not checked). A
        split axis must be taken whole. Index arrays give no distributed array.
        """
        items = list(index) if isinstance(index, tuple) else [index]
        if not all(item is None or item is Ellipsis or isinstance(item, slice) or _is_integer(item) for item in items):
            return None
        given = sum(item is not None and item is not Ellipsis for item in items)
        rest = [slice(None)] * (len(self.global_shape) - given)
        at = next((n for n, item in enumerate(items) if item is Ellipsis), len(items))
        items[at : at + 1] = rest
        lengths, split, where = [], [], []
        axis = 0
        for item in items:
            if item is None:
                lengths.append(1)
                where.append(slice(0, 1))
                continue
            if axis in self.axes:
                if item != slice(None):
                    return None
                split.append(len(lengths))
                lengths.append(self.global_shape[axis])
                where.append(self.local_slice[axis])
            elif isinstance(item, slice):
                count = len(range(self.global_shape[axis])[item])
                lengths.append(count)
                where.append(slice(0, count))
            axis += 1
        return Distribution(tuple(lengths), tuple(split), tuple(where))

    def split_along(
        self, axes: Sequence[int], grid: Sequence[int], rank: int, weights: Weights = None, shares: Shares | None = None
    ) -> Distribution:
        """Return the distribution of the same global array over a grid of ranks.

        Parameters
        ----------
        axes : sequence of int
            Axes, counted from 0, each once.
        grid : sequence of int
            Ranks along each of `axes`; the coordinate of the last one varies fastest with the rank.
        rank : int
        weights : tuple of numbers, optional
            One per rank; along each axis, those of all ranks with one coordinate are added.
        shares : dict of int to tuple of int, optional
            For some axes, the number of indices of each coordinate; other axes are split in proportion to the weights,
            or evenly.
        """
        where = [slice(0, length) for length in self.global_shape]
        places = np.indices(tuple(grid)).reshape(len(grid), -1)
        for axis, place, count in zip(axes, places, grid):
            along = (shares or {}).get(axis) or (weights and combined(weights, [int(index) for index in place]))
            where[axis] = block(self.global_shape[axis], count, along)[place[rank]]
        return Distribution(self.global_shape, tuple(sorted(axes)), tuple(where))


def parts_problem(boxes: Iterable[Sequence[slice]], global_shape: Sequence[int]) -> str | None:
    """Return why the parts of all ranks do not make up a global array, each element once, as text, or None.

    Equal parts count once. A box is the sum, with signs, of the infinite boxes that begin at its corners; so the parts
    make up the whole if and only if the sums of signs at all corners are equal.
    """
    whole = tuple((0, length) for length in global_shape)
    bounds = {tuple((part.start, part.stop) for part in box) for box in boxes}
    parts = {box for box in bounds if all(start < stop for start, stop in box)}
    if parts == {whole} or not prod(global_shape):
        return None
    split = [axis for axis, ends in enumerate(whole) if any(box[axis] != ends for box in parts)]
    corners: Counter[tuple[int, ...]] = Counter()
    for box, sign in (*((part, 1) for part in parts), (whole, -1)):
        for which in product((0, 1), repeat=len(split)):
            corners[tuple(box[axis][end] for axis, end in zip(split, which))] += sign * (-1) ** sum(which)
    if not any(corners.values()):
        return None
    received = ", ".join(sorted(f"[{', '.join(f'{start}:{stop}' for start, stop in box)}]" for box in parts))
    return (
        f"expected parts that make up the global array of shape {tuple(global_shape)}, each element once, received "
        f"{received:.200}"
    )


@runtime_checkable
class Placed(Protocol):
    """Protocol of objects that say how arrays are distributed: a `DistArray`, or a plan's `ArraySpec`."""

    @property
    def comm(self) -> Any:
        """Return the communicator over whose ranks the arrays are distributed."""

    @property
    def global_shape(self) -> tuple[int, ...]:
        """Return the shape of the global array."""

    @property
    def axes(self) -> tuple[int, ...]:
        """Return the axes that are split."""

    @property
    def local_slice(self) -> tuple[slice, ...]:
        """Return the place of this rank's part in the global array."""


def part_of(
    index: Sequence[int | slice], global_shape: Sequence[int], local_slice: Sequence[slice]
) -> tuple[list[int], tuple, tuple]:
    """Find the part of ``array[index]`` of the global array that one rank holds.

    Parameters
    ----------
    index : sequence of int and slice
        One per axis of the global array, in global positions.
    global_shape : sequence of int
    local_slice : sequence of slice
        Place of the rank's part.

    Returns
    -------
    shape : list of int
        Shape of ``array[index]``.
    here, there : tuple of ndarray
        Arguments for `numpy.ix_`: positions in the local part, one sequence for each of its axes, and the positions in
        ``array[index]`` that they correspond to.

    Raises
    ------
    IndexError
    """
    shape, local_index, result_index = [], [], []
    for item, part, length in zip(index, local_slice, global_shape, strict=True):
        wanted = range(length)[item]
        if isinstance(wanted, range):
            shape.append(len(wanted))
            positions = np.arange(wanted.start, wanted.stop, wanted.step)
            held = np.flatnonzero((part.start <= positions) & (positions < part.stop))
            result_index.append(held)
            local_index.append(positions[held] - part.start)
        else:
            inside = part.start <= wanted < part.stop
            local_index.append(np.array([wanted - part.start] if inside else [], int))
    if not all(map(len, local_index)):  # this rank holds no part of it, so positions do not matter
        local_index, result_index = (
            [positions[:0] for positions in indices] for indices in (local_index, result_index)
        )
    return shape, tuple(local_index), tuple(result_index)


def overlapping(box: Sequence[slice], other_box: Sequence[slice]) -> tuple[slice, ...] | None:
    """Return the intersection of two boxes of a global array, or None if it is empty."""
    common = tuple(slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(box, other_box))
    return None if any(part.start >= part.stop for part in common) else common


def within(box: Sequence[slice], part: Sequence[slice]) -> tuple[slice, ...]:
    """Convert a box of the global array to positions in the local array, which holds `part`."""
    return tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(box, part))


def _is_integer(item: Any) -> bool:
    if isinstance(item, bool | np.bool_ | np.ndarray):  # masks and index arrays, 0-dimensional ones included
        return False
    try:
        as_integer(item)
    except TypeError:
        return False
    return True
