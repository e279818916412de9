"""Kernels of the transforms along an axis: FFTW's plans for split complex data, products with sparse matrices."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numba import types

from ...compiled import CFunction
from ...compiled.memory import address_of, call_function, carray, pointer, words
from ...fft.engine.fftw import empty, fftw_of
from ...fft.engine.lines import DESTROY_INPUT

REAL = np.dtype(float)


class _Dimension(ctypes.Structure):
    """FFTW's fftw_iodim64."""

    _fields_ = [(name, ctypes.c_ssize_t) for name in ("n", "input", "output")]


class SplitPlan:
    """FFTW's plan between real lines and their modes, whose real and imaginary parts are adjacent along the axis.

    Attributes
    ----------
    address : int
        Address of the words for `_backward` and `_forward`: function, plan, and bytes between the two parts.
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
