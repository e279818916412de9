"""Moves of data as tables of integers, and the compiled code that makes them: pack, unpack, write remotely.

A *region* of a local array is a box (a tuple of slices) or an array of positions along the first axis. A row of a
table moves one region into another of the same size: from an array or a message to an array or a message. Arrays
are given when the moves are made, by their addresses; regions stand in the table as byte offsets and strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..arrays.partition import length_of
from ..compiled import njit
from ..lowlevel.memory import copy, load, store, words

Region = tuple[slice, ...] | np.ndarray

# Columns of a row; from DIMS on, (count, stride in the source, stride in the target) of each loop, or, where DIMS is
# INDEXED, the number of items and the addresses of their positions in the source and in the target (0: one
# after the other).
SOURCE, SOURCE_OFFSET, TARGET, TARGET_OFFSET, NBYTES, DIMS, LOOPS = range(7)
INDEXED = -1


@dataclass(frozen=True)
class Place:
    """A region of one of the arrays that a move is given.

    Attributes
    ----------
    number : int
        The array's place among those given.
    shape : tuple of int
        The array's, without the components of an item.
    nbytes : int
        Size of an item.
    region : tuple of slice or ndarray
    """

    number: int
    shape: tuple[int, ...]
    nbytes: int
    region: Region

    @property
    def count(self) -> int:
        """Number of items of the region."""
        if isinstance(self.region, np.ndarray):
            return len(self.region)
        return prod(map(length_of, self.region))

    def packed(self, first: int) -> Place:
        """Give the same items one after the other in a message, from item `first` on."""
        if isinstance(self.region, np.ndarray):
            counts: tuple[int, ...] = (self.count,)
        else:
            counts = tuple(map(length_of, self.region))
        # A message begins at `first`: all axes but the first are as long as the region.
        return _Packed(0, counts, self.nbytes, tuple(slice(0, count) for count in counts), first)


@dataclass(frozen=True)
class _Packed(Place):
    first: int = 0  # bytes


class Moves:
    """A table of moves; it keeps the positions that the table has addresses of.

    Parameters
    ----------
    pairs : sequence of (Place, Place)
        Source and target.

    Attributes
    ----------
    address, rows, width : int
        Where the table stands, its rows and its columns.
    """

    def __init__(self, pairs: Sequence[tuple[Place, Place]]) -> None:
        self._kept: list[np.ndarray] = []
        rows = [self._row(source, target) for source, target in pairs if source.count]
        self.rows = len(rows)
        self.width = max(map(len, rows), default=LOOPS)
        self._table = np.zeros((max(self.rows, 1), self.width), np.int64)
        for place, row in enumerate(rows):
            self._table[place, : len(row)] = row
        self.address = self._table.ctypes.data

    def run(self) -> tuple[int, int, int, int, int] | None:
        """Source, offset there, target, offset there and bytes, where one run of bytes is all there is to move."""
        row = self._table[0]
        if self.rows != 1 or row[DIMS] != 0:
            return None
        return tuple(map(int, row[[SOURCE, SOURCE_OFFSET, TARGET, TARGET_OFFSET, NBYTES]]))  # type: ignore[return-value]

    def _row(self, source: Place, target: Place) -> Any:
        indexed = [isinstance(place.region, np.ndarray) for place in (source, target)]
        if any(indexed):
            return [
                source.number,
                _offset(source),
                target.number,
                _offset(target),
                source.nbytes,
                INDEXED,
                source.count,
                self._positions(source),
                self._positions(target),
            ]
        counts = [length_of(side) for side in source.region]
        strides = [_strides(place) for place in (source, target)]
        nbytes, axis = source.nbytes, len(counts)
        # Axes at the end along which both regions have no gap become one run of bytes.
        while axis and all(stride[axis - 1] == nbytes for stride in strides):
            axis -= 1
            nbytes *= counts[axis]
        loops = [
            number
            for loop in zip(counts[:axis], *(stride[:axis] for stride in strides))
            if loop[0] != 1
            for number in loop
        ]
        return [source.number, _offset(source), target.number, _offset(target), nbytes, len(loops) // 3, *loops]

    def _positions(self, place: Place) -> Any:
        if not isinstance(place.region, np.ndarray):
            return 0
        positions = np.ascontiguousarray(place.region, dtype=np.int64)
        self._kept.append(positions)
        return positions.ctypes.data


def _strides(place: Place) -> Any:
    strides = [place.nbytes]
    for length in place.shape[:0:-1]:
        strides.insert(0, strides[0] * length)
    return strides


def _offset(place: Place) -> int:
    first = place.first if isinstance(place, _Packed) else 0
    if isinstance(place.region, np.ndarray):
        return first
    return first + sum(side.start * stride for side, stride in zip(place.region, _strides(place)))


@njit
def _copy_item(target: Any, source: Any, nbytes: Any) -> None:
    if nbytes == 8:
        store(target, load(source, nbytes))
    else:
        copy(target, source, nbytes)


@njit
def move(table: Any, rows: Any, width: Any, sources: Any, targets: Any) -> None:
    """Make the moves of a table between arrays whose addresses stand at `sources` and `targets`."""
    here, there = words(sources), words(targets)
    for number in range(rows):
        row = words(table + 8 * number * width)
        source = here[row[SOURCE]] + row[SOURCE_OFFSET]
        target = there[row[TARGET]] + row[TARGET_OFFSET]
        nbytes, dims = row[NBYTES], row[DIMS]
        if dims == INDEXED:
            _move_indexed(source, target, nbytes, row[LOOPS], row[LOOPS + 1], row[LOOPS + 2])
            continue
        if dims == 0:
            copy(target, source, nbytes)
            continue
        outer = 1
        for dim in range(dims - 1):
            outer *= row[LOOPS + 3 * dim]
        last = LOOPS + 3 * (dims - 1)
        count, source_step, target_step = row[last], row[last + 1], row[last + 2]
        for place in range(outer):
            begin, end = source, target
            rest = place
            for back in range(dims - 1):
                loop = LOOPS + 3 * (dims - 2 - back)
                index = rest % row[loop]
                rest //= row[loop]
                begin += index * row[loop + 1]
                end += index * row[loop + 2]
            if nbytes == 8:
                for step in range(count):
                    store(end + step * target_step, load(begin + step * source_step, nbytes))
            else:
                for step in range(count):
                    copy(end + step * target_step, begin + step * source_step, nbytes)


@njit
def _move_indexed(
    source: Any, target: Any, nbytes: Any, count: Any, source_positions: Any, target_positions: Any
) -> None:
    if target_positions == 0:
        positions = words(source_positions)
        for item in range(count):
            _copy_item(target + item * nbytes, source + positions[item] * nbytes, nbytes)
    elif source_positions == 0:
        positions = words(target_positions)
        for item in range(count):
            _copy_item(target + positions[item] * nbytes, source + item * nbytes, nbytes)
    else:
        positions, others = words(source_positions), words(target_positions)
        for item in range(count):
            _copy_item(target + others[item] * nbytes, source + positions[item] * nbytes, nbytes)


def packing(
    regions: Sequence[Region], shape: tuple[int, ...], items: Sequence[int]
) -> tuple[list[tuple[Place, Place]], int]:
    """Where the regions of several arrays of one shape stand in a message: pairs (in the array, in the message).

    Parameters
    ----------
    regions : sequence of Region
    shape : tuple of int
        Every array's, without the components of an item.
    items : sequence of int
        Bytes of an item, for each array.

    Returns
    -------
    list of (Place, Place)
    int
        Bytes of the message; every array's part begins at a multiple of 64.
    """
    pairs, first = [], 0
    for number, nbytes in enumerate(items):
        first = -(-first // 64) * 64
        for region in regions:
            place = Place(number, shape, nbytes, region)
            pairs.append((place, place.packed(first)))
            first += place.count * nbytes
    return pairs, first
