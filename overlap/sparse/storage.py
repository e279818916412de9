"""Stores a rank's rows: by rows with the independent ones first, by diagonals, or one half of symmetric 3 x 3 blocks,
where each block above the diagonal is read once and used for both of its places.

A row is *independent* if it has no column of another rank, else *dependent*. In the storage by rows both kinds are
contiguous, so that no list of rows is needed to compute the independent ones while other ranks' entries are under way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..compiled import njit
from ..compiled.memory import FAR, prefetch
from . import kernels
from .block_diagonals import BlockDiagonals
from .rows import Rows


class BySymmetricBlocks:
    """Stores the blocks on and above the diagonal in a rank's own columns, and all blocks in other ranks' columns.

    Products with own columns are computed before the halo has arrived, by `BlockDiagonals` if possible, else by
    `ScatteredBlocks`. Products with other ranks' columns are added afterwards, so rows keep their order.
    """

    name = "symmetric blocks"
    is_short = False

    def __init__(self, rows: Rows) -> None:
        self.count = rows.count
        self.order = np.arange(rows.count)
        self._own_columns = BlockDiagonals.of(rows) or ScatteredBlocks(rows)
        outside = rows.external
        self.needed = np.unique(rows.columns[outside])
        self.owned_at = np.arange(rows.count)
        before = rows.count + self._own_columns.padding
        self.length = before + len(self.needed)
        self.needed_at = np.arange(before, self.length)
        row_of = rows.row_of[outside]
        dependent, counts = np.unique(row_of, return_counts=True)
        self._outside = (
            dependent.astype(np.uint32),
            np.concatenate([[0], np.cumsum(counts)]),
            (before + np.searchsorted(self.needed, rows.columns[outside])).astype(np.uint32),
            np.ascontiguousarray(rows.values[outside]),
        )

    def compute(self, x: np.ndarray, y: np.ndarray, run: Callable[..., None]) -> None:
        """Compute all rows."""
        self.start(x, y, run)
        self.finish(x, y, run)

    def start(self, x: np.ndarray, y: np.ndarray, run: Callable[..., None]) -> None:
        """Compute the products with own entries."""
        self._own_columns.multiply(x, y, run)

    def finish(self, x: np.ndarray, y: np.ndarray, run: Callable[..., None]) -> None:
        """Add the products with other ranks' entries."""
        run(lambda first, last: _add_outside(*self._outside, x, y, first, last), 0, len(self._outside[0]))

    def transposed(self, x: np.ndarray, y: np.ndarray) -> None:
        """Add the transposed rows' product with own entries to an extended vector."""
        extended = np.zeros(y.shape, self._outside[-1].dtype)
        extended[: self.count] = x
        product = np.empty_like(extended[: self.count])
        self.start(extended, product, lambda function, first, last: function(first, last))
        y[: self.count] += product
        kernels.blocks_transposed(*self._outside[1:], x[self._outside[0]], y, len(self._outside[0]))


class ScatteredBlocks:
    """Stores the blocks in a rank's own columns, row by row. A block (i, j) adds to the rows i and j.

    The rows are cut into parts. If j belongs to a later part than i, the block adds to a separate sum for j in the part
    of i, so that no two workers write to the same row. When all parts are complete, these sums are added in the order
    of parts.
    """

    padding = 0  # see `BlockDiagonals`

    def __init__(self, rows: Rows) -> None:
        parts = rows.parts
        cuts = rows.count * np.arange(parts + 1) // parts
        starts, far, columns, limits, later = _pattern(rows.starts, rows.columns, rows.first, cuts)
        values = np.zeros((len(columns), 3, 3), rows.values.dtype)
        _fill(rows.starts, rows.columns, rows.values, rows.first, starts, values)
        self._parts = parts
        self._sums = np.zeros((len(later), 3), values.dtype)
        self._upper = cuts, starts, far, columns, values, limits, later
        self._later = later

    def multiply(self, x: np.ndarray, y: np.ndarray, run: Callable[..., None]) -> None:
        """Compute the product with this rank's own entries."""
        run(lambda first, last: _multiply(*self._upper, x, y, self._sums, first, last), 0, self._parts)
        _add_sums(self._later, self._sums, y)


def is_symmetric(rows: Rows) -> bool:
    """Return whether rows are real 3 x 3 blocks, and those in own columns a symmetric matrix, bit for bit."""
    return (
        rows.values.shape[1:] == (3, 3)
        and rows.values.dtype.kind == "f"
        and bool(_symmetric(rows.starts, rows.columns, rows.values, rows.first))
    )


@njit
def _symmetric(starts: Any, columns: Any, values: Any, first: Any) -> Any:
    """Compare the upper blocks with their mirror images, which this order visits in the order of their rows'
    columns."""
    count = len(starts) - 1
    lower = starts[:-1].copy()  # the next block below the diagonal of each row
    for row in range(count):
        while lower[row] < starts[row + 1] and columns[lower[row]] < first:
            lower[row] += 1
    for row in range(count):
        if lower[row] < starts[row + 1] and columns[lower[row]] - first < row:
            return False  # the block has no mirror image
        for entry in range(lower[row], starts[row + 1]):
            column = columns[entry] - first
            if column >= count:
                break
            mirror = entry
            if column > row:
                mirror = lower[column]
                lower[column] += 1
                if mirror >= starts[column + 1] or columns[mirror] - first != row:
                    return False
            for i in range(3):
                for j in range(3):
                    if values[entry, i, j] != values[mirror, j, i]:
                        return False
    return True


@njit
def _pattern(starts: Any, columns: Any, first: Any, cuts: Any) -> Any:
    """Return starts of rows (diagonal first), the starts of their columns of later parts, columns, limits, later.

    Rows `later[limits[part]:limits[part + 1]]` are those of later parts to which a part adds; columns of later parts
    are places in `later`.
    """
    count = len(starts) - 1
    begins, far = np.zeros(count + 1, np.int64), np.zeros(count, np.int64)
    stored, later = np.empty(len(columns) + count, np.uint32), np.empty(len(columns), np.uint32)
    place = np.full(count, -1, np.int64)
    limits = np.zeros(len(cuts), np.int64)
    at = many = 0
    for part in range(len(cuts) - 1):
        end = cuts[part + 1]
        for row in range(cuts[part], end):
            for entry in range(starts[row], starts[row + 1]):
                column = columns[entry] - first
                if end <= column < count and place[column] < limits[part]:
                    place[column] = len(columns)  # needed; its place is determined below
        for column in range(end, count):
            if place[column] == len(columns):
                place[column] = many
                later[many] = column
                many += 1
        limits[part + 1] = many
        for row in range(cuts[part], end):
            stored[at] = row
            at += 1
            far[row] = -1
            for entry in range(starts[row], starts[row + 1]):
                column = columns[entry] - first
                if row < column < count:
                    if column >= end and far[row] < 0:
                        far[row] = at
                    stored[at] = column if column < end else place[column]
                    at += 1
            if far[row] < 0:
                far[row] = at
            begins[row + 1] = at
    return begins, far, stored[:at].copy(), limits, later[:many].copy()


@njit
def _fill(starts: Any, columns: Any, values: Any, first: Any, begins: Any, stored: Any) -> None:
    """Copy the blocks on and above the diagonal of own columns."""
    count = len(starts) - 1
    for row in range(count):
        at = begins[row] + 1
        for entry in range(starts[row], starts[row + 1]):
            column = columns[entry] - first
            if column == row:
                stored[begins[row]] = values[entry]
            elif row < column < count:
                stored[at] = values[entry]
                at += 1


@njit(fastmath={"contract"})
def _multiply(
    cuts: Any,
    starts: Any,
    far: Any,
    columns: Any,
    values: Any,
    limits: Any,
    later: Any,
    x: Any,
    y: Any,
    sums: Any,
    first: Any,
    last: Any,
) -> None:
    """Set the rows of some parts of y, and the sums of these parts for later ones."""
    one = np.uint64(1)
    for part in range(first, last):
        y[cuts[part] : cuts[part + 1]] = 0
        sums[limits[part] : limits[part + 1]] = 0
        for row in range(
            np.uint64(cuts[part]), np.uint64(cuts[part + 1])
        ):  # unsigned, so that no index is checked for its sign
            u, v, w = x[row, 0], x[row, 1], x[row, 2]
            start, split, end = np.uint64(starts[row]), np.uint64(far[row]), np.uint64(starts[row + one])
            a, b, c = kernels.product_of_3(values, start, u, v, w)
            for entry in range(start + one, split):
                column = columns[entry]
                prefetch(values, np.int64(9) * np.int64(entry) + FAR)
                d, e, f = kernels.product_of_3(values, entry, x[column, 0], x[column, 1], x[column, 2])
                a, b, c = a + d, b + e, c + f
                d, e, f = _mirrored(values, entry, u, v, w)
                y[column, 0] += d
                y[column, 1] += e
                y[column, 2] += f
            for entry in range(split, end):
                place = columns[entry]
                column = later[place]
                d, e, f = kernels.product_of_3(values, entry, x[column, 0], x[column, 1], x[column, 2])
                a, b, c = a + d, b + e, c + f
                d, e, f = _mirrored(values, entry, u, v, w)
                sums[place, 0] += d
                sums[place, 1] += e
                sums[place, 2] += f
            y[row, 0] += a
            y[row, 1] += b
            y[row, 2] += c


@njit(fastmath={"contract"})
def _mirrored(values: Any, entry: Any, u: Any, v: Any, w: Any) -> Any:
    """Multiply a transposed block by (u, v, w)."""
    return (
        values[entry, 0, 0] * u + values[entry, 1, 0] * v + values[entry, 2, 0] * w,
        values[entry, 0, 1] * u + values[entry, 1, 1] * v + values[entry, 2, 1] * w,
        values[entry, 0, 2] * u + values[entry, 1, 2] * v + values[entry, 2, 2] * w,
    )


@njit
def _add_sums(later: Any, sums: Any, y: Any) -> None:
    for place in range(len(later)):
        for i in range(3):
            y[later[place], i] += sums[place, i]


@njit
def _add_outside(rows: Any, starts: Any, columns: Any, values: Any, x: Any, y: Any, first: Any, last: Any) -> None:
    """Add the products of the blocks in other ranks' columns."""
    for number in range(first, last):
        a, b, c = y[rows[number], 0], y[rows[number], 1], y[rows[number], 2]
        for entry in range(starts[number], starts[number + 1]):
            column = columns[entry]
            d, e, f = kernels.product_of_3(values, entry, x[column, 0], x[column, 1], x[column, 2])
            a, b, c = a + d, b + e, c + f
        y[rows[number], 0], y[rows[number], 1], y[rows[number], 2] = a, b, c


_MOST_DIAGONALS = 40
_LEAST_FILLED = 0.5  # least share of filled places in the diagonals
_SHORT_ROWS, _SHORT_DIAGONALS = 2**10, 2**14  # in numbers: a product of this size takes about a microsecond

Run = Callable[..., None]  # the type of `ThreadPool.run`


class _ByRanges:
    """Computes a range of rows, the independent ones, while the halo is under way, and then the rows before and after
    it."""

    count: int
    order: np.ndarray  # the row in the user's numbering at each place
    is_short: bool  # all rows take no longer than a call of compiled code: nothing to hide an exchange behind
    _independent: tuple[int, int]

    def compute(self, x: np.ndarray, y: np.ndarray, run: Run) -> None:
        """Compute all rows."""
        self._compute(x, y, run, 0, self.count)

    def start(self, x: np.ndarray, y: np.ndarray, run: Run) -> None:
        """Compute the rows that need no other rank's entries."""
        self._compute(x, y, run, *self._independent)

    def finish(self, x: np.ndarray, y: np.ndarray, run: Run) -> None:
        """Compute the rest."""
        first, last = self._independent
        if first:
            self._compute(x, y, run, 0, first)
        if last < self.count:
            self._compute(x, y, run, last, self.count)

    def _compute(self, x: np.ndarray, y: np.ndarray, run: Run, begin: int, end: int) -> None:
        raise NotImplementedError


class ByRows(_ByRanges):
    """Stores compressed rows, of numbers or of small blocks.

    The own entries of a vector are in the order of the rows here (`order`), and the entries of other ranks come after
    them. `needed` are the global numbers of these; `needed_at` and `owned_at` are the places of both in an extended
    vector of some `length`.
    """

    name = "rows"

    def __init__(self, rows: Rows) -> None:
        outside = rows.external
        dependent = np.zeros(rows.count, bool)
        dependent[rows.row_of[outside]] = True
        self.order = np.argsort(dependent, kind="stable")
        self.count, self._independent = rows.count, (0, int(rows.count - dependent.sum()))
        self.needed = np.unique(rows.columns[outside])
        self.owned_at = np.arange(rows.count)
        self.length = rows.count + len(self.needed)
        self.needed_at = np.arange(rows.count, self.length)
        place_of = np.empty(rows.count, np.int64)
        place_of[self.order] = np.arange(rows.count)
        entries, counts = rows.entries_of(self.order)
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        columns = rows.columns[entries]
        inside = ~outside[entries]
        # Use the shortest possible integers, because memory limits the speed of a product.
        local = np.empty(len(columns), np.uint16 if self.length <= 2**16 else np.uint32)
        local[inside] = place_of[columns[inside] - rows.first]
        local[~inside] = rows.count + np.searchsorted(self.needed, columns[~inside])
        self.columns, self.values = local, np.ascontiguousarray(rows.values[entries])
        small = self.values.shape[1:]
        self.is_short = self.values.size <= _SHORT_ROWS
        self._kernel = kernels.csr if not small else kernels.blocks_of_3 if small == (3, 3) else kernels.blocks

    def _compute(self, x: np.ndarray, y: np.ndarray, run: Run, begin: int, end: int) -> None:
        run(lambda first, last: self._kernel(self.starts, self.columns, self.values, x, y, first, last), begin, end)

    def transposed(self, x: np.ndarray, y: np.ndarray) -> None:
        """Add the transposed rows' product with own entries to an extended vector."""
        kernel = kernels.csr_transposed if self.values.ndim == 1 else kernels.blocks_transposed
        kernel(self.starts, self.columns, self.values, x, y, self.count)


class ByDiagonals(_ByRanges):
    """Stores diagonals; of a symmetric matrix only those on and above the main one.

    The rows keep their order; in an extended vector the entries of lower and higher ranks stand before and after the
    own ones, in the places that the diagonals refer to.
    """

    name = "diagonals"

    def __init__(self, rows: Rows, offsets: np.ndarray) -> None:
        self.count = rows.count
        self.order = np.arange(rows.count)
        low, high = max(0, -int(offsets.min())), max(0, int(offsets.max()))
        both = max(low, high)
        self._low = low = high = both
        self.needed = np.unique(rows.columns[rows.external])
        self.owned_at = low + np.arange(rows.count)
        self.needed_at = self.needed - rows.first + low
        self.length = low + rows.count + high
        self._independent = min(low, rows.count), max(min(low, rows.count), rows.count - high)
        row, kept = rows.row_of, offsets
        shift = rows.columns - rows.first - row
        table = np.zeros((len(offsets), rows.count), rows.values.dtype)
        table[np.searchsorted(offsets, shift), row] = rows.values
        self._kernel = kernels.diagonals
        if self._symmetric(table, offsets):
            kept = offsets[offsets >= 0]
            upper = np.zeros((len(kept), low + rows.count), rows.values.dtype)
            for number, offset in enumerate(kept):
                upper[number, low:] = table[np.searchsorted(offsets, offset)]
                upper[number, low - offset : low] = table[np.searchsorted(offsets, -offset), :offset]
            table, self._kernel = upper, kernels.symmetric_diagonals
        self._offsets, self._values = kept.astype(np.int64), table
        self.is_short = table.size <= _SHORT_DIAGONALS
        self._rows = rows

    @staticmethod
    def _symmetric(table: np.ndarray, offsets: np.ndarray) -> bool:
        """Return whether the matrix is symmetric, as far as this rank has both of two mirrored entries."""
        if not (0 in offsets and np.array_equal(offsets, -offsets[::-1]) and offsets[-1] <= table.shape[1]):
            return False
        return all(
            np.array_equal(
                table[np.searchsorted(offsets, offset), : table.shape[1] - offset],
                table[np.searchsorted(offsets, -offset), offset:],
            )
            for offset in offsets[offsets > 0]
        )

    def _compute(self, x: np.ndarray, y: np.ndarray, run: Run, begin: int, end: int) -> None:
        run(lambda first, last: self._kernel(self._offsets, self._values, x, y, self._low, first, last), begin, end)

    def transposed(self, x: np.ndarray, y: np.ndarray) -> None:
        """Add the transposed rows' product with own entries to an extended vector."""
        rows = self._rows
        kernels.csr_transposed(
            rows.starts, (rows.columns - rows.first + self._low).astype(np.uint32), rows.values, x, y, rows.count
        )


def stored(rows: Rows) -> ByRows | ByDiagonals | BySymmetricBlocks:
    """Choose the storage: diagonals if the entries fill a few of them well, one half of the blocks if these are
    symmetric, else rows."""
    if is_symmetric(rows):
        return BySymmetricBlocks(rows)
    if rows.values.ndim == 1 and len(rows.columns):
        offsets = np.unique(rows.columns - rows.first - rows.row_of)
        if (
            len(offsets) <= _MOST_DIAGONALS
            and len(rows.columns) >= _LEAST_FILLED * len(offsets) * rows.count
            and (np.abs(offsets).max() <= rows.count)
        ):
            return ByDiagonals(rows, offsets)
    return ByRows(rows)
