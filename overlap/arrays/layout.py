"""Layouts of n-dimensional arrays on a process grid, and boxes of local arrays.

A grid has dimensions, each of some size; a rank has one coordinate in each. A layout says which axis of an array is
split over which dimension of the grid; a transpose changes the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    """Describes which axis is split over which dimension of a grid.

    Attributes
    ----------
    splits : tuple of (int or None)
        For every axis of the array: a dimension of the grid, or None if the axis is not split.
    grid : tuple of int
        Size of every dimension.
    weights : tuple of numbers or None
        One per rank: shares are in proportion to the weights; None: even shares. On a grid of several dimensions the
        weight of a coordinate is the sum of its ranks' weights, and a rank's share is the product of those along the
        dimensions.
    multiples : tuple of int
        For every axis a number; every share begins at a multiple of it. Empty: 1 for all axes.
    shares : tuple
        Pairs: an axis and a dimension, and how many indices of it each coordinate has. They go before the weights, and
        are weights where the axis has another length.
    """

    splits: tuple[int | None, ...]
    grid: tuple[int, ...]
    weights: Weights = None
    multiples: tuple[int, ...] = ()
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
