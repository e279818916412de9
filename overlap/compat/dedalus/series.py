"""Dedalus' transforms along one axis, written into programs that run without Python.

Each kind copies lines of an array, which may consist of several pieces, to scratch memory, transforms them there, and
stores them. Formulas and normalisations are those of Dedalus' classes of transforms: of real and complex Fourier
series, where modes beyond the coarser of grid and coefficients are zero, and of Chebyshev polynomials, with the
conversion to ultraspherical ones as a sparse matrix.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import pi, prod, sqrt
from typing import Any

import numpy as np
from dedalus.core import basis as bases
from dedalus.core import transforms
from numba import types

from ...arrays.layout import Box
from ...compiled import CFunction
from ...compiled.memory import address_of, call_function, carray, pointer, words
from ...fft.engine.axis import REAL_KINDS
from ...fft.engine.fftw import ALIGNMENT, empty, fftw_of
from ...fft.engine.lines import DESTROY_INPUT, LineTransform
from ...fft.engine.program import CompiledProgram, View
from ...runtime.loop.words import SCRATCH

REAL = np.dtype(float)


class _Dimension(ctypes.Structure):
    """FFTW's fftw_iodim64."""

    _fields_ = [(name, ctypes.c_ssize_t) for name in ("n", "input", "output")]


class SplitPlan:
    """FFTW's plan between real lines and their modes, whose real and imaginary parts are adjacent along the axis.

    At its address are the words for `_backward` and `_forward`: function, plan, and bytes between the two parts.
    """

    def __init__(self, shape: tuple[int, ...], axis: int, up: bool) -> None:
        fftw = fftw_of(REAL)
        fftw.plan_with_one_thread()
        spectrum = empty((*shape[:axis], 2 * (shape[axis] // 2 + 1), *shape[axis + 1 :]), REAL)
        grid = empty(shape, REAL)
        inner = prod(shape[axis + 1 :])
        modes, points = [stride // REAL.itemsize for stride in spectrum.strides], [s // 8 for s in grid.strides]
        sides: Callable[[int, int], tuple[int, int]] = (lambda a, b: (a, b)) if up else (lambda a, b: (b, a))
        line = _Dimension(shape[axis], *sides(2 * modes[axis], points[axis]))
        batch = [
            _Dimension(length, *sides(modes[place], points[place]))
            for place, length in enumerate(shape)
            if place != axis
        ]
        kind = "c2r" if up else "r2c"
        gap = inner * REAL.itemsize
        parts = [address_of(spectrum), address_of(spectrum) + gap]
        arrays = [*parts, address_of(grid)] if up else [address_of(grid), *parts]
        make = fftw.function(f"plan_guru64_split_dft_{kind}", ctypes.c_void_p)
        fftw.searched += 1
        self._plan = make(
            1,
            ctypes.byref(line),
            len(batch),
            (_Dimension * len(batch))(*batch),
            *map(ctypes.c_void_p, arrays),
            ctypes.c_uint(DESTROY_INPUT),
        )
        if self._plan is None:
            raise RuntimeError(f"expected FFTW to plan axis {axis} of {shape}, received no plan")
        self._destroy = fftw.function("destroy_plan")
        function = ctypes.cast(fftw.function(f"execute_split_dft_{kind}"), ctypes.c_void_p).value or 0
        self._table = np.array([function, self._plan, gap], np.int64)
        self.address = address_of(self._table)

    def __del__(self) -> None:
        if getattr(self, "_plan", None) is not None:
            self._destroy(ctypes.c_void_p(self._plan))


class MatrixTable:
    """A sparse matrix by rows, for compiled code, and the number of adjacent lines to which it is applied."""

    def __init__(self, matrix: Any, lines: int) -> None:
        self._arrays = [np.ascontiguousarray(part, np.int64) for part in (matrix.indptr, matrix.indices)]
        self._data = np.ascontiguousarray(matrix.data, float)
        places = [address_of(array) for array in (*self._arrays, self._data)]
        self._table = np.array([matrix.shape[0], lines, *places], np.int64)
        self.address = address_of(self._table)


# ---- compiled code ---------------------------------------------------------------------------------


def _backward(table: int, source: int, target: int) -> None:
    """Transform modes to real lines."""
    line = words(table)
    call_function(line[0], line[1], source, source + line[2], target)


def _forward(table: int, source: int, target: int) -> None:
    """Transform real lines to modes."""
    line = words(table)
    call_function(line[0], line[1], source, target, target + line[2])


def _solve(table: int, source: int, target: int) -> None:
    """Solve with an upper triangular matrix, in place."""
    line = words(table)
    rows, lines = line[0], line[1]
    starts, columns = words(line[2]), words(line[3])
    values = carray(pointer(line[4]), starts[rows], types.float64)
    x = carray(pointer(target), rows * lines, types.float64)
    for back in range(rows):
        row = rows - 1 - back
        row_start = row * lines
        diagonal = 1.0
        for place in range(starts[row], starts[row + 1]):
            value, column_start = values[place], columns[place] * lines
            if column_start == row_start:
                diagonal = 1.0 / value
            else:
                for i in range(lines):
                    x[row_start + i] -= value * x[column_start + i]
        for i in range(lines):
            x[row_start + i] *= diagonal


def _apply(table: int, source: int, target: int) -> None:
    """Multiply by a matrix."""
    line = words(table)
    rows, lines = line[0], line[1]
    starts, columns = words(line[2]), words(line[3])
    values = carray(pointer(line[4]), starts[rows], types.float64)
    for row in range(rows):
        y = carray(pointer(target + 8 * row * lines), lines, types.float64)
        y[:] = 0.0
        for place in range(starts[row], starts[row + 1]):
            value = values[place]
            x = carray(pointer(source + 8 * columns[place] * lines), lines, types.float64)
            for i in range(lines):
                y[i] += value * x[i]


def _c_function(function: Callable[..., None]) -> CFunction:
    return CFunction(function, types.void(types.int64, types.int64, types.int64), fastmath={"contract"})


BACKWARD, FORWARD, SOLVE, APPLY = map(_c_function, (_backward, _forward, _solve, _apply))


EFFORT = "measure"
COMPLEX = np.dtype(complex)


@dataclass(frozen=True)
class Pieces:
    """An array that consists of pieces."""

    boxes: list[Box]  # the index ranges of each piece
    views: list[View]

    @classmethod
    def whole(cls, view: View) -> Pieces:
        """Return the pieces of an array that has only one."""
        return cls([tuple(slice(0, length) for length in view.shape)], [view])

    def along(self, axis: int, part: slice, by: int = 0) -> Pieces:
        """Return a range of an axis that no piece divides, which moves on by `by` indices in a repetition."""
        where = (*(slice(None),) * axis, part)
        views = [view[where].stepping(axis, by) for view in self.views]
        count = part.stop - part.start
        return Pieces([(*box[:axis], slice(0, count), *box[axis + 1 :]) for box in self.boxes], views)

    def move(
        self, program: CompiledProgram, to: Pieces, axis: int, part: slice, start: int, scale: float = 1.0
    ) -> None:
        """Write the copy of a range of an axis, times a number, to the range of other pieces that begins at `start`."""
        by = start - part.start
        for box, view in zip(self.boxes, self.views):
            for target_box, target in zip(to.boxes, to.views):
                source_part, target_part = [], []
                for place, (source_range, target_range) in enumerate(zip(box, target_box)):
                    shift, first, last = (
                        (by, part.start, part.stop) if place == axis else (0, source_range.start, source_range.stop)
                    )
                    low, high = (
                        max(source_range.start, first, target_range.start - shift),
                        min(source_range.stop, last, target_range.stop - shift),
                    )
                    source_part.append(slice(low - source_range.start, max(low, high) - source_range.start))
                    target_part.append(
                        slice(low + shift - target_range.start, max(low, high) + shift - target_range.start)
                    )
                if all(source_range.stop > source_range.start for source_range in source_part):
                    program.copy(target[tuple(target_part)], view[tuple(source_part)], scale)

    def clear(self, program: CompiledProgram, axis: int, part: slice) -> None:
        """Write zeros to a range of an axis."""
        for box, view in zip(self.boxes, self.views):
            low, high = max(box[axis].start, part.start), min(box[axis].stop, part.stop)
            if low < high:
                program.zero(view[(*(slice(None),) * axis, slice(low - box[axis].start, high - box[axis].start))])


class Room:
    """Scratch memory of a program, allocated from its beginning."""

    def __init__(self) -> None:
        self.nbytes = 0

    def array(self, shape: Sequence[int], dtype: np.dtype) -> View:
        """Allocate a contiguous array."""
        view = View.contiguous(SCRATCH, tuple(shape), dtype, self.nbytes // dtype.itemsize)
        self.nbytes += -(-view.size * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        return view


class Lines:
    """Transforms along one axis in one direction: up is towards the grid."""

    def __init__(self, points: int, modes: int, up: bool, plans: Plans) -> None:
        self.points, self.modes, self.up, self.plans = points, modes, up, plans
        self.given, self.made = (modes, points) if up else (points, modes)  # lengths of the axis before and after

    def write(self, program: CompiledProgram, source: Pieces, target: Pieces, axis: int, room: Room) -> None:
        """Write load, transform and store of all lines."""
        raise NotImplementedError


Plans = dict[Any, Any]
"""FFTW's plans and tables of compiled functions, by keys; their owner keeps them alive."""


class RealFourier(Lines):
    """Real Fourier series, whose coefficients are stored as cos, -sin, cos, -sin, ...; FFTW reads them directly."""

    def __init__(self, plan: Any, up: bool, plans: Plans) -> None:
        super().__init__(plan.N, plan.M, up, plans)
        self.last = plan.Kmax

    def write(self, program: CompiledProgram, source: Pieces, target: Pieces, axis: int, room: Room) -> None:
        shape = shape_of(source)
        spectrum = room.array(resized(shape, axis, 2 * (self.points // 2 + 1)), REAL)
        grid = room.array(resized(shape, axis, self.points), REAL)
        key = "real", self.up, grid.shape, axis
        if key not in self.plans:
            self.plans[key] = SplitPlan(grid.shape, axis, self.up)
        plan = self.plans[key]
        inside, end = Pieces.whole(spectrum), 2 * self.last + 2
        if self.up:
            source.move(program, inside, axis, slice(2, end), 2, 0.5)
            source.move(program, inside, axis, slice(0, 1), 0)
            inside.clear(program, axis, slice(1, 2))
            inside.clear(program, axis, slice(end, spectrum.shape[axis]))
            program.call(BACKWARD.address, plan.address, grid, spectrum)
            Pieces.whole(grid).move(program, target, axis, slice(0, self.points), 0)
        else:
            source.move(program, Pieces.whole(grid), axis, slice(0, self.points), 0)
            program.call(FORWARD.address, plan.address, spectrum, grid)
            inside.move(program, target, axis, slice(2, end), 2, 2.0 / self.points)
            inside.move(program, target, axis, slice(0, 1), 0, 1.0 / self.points)
            target.clear(program, axis, slice(1, 2))
            target.clear(program, axis, slice(end, self.modes))


class ComplexFourier(Lines):
    """Complex Fourier series."""

    def __init__(self, plan: Any, up: bool, plans: Plans) -> None:
        super().__init__(plan.N, plan.M, up, plans)
        self.last = plan.Kmax

    def write(self, program: CompiledProgram, source: Pieces, target: Pieces, axis: int, room: Room) -> None:
        grid = room.array(resized(shape_of(source), axis, self.points), COMPLEX)
        plan = line_plan(self.plans, grid.shape, COMPLEX, axis, not self.up)
        inside, last = Pieces.whole(grid), self.last
        if self.up:
            source.move(program, inside, axis, slice(0, last + 1), 0)
            source.move(program, inside, axis, slice(self.modes - last, self.modes), self.points - last)
            inside.clear(program, axis, slice(last + 1, self.points - last))
            program.transform(plan, grid, grid)
            inside.move(program, target, axis, slice(0, self.points), 0)
        else:
            source.move(program, inside, axis, slice(0, self.points), 0)
            program.transform(plan, grid, grid)
            scale = 1.0 / self.points
            inside.move(program, target, axis, slice(0, last + 1), 0, scale)
            inside.move(program, target, axis, slice(self.points - last, self.points), self.modes - last, scale)
            target.clear(program, axis, slice(last + 1, self.modes - last))


class ChebyshevSeries(Lines):
    """Chebyshev and ultraspherical series, by cosine transforms; scales and signs are part of the matrix.

    Lines are side by side in scratch memory, so that the matrix is applied to many at once.
    """

    def __init__(self, plan: Any, up: bool, plans: Plans) -> None:
        from scipy import sparse

        points, modes = plan.N, plan.M_orig
        super().__init__(points, modes, up, plans)
        self.kept = min(points, modes)
        signs = np.where(np.arange(points) % 2, -1.0, 1.0)
        converts = hasattr(plan, "backward_conversion")
        if up:  # y = D x, where A x = b, solves (A / D) y = b
            scales = (signs * 0.5 / sqrt(pi / 2))[: self.kept]
            scales[:1] = 1 / sqrt(pi)
            matrix = plan.backward_conversion if converts else sparse.identity(modes, format="csr")
            matrix = matrix[: self.kept, : self.kept] @ sparse.diags(1 / scales)
        else:
            scales = signs * sqrt(pi / 2) / points
            scales[:1] = sqrt(pi) / points / 2
            matrix = plan.forward_conversion if converts else sparse.eye(modes, points, format="csr")
            matrix = matrix @ sparse.diags(scales[: matrix.shape[1]])
        self.matrix = sparse.csr_matrix(matrix)
        self.matrix.sort_indices()

    def write(self, program: CompiledProgram, source: Pieces, target: Pieces, axis: int, room: Room) -> None:
        shape, dtype = shape_of(source), source.views[0].dtype
        other_lengths = [*shape[:axis], *shape[axis + 1 :]]
        grid = room.array((self.points, *other_lengths), dtype)
        numbers = dtype.itemsize // REAL.itemsize  # real numbers in an element
        real = View.contiguous(
            SCRATCH, (self.points, prod(other_lengths) * numbers), REAL, grid.offset // REAL.itemsize
        )
        kind = REAL_KINDS["dct3" if self.up else "dct2"].number
        plan = line_plan(self.plans, real.shape, REAL, 0, not self.up, kind)
        key = "matrix", self.up, id(self.matrix), real.shape
        if key not in self.plans:
            self.plans[key] = MatrixTable(self.matrix, real.shape[1])
        table = self.plans[key]
        lines = Pieces.whole(grid.moved_axis(0, axis))
        if self.up:
            source.move(program, lines, axis, slice(0, self.kept), 0)
            program.call(SOLVE.address, table.address, real, real)
            lines.clear(program, axis, slice(self.kept, self.points))
            program.transform(plan, real, real)
            lines.move(program, target, axis, slice(0, self.points), 0)
        else:
            source.move(program, lines, axis, slice(0, self.points), 0)
            program.transform(plan, real, real)
            result = room.array((self.modes, *other_lengths), dtype)
            program.call(APPLY.address, table.address, result, real)
            Pieces.whole(result.moved_axis(0, axis)).move(program, target, axis, slice(0, self.modes), 0)


def lines_of(basis: Any, dist: Any, points: int, dtype: Any, up: bool, plans: Plans) -> Lines | None:
    """Return the transforms of a basis, for fields of a data type, on a grid of `points` points; None if only Dedalus'
    own classes can transform."""
    kind = type(basis)
    if kind not in (bases.RealFourier, bases.ComplexFourier, bases.Jacobi):
        return None
    if kind is not bases.Jacobi and basis.forward_coeff_permutation is not None:
        return None
    key = "lines", basis, points, up
    if key not in plans:
        plan = basis.transform_plan(dist, points)
        if type(plan) is transforms.FFTWRealFFT and plan.M % 2 == 0 and dtype == REAL:
            plans[key] = RealFourier(plan, up, plans)
        elif type(plan) is transforms.FFTWComplexFFT and dtype == COMPLEX:
            plans[key] = ComplexFourier(plan, up, plans)
        elif type(plan) is transforms.FFTWFastChebyshevTransform:
            plans[key] = ChebyshevSeries(plan, up, plans)
        else:
            return None
    lines: Lines = plans[key]
    return lines


def shape_of(pieces: Pieces) -> list[int]:
    """Return the shape of an array in pieces."""
    return [max(part.stop for part in parts) for parts in zip(*pieces.boxes)]


def resized(shape: Sequence[int], axis: int, length: int) -> tuple[int, ...]:
    """Return a shape with another length of an axis."""
    return (*shape[:axis], length, *shape[axis + 1 :])


def line_plan(
    plans: Plans, shape: tuple[int, ...], dtype: np.dtype, axis: int, forward: bool, kind: int | None = None
) -> LineTransform:
    """Return FFTW's plan for lines of a contiguous array in scratch memory, in place."""
    key = "fftw", shape, dtype, axis, forward, kind
    if key not in plans:
        memory = empty(shape, dtype)
        plans[key] = LineTransform(memory, memory, axis, forward, EFFORT, real_kind=kind)
    plan: LineTransform = plans[key]
    return plan
