"""The work of `Bracket` on planes between two exchanges: from their modes to those of their brackets.

It is a composition of planes whose function is the bracket. The kept field is the advecting field's gradient.

In NumPy the loops between the FFTs would take twenty passes, which cost as much as the FFTs. Here they are C functions,
which a program calls like FFTW: all planes of a slice take one call of the compiled loop.

M and K are the largest ky and kx in units of their spacing. Out-of-place FFTs do not write to their sources, so the
zeros of the 2/3 rule's padding are written only once, into scratch memory that nothing else uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
from numba import carray, types

from ...arrays import AxisSwap, chunks, length_of, stages
from ...arrays.reductions import float_times_power, in_range
from ...compiled import CFunction
from ...compiled.execute import execute
from ...compiled.memory import address_of, pointer
from ...runtime import worker_index
from ...runtime.loop.words import ASIDE, SCRATCH, SOURCE, TARGET
from .axis import Direction
from .fftw import ALIGNMENT
from .lines import LineTransform
from .message import WireFormat
from .plane_composition import ONE, Arrays, PlaneComposition, SlotBuffers
from .program import ArrayReference, CompiledProgram, View, assemble
from .stage import Place, SourceArray, Stage
from .steps import AnyStep, Run
from .tasks import Task

PAIRS = 4  # pairs per block, whose modes stay in the cache
PLANES, KY = 1, 2  # axes


def exchanging_stages(source: SourceArray, exchange: str | None) -> tuple[Stage, ...]:
    """Return the stages from a slice's modes, split along ky, to whole planes, and back.

    The axes of the source are (slice, plane, ky, kx); there is one slice. If numbers are rounded, messages are not sent
    from or received in the user's arrays.
    """
    to_planes, made_stages = AxisSwap(KY, PLANES), []
    wire = WireFormat(source.dtype, exchange if source.layout.grid[0] > 1 else None)
    early = not wire.rounds
    steps, _ = stages([(), to_planes, (), to_planes.reversed(), ()], (0,))
    for step, place in zip(steps, (Place(1, early, natural=False), Place(0, early, natural=True))):
        made_stages.append(Stage(step, place, {}, source, Direction(True, None, by_index=True), wire))
        source = replace(source, layout=made_stages[-1].layout, contiguous=False)
    return tuple(made_stages)


class PlaneBrackets(PlaneComposition):
    """The stages of `Bracket` on this rank, and the work in between, block by block.

    The stages are those of `exchanging_stages`; `kept` is a_x + i a_y on this rank's planes, ``(planes, ny, nx)``; the
    spacing is dky and dkx.
    """

    calls = False

    def __init__(
        self, stages: Sequence[Stage], kept: np.ndarray, spacing: tuple[float, float], effort: str | None, workers: int
    ) -> None:
        super().__init__(stages, (1, 1), (1.0, 1.0), kept)
        planes, *points = kept.shape
        # Whole pairs of planes.
        self.blocks = [slice(2 * part.start, min(2 * part.stop, planes)) for part in chunks(-(-planes // 2), PAIRS)]
        self._modes, self._spacing, self._points = self.back.shape[KY:], spacing, points
        (nky, _), (ny, nx) = self._modes, points
        shapes = [
            (2 * PAIRS, 2 * nky - 1, nx),  # modes, ky = -M ... M
            (PAIRS, 2 * nky - 1, nx),  # spectra, ky = 0 ... M, -M ... -1
            (2, ny, nx),
            (2, ny, nx),
            (ny, nx),
        ]  # of one pair, which stay in the cache
        messages = self.messages(1)
        self._received, self._sent = messages[0].received, messages[1].sent
        if self.back.wire.rounds:
            rows = max(length_of(box[KY]) for box in (*self._received, *self._sent))
            shapes.append((2 * PAIRS, rows, self._modes[1]))  # for a piece of a message, as doubles
        line, first, views = ALIGNMENT // 16, 0, []
        for shape in shapes:
            views.append(View.contiguous(SCRATCH, shape, np.dtype(complex), first))
            first += -(-int(np.prod(shape)) // line) * line
        self._loaded, self._spectra, self._columns, self._gradients, self._brackets, *self._pieces = views
        self._allocate(16 * first, workers)
        self._plan(effort)
        self._arguments: list[np.ndarray] = []  # kept alive for the functions that programs call
        self._brackets_code = assemble(self._write_all)
        self._take_codes = [assemble(self._write_take, block) for block in self.blocks]

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

    def tasks(self, chunk: int, entries: int, late: float = 0.0) -> list[Task]:
        # Trials compare messages of several slices with those of one. Here each message has one slice all the same, so
        # that the model takes its whole time for a cost per message.
        return super().tasks(1, -(-entries // chunk))

    def _between(self, part: slice, slot: SlotBuffers, arrays: Arrays, planning: bool) -> Iterable[AnyStep]:
        return (Run(self._brackets_code, self._bases(part, slot, *arrays), "brackets"),)

    def _bases(
        self, part: slice, slot: SlotBuffers, inputs: Sequence[ArrayReference], outputs: Sequence[ArrayReference] = ()
    ) -> np.ndarray:
        """Return the bases of programs; this rank's own piece may be in its input and its output."""
        bases = slot.middle.bases.copy()
        if self.back.straight:
            bases[SOURCE] = inputs[0].address_at(part.start)
        if self.forth.straight and outputs:
            bases[TARGET] = outputs[0].address_at(part.start)
        return bases

    def take(self, slot: SlotBuffers, a: ArrayReference, block: int) -> float:
        """Bring a_x + i a_y of a block of planes to real space; return its largest modulus."""
        bases = self._bases(ONE, slot, [a])
        bases[SCRATCH] = self.scratch[worker_index()]
        execute(self._take_codes[block], bases)
        taken, exponent = in_range(self.kept[self.blocks[block]])
        return float_times_power(float(np.sqrt((taken.real**2 + taken.imag**2).max())), exponent)

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
        whole = View.of(ASIDE, self.kept)
        return whole[planes].stepping(0, length_of(block))

    def _as_doubles(self, part: View) -> View:
        """Return a part of a message's piece if it has doubles, else the place in scratch memory for it as doubles."""
        if not self._pieces:
            return part
        return View.contiguous(SCRATCH, part.shape, np.dtype(complex), self._pieces[0].offset // 16)

    def _write_load(self, program: CompiledProgram, block: slice) -> None:
        """Write the loading of the modes of a block of planes, with those of -k."""
        lines, nx = self._loaded.shape[1:]
        for piece, (first, rows) in zip(self.back.pieces_received(1), self._rows_of(self._received)):
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
        for piece, (first, rows) in zip(self.forth.pieces_to_send(1, TARGET), self._rows_of(self._sent)):
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
