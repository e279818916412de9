"""Copies of memory as tables of integers, one copy per row, and the compiled code that makes them without Python.

The places from which and to which a copy moves data are offsets from a *base*: an index into the list of source or of
target addresses that is passed when the table is executed. So a table serves all arrays of one shape. The compiled code
does not know the bounds of arrays; they are checked when a table is made.

Modules with other operations number these from `OTHERS` on, and call `copied` for copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numba import types

from . import CFunction, njit
from .memory import address_of, bits_to_float, call_function, carray, copy_item, load, pointer, store, words

COPY, COPY_ITEMS, CONVERT, CONVERT_ITEMS, OTHERS = range(5)
# Columns of a row. Lengths count elements; in the innermost axis of a copy of runs they count bytes.
OPERATION = 0
SOURCE, SOURCE_OFFSET, SOURCE_STEP = 1, 2, 3  # a base, and bytes; the step is for modules that repeat rows
TARGET, TARGET_OFFSET, TARGET_STEP = 4, 5, 6
LENGTHS, SOURCE_STRIDES, TARGET_STRIDES = 7, 11, 15  # first columns, with four axes each
ELEMENT = 19  # bytes of an element, or 0 if the innermost axis is a contiguous run
SCALE = 20  # bits of a float64 factor, in a copy of runs of real numbers of `PRECISION` bytes
PRECISION = 21  # 0: not scaled
# The address of the function that converts real numbers, which are scaled, too; lengths count bytes of the source.
CONVERSION = 21
FLAG = 22  # the address of a word that becomes 1 if a finite number is too large for the other type
ARGUMENTS = 7  # first argument of other operations
# Items, bytes of an item (real numbers of an item that is converted), addresses of the positions.
COUNT, ITEM, SOURCE_POSITIONS, TARGET_POSITIONS = 7, 8, 9, 10
WIDTH = 23
AXES = 4
_ELEMENTS = (4, 8, 16)  # bytes; others are copied as runs of bytes
TILE = 16  # elements along both innermost axes, in a copy that transposes

Base = tuple[int, int]  # the number of a base, and an offset
Loops = tuple[list[int], tuple[int, list[int]], tuple[int, list[int]]]


class ArrayRegion(NamedTuple):
    """Items of an array whose address is given later: a box, or some items along the first axis.

    Attributes
    ----------
    base : int
        The array's number.
    offset : int
        Bytes from the array's begin to the first item, or to the item at position 0.
    shape, strides : tuple of int
        Shape of the box, and strides in bytes.
    nbytes : int
        Size of an item.
    positions : ndarray of int64 or None
        Positions of the items; None for a box.
    precision : int
        Bytes of the real numbers that items consist of, if copies may convert them; 0: items are only copied.
    rounding : int
        The address of a word: numbers copied here are rounded to singles, and the word becomes 1 if a finite number is
        too large. 0: they are not rounded.
    """

    base: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int
    positions: np.ndarray | None = None
    precision: int = 0
    rounding: int = 0

    @property
    def size(self) -> int:
        """Return the number of items."""
        return prod(self.shape)


class CopyTable:
    """A table of copies between regions, with the arrays of positions to which it refers.

    Parameters
    ----------
    pairs : iterable of (ArrayRegion, ArrayRegion)
        Source and target, with the same number of items.

    Attributes
    ----------
    address, rows : int
        The address of the table, and its number of rows.
    """

    def __init__(self, pairs: Iterable[tuple[ArrayRegion, ArrayRegion]]) -> None:
        self._kept: list[np.ndarray] = []
        lines = [line for source, target in pairs if source.size for line in self._lines(source, target)]
        self._code = np.array(lines, np.int64).reshape(-1, WIDTH)
        self.address, self.rows = address_of(self._code), len(lines)

    def program(self, sources: Sequence[int], targets: Sequence[int]) -> np.ndarray:
        """Return the copies as a program (see `execute`), given the numbers of its bases for those of the regions."""
        code = self._code.copy()
        code[:, SOURCE] = np.take(sources, code[:, SOURCE])
        code[:, TARGET] = np.take(targets, code[:, TARGET])
        return code

    def run(self) -> tuple[Base, Base, int] | None:
        """Return source, target and bytes if the table copies one run of bytes only, else None."""
        if self.rows != 1:
            return None
        line = self._code[0].tolist()
        *outer, nbytes = line[LENGTHS:SOURCE_STRIDES]
        if line[OPERATION] != COPY or line[ELEMENT] or outer != [1] * (AXES - 1):
            return None
        return (line[SOURCE], line[SOURCE_OFFSET]), (line[TARGET], line[TARGET_OFFSET]), nbytes

    def execute(self, sources: int, targets: int) -> None:
        """Make the copies; `sources` and `targets` are the addresses of the lists of bases' addresses."""
        if self.rows:
            execute(self.address, self.rows, sources, targets)

    def _lines(self, source: ArrayRegion, target: ArrayRegion) -> Iterator[list[int]]:
        bases = (source.base, source.offset), (target.base, target.offset)
        in_boxes = source.positions is None and target.positions is None
        positions = self._positions(source), self._positions(target)
        if source.precision == target.precision and not target.rounding:
            if in_boxes:
                yield from box_lines(COPY, *bases, source.shape, source.strides, target.strides, source.nbytes)
            else:
                yield instruction(COPY_ITEMS, *bases, source.size, source.nbytes, *positions)
            return
        numbers = source.nbytes // source.precision
        if not in_boxes:
            lines = iter([instruction(CONVERT_ITEMS, *bases, source.size, numbers, *positions)])
        elif numbers <= 2:  # the parts of a complex number are converted at once
            here, there = source.strides, target.strides
            lines = box_lines(CONVERT, *bases, source.shape, here, there, source.nbytes, target_nbytes=target.nbytes)
        else:  # the numbers of an item are one more axis
            here, there = ((*one.strides, one.precision) for one in (source, target))
            given, made, shape = source.precision, target.precision, (*source.shape, numbers)
            lines = box_lines(CONVERT, *bases, shape, here, there, given, target_nbytes=made)
        for line in lines:
            yield converting(line, source.precision, target.precision, target.rounding)

    def _positions(self, region: ArrayRegion) -> int:
        """Return the address of the positions; 0 if the items are consecutive."""
        if region.positions is None:
            return 0
        self._kept.append(np.ascontiguousarray(region.positions, np.int64))
        return address_of(self._kept[-1])


def instruction(operation: int, source: Base, target: Base, *arguments: int) -> list[int]:
    """Make a row."""
    line = [operation, *source, 0, *target, 0, *arguments]
    return line + [0] * (WIDTH - len(line))


def converting(line: list[int], given: int, made: int, flag: int, scale: float = 1.0) -> list[int]:
    """Let a row convert real numbers of so many bytes, times a number."""
    line[CONVERSION], line[FLAG] = _CONVERSIONS[given, made].address, flag
    line[SCALE] = bits_of(scale)
    return line


def bits_of(scale: float) -> int:
    """Return a number as a row has it."""
    return int(np.float64(scale).view(np.int64))


def copy_run(source: Base, target: Base, nbytes: int) -> list[int]:
    """Make the row that copies a run of bytes."""
    return instruction(COPY, source, target, *(1,) * (AXES - 1), nbytes)


def box_lines(
    operation: int,
    source: Base,
    target: Base,
    shape: Sequence[int],
    source_strides: Sequence[int],
    target_strides: Sequence[int],
    nbytes: int,
    runs: bool = True,
    target_nbytes: int | None = None,
) -> Iterator[list[int]]:
    """Yield the rows that visit a box of items of `nbytes` bytes; with `runs`, contiguous items form one run of bytes.

    Items of the target may have another size.
    """
    whole = [nbytes, nbytes if target_nbytes is None else target_nbytes]
    for lengths, (source_offset, sources), (target_offset, targets) in loops(
        shape, source_strides, target_strides, nbytes
    ):
        run = runs and ([sources[-1], targets[-1]] == whole or lengths[-1] == 1)
        if runs and not run and nbytes not in _ELEMENTS:  # the bytes of an item are the innermost axis
            each = [(index * sources[0], index * targets[0]) for index in range(lengths[0])]
            axes = [*lengths[1:], nbytes, *sources[1:], 1, *targets[1:], 1, 0]
        else:
            each = [(0, 0)]
            axes = [*lengths[:-1], lengths[-1] * (nbytes if run else 1), *sources, *targets, 0 if run else nbytes]
        for source_step, target_step in each:
            places = (
                (source[0], source[1] + source_offset + source_step),
                (target[0], target[1] + target_offset + target_step),
            )
            yield instruction(operation, *places, *axes)


def strides_of(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the strides of a C-contiguous array, in bytes."""
    strides = [itemsize]
    for length in reversed(shape[1:]):
        strides.append(strides[-1] * length)
    return tuple(reversed(strides[: len(shape)]))


def loops(shape: Sequence[int], here: Sequence[int], there: Sequence[int], nbytes: int) -> Iterator[Loops]:
    """Yield the rows of a box of items that are copied, with strides in two arrays, as four axes each.

    Yields
    ------
    lengths : list of int
    source, target : (int, list of int)
        Offset, and strides.
    """
    if 0 in shape:
        return
    axes = sorted((axis for axis in zip(shape, here, there) if axis[0] > 1), key=lambda axis: (axis[2], axis[1]))
    merged: list[tuple[int, int, int]] = []
    for length, step, other in reversed(axes):
        if merged and merged[-1][1:] == (length * step, length * other):
            merged[-1] = merged[-1][0] * length, step, other
        else:
            merged.append((length, step, other))
    if len(merged) > 2 and merged[-1][1] > nbytes:
        # The axis that is innermost in the source is put beside the one that is innermost in the target, so that the
        # two are copied by tiles.
        nearest = min(range(len(merged) - 1), key=lambda place: merged[place][1])
        merged.insert(len(merged) - 1, merged.pop(nearest))
    merged = [(1, 0, 0)] * (AXES - len(merged)) + merged
    lengths, sources, targets = (list(column) for column in zip(*merged[-AXES:]))
    outer = merged[:-AXES]
    for index in product(*(range(length) for length, _, _ in outer)):
        offsets = (sum(i * axis[side] for i, axis in zip(index, outer)) for side in (1, 2))
        yield list(lengths), (next(offsets), sources), (next(offsets), targets)


# ---- compiled code ---------------------------------------------------------------------------------


@njit
def execute(code: Any, rows: Any, sources: Any, targets: Any) -> None:
    """Make the copies of the table at address `code`, between the bases listed at `sources` and `targets`."""
    here, there = words(sources), words(targets)
    for number in range(rows):
        line = words(code + 8 * WIDTH * number)
        copied(line, here[line[SOURCE]] + line[SOURCE_OFFSET], there[line[TARGET]] + line[TARGET_OFFSET])


@njit
def copied(line: Any, source: Any, target: Any) -> None:
    """Make the copy of one row, between two addresses."""
    if line[OPERATION] == COPY_ITEMS:
        _copy_items(line, source, target)
        return
    if line[OPERATION] >= CONVERT:
        call_function(line[CONVERSION], address_of(line), source, target, 0)
        return
    nbytes, precision = line[LENGTHS + 3], line[PRECISION]
    scale = bits_to_float(line[SCALE])
    for i in range(line[LENGTHS]):
        for j in range(line[LENGTHS + 1]):
            from_at = source + i * line[SOURCE_STRIDES] + j * line[SOURCE_STRIDES + 1]
            to_at = target + i * line[TARGET_STRIDES] + j * line[TARGET_STRIDES + 1]
            if line[ELEMENT]:
                _copy_plane(line, from_at, to_at)
                continue
            for _ in range(line[LENGTHS + 2]):
                if precision:
                    _scale_run(from_at, to_at, nbytes, scale, precision)
                else:
                    copy_item(to_at, from_at, nbytes)
                from_at += line[SOURCE_STRIDES + 2]
                to_at += line[TARGET_STRIDES + 2]


def _copied_at(line: Any, source: Any, target: Any) -> None:
    copied(words(line), source, target)


# `copied` as a C function of three addresses, for code that is compiled often and would link it in each time.
COPIED = CFunction(_copied_at, types.void(types.int64, types.int64, types.int64))


@njit
def _copy_items(line: Any, source: Any, target: Any) -> None:
    count, nbytes = line[COUNT], line[ITEM]
    if line[TARGET_POSITIONS] == 0:
        source_positions = words(line[SOURCE_POSITIONS])
        for item in range(count):
            copy_item(target + item * nbytes, source + source_positions[item] * nbytes, nbytes)
    elif line[SOURCE_POSITIONS] == 0:
        source_positions = words(line[TARGET_POSITIONS])
        for item in range(count):
            copy_item(target + source_positions[item] * nbytes, source + item * nbytes, nbytes)
    else:
        source_positions, target_positions = words(line[SOURCE_POSITIONS]), words(line[TARGET_POSITIONS])
        for item in range(count):
            copy_item(target + target_positions[item] * nbytes, source + source_positions[item] * nbytes, nbytes)


@njit
def _copy_plane(line: Any, source: Any, target: Any) -> None:
    """Copy the two innermost axes tile by tile: one may be contiguous in the source, the other in the target."""
    rows, columns = line[LENGTHS + 2], line[LENGTHS + 3]
    by_row, by_column = line[SOURCE_STRIDES + 2], line[SOURCE_STRIDES + 3]
    to_row, to_column = line[TARGET_STRIDES + 2], line[TARGET_STRIDES + 3]
    nbytes, precision = line[ELEMENT], line[PRECISION]
    scale = bits_to_float(line[SCALE])
    for top in range(0, rows, TILE):
        bottom = min(top + TILE, rows)
        for left in range(0, columns, TILE):
            right = min(left + TILE, columns)
            for row in range(top, bottom):
                from_at = source + row * by_row + left * by_column
                to_at = target + row * to_row + left * to_column
                if precision:
                    for _ in range(left, right):
                        _scale_element(from_at, to_at, nbytes, scale, precision)
                        from_at += by_column
                        to_at += to_column
                elif nbytes == 16:
                    for _ in range(left, right):
                        _copy_element(from_at, to_at, 16)
                        from_at += by_column
                        to_at += to_column
                else:
                    for _ in range(left, right):
                        _copy_element(from_at, to_at, nbytes)
                        from_at += by_column
                        to_at += to_column


@njit(inline="always")
def _copy_element(source: Any, target: Any, nbytes: Any) -> None:
    if nbytes == 16:
        store(target, load(source, nbytes))
        store(target + 8, load(source + 8, nbytes))
    elif nbytes == 8:
        store(target, load(source, nbytes))
    else:
        store(target, load(source, types.int32(0)))


@njit(inline="always")
def _scale_element(source: Any, target: Any, nbytes: Any, scale: Any, precision: Any) -> None:
    """Copy an element times `scale`: one real number of `precision` bytes, or two of a complex one."""
    if precision == 8:
        store(target, scale * load(source, scale))
        if nbytes == 16:
            store(target + 8, scale * load(source + 8, scale))
    else:
        factor = types.float32(scale)
        store(target, factor * load(source, factor))
        if nbytes == 8:
            store(target + 4, factor * load(source + 4, factor))


@njit
def _scale_run(source: Any, target: Any, nbytes: Any, scale: Any, precision: Any) -> None:
    if precision == 8:
        scaled, values = (
            carray(pointer(target), nbytes // 8, types.float64),
            carray(pointer(source), nbytes // 8, types.float64),
        )
        for i in range(nbytes // 8):
            scaled[i] = scale * values[i]
    else:
        factor = types.float32(scale)
        single, single_values = (
            carray(pointer(target), nbytes // 4, types.float32),
            carray(pointer(source), nbytes // 4, types.float32),
        )
        for i in range(nbytes // 4):
            single[i] = factor * single_values[i]


@njit
def _convert(
    line: Any, source: Any, target: Any, size: Any, target_size: Any, source_type: Any, target_type: Any
) -> None:
    """Copy real numbers of one type to those of another, rounded to singles on the way."""
    scale, overflown = bits_to_float(line[SCALE]), 0
    if line[OPERATION] == CONVERT_ITEMS:
        if _convert_items(line, source, target, size, target_size, scale, source_type, target_type):
            store(line[FLAG], 1)
        return
    for i in range(line[LENGTHS]):
        for j in range(line[LENGTHS + 1]):
            from_at = source + i * line[SOURCE_STRIDES] + j * line[SOURCE_STRIDES + 1]
            to_at = target + i * line[TARGET_STRIDES] + j * line[TARGET_STRIDES + 1]
            if line[ELEMENT]:
                overflown |= _convert_plane(line, from_at, to_at, size, target_size, scale, source_type, target_type)
                continue
            for _ in range(line[LENGTHS + 2]):
                overflown |= _convert_run(from_at, to_at, line[LENGTHS + 3] // size, scale, source_type, target_type)
                from_at += line[SOURCE_STRIDES + 2]
                to_at += line[TARGET_STRIDES + 2]
    if overflown:
        store(line[FLAG], 1)


@njit
def _convert_items(
    line: Any, source: Any, target: Any, size: Any, target_size: Any, scale: Any, source_type: Any, target_type: Any
) -> Any:
    """Convert items at positions; return whether a finite number was too large."""
    numbers, overflown = line[ITEM], 0
    source_positions, target_positions = line[SOURCE_POSITIONS], line[TARGET_POSITIONS]
    for item in range(line[COUNT]):
        from_item = load(source_positions + 8 * item, item) if source_positions else item
        to_item = load(target_positions + 8 * item, item) if target_positions else item
        from_at, to_at = source + from_item * numbers * size, target + to_item * numbers * target_size
        overflown |= _convert_run(from_at, to_at, numbers, scale, source_type, target_type)
    return overflown


@njit
def _convert_plane(
    line: Any, source: Any, target: Any, size: Any, target_size: Any, scale: Any, source_type: Any, target_type: Any
) -> Any:
    """Convert elements along the two innermost axes, tile by tile; return whether a finite number was too large."""
    rows, columns, pairs, overflown = line[LENGTHS + 2], line[LENGTHS + 3], line[ELEMENT] > size, 0
    by_column, to_column = line[SOURCE_STRIDES + 3], line[TARGET_STRIDES + 3]
    for top in range(0, rows, TILE):
        for left in range(0, columns, TILE):
            for row in range(top, min(top + TILE, rows)):
                from_at = source + row * line[SOURCE_STRIDES + 2] + left * by_column
                to_at = target + row * line[TARGET_STRIDES + 2] + left * to_column
                for _ in range(left, min(left + TILE, columns)):
                    overflown |= _convert_number(from_at, to_at, scale, source_type, target_type)
                    if pairs:
                        overflown |= _convert_number(
                            from_at + size, to_at + target_size, scale, source_type, target_type
                        )
                    from_at += by_column
                    to_at += to_column
    return overflown


@njit
def _convert_run(source: Any, target: Any, count: Any, scale: Any, source_type: Any, target_type: Any) -> Any:
    values, converted = carray(pointer(source), count, source_type), carray(pointer(target), count, target_type)
    overflown = 0
    for i in range(count):
        number = scale * values[i]
        single = np.float32(number)
        converted[i] = single
        overflown |= abs(number - single) == np.inf  # inf - inf is NaN, so only finite numbers count
    return overflown


@njit
def _convert_number(source: Any, target: Any, scale: Any, source_type: Any, target_type: Any) -> Any:
    number = scale * load(source, source_type(0))
    single = np.float32(number)
    store(target, target_type(single))
    return abs(number - single) == np.inf


def _to_single(line: Any, source: Any, target: Any) -> None:
    _convert(words(line), source, target, 8, 4, np.float64, np.float32)


def _to_double(line: Any, source: Any, target: Any) -> None:
    _convert(words(line), source, target, 4, 8, np.float32, np.float64)


def _rounded(line: Any, source: Any, target: Any) -> None:
    _convert(words(line), source, target, 8, 8, np.float64, np.float64)


# (bytes of source, bytes of target) -> what converts. Compiled for the first row that needs it: most plans have none.
_CONVERSIONS = {
    sizes: CFunction(function, types.void(types.int64, types.int64, types.int64))
    for sizes, function in (((8, 4), _to_single), ((4, 8), _to_double), ((8, 8), _rounded))
}
