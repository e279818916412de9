"""The work on one component of a field between two of Dedalus' layouts, on this rank.

A `Unit` is one slice of a pipeline: programs, and exchanges between them. Before, between and after exchanges are the
transforms of axes that are whole on every rank. Each program works block by block along an axis that it neither
transforms nor divides, in scratch memory that stays in the cache; it reads the field or received data, and writes data
to be sent or the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ...arrays import MessageBoxes
from ...arrays.layout import Box
from ...compiled.memory import address_of
from ...fft.engine.buffers import ArrayReference
from ...fft.engine.message import Message, WireFormat
from ...fft.engine.program import ASIDE, BASES, RECEIVE, SEND, SOURCE, TARGET, CompiledProgram, View
from ...fft.engine.steps import Exchange, Run
from .series import Lines, Pieces, Plans, Room, lines_of, resized, shape_of

BLOCK_NBYTES = 64 * 1024
WIDTH = 8  # a block with more indices of the axis along which it is cut has a multiple of this number


@dataclass(frozen=True)
class UnitKind:
    """The parameters of a unit.

    Attributes
    ----------
    domain : Dedalus' domain
    scales : tuple of float
    dtype : dtype
    start, stop : int
        Numbers of the layouts.
    """

    domain: Any
    scales: tuple[float, ...]
    dtype: Any
    start: int
    stop: int

    @property
    def paths(self) -> list[int]:
        """Return the numbers of the paths between the layouts, in order."""
        up = list(range(min(self.start, self.stop), max(self.start, self.stop)))
        return up if self.stop > self.start else up[::-1]


class SlotMemory:
    """The buffers of one slice in flight: one to send, and two to receive in turns."""

    def __init__(self, nbytes: int) -> None:
        # Each begins on a cache line of its own, because Open MPI takes buffers at the same address for an exchange in
        # place.
        nbytes = -(-max(1, nbytes) // 64) * 64
        memory = np.zeros(3 * nbytes + 64, np.uint8)
        first = -address_of(memory) % 64
        self.send, *self.receive = (memory[first + place * nbytes :][:nbytes] for place in range(3))


def exchanges(dist: Any, kind: UnitKind, path: int) -> bool:
    """Return whether a path exchanges anything of a field; the same on all ranks."""
    step = dist.paths[path]
    if not hasattr(step, "comm_sub"):
        return False
    chunk, shape = _sizes(step, kind)
    return step.comm_sub.size > 1 and any(shape[axis] != chunk[axis] for axis in (step.axis, step.axis + 1))


def _sizes(step: Any, kind: UnitKind) -> tuple[list[int], list[int]]:
    """Return chunks and global shape at a path's begin."""
    both = kind.domain.chunk_shape(step.layout0), step.layout0.global_shape(kind.domain, kind.scales)
    chunk, shape = ([int(length) for length in lengths] for lengths in both)
    return chunk, shape


def _lines_at(dist: Any, kind: UnitKind, path: int, plans: Plans) -> tuple[bool, Lines | None]:
    """Return whether a path transforms a field, and by what; None: only Dedalus' own classes can."""
    step = dist.paths[path]
    basis = None if hasattr(step, "comm_sub") else kind.domain.full_bases[step.axis]
    if basis is None:
        return False, None
    points = int(step.layout1.global_shape(kind.domain, kind.scales)[step.axis])
    return True, lines_of(basis, dist, points, kind.dtype, kind.stop > kind.start, plans)


def made_by(dist: Any, kind: UnitKind, plans: Plans) -> bool:
    """Return whether units can make the move of a path between layouts, with an exchange."""
    if any(
        transforms and lines is None
        for transforms, lines in (_lines_at(dist, kind, path, plans) for path in kind.paths)
    ):
        return False
    return any(exchanges(dist, kind, path) for path in kind.paths)


@dataclass(frozen=True)
class _Segment:
    """Transforms without an exchange between them: axes in order, and shapes of the local array before and after."""

    lines: list[tuple[int, Lines]]
    shape: tuple[int, ...]
    result: tuple[int, ...]


class Unit:
    """One component of a field, from layout to layout.

    Parameters
    ----------
    dist : Dedalus' distributor
    kind : UnitKind
    comms : dict
        Awaitable communicators, by the numbers of paths that exchange.
    plans : dict
        FFTW's plans that have been made.

    Attributes
    ----------
    scratch_nbytes, message_nbytes : int
        Scratch memory, and the largest message.
    given_nbytes, made_nbytes : int
        Bytes of the local array in the first and the last layout.
    """

    def __init__(self, dist: Any, kind: UnitKind, comms: dict[int, Any], plans: Plans) -> None:
        self._dtype, up = np.dtype(kind.dtype), kind.stop > kind.start
        shapes = [tuple(map(int, layout.local_shape(kind.domain, kind.scales))) for layout in dist.layouts]
        self._messages: list[tuple[Any, Message, int]] = []  # (path, message, this rank on the communicator)
        self._segments: list[_Segment] = []
        shape = shapes[kind.start]
        lines: list[tuple[int, Lines]] = []
        for path in kind.paths:
            step = dist.paths[path]
            if exchanges(dist, kind, path):
                before, after = shapes[path + (not up)], shapes[path + up]
                self._segments.append(_Segment(lines, shape, before))
                boxes = _boxes(step, kind, before, after, up)
                rank = step.comm_sub.rank
                message = Message(boxes, rank, after, False, False, WireFormat(self._dtype))
                self._messages.append((comms[path], message, rank))
                shape, lines = after, []
                continue
            _, axis_lines = _lines_at(dist, kind, path, plans)
            if axis_lines is not None:
                lines.append((step.axis, axis_lines))
        self._segments.append(_Segment(lines, shape, shapes[kind.stop]))
        ends = shapes[kind.start], shapes[kind.stop]
        self.given_nbytes, self.made_nbytes = (prod(end_shape) * self._dtype.itemsize for end_shape in ends)
        sizes = [max(message.send_size, message.receive_size) for _, message, _ in self._messages]
        self.message_nbytes = max(sizes, default=0) * self._dtype.itemsize
        self.scratch_nbytes = 0
        self._codes = [self._program(number).code for number in range(len(self._segments))]

    def steps(self, component: int, source: int, target: int, slot: SlotMemory) -> Iterator[Run | Exchange]:
        """Yield the steps for a component of a field.

        Parameters
        ----------
        component : int
        source, target : int
            The address of the field's buffer or of its copy, and that of the buffer.
        slot : SlotMemory
        """
        bases = np.zeros(BASES, np.int64)
        bases[SOURCE] = source + component * self.given_nbytes
        bases[TARGET] = target + component * self.made_nbytes
        bases[SEND] = address_of(slot.send)
        for number, code in enumerate(self._codes):
            bases[RECEIVE], bases[ASIDE] = (address_of(slot.receive[(number + turn) % 2]) for turn in (1, 0))
            yield Run(code, bases.tolist(), f"part {number + 1}")
            if number < len(self._messages):
                comm, message, _ = self._messages[number]
                ends = slot.send, slot.receive[number % 2]
                send, receive = (
                    ArrayReference(end[: max(1, size) * self._dtype.itemsize].view(self._dtype))
                    for end, size in zip(ends, (message.send_size, message.receive_size))
                )
                yield Exchange(comm, message, send, receive)

    def _program(self, number: int) -> CompiledProgram:
        """Write the program between two exchanges."""
        segment, program = self._segments[number], CompiledProgram()
        if number:
            _, message, _ = self._messages[number - 1]
            source = Pieces(message.received, message.pieces_received(RECEIVE))
        else:
            source = Pieces.whole(View.contiguous(SOURCE, segment.shape, self._dtype))
        if number < len(self._messages):
            _, message, rank = self._messages[number]
            views = message.pieces_sent(SEND)
            views[rank] = message.pieces_received(ASIDE)[rank]
            target = Pieces(message.sent, views)
        else:
            target = Pieces.whole(View.contiguous(TARGET, segment.result, self._dtype))
        if prod(segment.shape) and prod(segment.result):
            room = _write(program, segment, source, target, self._dtype)
            self.scratch_nbytes = max(self.scratch_nbytes, room)
        return program


def _boxes(step: Any, kind: UnitKind, before: Sequence[int], after: Sequence[int], up: bool) -> MessageBoxes:
    """Return the boxes that a transpose of Dedalus moves, in which blocks are multiples of chunks."""
    chunk, shape = _sizes(step, kind)
    ranks = step.comm_sub.size

    def ranges(axis: int) -> list[slice]:
        chunks = -(-shape[axis] // chunk[axis])
        block = chunk[axis] * -(-chunks // ranks)
        return [slice(*(min(block * place, shape[axis]) for place in (rank, rank + 1))) for rank in range(ranks)]

    joined, split = (step.axis, step.axis + 1) if up else (step.axis + 1, step.axis)

    def boxes(local: Sequence[int], axis: int) -> list[Box]:
        whole = [slice(0, length) for length in local]
        return [(*whole[:axis], part, *whole[axis + 1 :]) for part in ranges(axis)]

    return MessageBoxes(boxes(before, split), boxes(after, joined))


def _write(program: CompiledProgram, segment: _Segment, source: Pieces, target: Pieces, dtype: np.dtype) -> int:
    """Write a segment, block by block; return the scratch memory that it needs, in bytes."""
    if not segment.lines:
        source.move(program, target, 0, slice(0, segment.shape[0]), 0)
        return 0
    axes = {axis for axis, _ in segment.lines}
    cut = next(
        (
            axis
            for axis, length in enumerate(segment.shape)
            if axis not in axes and all(box[axis] == slice(0, length) for box in (*source.boxes, *target.boxes))
        ),
        None,
    )
    if cut is None:
        return _write_block(program, segment, source, target, dtype)
    length = segment.shape[cut]
    longest = [max(lines.given, lines.made) for _, lines in segment.lines]
    other_points = prod(segment.shape) // length // prod(lines.given for _, lines in segment.lines)
    size = max(1, BLOCK_NBYTES // (dtype.itemsize * other_points * prod(longest)))
    size = min(length, size // WIDTH * WIDTH if size > WIDTH else size)
    nbytes = 0
    for part, count in ((slice(0, size), length // size), (slice(length // size * size, length), 1)):
        if part.stop > part.start:
            body = CompiledProgram()
            by = size if count > 1 else 0
            ends = source.along(cut, part, by), target.along(cut, part, by)
            nbytes = max(nbytes, _write_block(body, segment, *ends, dtype))
            program.repeat(body, count)
    return nbytes


def _write_block(program: CompiledProgram, segment: _Segment, source: Pieces, target: Pieces, dtype: np.dtype) -> int:
    """Write the transforms of a block, one axis after the other."""
    room = Room()
    for number, (axis, lines) in enumerate(segment.lines):
        last = number == len(segment.lines) - 1
        shape = resized(shape_of(source), axis, lines.made)
        result = target if last else Pieces.whole(room.array(shape, dtype))
        lines.write(program, source, result, axis, room)
        source = result
    return room.nbytes
