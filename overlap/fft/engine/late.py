"""Late tiles: units of a last stage that are exchanged at the end, in messages that each complete a part of the field.

They are packed early into memory of their own, message by message, from which they are sent. The rank's own piece goes
directly to the target. The stage's last FFTs, if it has any, are made of the part that a message completes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...arrays import LateBlocks, chunks, length_of, moved
from ...arrays.layout import Box
from ...compiled.memory import address_of
from ...runtime.loop.words import ASIDE, RECEIVE
from .fftw import zeros
from .message import Message, starts_of, write_unpacking
from .program import CompiledProgram, View
from .stage import Stage, replaced
from .sweep import Sweep

MOST_MESSAGES = 16  # each early task packs for all messages


class LateTiles:
    """Late messages of a stage."""

    def __init__(
        self,
        stage: Stage,  # cut along the axis that its exchange joins, or its target is not the result yet
        done: int,  # number of units that are not exchanged late
        units: int,  # number of units along the axis that the exchange splits
        chunk: int,  # number of these units in a message; more if there would be too many messages
    ) -> None:
        blocks = stage.blocks
        remainder = LateBlocks(blocks, done, units)
        self.parts = chunks(remainder.units, max(chunk, -(-remainder.units // MOST_MESSAGES)))  # of every message
        messages = [
            Message(remainder.message(part), blocks.rank, stage.target_shape, True, False, stage.wire)
            for part in self.parts
        ]
        sizes = [message.send_size for message in messages]
        self.receive_size = max(message.receive_size for message in messages)  # largest number of elements received
        dtype = stage.wire.dtype
        self.memory = zeros(sum(sizes), dtype)  # of the packed tiles
        self.address = address_of(self.memory)
        self._stage, self._done = stage, done
        self._messages, self._pieces, boxes = {}, [], []
        for part, message, start in zip(self.parts, messages, starts_of(sizes)):
            self._messages[part.start] = message, self.memory[start : start + message.send_size]
            pieces = [
                replace(piece, offset=piece.offset + start * dtype.itemsize) for piece in message.pieces_sent(ASIDE)
            ]
            for rank, (piece, box) in enumerate(zip(pieces, message.sent)):
                if rank != blocks.rank:
                    self._pieces.append(piece)
                    boxes.append(box)
        self._row = blocks.unit(done).start
        self._own: dict[int, Box] = {}
        self._sweeps: dict[int, Sweep] = {}
        along = blocks.along
        for number in range(done, blocks.units):
            unit_boxes = blocks.message(slice(number, number + 1))
            self._own[number] = unit_boxes.received[blocks.rank]
            length = length_of(blocks.unit(number))
            if length == 0 or length in self._sweeps:
                continue
            unit = slice(0, length)
            tiles = [replaced(box, along, unit) for box in (unit_boxes.sent[blocks.rank], *boxes)]
            sweep = stage.first[length]
            assert isinstance(sweep, Sweep)  # a stage with an exchange is not transformed in place
            self._sweeps[length] = sweep.retargeted(tiles)

    def message(self, part: slice) -> tuple[Message, np.ndarray]:
        """Return the message of some late units, and the memory from which it is sent."""
        return self._messages[part.start]

    def pack(self, program: CompiledProgram, part: slice, source: View, target: View, scale: float) -> None:
        """Write the first FFTs of some units, whose results are packed for the late messages."""
        stage, blocks = self._stage, self._stage.blocks
        where = (slice(None),) * blocks.along
        for number in range(part.start, part.stop):
            unit = blocks.unit(number)
            if length_of(unit):
                piece_part = (*where, moved(unit, -self._row))
                self._sweeps[length_of(unit)].write(
                    program,
                    [source[(*where, unit)]],
                    [stage.wire.rounded(target[self._own[number]]), *(piece[piece_part] for piece in self._pieces)],
                    scale,
                )

    def unpack(self, program: CompiledProgram, part: slice, target: View) -> None:
        """Write the unpacking of a late message, and the stage's last FFTs of that part."""
        stage, blocks, (message, _) = self._stage, self._stage.blocks, self.message(part)
        pieces = message.pieces_received(RECEIVE)
        if not stage.then:
            write_unpacking(program, message, pieces, target)
            return
        pieces[blocks.rank] = target[message.received[blocks.rank]]
        assert blocks.transpose is not None  # only exchanges can be late
        split, where = blocks.transpose.split, (slice(None),) * blocks.along
        first, length = message.received[blocks.rank][split].start, target.shape[split]
        for number in range(self._done, blocks.units):
            unit = blocks.unit(number)
            if length_of(unit):
                piece_part, sweep = (*where, moved(unit, -self._row)), stage.then[length_of(unit)]
                assert isinstance(sweep, Sweep)  # late tiles do not go to the target
                sweep = sweep.overlapping()
                groups = sweep.groups[part]
                sweep.write(
                    program,
                    [_in_all(piece[piece_part], split, first, length) for piece in pieces],
                    [target[(*where, unit)]],
                    blocks=slice(groups[0].start, groups[-1].stop),
                )


def _in_all(piece: View, axis: int, first: int, length: int) -> View:
    """Return the view of an axis's whole length of which `piece` is the part that begins at `first`."""
    shape = (*piece.shape[:axis], length, *piece.shape[axis + 1 :])
    return replace(piece, shape=shape, offset=piece.offset - first * piece.strides[axis])
