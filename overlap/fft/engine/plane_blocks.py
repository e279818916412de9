"""What is done with planes between two exchanges: to real space, a function, and back, block by block.

A block is a few rows of all fields of one plane, in scratch memory that stays in the cache: the last FFTs on
the way to real space, the function, and the first FFTs on the way back.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...arrays import chunks, length_of
from ...runtime import worker_index
from .compiled_function import BlockPlaces
from .execute import execute
from .fftw import ALIGNMENT, complex_of, zeros
from .program import ASIDE, RECEIVE, SCRATCH, SOURCE, Codes, Program, View
from .sweep import Sweep

BLOCK_NBYTES = 256 * 1024  # of all fields in real space
X = 2


class PlaneBlocks:
    """The stages of a function of real-space planes on this rank, and the blocks in between.

    Parameters
    ----------
    back, forth : Stage
        The stages of the planes of all inputs, and of all outputs; a message has those of a slice together.
    lines : dict
        The `Axis` of every transformed axis.
    counts : (int, int)
        Inputs that have slices, and outputs.
    scales : (float, float)
        What is multiplied on the way to real space, and on that back.
    effort : str or None
        FFTW planning effort.
    workers : int
    whole : bool
        A block is a plane.

    Attributes
    ----------
    rows : list of slice
        This rank's rows of every block.
    """

    def __init__(self, back, forth, lines, counts, scales, effort, workers, whole=False):
        self.back, self.forth, self.counts, self._scales = back, forth, counts, scales
        _, rows, nx = back.target_shape
        dtype = back.target_dtype
        most = max(1, rows)
        if not whole:
            most = min(most, max(1, BLOCK_NBYTES // (sum(counts) * max(1, nx) * dtype.itemsize)))
        self.rows = chunks(rows, most)
        self._height = max(map(length_of, self.rows), default=0)
        self._nx, self._dtype = nx, dtype
        self._plane_nbytes = -(-self._height * nx * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self._planes_nbytes = sum(counts) * self._plane_nbytes
        one = slice(0, 1)
        self._sweeps = {}
        for height in set(map(length_of, self.rows)) if nx else ():
            inside, spectral = slice(0, height), complex_of(dtype)
            here = [(one, inside, slice(0, nx))]
            boxes = [[(one, inside, box[X]) for box in boxes] for boxes in (
                back.message(one).received, forth.message(one).sent)]
            self._sweeps[height] = (
                Sweep((1, height, lines[X].length(True)), (X,), lines, spectral, False, boxes[0],
                      here, effort, after=self._planes_nbytes),
                Sweep((1, height, nx), (X,), lines, dtype, True, here, boxes[1], effort,
                      after=self._planes_nbytes))
        nbytes = max([self._planes_nbytes, back.scratch_nbytes, forth.scratch_nbytes]
                     + [sweep.scratch_nbytes for pair in self._sweeps.values() for sweep in pair])
        self._scratch = [zeros(nbytes, np.uint8) for _ in range(workers)]
        self._addresses = [memory.__array_interface__["data"][0] for memory in self._scratch]
        self._planes = [{height: self._planes_of(memory, height) for height in self._sweeps}
                        for memory in self._scratch]
        self._codes = Codes()

    def _view(self, number, height):
        """Where a worker has one of the inputs or outputs of a block of so many rows."""
        one = View.contiguous(SCRATCH, (1, height, self._nx), self._dtype)
        return replace(one, offset=number * self._plane_nbytes)

    def _planes_of(self, memory, height):
        planes = [self._view(number, height).array(memory)[0] for number in range(sum(self.counts))]
        return planes[:self.counts[0]], planes[self.counts[0]:]

    def planes(self, rows):
        """This worker's real-space planes of a block: of the inputs, and of the outputs."""
        return self._planes[worker_index()][length_of(rows)]

    def places(self, shared, shared_step):
        """Where the planes of a block lie, with so many shared ones, for a compiled function."""
        return BlockPlaces(*self.counts, shared, self._nx, self._plane_nbytes, shared_step, self._dtype)

    def messages(self, count):
        """The messages of so many slices, to real space and back."""
        inputs, outputs = self.counts
        return (self.back.message(slice(0, count * inputs)),
                self.forth.message(slice(0, count * outputs)))

    def pack(self, slot, part, number, field):
        """Make the first FFTs of one input of some slices, into the message."""
        self._run(("pack", number), slot.back, part, field, self._write_pack)

    def unpack(self, slot, part, number, result):
        """Store one output of some slices, and make its last FFTs."""
        self._run(("unpack", number), slot.forth, part, result, self._write_unpack)

    def to_real(self, slot, count, number, block):
        """Bring a block of all inputs of one slice of a message to real space."""
        self._run_block(self._write_to_real, slot, count, number, block)

    def to_modes(self, slot, count, number, block):
        """Make the first FFTs of a block of all outputs of one slice, into the message."""
        self._run_block(self._write_to_modes, slot, count, number, block)

    def apply(self, slot, count, function, shared):
        """All blocks of all slices of a message, with a compiled function in between.

        Parameters
        ----------
        function : int
            Address of ``function(rows, shared, block)``: a number of rows, the address of the shared
            planes' rows, that of the block.
        shared : View
        """
        code = self._codes.find((), ("apply", count), self._write_apply, count, function, shared)
        self._execute(code, slot.middle)

    def _run(self, key, buffers, part, array, write):
        count, bases = length_of(part), buffers.bases
        code = self._codes.find(array.array.strides, (*key, count), write,
                                View.of(SOURCE, array.array), key[1], count)
        bases[SOURCE] = array.address + part.start * array.array.strides[0]
        self._execute(code, buffers)

    def _run_block(self, write, slot, count, number, block):
        code = self._codes.find((), (write.__name__, count, number, block), write, count, number,
                                block)
        self._execute(code, slot.middle)

    def _execute(self, code, buffers):
        buffers.bases[SCRATCH] = self._addresses[worker_index()]
        execute(code, buffers.bases)

    def _write_pack(self, program, source, number, count):
        inputs = self.counts[0]
        body = Program()
        self.back.first[1].write(
            body, [source[:1].stepping(0, 1)],
            [piece[number:number + 1].stepping(0, inputs)
             for piece in self.back.pieces_to_send(count * inputs, RECEIVE)], self._scales[0])
        program.repeat(body, count)

    def _write_unpack(self, program, target, number, count):
        outputs = self.counts[1]
        body = Program()
        self.forth.then[1].write(
            body, [piece[number:number + 1].stepping(0, outputs)
                   for piece in self.forth.pieces_received(count * outputs)],
            [target[:1].stepping(0, 1)])
        program.repeat(body, count)

    def _write_to_real(self, program, count, number, block):
        inputs = self.counts[0]
        rows = self.rows[block]
        pieces = self.back.pieces_received(count * inputs)
        for i in range(inputs):
            at = number * inputs + i
            self._sweeps[length_of(rows)][0].write_to(
                program, [piece[at:at + 1, rows].stepping(0, inputs) for piece in pieces],
                self._view(i, length_of(rows)))

    def _write_to_modes(self, program, count, number, block):
        inputs, outputs = self.counts
        rows = self.rows[block]
        pieces = self.forth.pieces_to_send(count * outputs, ASIDE)
        for i in range(outputs):
            at = number * outputs + i
            self._sweeps[length_of(rows)][1].write_from(
                program, self._view(inputs + i, length_of(rows)),
                [piece[at:at + 1, rows].stepping(0, outputs) for piece in pieces],
                self._scales[1])

    def _write_apply(self, program, count, function, shared):
        body = Program()
        for block, rows in enumerate(self.rows):
            self._write_to_real(body, count, 0, block)
            body.call(function, length_of(rows), self._view(0, length_of(rows)), shared[:, rows])
            self._write_to_modes(body, count, 0, block)
        program.repeat(body, count)
