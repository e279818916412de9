"""A user's function of planes between two exchanges, block by block: to real space, the function, and back.

A block is a few rows of all fields of one plane, or all rows of a few small planes. On it are done the last FFTs to
real space, the function, and the first FFTs back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...arrays import chunks, length_of
from ...runtime import worker_index
from .axis import Axis, modes_dtype
from .buffers import ArrayReference
from .compiled_function import BlockPlaces, can_be_compiled, compiled
from .fftw import ALIGNMENT, REQUIRED_ALIGNMENT
from .plane_composition import PlaneComposition, SlotBuffers
from .program import ASIDE, SCRATCH, TARGET, CompiledProgram, View
from .route import Direction
from .stage import Stage
from .steps import AnyStep, Call, Run
from .sweep import Sweep

COMPILED_NBYTES = 256 * 1024  # of a block's fields in real space, for the second-level cache
CALLED_NBYTES = 2 * 1024 * 1024  # the same if every block costs a call from Python, and the GIL
X = 2


class PlaneBlocks(PlaneComposition):
    """The stages around a function of real-space planes on this rank, and the blocks in between.

    Parameters
    ----------
    stages, scales, kept
        See `PlaneComposition`.
    lines : dict
        The `Axis` of every transformed axis.
    function : Function
    batch : tuple of int
        Shape of the batch.
    effort : str or None
        FFTW planning effort.
    workers : int
    whole : bool
        A block is a plane, whatever its size.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        scales: tuple[float, float],
        kept: np.ndarray,
        lines: dict[int, Axis],
        function: Any,
        batch: tuple[int, ...],
        effort: str | None,
        workers: int,
        whole: bool,
    ) -> None:
        counts = function.inputs, function.outputs
        super().__init__(stages, counts, scales, kept)
        self._function, self._batch = function, batch
        _, rows, nx = self.back.target_shape
        dtype = self.back.target_dtype
        row_nbytes = max(1, nx) * dtype.itemsize
        nbytes = COMPILED_NBYTES if can_be_compiled(function) else CALLED_NBYTES
        fitting = max(1, nbytes // (sum(counts) * row_nbytes))  # rows
        self._rows = chunks(rows, max(1, rows if whole else min(rows, fitting)))  # of every block
        self._height = max(map(length_of, self._rows), default=0)
        self._height_nbytes = self._height * row_nbytes
        self._together = 1  # planes of a block, at most
        several = function.simple and not (function.shared or whole)
        if several and rows and self._height_nbytes % REQUIRED_ALIGNMENT == 0:
            self._together = max(1, fitting // rows)
        self._nx, self._dtype = nx, dtype
        self._field_nbytes = -(-self._together * self._height_nbytes // ALIGNMENT) * ALIGNMENT
        after = sum(counts) * self._field_nbytes
        first_slice = slice(0, 1)
        self._sweeps = {}
        for height in set(map(length_of, self._rows)) if nx else ():
            inside, spectral = slice(0, height), modes_dtype(dtype, {X: lines[X]})
            rows_box = [(first_slice, inside, slice(0, nx))]
            received, sent = (
                [(first_slice, inside, box[X]) for box in boxes]
                for boxes in (self.back.message(first_slice).received, self.forth.message(first_slice).sent)
            )
            modes = (1, height, lines[X].length(True))
            self._sweeps[height] = (
                Sweep(modes, {X: lines[X]}, spectral, Direction(False, effort), received, rows_box, after),
                Sweep((1, height, nx), {X: lines[X]}, dtype, Direction(True, effort), rows_box, sent, after),
            )
        needing: tuple[Any, ...] = self.back, self.forth, *(sweep for pair in self._sweeps.values() for sweep in pair)
        self._allocate(max([after, *(each.scratch_nbytes for each in needing)]), workers)
        self._arrays: list[dict[Any, Any]] = [{} for _ in range(workers)]  # of every worker: (rows, planes) -> arrays
        self._compiled = compiled(
            function, BlockPlaces(*counts, function.shared, nx, self._field_nbytes, kept.strides[0], dtype)
        )

    def _view(self, number: int, height: int, plane: int = 0) -> View:
        """Return the view of one plane, of `height` rows, of a block's input or output `number` in scratch memory."""
        plane_view = View.contiguous(SCRATCH, (1, height, self._nx), self._dtype)
        return replace(plane_view, offset=number * self._field_nbytes + plane * self._height_nbytes)

    def _fields(self, rows: slice, planes: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return this worker's real-space fields of a block, (planes * rows, nx): inputs, and outputs."""
        worker, height = worker_index(), length_of(rows)
        fields_of_block = self._arrays[worker].get((height, planes))
        if fields_of_block is None:
            memory, inputs = self._scratch[worker], self.counts[0]
            fields = [self._view(number, planes * height).array(memory)[0] for number in range(sum(self.counts))]
            fields_of_block = self._arrays[worker][height, planes] = fields[:inputs], fields[inputs:]
        return fields_of_block

    def _between(
        self,
        part: slice,
        slot: SlotBuffers,
        inputs: Sequence[ArrayReference],
        outputs: Sequence[ArrayReference],
        planning: bool,
    ) -> Iterator[AnyStep]:
        count, function = length_of(part), self._compiled

        def run(label: str, write: Callable[..., None], *args: Any) -> Run:
            key = (label, count, *((arg.start, arg.stop) if isinstance(arg, slice) else arg for arg in args))
            return Run(self._codes.find((), key, write, count, *args), slot.middle.bases, label)

        if function is not None and not planning:
            yield run("apply", self._write_apply)
            yield Call(lambda addresses: function.check(), "check what was compiled")
            return
        for first in range(0, count, self._together):
            planes = slice(first, min(first + self._together, count))
            for block, rows in enumerate(self._rows):
                yield run("to real", self._write_to_real, planes, block)
                yield Call(partial(self._call, planning, length_of(planes), rows, part.start + first), "apply")
                yield run("to modes", self._write_to_modes, planes, block)

    def _call(self, planning: bool, planes: int, rows: slice, first: int, addresses: Any) -> None:
        """Call the user's function for a block of some slices."""
        fields, results = self._fields(rows, planes)
        if planning:  # the user's function might fail for zeros, or count its calls
            for result in results:
                np.multiply(fields[0], fields[-1], out=result)
        else:
            self._function.fill(results, fields, list(self.kept[:, rows]), self._batch, first, rows)

    def _write_to_real(self, program: CompiledProgram, count: int, planes: slice, block: int) -> None:
        inputs, rows = self.counts[0], self._rows[block]
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
        (inputs, outputs), rows = self.counts, self._rows[block]
        height = length_of(rows)
        pieces = self.forth.pieces_to_send(count * outputs, TARGET)
        for place, plane in enumerate(range(planes.start, planes.stop)):
            for number, at in enumerate(range(plane * outputs, (plane + 1) * outputs)):
                self._sweeps[height][1].write_from(
                    program,
                    self._view(inputs + number, height, place),
                    [piece[at : at + 1, rows].stepping(0, outputs) for piece in pieces],
                    self.scales[1],
                )

    def _write_apply(self, program: CompiledProgram, count: int) -> None:
        body, first = CompiledProgram(), slice(0, 1)
        assert self._compiled is not None
        kept = View.of(ASIDE, self.kept)
        for block, rows in enumerate(self._rows):
            self._write_to_real(body, count, first, block)
            body.call(self._compiled.address, length_of(rows), self._view(0, length_of(rows)), kept[:, rows])
            self._write_to_modes(body, count, first, block)
        program.repeat(body, count)
