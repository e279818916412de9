"""The work of `Bracket` on planes between two exchanges: from their modes to those of their brackets.

In NumPy the loops between the FFTs would take twenty passes, which cost as much as the FFTs. Here they are C functions,
which a program calls like FFTW: all planes of a slice take one call of the compiled loop.

M and K are the largest ky and kx in units of their spacing. Out-of-place FFTs do not write to their sources, so the
zeros of the 2/3 rule's padding are written only once, into scratch memory that nothing else uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import groupby
from typing import Any

import numpy as np
from numba import carray, types

from ...arrays import chunks, length_of
from ...compiled import CFunction
from ...lowlevel.memory import address_of, pointer
from ...runtime import worker_index
from .buffers import ArrayReference, Buffers
from .execute import execute
from .fftw import ALIGNMENT, zeros
from .lines import LineTransform
from .program import ASIDE, RECEIVE, SCRATCH, SEND, SOURCE, TARGET, CompiledProgram, View, assemble
from .stage import Stage
from .steps import Run

PAIRS = 4  # pairs per block, whose modes stay in the cache
PLANES, KY = 1, 2  # axes
ONE = slice(0, 1)  # a message has one slice


class PlaneBrackets:
    """The stages of `Bracket` on this rank, and the work in between, block by block.

    Parameters
    ----------
    stages : (Stage, Stage)
        From modes split along ky to planes, and back. Neither transforms anything.
    spacing : (float, float)
        dky, dkx.
    points : (int, int)
        Size of the real-space grid, ``(ny, nx)``.
    effort : str
        Effort of FFTW's planning.
    workers : int

    Attributes
    ----------
    messages : (Message, Message)
    planes : int
        Number of this rank's planes between the exchanges.
    blocks : list of slice
        Whole pairs of planes.
    """

    def __init__(
        self,
        stages: tuple[Stage, ...],
        spacing: tuple[float, float],
        points: tuple[int, int],
        effort: str | None,
        workers: int,
    ) -> None:
        self._back, self._forth = stages
        self.messages = tuple(stage.message(ONE) for stage in stages)
        self.planes = self._back.target_shape[PLANES]
        self.blocks = [
            slice(2 * part.start, min(2 * part.stop, self.planes)) for part in chunks(-(-self.planes // 2), PAIRS)
        ]
        self._modes, self._spacing, self._points = self._back.shape[KY:], spacing, points
        (nky, _), (ny, nx) = self._modes, points
        shapes = [
            (2 * PAIRS, 2 * nky - 1, nx),  # modes, ky = -M ... M
            (PAIRS, 2 * nky - 1, nx),  # spectra, ky = 0 ... M, -M ... -1
            (2, ny, nx),
            (2, ny, nx),
            (ny, nx),
        ]  # of one pair, which stay in the cache
        if self._back.wire.rounds:
            rows = max(length_of(box[KY]) for box in (*self.messages[0].received, *self.messages[1].sent))
            shapes.append((2 * PAIRS, rows, self._modes[1]))  # for a piece of a message, as doubles
        line, first, views = ALIGNMENT // 16, 0, []
        for shape in shapes:
            views.append(View.contiguous(SCRATCH, shape, np.dtype(complex), first))
            first += -(-int(np.prod(shape)) // line) * line
        self._loaded, self._spectra, self._columns, self._gradients, self._brackets, *self._pieces = views
        self._scratch = [zeros((first,), complex) for _ in range(workers)]
        self._plan(effort)
        self._arguments: list[np.ndarray] = []  # kept alive for the functions that programs call
        self._brackets_code = assemble(self._write_all)
        self._take_codes = [assemble(self._write_take, block) for block in self.blocks]
        if self._back.wire.rounds:
            self._pack_code, self._unpack_code = assemble(self._write_pack), assemble(self._write_unpack)

    @property
    def scratch(self) -> list[int]:
        """Addresses of every worker's scratch memory."""
        return [address_of(memory) for memory in self._scratch]

    def with_own_scratch(self) -> PlaneBrackets:
        """Return the same with scratch memory of its own, for one worker."""
        other = copy(self)
        other._scratch = [zeros(self._scratch[0].shape, complex)]
        return other

    def _plan(self, effort: str | None) -> None:
        """Make FFTW's plans for one pair."""
        (nky, _), (ny, _) = self._modes, self._points
        # This memory is free once the brackets have been computed.
        lines = self._lines = self._gradients[:1].reshaped(self._gradients.shape[1:])

        def planned(source: View, target: View, axis: int, forward: bool) -> LineTransform:
            source_array, result = (view.array(self._scratch[0]) for view in (source, target))
            return LineTransform(source_array, result, axis, forward, effort, keep=True)

        self._rows = planned(self._loaded[:2], self._columns[:, : 2 * nky - 1], 2, False)
        self._to_real = planned(self._columns, self._gradients, 1, False)
        self._to_lines = planned(self._brackets, lines, 0, True)
        ends = [(slice(0, nky), slice(0, nky))]
        if nky > 1:
            ends.append((slice(ny - nky + 1, ny), slice(nky, None)))
        self._ends = [
            (planned(lines[line_part], self._spectrum(0)[spectrum_part], 1, True), line_part, spectrum_part)
            for line_part, spectrum_part in ends
        ]

    def _spectrum(self, pair: int) -> View:
        return self._spectra[pair : pair + 1].reshaped(self._spectra.shape[1:])

    def pack(self, slot: Buffers, f: ArrayReference) -> Run:
        """Return the step that packs a slice, with this rank's own piece, if it is not sent from the user's array."""
        bases = slot.bases.copy()
        bases[SOURCE] = f.address
        return Run(self._pack_code, bases, "pack")

    def unpack(self, slot: Buffers, out: ArrayReference) -> Run:
        """Return the step that unpacks brackets that are not received in the user's array."""
        bases = slot.bases.copy()
        bases[RECEIVE], bases[TARGET] = self.results(slot).address, out.address
        return Run(self._unpack_code, bases, "unpack")

    def results(self, slot: Buffers) -> ArrayReference:
        """Return the place in a slot where brackets are received, behind the modes."""
        return ArrayReference(slot.receive[self.messages[0].receive_size :])

    def apply(self, slot: Buffers, f: ArrayReference, out: ArrayReference, gradient: ArrayReference) -> Run:
        """Return the step that computes the brackets of a slice between its two exchanges.

        Parameters
        ----------
        slot : Buffers
        f, out : ArrayReference
            This rank's modes, C-contiguous ``(planes, my ky, nkx)``, which contain its own piece.
        gradient : ArrayReference
            a_x + i a_y of this rank's planes, C-contiguous ``(planes, ny, nx)``.
        """
        bases = slot.bases.copy()
        bases[SOURCE], bases[TARGET], bases[ASIDE] = f.address, out.address, gradient.address
        if self._back.wire.rounds:
            bases[TARGET] = self.results(slot).address
        return Run(self._brackets_code, bases, "brackets")

    def take(self, slot: Buffers, a: np.ndarray, gradient: np.ndarray, block: int) -> float:
        """Bring a_x + i a_y of a block of planes to real space; return its largest squared modulus."""
        bases = slot.bases.copy()  # a copy, because other workers use the slot for other blocks
        bases[SOURCE], bases[ASIDE] = map(address_of, (a, gradient))
        bases[SCRATCH] = address_of(self._scratch[worker_index()])
        execute(self._take_codes[block], bases)
        taken = gradient[self.blocks[block]]
        return float((taken.real**2 + taken.imag**2).max())

    # ---- what programs do ------------------------------------------------------------------------

    def _write_all(self, program: CompiledProgram) -> None:
        for _, alike in groupby(self.blocks, key=length_of):
            blocks, body = list(alike), CompiledProgram()
            self._write_load(body, blocks[0])
            for pair, planes in _pairs(blocks[0]):
                self._write_brackets(body, pair, self._advecting(planes, blocks[0]))
            self._write_store(body, blocks[0])
            program.repeat(body, len(blocks))

    def _write_take(self, program: CompiledProgram, block: slice) -> None:
        self._write_load(program, block)
        for pair, planes in _pairs(block):
            self._write_to_real(program, pair)
            program.copy(self._advecting(planes, block), self._gradients[: length_of(planes)])

    def _advecting(self, planes: slice, block: slice) -> View:
        """Return the view of some planes of the advecting gradient, which moves on by blocks."""
        whole = View.contiguous(ASIDE, (self.planes, *self._points), np.dtype(complex))
        return whole[planes].stepping(0, length_of(block))

    def _write_pack(self, program: CompiledProgram) -> None:
        modes = View.contiguous(SOURCE, self._back.source_shape, np.dtype(complex))
        self._back.pack(program, ONE, modes, modes, 1.0)

    def _write_unpack(self, program: CompiledProgram) -> None:
        self._forth.unpack(program, ONE, View.contiguous(TARGET, self._forth.target_shape, np.dtype(complex)))

    def _as_doubles(self, part: View) -> View:
        """Return a part of a message's piece if it has doubles, else the place in scratch memory for it as doubles."""
        if not self._pieces:
            return part
        return View.contiguous(SCRATCH, part.shape, np.dtype(complex), self._pieces[0].offset // 16)

    def _write_load(self, program: CompiledProgram, block: slice) -> None:
        """Write the loading of the modes of a block of planes, with those of -k."""
        lines, nx = self._loaded.shape[1:]
        message, rank = self.messages[0], self._back.blocks.rank
        pieces = message.pieces_received(RECEIVE)
        if self._back.straight:
            pieces[rank] = View.contiguous(SOURCE, self._back.source_shape, np.dtype(complex))[message.sent[rank]]
        for piece, (first, rows) in zip(pieces, self._rows_of(message.received)):
            if piece.size:
                argument = self._argument(length_of(block), rows, self._modes[1], first, lines, nx, *self._spacing)
                part = piece[:, block].stepping(PLANES, length_of(block))
                doubles = self._as_doubles(part)
                if doubles is not part:
                    program.copy(doubles, part)
                program.call(_spread.address, argument, self._loaded, doubles)

    def _write_to_real(self, program: CompiledProgram, pair: int) -> None:
        """Write the transforms of f_x + i f_y of a pair of planes to real space.

        The modes begin with the most negative one instead of FFTW's order. That gives all fields the same phase factor,
        on which the bracket does not depend.
        """
        program.transform(self._rows, self._columns, self._loaded[2 * pair :])
        program.transform(self._to_real, self._gradients, self._columns)

    def _write_brackets(self, program: CompiledProgram, pair: int, advecting: View) -> None:
        """Write the computing of the brackets of a pair of planes, and of their spectrum."""
        self._write_to_real(program, pair)
        planes, points = advecting.shape[0], self._brackets.size
        program.call(
            _multiply.address,
            self._argument(planes, points, self._brackets.offset - self._gradients.offset),
            self._gradients,
            advecting,
        )
        program.transform(self._to_lines, self._lines, self._brackets)
        for transform, line_part, spectrum_part in self._ends:
            program.transform(transform, self._spectrum(pair)[spectrum_part], self._lines[line_part])

    def _write_store(self, program: CompiledProgram, block: slice) -> None:
        """Write the storing of the brackets' modes of a block of planes to the place from which they are sent."""
        lines, nx = self._spectra.shape[1:]
        message, rank = self.messages[1], self._forth.blocks.rank
        pieces = message.pieces_sent(SEND)
        pieces[rank] = (
            View.contiguous(TARGET, self._forth.target_shape, np.dtype(complex))[message.received[rank]]
            if self._forth.straight
            else message.pieces_received(TARGET)[rank]
        )
        for piece, (first, rows) in zip(pieces, self._rows_of(message.sent)):
            if piece.size:
                argument = self._argument(
                    length_of(block), rows, self._modes[1], first, lines, nx, 0.5 / self._brackets.size
                )
                part = piece[:, block].stepping(PLANES, length_of(block))
                doubles = self._as_doubles(part)
                program.call(_separate.address, argument, doubles, self._spectra)
                if doubles is not part:
                    program.copy(part, doubles)

    @staticmethod
    def _rows_of(boxes: Sequence[Sequence[slice]]) -> list[tuple[int, int]]:
        """Return the first ky, and the number of ky, of every rank's piece."""
        return [(box[KY].start, length_of(box[KY])) for box in boxes]

    def _argument(self, *numbers: float) -> int:
        """Return the address of some numbers, as argument of a C function."""
        self._arguments.append(np.array(numbers, float))
        return address_of(self._arguments[-1])


def _pairs(part: slice) -> Iterator[tuple[int, slice]]:
    """Return number and planes of each pair in a block of planes; the last one may be a single plane."""
    for number, first in enumerate(range(part.start, part.stop, 2)):
        yield number, slice(first, min(first + 2, part.stop))


def _c_function(function: Callable[..., None]) -> CFunction:
    """Make a C function for programs, whose arguments are the addresses of an argument, a source and a target."""
    return CFunction(function, types.void(types.int64, types.int64, types.int64), fastmath={"contract"})


@_c_function
def _spread(argument: Any, source: Any, target: Any) -> None:
    """Compute modes of f_x + i f_y, of both signs of ky, from those of f at ky >= 0.

    Their factor is i (kx + i ky), and f(-k) = conj f(k).
    """
    numbers = carray(pointer(argument), 8, np.float64)
    planes, rows, nkx = int(numbers[0]), int(numbers[1]), int(numbers[2])
    first, lines, nx = int(numbers[3]), int(numbers[4]), int(numbers[5])
    dky, dkx = numbers[6], numbers[7]
    piece = carray(pointer(source), (planes, rows, nkx), np.complex128)
    modes = carray(pointer(target), (planes, lines, nx), np.complex128)
    last = lines // 2
    for plane in range(planes):
        for row in range(rows):
            number = first + row
            ky = number * dky
            above, below = modes[plane, last + number], modes[plane, last - number]
            for column in range(nkx):
                kx = (column - nkx // 2) * dkx
                f = piece[plane, row, column]
                x_re, x_im = -kx * f.imag, kx * f.real
                y_re, y_im = ky * f.real, ky * f.imag
                if number:
                    below[nkx - 1 - column] = complex(x_re + y_re, -x_im - y_im)
                above[column] = complex(x_re - y_re, x_im - y_im)


@_c_function
def _multiply(argument: Any, source: Any, target: Any) -> None:
    """Compute a_x f_y - a_y f_x of the first plane, plus i times that of the second one, if there is one."""
    numbers = carray(pointer(argument), 3, np.float64)
    planes, points = int(numbers[0]), int(numbers[1])
    advecting = carray(pointer(source), (planes, points), np.complex128)
    gradients = carray(pointer(target), (2, points), np.complex128)
    brackets = carray(pointer(target + int(numbers[2])), points, np.complex128)
    if planes == 1:
        for x in range(points):
            a, f = advecting[0, x], gradients[0, x]
            brackets[x] = a.real * f.imag - a.imag * f.real
        return
    for x in range(points):
        a, f = advecting[0, x], gradients[0, x]
        b, g = advecting[1, x], gradients[1, x]
        brackets[x] = complex(a.real * f.imag - a.imag * f.real, b.real * g.imag - b.imag * g.real)


@_c_function
def _separate(argument: Any, source: Any, target: Any) -> None:
    """Compute modes of b and d from those of c = b + i d, where the real b and d are the planes of a pair.

    2 b_k = c_k + conj c_(-k), 2 d_k = -i (c_k - conj c_(-k)).
    """
    numbers = carray(pointer(argument), 7, np.float64)
    planes, rows, nkx = int(numbers[0]), int(numbers[1]), int(numbers[2])
    first, lines, nx = int(numbers[3]), int(numbers[4]), int(numbers[5])
    scale, pairs = numbers[6], (planes + 1) // 2
    spectra = carray(pointer(source), (pairs, lines, nx), np.complex128)
    piece = carray(pointer(target), (planes, rows, nkx), np.complex128)
    most = nkx // 2
    for pair in range(pairs):
        for row in range(rows):
            number = first + row
            line, mirrored = spectra[pair, number], spectra[pair, (lines - number) % lines]
            # If there is one plane only, b overwrites what is written to d.
            b, d = piece[2 * pair, row], piece[min(2 * pair + 1, planes - 1), row]
            for kx in range(most + 1):
                c, opposite = line[kx], mirrored[(nx - kx) % nx]
                d[most + kx] = complex(scale * (c.imag + opposite.imag), scale * (opposite.real - c.real))
                b[most + kx] = complex(scale * (c.real + opposite.real), scale * (c.imag - opposite.imag))
            for kx in range(1, most + 1):
                c, opposite = line[nx - kx], mirrored[kx]
                d[most - kx] = complex(scale * (c.imag + opposite.imag), scale * (opposite.real - c.real))
                b[most - kx] = complex(scale * (c.real + opposite.real), scale * (c.imag - opposite.imag))
