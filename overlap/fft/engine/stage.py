"""One stage of a staged transform on one rank: its messages, and the work before and after each.

A stage goes from one array to another (see `overlap.arrays.stages`) and is cut into units; a message has some of them.
The work on a message's units is in two programs, `pack` before the exchange and `unpack` after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ...arrays import Layout, StageAxes, TransposeBlocks, block, box_shape, length_of
from ...arrays.layout import Box
from ...runtime.loop.words import RECEIVE, SEND, SOURCE
from .axis import Axis, Direction, dtype_after
from .fftw import REQUIRED_ALIGNMENT
from .message import Message, WireFormat, write_unpacking
from .program import CompiledProgram, View
from .six_step import TwiddledTranspose, TwiddleFactors
from .sweep import Sweep
from .sweep_in_place import SweepInPlace

UNIT_NBYTES = 256 * 1024
NARROWEST_UNIT = 16  # points along the array's last axis


@dataclass(frozen=True)
class SourceArray:
    """The distributed array from which a transform or a stage begins, with the part of one rank."""

    layout: Layout
    shape: tuple[int, ...]  # global shape; axis 0 is that of the batch
    coordinates: tuple[int, ...]  # of the rank in the layout's grid
    dtype: np.dtype
    contiguous: bool = False  # the rank's part is C-contiguous: MPI may send from there


@dataclass(frozen=True)
class Place:
    """The array in which a stage stores its results."""

    number: int  # 0: the user's array; other numbers: work memory, with one array for odd and one for even numbers
    early: bool  # it may be written before the exchange
    natural: bool  # it is C-contiguous and aligned


class Stage:
    """One stage on this rank."""

    def __init__(
        self,
        steps: StageAxes,  # the exchange and the transforms of the stage
        place: Place,
        lines: dict[int, Axis],
        source: SourceArray,
        direction: Direction,
        wire: WireFormat,  # has no effect if nothing is exchanged
        units: int | None = None,  # number of units; by default units of a size that stays in the cache
        # Some units may be exchanged late, cut along the axis that the exchange splits, although FFTs follow.
        ends_late: bool = False,
    ) -> None:
        self.place = place
        self._steps = steps
        layout, shape, coordinates, forward = (source.layout, source.shape, source.coordinates, direction.forward)
        self.source_dtype = np.dtype(source.dtype)
        self.dtype = dtype_after(self.source_dtype, lines, steps.first, forward)  # the type in messages
        self.target_dtype = dtype_after(self.dtype, lines, steps.then, forward)
        crossed = transformed(shape, steps.first, lines, forward)
        if units is None:
            longest = length_of(layout.even.parts(crossed, steps.along)[0])
            least = NARROWEST_UNIT if steps.along == len(shape) - 1 else 1
            units = (
                longest
                if direction.by_index
                else max(1, min(longest // least, -(-largest_nbytes(layout, crossed, self.dtype) // UNIT_NBYTES)))
            )
        self.blocks = TransposeBlocks(layout, steps.transpose, crossed, coordinates, steps.along, units)
        self.wire = wire.of(self.dtype) if self.blocks.size > 1 else WireFormat(self.dtype)
        self.layout = layout if steps.transpose is None else layout.transposed(steps.transpose)
        self.shape = transformed(crossed, steps.then, lines, forward)
        self.source_shape = layout.local_shape(shape, coordinates)
        self.target_shape = self.layout.local_shape(self.shape, coordinates)
        self.twiddle: TwiddleFactors | None = None  # factors by which received data are multiplied
        if isinstance(steps.transpose, TwiddledTranspose):
            one, other = steps.transpose.joined, steps.transpose.split
            where = self.layout.local_slice(crossed, coordinates)
            count = lines[one].points * lines[other].points
            self.twiddle = TwiddleFactors((one, other), count, (where[one].start, where[other].start), forward)
        self.late_parts: list[slice] = []  # local ranges of the axis that the exchange splits, for late units
        self._ends: tuple[int, list[slice]] | None = None
        if steps.transpose is not None:
            split = steps.transpose.split
            longest = length_of(self.layout.even.parts(self.shape, split)[0])
            count = max(1, min(longest, -(-largest_nbytes(self.layout, self.shape, self.dtype) // UNIT_NBYTES)))
            self.late_parts = block(self.target_shape[split], count)
            self._ends = (split, self.late_parts) if ends_late else None
        # Whether the last FFTs can be made in the target, in which the received pieces are gathered.
        self._in_target = self._suits_target(self.target_shape, steps.then, lines)
        # Data that need not wait in the slot until the exchange has completed go directly to the target.
        self.straight = place.early and (not steps.then or self._in_target)
        self.direct = self.straight and place.natural
        self._sent_from = self.source_shape if source.contiguous and not steps.first else None
        self._messages: dict[tuple[int, int], Message] = {}
        self.first: dict[int, Sweep | SweepInPlace] = {}  # length of a unit -> sweep
        self.then: dict[int, Sweep | SweepInPlace] = {}
        for number in range(self.blocks.units):
            length = length_of(self.blocks.unit(number))
            if length and length not in self.first:
                self._make_sweeps(number, length, lines, direction)

    def _suits_target(self, shape: tuple[int, ...], axes: Sequence[int], lines: dict[int, Axis]) -> bool:
        """Return whether FFTs of a part of this shape can be made in the target, unit by unit.

        Then every unit of the target is contiguous and aligned as FFTW requires.
        """
        along, local = self._steps.along, self.target_shape
        return (
            self.place.natural
            and len(axes) == 1
            and not lines[axes[0]].real
            and lines[axes[0]].alike
            and SweepInPlace.suits(shape, axes[0], self.dtype)
            and prod(local[:along]) == 1
            and prod(local[along + 1 :]) * self.dtype.itemsize % REQUIRED_ALIGNMENT == 0
        )

    def _make_sweeps(self, number: int, length: int, lines: dict[int, Axis], direction: Direction) -> None:
        straight = replace(direction, turned=None)
        at_first, at_last = (straight, direction) if direction.forward else (direction, straight)
        steps, message = self._steps, self.blocks.message(slice(number, number + 1))

        def unit(shape: tuple[int, ...]) -> Box:
            return replaced(tuple(slice(0, count) for count in shape), steps.along, slice(0, length))

        tiles = [replaced(box, steps.along, slice(0, length)) for box in message.sent]
        pieces = [replaced(box, steps.along, slice(0, length)) for box in message.received]
        source, target = unit(self.source_shape), unit(self.target_shape)
        if self.blocks.size == 1 and self.straight and self._suits_target(box_shape(source), steps.first, lines):
            (axis,) = steps.first  # no part of the unit is sent
            self.first[length] = SweepInPlace(
                box_shape(source), axis, lines[axis], self.source_dtype, direction, [source]
            )
        else:
            self.first[length] = Sweep(
                box_shape(source),
                {axis: lines[axis] for axis in steps.first},
                self.source_dtype,
                at_first,
                [source],
                tiles,
                natural=bool(steps.first) and steps.along < min(steps.first),
            )
        if self._in_target:
            self.then[length] = SweepInPlace(
                box_shape(target),
                steps.then[0],
                lines[steps.then[0]],
                self.dtype,
                direction,
                self.message(slice(number, number + 1)).gathered(pieces),
            )
        elif steps.then:
            self.then[length] = Sweep(
                box_shape(unit(self.blocks.after)),
                {axis: lines[axis] for axis in steps.then},
                self.dtype,
                at_last,
                pieces,
                [target],
                ends=self._ends,
            )

    def in_words(self, names: Sequence[str]) -> str:
        """Describe the stage, with the names of the axes."""
        units = f"{self.blocks.units} parts of" if self.blocks.units > 1 else "one part of"
        return f"{self._steps.in_words(names)} (in {units} {names[self._steps.along]})"

    @property
    def dimension(self) -> int | None:
        """Return the dimension of the process grid along which the stage exchanges, or None."""
        return self.blocks.dimension

    @property
    def scratch_nbytes(self) -> int:
        """Return the bytes of scratch memory that the stage's programs need."""
        return max((sweep.scratch_nbytes for sweeps in (self.first, self.then) for sweep in sweeps.values()), default=0)

    def message(self, part: slice) -> Message:
        """Return the message of some units."""
        key = part.start, part.stop
        if key not in self._messages:
            self._messages[key] = Message(
                self.blocks.message(part),
                self.blocks.rank,
                self.target_shape,
                self.straight,
                self.direct,
                self.wire,
                self._sent_from,
            )
        return self._messages[key]

    def runs(self, part: slice) -> list[tuple[int, slice, slice]]:
        """Return the runs of units of equal length: their number, their range in the local arrays, and in the message.

        The ranges are those of the first unit.
        """
        ranges = [self.blocks.unit(number) for number in range(part.start, part.stop)]
        start = ranges[0].start
        found_runs: list[tuple[int, slice, slice]] = []
        for unit in ranges:
            length = length_of(unit)
            if found_runs and length_of(found_runs[-1][1]) == length:
                count, local_range, message_range = found_runs[-1]
                found_runs[-1] = count + 1, local_range, message_range
            elif length:
                found_runs.append((1, unit, slice(unit.start - start, unit.stop - start)))
        return found_runs

    def pack(self, program: CompiledProgram, part: slice, source: View, target: View, scale: float) -> None:
        """Write the first FFTs of some units, whose results fill the message."""
        message, along = self.message(part), self._steps.along
        pieces = message.pieces_sent(SEND)
        pieces[self.blocks.rank] = self._own(message, target)
        for count, local_range, message_range in self.runs(part):
            self._write(
                program,
                self.first[length_of(local_range)],
                along,
                count,
                [(source, local_range)],
                [(piece, message_range) for piece in pieces],
                scale,
            )

    def unpack(self, program: CompiledProgram, part: slice, target: View) -> None:
        """Write the unpacking of the received pieces, and the other FFTs."""
        message = self.message(part)
        pieces = message.pieces_received(RECEIVE)
        if self.twiddle is not None:
            for piece, box in zip(message.arrived(pieces, target), message.received):
                self.twiddle.write(program, piece, box)
        if not self._steps.then:
            write_unpacking(program, message, pieces, target)
            return
        for count, local_range, message_range in self.runs(part):
            sources = [] if message.direct else [(piece, message_range) for piece in message.gathered(pieces)]
            self._write(
                program, self.then[length_of(local_range)], self._steps.along, count, sources, [(target, local_range)]
            )

    def local(self, program: CompiledProgram, count: int, source: View, target: View, scale: float) -> None:
        """Write the whole work on some units of one index each, if nothing is exchanged."""
        body, unit = CompiledProgram(), slice(0, 1)
        self.pack(body, unit, source, target, scale)
        self.unpack(body, unit, target)
        program.repeat(body, count, still=RECEIVE)

    def _own(self, message: Message, target: View) -> View:
        """Return the place of the rank's own piece."""
        rank = self.blocks.rank
        if self.straight:
            return self.wire.rounded(target[message.received[rank]])
        return message.pieces_received(RECEIVE)[rank]

    def pieces_to_send(self, units: int, kept: int) -> list[View]:
        """Return the pieces to send in a message of the first units.

        This rank's own piece is on base `kept`: in the target, or in a receive buffer.
        """
        message, rank = self.message(slice(0, units)), self.blocks.rank
        pieces = message.pieces_sent(SEND)
        pieces[rank] = (
            View.contiguous(kept, self.target_shape, self.target_dtype)[message.received[rank]]
            if self.straight
            else message.pieces_received(kept)[rank]
        )
        return pieces

    def pieces_received(self, units: int) -> list[View]:
        """Return the received pieces of a message of the first units; if it is sent unpacked, the own one is there."""
        message, rank = self.message(slice(0, units)), self.blocks.rank
        pieces = message.pieces_received(RECEIVE)
        if message.unpacked:
            pieces[rank] = View.contiguous(SOURCE, self.source_shape, self.source_dtype)[message.sent[rank]]
        return pieces

    @staticmethod
    def _write(
        program: CompiledProgram,
        sweep: Sweep | SweepInPlace,
        along: int,
        count: int,
        sources: list[tuple[View, slice]],
        targets: list[tuple[View, slice]],
        scale: float = 1.0,
    ) -> None:
        """Write a sweep of one unit, repeated for `count` units."""

        def unit(view: View, part: slice) -> View:
            if view is None:
                return None
            return view[(*(slice(None),) * along, part)].stepping(along, length_of(part))

        body = CompiledProgram()
        sweep.write(body, [unit(*pair) for pair in sources], [unit(*pair) for pair in targets], scale)
        program.repeat(body, count)


def replaced(box: Box, axis: int, part: slice) -> Box:
    """Return the box with another range along one axis."""
    return (*box[:axis], part, *box[axis + 1 :])


def transformed(shape: tuple[int, ...], axes: Sequence[int], lines: dict[int, Axis], forward: bool) -> tuple[int, ...]:
    """Return the global shape after some axes have been transformed."""
    lengths = list(shape)
    for axis in axes:
        lengths[axis] = lines[axis].length(forward)
    return tuple(lengths)


def largest_nbytes(layout: Layout, shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Return the bytes of the largest local array with even shares: that of the first rank in every dimension."""
    return prod(layout.even.local_shape(shape, (0,) * len(layout.grid))) * dtype.itemsize
