"""`Distribution`: the part of a global array that this rank holds, and the parts that views of it hold.

Pure integer arithmetic. Every rule gives the same result on all ranks, although each rank knows only its own part.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest
from math import prod
from operator import index as as_integer
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from .partition import block, length_of
from .weights import Shares, Weights, combined


class _Entry(NamedTuple):
    """Describes one axis: its length, whether it is split, and where this rank's part begins and ends."""

    length: int
    split: bool
    start: int
    stop: int

    @property
    def is_one(self) -> bool:
        """Return whether the axis can be repeated: it has length 1, and all ranks hold it."""
        return self.length == 1 and not self.split


_ONE = _Entry(1, False, 0, 1)


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

    def broadcast(self, other: Distribution) -> Distribution | None:
        """Return the distribution of element-wise arithmetic of two arrays, or None if they cannot be combined.

        The global shapes decide, as in numpy: only an axis of length 1 is repeated. A split one is not, because other
        ranks hold nothing to repeat.
        """
        result = []
        for own, others in zip_longest(self._entries()[::-1], other._entries()[::-1], fillvalue=_ONE):
            if own != others and not (own.is_one or others.is_one):
                return None
            result.append(others if own.is_one else own)
        return _made_of(result[::-1])

    def takes(self, other: Distribution) -> bool:
        """Return whether an array can be written into one of this distribution, repeated along axes of length 1."""
        return _takes(self._entries(), other)

    def takes_at(self, index: Any, other: Distribution | None) -> bool:
        """Return whether ``array[index] = values`` means the same on all ranks.

        The index has the `Distribution` of a mask instead of a mask that is distributed; `other` is that of the values,
        None if they are not distributed. Where a rank selects positions of its local part, only values of length 1 mean
        the same on all ranks; with index arrays this holds for all axes.
        """
        own, arrays = self._entries(), False
        entries: list[_Entry | None] = []
        for item, axis in self._along(index):
            if isinstance(item, Distribution):
                if own[axis : axis + len(item.global_shape)] != item._entries():
                    return False
                arrays = True
            elif item is None:
                entries.append(_ONE)
            elif isinstance(item, slice):
                entries.append(self._sliced(item, axis))
            else:
                arrays = arrays or not _is_integer(item)
        return other is None or _takes([] if arrays else entries, other)

    def reduced(self, axis: int | Sequence[int] | None, keepdims: bool = False) -> Distribution | None:
        """Return the distribution of a reduction along axes, by default all, or None if one of them is split."""
        count = len(self.global_shape)
        given = range(count) if axis is None else axis if isinstance(axis, Sequence) else (axis,)
        along = {number % count for number in given}
        if along & set(self.axes):
            return None
        entries = enumerate(self._entries())
        return _made_of([_ONE if n in along else entry for n, entry in entries if keepdims or n not in along])

    def _entries(self) -> list[_Entry]:
        return [
            _Entry(length, axis in self.axes, part.start, part.stop)
            for axis, (length, part) in enumerate(zip(self.global_shape, self.local_slice))
        ]

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
        entries: list[_Entry] = []
        for item, axis in self._along(index):
            if item is None:
                entries.append(_ONE)
            elif isinstance(item, slice):
                entry = self._sliced(item, axis)
                if entry is None:
                    return None
                entries.append(entry)
            elif axis in self.axes or not _is_integer(item):
                return None
        return _made_of(entries)

    def _along(self, index: Any) -> Iterator[tuple[Any, int]]:
        """Yield what an index selects with: a slice for every axis that it leaves out, and the axis of each item."""
        items = list(index) if isinstance(index, tuple) else [index]
        rest = [slice(None)] * (len(self.global_shape) - sum(map(_axes_of_item, items)))
        at = next((n for n, item in enumerate(items) if item is Ellipsis), len(items))
        axis = 0
        for item in (*items[:at], *rest, *items[at + 1 :]):
            yield item, axis
            axis += _axes_of_item(item)

    def _sliced(self, item: slice, axis: int) -> _Entry | None:
        """Return what a slice selects along an axis, or None if every rank has positions of its own there."""
        if axis in self.axes:
            return self._entries()[axis] if item == slice(None) else None
        count = len(range(self.global_shape[axis])[item])
        return _Entry(count, False, 0, count)

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
) -> tuple[list[int], tuple[int | slice, ...], tuple[slice, ...]]:
    """Find the part of ``array[index]`` of the global array that one rank holds; the index has global positions.

    Return the shape of ``array[index]``, the index of what the rank holds of it in the local part, and the place of
    that in ``array[index]``. An `IndexError` says that the index is outside of the array.
    """
    shape: list[int] = []
    held: list[int | slice] = []
    place: list[slice] = []
    for item, part, length in zip(index, local_slice, global_shape, strict=True):
        wanted = range(length)[item]
        if isinstance(wanted, range):
            rising = wanted if wanted.step > 0 else wanted[::-1]
            first, last = bisect_left(rising, part.start), bisect_left(rising, part.stop)
            if wanted.step < 0:
                first, last = len(wanted) - last, len(wanted) - first
            here = wanted[first:last]
            stop = here.stop - part.start
            shape.append(len(wanted))
            held.append(slice(here.start - part.start, stop if stop >= 0 else None, here.step) if here else slice(0))
            place.append(slice(first, last))
        else:
            held.append(wanted - part.start if part.start <= wanted < part.stop else slice(0))
    if any(item == slice(0) for item in held):  # the rank holds no part of it
        held, place = [slice(0)] * len(held), [slice(0, 0)] * len(place)
    return shape, tuple(held), tuple(place)


def overlapping(box: Sequence[slice], other_box: Sequence[slice]) -> tuple[slice, ...] | None:
    """Return the intersection of two boxes of a global array, or None if it is empty."""
    common = tuple(slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(box, other_box))
    return None if any(part.start >= part.stop for part in common) else common


def within(box: Sequence[slice], part: Sequence[slice]) -> tuple[slice, ...]:
    """Convert a box of the global array to positions in the local array, which holds `part`."""
    return tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(box, part))


def _made_of(entries: Sequence[_Entry]) -> Distribution:
    return Distribution(
        tuple(entry.length for entry in entries),
        tuple(axis for axis, entry in enumerate(entries) if entry.split),
        tuple(slice(entry.start, entry.stop) for entry in entries),
    )


def _takes(entries: Sequence[_Entry | None], other: Distribution) -> bool:
    pairs = zip_longest(reversed(entries), reversed(other._entries()), fillvalue=_ONE)
    return all(own == others or others.is_one for own, others in pairs)


def _axes_of_item(item: Any) -> int:
    """Return how many axes an item of an index selects from."""
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, Distribution):
        return len(item.global_shape)
    if isinstance(item, slice) or _is_integer(item):
        return 1
    array = np.asarray(item)
    return array.ndim if array.dtype.kind == "b" else 1


def _is_integer(item: Any) -> bool:
    if isinstance(item, bool | np.bool_ | np.ndarray):  # masks and index arrays, 0-dimensional ones included
        return False
    try:
        as_integer(item)
    except TypeError:
        return False
    return True
