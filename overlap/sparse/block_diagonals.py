"""Stores half of a symmetric matrix of 3 x 3 blocks on few diagonals, and multiplies eight rows at a time with vector
instructions.

Eight rows make a *group*. Their blocks on one diagonal are stored entry by entry: for each of the nine entries the
eight numbers of the eight rows. A product reads these numbers in the order of memory. A vector of the user has three
numbers per row beside each other; they are reordered when they are loaded and stored. Compilers do not find this code
by themselves, so the product of a group is written in LLVM's intermediate language.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError

from ..compiled import intrinsic, njit
from ..compiled.memory import FAR, fetched
from .rows import Rows

LANES = 8
_MOST = 40  # largest number of diagonals on and above the main one
_LEAST_FILLED = 0.7  # least share of places with a block; empty places are read, too


class BlockDiagonals:
    """Stores the part of a rank's rows in its own columns. When a stored block is read, its products for both of its
    places are added.

    The rows are cut into parts of whole groups; only the last group may be incomplete. Contributions of a part to rows
    after its end go to sums of its own, so that no two workers write to the same row. When all parts are complete,
    these sums are added in the order of parts.
    """

    def __init__(self, rows: Rows, offsets: np.ndarray) -> None:
        self.padding = LANES + int(offsets[-1])  # rows of zeros that must follow a vector: the last groups read them
        self._offsets = offsets
        groups = -(-rows.count // LANES)
        self._values = np.zeros((groups, len(offsets), 9, LANES), rows.values.dtype)
        _fill(rows.starts, rows.columns, rows.values, rows.first, offsets, self._values)
        parts = rows.parts
        self._cuts = np.minimum(LANES * (groups * np.arange(parts + 1) // parts), rows.count)
        self._sums = np.zeros((parts, LANES - 1 + self.padding + LANES, 3), rows.values.dtype)

    @classmethod
    def of(cls, rows: Rows) -> BlockDiagonals | None:
        """Store rows in this way; return None if their blocks do not fill a few diagonals well."""
        upper = np.flatnonzero(~rows.external & (rows.columns - rows.first >= rows.row_of))
        offsets = np.unique(rows.columns[upper] - rows.first - rows.row_of[upper])
        if (
            not len(offsets)
            or offsets[0]
            or len(offsets) > _MOST
            or len(upper) < _LEAST_FILLED * len(offsets) * rows.count
        ):
            return None
        return cls(rows, offsets)

    def multiply(self, x: np.ndarray, y: np.ndarray, run: Callable[..., None]) -> None:
        """Compute the product with this rank's own entries."""
        run(
            lambda first, last: _multiply(self._cuts, self._offsets, self._values, x, y, self._sums, first, last),
            0,
            len(self._cuts) - 1,
        )
        _add_sums(self._cuts, self._sums, y)


@njit
def _fill(starts: Any, columns: Any, values: Any, first: Any, offsets: Any, stored: Any) -> None:
    """Copy the blocks on and above the diagonal of own columns."""
    for row in range(len(starts) - 1):
        number = 0
        for entry in range(starts[row], starts[row + 1]):
            offset = columns[entry] - first - row
            if 0 <= offset < len(starts) - 1 - row:
                while offsets[number] < offset:
                    number += 1
                for i in range(3):
                    for j in range(3):
                        stored[row // LANES, number, 3 * i + j, row % LANES] = values[entry, i, j]


@njit
def _multiply(cuts: Any, offsets: Any, values: Any, x: Any, y: Any, sums: Any, first: Any, last: Any) -> None:
    """Set the rows of some parts of y, and the sums of these parts."""
    for part in range(first, last):
        y[cuts[part] : cuts[part + 1]] = 0
        sums[part] = 0
        for row in range(cuts[part], cuts[part + 1], LANES):
            _add_group(values, offsets, x, y, sums[part], row, cuts[part + 1])


@njit
def _add_sums(cuts: Any, sums: Any, y: Any) -> None:
    """Add the sums of all parts; those of a part begin `LANES` - 1 rows before its end."""
    for part in range(len(sums)):
        begin = cuts[part + 1] - (LANES - 1)
        for place in range(max(0, -begin), min(sums.shape[1], len(y) - begin)):
            for i in range(3):
                y[begin + place, i] += sums[part, place, i]


@intrinsic
def _add_group(typingctx: Any, values: Any, offsets: Any, x: Any, y: Any, sums: Any, row: Any, end: Any) -> Any:
    """Add the products of the blocks of a group, that of `row`, and of their mirror images.

    The arrays must be contiguous and of one type, or numba compiles nothing. Contributions to eight rows that reach
    beyond `end` go to `sums`, whose first row is `LANES` - 1 rows before `end`.
    """
    arrays = values, x, y, sums
    if any(kind.layout != "C" or kind.dtype != values.dtype for kind in arrays) or offsets.dtype != types.int64:
        raise TypingError(
            f"expected contiguous arrays of one type and offsets of int64, received {arrays} and {offsets}"
        )

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = [
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args[:5], arguments[:5])
        ]
        number = context.get_data_type(values.dtype)
        group = _Group(builder, number, context.get_abi_sizeof(number))
        word = ir.IntType(64)
        row, end = (
            context.cast(builder, value, kind, types.int64) for value, kind in zip(arguments[5:], signature.args[5:])
        )
        values_at, offsets_at, x_at, y_at, sums_at = data
        count = builder.extract_value(context.make_array(signature.args[1])(context, builder, arguments[1]).shape, 0)

        def place(target: Any) -> Any:
            """Return the address of eight rows of the result."""
            inside = builder.icmp_signed("<=", builder.add(target, word(LANES)), end)
            beyond = builder.add(builder.sub(target, end), word(LANES - 1))
            return builder.select(inside, group.rows(y_at, target), group.rows(sums_at, beyond))

        block_at = builder.gep(
            values_at, [builder.mul(builder.mul(builder.sdiv(row, word(LANES)), count), word(9 * LANES))]
        )
        x_row = group.load(group.rows(x_at, row))
        blocks = group.blocks(block_at)
        products = [cgutils.alloca_once_value(builder, value) for value in group.product(blocks)(x_row)]
        with cgutils.for_range(builder, count, start=word(1)) as loop:
            target = builder.add(row, builder.load(builder.gep(offsets_at, [loop.index])))
            blocks = group.blocks(builder.gep(block_at, [builder.mul(loop.index, word(9 * LANES))]))
            for kept, value in zip(products, group.product(blocks)(group.load(group.rows(x_at, target)))):
                builder.store(group.sum(builder.load(kept), value), kept)
            group.add(place(target), group.product(blocks, mirrored=True)(x_row))
        group.add(place(row), [builder.load(kept) for kept in products])
        return context.get_dummy_value()

    return types.void(values, offsets, x, y, sums, row, end), codegen


class _Group:
    """Writes instructions for vectors of eight rows. A vector is a list of three: the first, second and third numbers
    of all rows."""

    def __init__(self, builder: Any, number: Any, nbytes: int) -> None:
        self._builder, self._nbytes = builder, nbytes
        self._eight, self._all = ir.VectorType(number, LANES), ir.VectorType(number, 3 * LANES)

    def rows(self, pointer: Any, row: Any) -> Any:
        """Compute the address of a row of a vector."""
        return self._builder.gep(pointer, [self._builder.mul(row, ir.IntType(64)(3))])

    def load(self, pointer: Any) -> Any:
        """Eight rows."""
        rows = self._loaded(pointer, self._all)
        return [self._shuffle(rows, rows, range(i, 3 * LANES, 3)) for i in range(3)]

    def add(self, pointer: Any, added: Any) -> None:
        """Add to eight rows in memory."""
        a, b, c = (self.sum(old, new) for old, new in zip(self.load(pointer), added))
        ab, c = self._shuffle(a, b, range(2 * LANES)), self._shuffle(c, c, range(2 * LANES))
        rows = self._shuffle(ab, c, [LANES * i + lane for lane in range(LANES) for i in range(3)])
        stored = self._builder.store(rows, self._builder.bitcast(pointer, self._all.as_pointer()))
        stored.align = self._nbytes

    def blocks(self, pointer: Any) -> Any:
        """Load the nine entries of eight blocks, and prefetch later blocks."""
        for entry in range(FAR // LANES, FAR // LANES + 9):
            fetched(self._builder, self._builder.gep(pointer, [ir.IntType(64)(LANES * entry)]))
        return [
            self._loaded(self._builder.gep(pointer, [ir.IntType(64)(LANES * entry)]), self._eight) for entry in range(9)
        ]

    def product(self, blocks: Any, mirrored: bool = False) -> Any:
        """Make the function that multiplies eight blocks, or the transposed ones, with eight rows."""

        def of(rows: Any) -> Any:
            totals = []
            for i in range(3):
                entries = blocks[i::3] if mirrored else blocks[3 * i : 3 * i + 3]
                total = self._builder.fmul(entries[0], rows[0], flags=("contract",))
                for entry, factor in zip(entries[1:], rows[1:]):
                    total = self.sum(total, self._builder.fmul(entry, factor, flags=("contract",)))
                totals.append(total)
            return totals

        return of

    def sum(self, a: Any, b: Any) -> Any:
        """Add two vectors."""
        return self._builder.fadd(a, b, flags=("contract",))

    def _loaded(self, pointer: Any, kind: Any) -> Any:
        value = self._builder.load(self._builder.bitcast(pointer, kind.as_pointer()))
        value.align = self._nbytes
        return value

    def _shuffle(self, a: Any, b: Any, order: Any) -> Any:
        order = list(order)
        return self._builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order))
