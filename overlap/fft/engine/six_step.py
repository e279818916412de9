"""The six-step FFT: a split axis of n1 n2 points is transformed as two axes, one after the other.

Point j = j1 n2 + j2 is in row j1 and column j2. With mode k = k1 + k2 n1 the transform of the axis is

    X(k1 + k2 n1) = sum_j2 exp(-2 pi i j2 k2 / n2) exp(-2 pi i j2 k1 / n) sum_j1 exp(-2 pi i j1 k1 / n1) x(j1 n2 + j2)

(Bailey, FFTs in external or hierarchical memory, 1990): FFTs of columns, twiddle factors, FFTs of rows. Rows are split
over the ranks: one exchange makes columns whole, and a second one rows. A third one brings modes to their natural
order. The data of the second exchange are multiplied by the twiddle factors while they are in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, product
from math import pi
from typing import Any

import numpy as np
from numba import types

from ...arrays import AxisSwap
from ...arrays.layout import Box
from ...compiled import CFunction
from ...compiled.memory import address_of, carray, load, pointer, store, words
from .program import CompiledProgram, View

LOOPS = 4  # number of loops of the compiled function
LENGTH, STRIDE, ROW_STEP, COLUMN_STEP = (LOOPS * number for number in range(4))
ROW, COLUMN, POINTS, SHIFT, FINE, COARSE, PRECISION = range(4 * LOOPS, 4 * LOOPS + 7)
BALANCE = 20  # a rank may have 1/BALANCE more than its share if that brings the two factors closer to each other


@dataclass(frozen=True)
class TwiddledTranspose(AxisSwap):
    """The exchange between the FFTs of the two axes of one: element (a, b) is multiplied by exp(-+2 pi i a b / n)."""


class TwiddleFactors:
    """The twiddle factors of an axis, in one direction."""

    def __init__(
        self,
        axes: tuple[int, int],  # the two axes of the array that represent one axis
        points: int,  # n, the product of their lengths
        first: tuple[int, int],  # begin of the rank's part of the array along each axis
        forward: bool,
    ) -> None:
        self._axes, self._first, self._points = axes, first, points
        self._shift = max(1, (points.bit_length() + 1) // 2)
        angle = (-2j if forward else 2j) * pi / points
        few = 1 << self._shift  # exp(angle m) = fine[m % few] coarse[m // few]
        self._fine = np.exp(angle * np.arange(few))
        self._coarse = np.exp(angle * few * np.arange(-(-points // few)))
        self._arguments: list[np.ndarray] = []  # kept alive, because programs have their addresses

    def write(self, program: CompiledProgram, part: View, box: Box) -> None:
        """Write the multiplication in place of the part of the array that is in `box`."""
        if 0 in part.shape:
            return
        begins = [start + box[axis].start for axis, start in zip(self._axes, self._first)]
        steps = [tuple(int(axis == one) for one in self._axes) for axis in range(len(box))]
        axes = sorted(
            (one for one in zip(part.shape, part.strides, steps) if one[0] > 1), key=lambda one: one[1], reverse=True
        )
        axes = [(1, 0, (0, 0))] * (LOOPS - len(axes)) + axes
        outer, inner = axes[:-LOOPS], axes[-LOOPS:]
        for index in product(*(range(length) for length, _, _ in outer)):
            offset = sum(i * stride for i, (_, stride, _) in zip(index, outer))
            row, column = (
                begin + sum(i * step[side] for i, (_, _, step) in zip(index, outer))
                for side, begin in enumerate(begins)
            )
            lengths, strides, each = zip(*inner)
            self._arguments.append(
                np.array(
                    [
                        *lengths,
                        *strides,
                        *(step[0] for step in each),
                        *(step[1] for step in each),
                        row,
                        column,
                        self._points,
                        self._shift,
                        address_of(self._fine),
                        address_of(self._coarse),
                        part.dtype.itemsize // 2,
                    ],
                    np.int64,
                )
            )
            part_of_box = replace(part, offset=part.offset + offset)
            program.call(_TWIDDLE.address, address_of(self._arguments[-1]), part_of_box, part_of_box)


def twiddle(argument: Any, source: Any, target: Any) -> None:
    """Multiply a box of complex numbers by twiddle factors; `argument`: address of the words of `TwiddleFactors`."""
    box_words = words(argument)
    points, shift, precision = box_words[POINTS], box_words[SHIFT], box_words[PRECISION]
    mask = (1 << shift) - 1
    fine = carray(pointer(box_words[FINE]), mask + 1, np.complex128)
    coarse = carray(pointer(box_words[COARSE]), (points + mask) // (mask + 1), np.complex128)
    by = box_words[STRIDE + 3]
    for i in range(box_words[LENGTH]):
        for j in range(box_words[LENGTH + 1]):
            for k in range(box_words[LENGTH + 2]):
                row = (
                    box_words[ROW] + i * box_words[ROW_STEP] + j * box_words[ROW_STEP + 1] + k * box_words[ROW_STEP + 2]
                )
                column = (
                    box_words[COLUMN]
                    + i * box_words[COLUMN_STEP]
                    + j * box_words[COLUMN_STEP + 1]
                    + k * box_words[COLUMN_STEP + 2]
                )
                at = target + i * box_words[STRIDE] + j * box_words[STRIDE + 1] + k * box_words[STRIDE + 2]
                power = row * column % points
                step = (box_words[ROW_STEP + 3] * column + box_words[COLUMN_STEP + 3] * row) % points
                for _ in range(box_words[LENGTH + 3]):
                    factor = coarse[power >> shift] * fine[power & mask]
                    if precision == 8:
                        real, imaginary = load(at, 0.0), load(at + 8, 0.0)
                        store(at, factor.real * real - factor.imag * imaginary)
                        store(at + 8, factor.real * imaginary + factor.imag * real)
                    else:
                        single = np.complex64(factor)
                        x, y = load(at, np.float32(0)), load(at + 4, np.float32(0))
                        store(at, single.real * x - single.imag * y)
                        store(at + 4, single.real * y + single.imag * x)
                    at += by
                    power += step
                    if power >= points:
                        power -= points


_TWIDDLE = CFunction(twiddle, types.void(types.int64, types.int64, types.int64), fastmath={"contract"})


def two_factors(points: int, ranks: int) -> tuple[int, int] | None:
    """Return the best two factors of a length, each at least the number of ranks; None if there are none.

    Of the factors that can be split almost as evenly over the ranks as any, these are closest to each other.
    """
    pairs = [(n1, points // n1) for n1 in _divisors(points) if n1 >= ranks and points // n1 >= ranks]

    def cost(pair: tuple[int, int]) -> tuple[int, int, bool]:
        uneven = max(-(-n // ranks) * ranks / n for n in pair)
        return round(BALANCE * uneven), max(pair), pair[0] % ranks != 0

    return min(pairs, key=cost, default=None)


def next_lengths(points: int, ranks: int, count: int = 3) -> list[int]:
    """Return the next lengths that have `two_factors`."""

    def longer() -> Iterator[int]:
        n = max(points, ranks * ranks - 1)
        while True:
            n += 1
            if two_factors(n, ranks) is not None:
                yield n

    return list(islice(longer(), count))


def _divisors(points: int) -> list[int]:
    small = [n for n in range(1, int(points**0.5) + 1) if points % n == 0]
    return sorted({*small, *(points // n for n in small)})
