"""The geometry of transposes: what an exchange moves between two layouts of an array.

A transpose along one dimension of the process grid joins the axis that was split over it and splits
another one instead; all ranks that differ in this coordinate only take part. It is cut along a third
axis, or along the joined one, into units: the least that a message can hold. All ranks have as many
units, whatever their share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .layout import AxisSwap, Box, Layout
from .partition import block, length_of


@dataclass(frozen=True)
class MessageBoxes:
    """What one exchange of a few units moves, in this rank's local index ranges.

    Attributes
    ----------
    sent, received : list of tuple of slice
        For every rank of the dimension a box of the array before, and of the array after.
    """

    sent: list[Box]
    received: list[Box]


class TransposeBlocks:
    """The geometry of an exchange, seen from one rank.

    Parameters
    ----------
    before : Layout
    transpose : AxisSwap or None
        None: nothing is exchanged, the array is only cut into units.
    shape : tuple of int
        Global shape at the exchange.
    coordinates : tuple of int
        This rank's.
    along : int
        The axis that is cut into units: neither split over the same dimension after the exchange,
        nor, unless it is the joined one, before it.
    units : int or None
        How many; None: one per index of the longest part, were the shares even.

    Attributes
    ----------
    before, after : tuple of int
        Local shapes.
    size, rank : int
        Size of the communicator along the dimension, and this rank in it.
    dimension : int or None
    """

    def __init__(
        self,
        before: Layout,
        transpose: AxisSwap | None,
        shape: tuple[int, ...],
        coordinates: tuple[int, ...],
        along: int,
        units: int | None = None,
    ) -> None:
        after = before if transpose is None else before.transposed(transpose)
        self.transpose, self.along = transpose, along
        self.before = before.local_shape(shape, coordinates)
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
    that was missing there.

    Parameters
    ----------
    blocks : TransposeBlocks
    done : int
        Units that need no exchange any more.
    units : int
        How many there shall be along the split axis, at most.

    Attributes
    ----------
    before : tuple of int
        Shape of what remains of the rank's local array before.
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
        self.before = tuple(shape)

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
