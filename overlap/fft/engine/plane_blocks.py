"""Work on planes between two exchanges, block by block: to real space, a function, and back.

A block is a few rows of all fields of one plane, or all rows of a few small planes, in scratch memory that stays in the
cache. On it are done the last FFTs to real space, the function, and the first FFTs back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...arrays import chunks, length_of
from ...lowlevel.memory import address_of
from ...runtime import worker_index
from .axis import Axis, modes_dtype
from .buffers import ArrayReference, Buffers
from .compiled_function import BlockPlaces
from .direction import Direction
from .fftw import ALIGNMENT, REQUIRED_ALIGNMENT, zeros
from .message import Message
from .program import ASIDE, RECEIVE, SCRATCH, SOURCE, CompiledProgram, ProgramCache, View
from .stage import Stage
from .steps import Run
from .sweep import Sweep

COMPILED_NBYTES = 256 * 1024  # of a block's fields in real space, for the second-level cache
CALLED_NBYTES = 2 * 1024 * 1024  # the same if every block costs a call from Python, and the GIL
X = 2


@dataclass(frozen=True)
class BlockSize:
    """Limits of a block.

    Attributes
    ----------
    nbytes : int
        Approximate size of all fields of a block in real space; a block has at least one row.
    whole : bool
        A block is a plane, whatever its size.
    several : bool
        A block may have rows of several planes.
    """

    nbytes: int
    whole: bool = False
    several: bool = False


class PlaneBlocks:
    """The stages around a function of real-space planes on this rank, and the blocks in between.

    Parameters
    ----------
    stages : (Stage, Stage)
        Stages of the planes of all inputs (`back`), and of all outputs (`forth`); a message has all planes of a slice
        together.
    lines : dict
        The `Axis` of every transformed axis.
    counts : (int, int)
        Numbers of inputs with batch axes, and of outputs.
    scales : (float, float)
        Factors of the transforms to real space, and back.
    effort : str or None
        FFTW planning effort.
    workers : int
    size : BlockSize

    Attributes
    ----------
    rows : list of slice
        The rows of this rank in every block.
    together : int
        The largest number of planes in a block.
    scratch : list of int
        Addresses of every worker's scratch memory.
    """

    def __init__(
        self,
        stages: tuple[Stage, Stage],
        lines: dict[int, Axis],
        counts: tuple[int, int],
        scales: tuple[float, float],
        effort: str | None,
        workers: int,
        size: BlockSize,
    ) -> None:
        back, forth = self.back, self.forth = stages
        self.counts, self._scales = counts, scales
        _, rows, nx = back.target_shape
        dtype = back.target_dtype
        row_nbytes = max(1, nx) * dtype.itemsize
        fitting = max(1, size.nbytes // (sum(counts) * row_nbytes))  # rows
        self.rows = chunks(rows, max(1, rows if size.whole else min(rows, fitting)))
        self._height = max(map(length_of, self.rows), default=0)
        self._height_nbytes = self._height * row_nbytes
        self.together = 1
        if size.several and rows and self._height_nbytes % REQUIRED_ALIGNMENT == 0:
            self.together = max(1, fitting // rows)
        self._nx, self._dtype = nx, dtype
        self._field_nbytes = -(-self.together * self._height_nbytes // ALIGNMENT) * ALIGNMENT
        self._fields_nbytes = sum(counts) * self._field_nbytes
        first_slice = slice(0, 1)
        self._sweeps = {}
        for height in set(map(length_of, self.rows)) if nx else ():
            inside, spectral = slice(0, height), modes_dtype(dtype, {X: lines[X]})
            rows_box = [(first_slice, inside, slice(0, nx))]
            boxes = [
                [(first_slice, inside, box[X]) for box in boxes]
                for boxes in (back.message(first_slice).received, forth.message(first_slice).sent)
            ]
            self._sweeps[height] = (
                Sweep(
                    (1, height, lines[X].length(True)),
                    {X: lines[X]},
                    spectral,
                    Direction(False, effort),
                    boxes[0],
                    rows_box,
                    self._fields_nbytes,
                ),
                Sweep(
                    (1, height, nx),
                    {X: lines[X]},
                    dtype,
                    Direction(True, effort),
                    rows_box,
                    boxes[1],
                    self._fields_nbytes,
                ),
            )
        nbytes = max(
            [self._fields_nbytes, back.scratch_nbytes, forth.scratch_nbytes]
            + [sweep.scratch_nbytes for pair in self._sweeps.values() for sweep in pair]
        )
        self._scratch = [zeros(nbytes, np.uint8) for _ in range(workers)]
        self.scratch = [address_of(memory) for memory in self._scratch]
        self._arrays: list[dict[Any, Any]] = [{} for _ in self._scratch]  # of every worker: (rows, planes) -> arrays
        self._codes = ProgramCache()

    def _view(self, number: int, height: int, plane: int = 0) -> View:
        """Return the view of one plane, of `height` rows, of a block's input or output `number` in scratch memory."""
        plane_view = View.contiguous(SCRATCH, (1, height, self._nx), self._dtype)
        return replace(plane_view, offset=number * self._field_nbytes + plane * self._height_nbytes)

    def arrays(self, rows: slice, planes: int = 1) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return this worker's real-space fields of a block, (planes * rows, nx): inputs, and outputs."""
        worker, height = worker_index(), length_of(rows)
        fields_of_block = self._arrays[worker].get((height, planes))
        if fields_of_block is None:
            memory, inputs = self._scratch[worker], self.counts[0]
            fields = [self._view(number, planes * height).array(memory)[0] for number in range(sum(self.counts))]
            fields_of_block = self._arrays[worker][height, planes] = fields[:inputs], fields[inputs:]
        return fields_of_block

    def places(self, shared: int, shared_step: int) -> BlockPlaces:
        """Return the places of a block's fields and of `shared` shared fields, for a compiled function."""
        return BlockPlaces(*self.counts, shared, self._nx, self._field_nbytes, shared_step, self._dtype)

    def messages(self, count: int) -> tuple[Message, Message]:
        """Return the messages of `count` slices, to real space and back."""
        inputs, outputs = self.counts
        return (self.back.message(slice(0, count * inputs)), self.forth.message(slice(0, count * outputs)))

    def pack(self, slot: Any, part: slice, number: int, field: ArrayReference) -> Run:
        """Return the step that transforms and packs one input of some slices into the message."""
        return self._run(("pack", number), slot.back, part, field, self._write_pack)

    def unpack(self, slot: Any, part: slice, number: int, result: ArrayReference) -> Run:
        """Return the step that unpacks one output of some slices, with its last FFTs."""
        return self._run(("unpack", number), slot.forth, part, result, self._write_unpack)

    def to_real(self, slot: Any, count: int, planes: slice, block: int) -> Run:
        """Return the step that brings a block of all inputs of some planes (a slice) of a message to real space."""
        return self._run_block("to real", self._write_to_real, slot, count, planes, block)

    def to_modes(self, slot: Any, count: int, planes: slice, block: int) -> Run:
        """Return the step with the first FFTs of a block of all outputs of some planes, into the message."""
        return self._run_block("to modes", self._write_to_modes, slot, count, planes, block)

    def apply(self, slot: Any, count: int, function: int, shared: View) -> Run:
        """Return the step that does everything with all blocks of all slices of a message, by a compiled function.

        Parameters
        ----------
        function : int
            Address of ``function(rows, shared, block)``: a number of rows, the address of the shared
            planes' rows, that of the block.
        shared : View
        """
        code = self._codes.find((), ("apply", count), self._write_apply, count, function, shared)
        return Run(code, slot.middle.bases, "apply")

    def _run(
        self, key: tuple[str, int], buffers: Buffers, part: slice, array: ArrayReference, write: Callable[..., None]
    ) -> Run:
        count, bases = length_of(part), buffers.bases.copy()
        code = self._codes.find(array.kind, (*key, count), write, array.view(SOURCE), key[1], count)
        bases[SOURCE] = array.address + part.start * array.strides[0]
        return Run(code, bases, key[0])

    def _run_block(
        self, label: str, write: Callable[..., None], slot: Any, count: int, planes: slice, block: int
    ) -> Run:
        code = self._codes.find((), (label, count, planes.start, planes.stop, block), write, count, planes, block)
        return Run(code, slot.middle.bases, label)

    def _write_pack(self, program: CompiledProgram, source: View, number: int, count: int) -> None:
        inputs = self.counts[0]
        body = CompiledProgram()
        self.back.first[1].write(
            body,
            [source[:1].stepping(0, 1)],
            [
                piece[number : number + 1].stepping(0, inputs)
                for piece in self.back.pieces_to_send(count * inputs, RECEIVE)
            ],
            self._scales[0],
        )
        program.repeat(body, count)

    def _write_unpack(self, program: CompiledProgram, target: View, number: int, count: int) -> None:
        outputs = self.counts[1]
        body = CompiledProgram()
        self.forth.then[1].write(
            body,
            [piece[number : number + 1].stepping(0, outputs) for piece in self.forth.pieces_received(count * outputs)],
            [target[:1].stepping(0, 1)],
        )
        program.repeat(body, count)

    def _write_to_real(self, program: CompiledProgram, count: int, planes: slice, block: int) -> None:
        inputs, rows = self.counts[0], self.rows[block]
        height = length_of(rows)
        pieces = self.back.pieces_received(count * inputs)
        for place, plane in enumerate(range(planes.start, planes.stop)):
            for number, at in enumerate(range(plane * inputs, (plane + 1) * inputs)):
                self._sweeps[height][0].write_to(
                    program,
                    [piece[at : at + 1, rows].stepping(0, inputs) for piece in pieces],
                    self._view(number, height, place),
                )

    def _write_to_modes(self, program: CompiledProgram, count: int, planes: slice, block: int) -> None:
        (inputs, outputs), rows = self.counts, self.rows[block]
        height = length_of(rows)
        pieces = self.forth.pieces_to_send(count * outputs, ASIDE)
        for place, plane in enumerate(range(planes.start, planes.stop)):
            for number, at in enumerate(range(plane * outputs, (plane + 1) * outputs)):
                self._sweeps[height][1].write_from(
                    program,
                    self._view(inputs + number, height, place),
                    [piece[at : at + 1, rows].stepping(0, outputs) for piece in pieces],
                    self._scales[1],
                )

    def _write_apply(self, program: CompiledProgram, count: int, function: int, shared: View) -> None:
        body, first = CompiledProgram(), slice(0, 1)
        for block, rows in enumerate(self.rows):
            self._write_to_real(body, count, first, block)
            body.call(function, length_of(rows), self._view(0, length_of(rows)), shared[:, rows])
            self._write_to_modes(body, count, first, block)
        program.repeat(body, count)
