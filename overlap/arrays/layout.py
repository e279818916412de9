"""Layouts of n-dimensional arrays on a process grid, boxes of local arrays, and what an exchange moves between layouts.

A grid has dimensions, each of some size; a rank has one coordinate in each. A layout says which axis of an array is
split over which dimension of the grid; a transpose changes the layout.

A transpose along one dimension of the process grid joins the axis that was split over it and splits another one
instead; all ranks that differ in this coordinate only take part. It is cut along a third axis, or along the joined one,
into units: the least that a message can hold. All ranks have as many units, whatever their share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .partition import block, length_of
from .topology import coordinates
from .weights import Weights, combined

Box = tuple[slice, ...]


@dataclass(frozen=True)
class AxisSwap:
    """An exchange: axis `joined`, split before, is whole after it; `split` the other way round."""

    joined: int
    split: int

    def reversed(self) -> AxisSwap:
        """Return the transpose that undoes this one."""
        return replace(self, joined=self.split, split=self.joined)


@dataclass(frozen=True)
class Layout:
    """Describes which axis is split over which dimension of a grid."""

    splits: tuple[int | None, ...]  # for every axis of the array a dimension of the grid, or None: it is not split
    grid: tuple[int, ...]  # size of every dimension
    # One per rank: shares are in proportion to the weights; None: even shares. On a grid of several dimensions the
    # weight of a coordinate is the sum of its ranks' weights, and a rank's share is the product of those along the
    # dimensions.
    weights: Weights = None
    multiples: tuple[int, ...] = ()  # for every axis a number, at a multiple of which shares begin; empty: 1 for all
    # Pairs: an axis and a dimension, and how many indices of it each coordinate has. They go before the weights, and
    # are weights where the axis has another length.
    shares: tuple[tuple[tuple[int, int], tuple[int, ...]], ...] = ()

    @property
    def even(self) -> Layout:
        """Return the layout with even shares.

        It determines what must not depend on the weights, such as the number of messages.
        """
        return replace(self, weights=None, shares=())

    def parts(self, shape: Sequence[int], axis: int) -> list[slice]:
        """Return the slice of `axis` that each coordinate of its dimension holds."""
        dimension = self.splits[axis]
        if dimension is None:
            return block(shape[axis], 1)
        weights: Weights = dict(self.shares).get((axis, dimension))
        if weights is None and self.weights is not None:
            places = [coordinates(rank, self.grid)[dimension] for rank in range(len(self.weights))]
            weights = combined(self.weights, places)
        length, each = shape[axis], self.multiples[axis] if self.multiples else 1
        return [
            slice(min(each * part.start, length), min(each * part.stop, length))
            for part in block(-(-length // each), self.grid[dimension], weights)
        ]

    def local_slice(self, shape: Sequence[int], coordinates: Sequence[int]) -> tuple[slice, ...]:
        """Return the place of the rank's part in a global array of `shape`."""
        return tuple(
            self.parts(shape, axis)[0 if dimension is None else coordinates[dimension]]
            for axis, dimension in enumerate(self.splits)
        )

    def local_shape(self, shape: Sequence[int], coordinates: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the rank's part of a global array of `shape`."""
        return tuple(map(length_of, self.local_slice(shape, coordinates)))

    def transposed(self, transpose: AxisSwap) -> Layout:
        """Return the layout after an exchange."""
        splits = list(self.splits)
        if splits[transpose.joined] is None or splits[transpose.split] is not None:
            raise ValueError(
                f"expected axis {transpose.joined} to be split and axis {transpose.split} to be whole, received {self}"
            )
        splits[transpose.split], splits[transpose.joined] = splits[transpose.joined], None
        return replace(self, splits=tuple(splits))


def box_shape(box: Box) -> tuple[int, ...]:
    """Return the shape of a box, which is a tuple of slices."""
    return tuple(map(length_of, box))


def contiguous(box: Box, shape: Sequence[int]) -> bool:
    """Return whether a box lies in one piece in a C-contiguous array of `shape`."""
    if 0 in box_shape(box):
        return True
    partial = False
    for part, length in zip(reversed(box), reversed(shape)):
        if partial and length_of(part) > 1:
            return False
        partial = partial or length_of(part) < length
    return True


def offset(box: Box, shape: Sequence[int]) -> int:
    """Return the position of a box's first element in a C-contiguous array of `shape`."""
    position = 0
    for part, length in zip(box, shape):
        position = position * length + part.start
    return position


@dataclass(frozen=True)
class MessageBoxes:
    """What one exchange of a few units moves, in this rank's local index ranges: for every rank of the dimension a box
    of the array before, and of the array after."""

    sent: list[Box]
    received: list[Box]


class TransposeBlocks:
    """The geometry of an exchange, seen from one rank."""

    size: int  # of the communicator along the dimension
    rank: int  # this rank in it

    def __init__(
        self,
        before: Layout,
        transpose: AxisSwap | None,  # None: nothing is exchanged, the array is only cut into units
        shape: tuple[int, ...],  # global, at the exchange
        coordinates: tuple[int, ...],  # this rank's
        # The axis that is cut into units: neither split over the same dimension after the exchange, nor, unless it is
        # the joined one, before it.
        along: int,
        units: int | None = None,  # how many; None: one per index of the longest part, were the shares even
    ) -> None:
        after = before if transpose is None else before.transposed(transpose)
        self.transpose, self.along = transpose, along
        self.before = before.local_shape(shape, coordinates)  # a local shape, as `after`
        self.after = after.local_shape(shape, coordinates)
        dimension: Any = None if transpose is None else before.splits[transpose.joined]
        self.dimension: int | None = dimension
        self.size = 1 if transpose is None else before.grid[dimension]
        self.rank = 0 if transpose is None else coordinates[dimension]
        parts = before.parts(shape, along)
        longest = length_of(before.even.parts(shape, along)[0])
        self.units = longest if units is None else min(units, longest)
        if transpose is not None:
            self._joined = before.parts(shape, transpose.joined)
            self._split = after.parts(shape, transpose.split)
        if transpose is not None and along == transpose.joined:
            own = [length_of(part) for part in parts]
        else:
            own = [self.before[along]] * self.size
        self._ranges = [block(length, max(1, self.units))[: self.units] for length in own]

    def unit(self, number: int) -> slice:
        """Return the local range, along the axis that is cut, of one unit."""
        return self._ranges[self.rank][number]

    def message(self, part: slice) -> MessageBoxes:
        """Return the message of a run of units, a slice with a start and a stop."""
        sent, received = [], []
        for rank, ranges in enumerate(self._ranges):
            send_box = [slice(0, length) for length in self.before]
            receive_box = [slice(0, length) for length in self.after]
            send_box[self.along] = _run(self._ranges[self.rank], part)
            receive_box[self.along] = _run(ranges, part)
            if self.transpose is not None:
                send_box[self.transpose.split] = self._split[rank]
                run = (
                    receive_box[self.along]
                    if self.along == self.transpose.joined
                    else slice(0, length_of(self._joined[rank]))
                )
                receive_box[self.transpose.joined] = moved(run, self._joined[rank].start)
            sent.append(tuple(send_box))
            received.append(tuple(receive_box))
        return MessageBoxes(sent, received)


class LateBlocks:
    """What a transpose still has to exchange after its first units.

    Now cut along the axis that it splits, into the receivers' units: what is received of one is all
    that was missing there. `done` units need no exchange any more; there shall be at most `units` along the split axis.
    """

    def __init__(self, blocks: TransposeBlocks, done: int, units: int) -> None:
        self._blocks = blocks
        self.done = done
        left = slice(done, blocks.units)
        self._left = [_run(ranges, left) for ranges in blocks._ranges]
        transpose: Any = blocks.transpose
        self._joined, self._split = transpose.joined, transpose.split
        lengths = [length_of(part) for part in blocks._split]
        self.units = max(1, min(units, max(lengths)))
        self._ranges = [block(length, self.units) for length in lengths]
        shape = list(blocks.before)
        shape[blocks.along] = length_of(self._left[blocks.rank])
        self.before = tuple(shape)  # of what remains of the rank's local array before

    def unit(self, number: int) -> slice:
        """Return the local range, along the axis that is split, of one unit of this rank."""
        return self._ranges[self._blocks.rank][number]

    def message(self, part: slice) -> MessageBoxes:
        """Return the message of a run of units; what is sent, in the index ranges of what remains."""
        sent, received = [], []
        blocks = self._blocks
        for rank, ranges in enumerate(self._ranges):
            send_box = [slice(0, length) for length in self.before]
            receive_box = [slice(0, length) for length in blocks.after]
            send_box[self._split] = moved(_run(ranges, part), blocks._split[rank].start)
            receive_box[self._split] = _run(self._ranges[blocks.rank], part)
            receive_box[self._joined] = blocks._joined[rank]
            receive_box[blocks.along] = (
                self._left[rank]
                if blocks.along != self._joined
                else moved(self._left[rank], blocks._joined[rank].start)
            )
            sent.append(tuple(send_box))
            received.append(tuple(receive_box))
        return MessageBoxes(sent, received)


def moved(part: slice, by: int) -> slice:
    """Return the range, some places further on."""
    return slice(part.start + by, part.stop + by)


def _run(ranges: list[slice], part: slice) -> slice:
    return slice(ranges[part.start].start, ranges[part.stop - 1].stop)
