"""How a rank stores its rows: by rows, independent ones first, or by diagonals.

A row is *independent* if it has no column of another rank, else *dependent*. Both kinds are contiguous, so that no list of rows is needed
to compute the independent ones while the others' columns are under way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import kernels

_MOST_DIAGONALS = 40
_LEAST_FILLED = 0.5     # of all places of the diagonals


@dataclass(frozen=True)
class Rows:
    """The rows of a rank: sorted by columns, duplicates summed up.

    Attributes
    ----------
    first, count : int
        Global number of the first row, and how many there are.
    starts : ndarray, (count + 1,)
    columns : ndarray
        Global numbers.
    values : ndarray, (entries,) or (entries, b, b)
    """

    first: int
    count: int
    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray

    @property
    def row_of(self) -> np.ndarray:
        """The local row of each entry."""
        return np.repeat(np.arange(self.count), np.diff(self.starts))

    @property
    def external(self) -> np.ndarray:
        """For each entry, whether its column belongs to another rank."""
        return (self.columns < self.first) | (self.columns >= self.first + self.count)

    def diagonal(self) -> np.ndarray:
        """The entries (or blocks) of the diagonal; zeros where there is none."""
        found = np.zeros((self.count, *self.values.shape[1:]), self.values.dtype)
        kernels.diagonal(self.starts, self.columns, _flat(self.values), self.first, _flat(found))
        return found

    def sums(self) -> np.ndarray:
        """The sum of magnitudes of each row, (count,) or (count, b)."""
        size = self.values.shape[1] if self.values.ndim == 3 else 1
        found = np.zeros((self.count, size), self.values.real.dtype)
        kernels.row_sums(self.starts, _flat(self.values), found)
        return found if self.values.ndim == 3 else found[:, 0]


class ByRows:
    """Compressed rows, of numbers or of small blocks.

    The own entries of a vector are in the order of the rows here (`order`), and the entries of other ranks come after them.

    Attributes
    ----------
    order : ndarray
        The row, as the user numbers them, at each place.
    needed, needed_at, owned_at, length
        Global numbers of other ranks' entries, where these and the own ones stand in an extended vector, its length.
    independent : int
        Number of independent rows.
    """

    def __init__(self, rows: Rows) -> None:
        outside = rows.external
        dependent = np.zeros(rows.count, bool)
        dependent[rows.row_of[outside]] = True
        self.order = np.argsort(dependent, kind="stable")
        self.count, self.independent = rows.count, int(rows.count - dependent.sum())
        self.needed = np.unique(rows.columns[outside])
        self.owned_at = np.arange(rows.count)
        self.length = rows.count + len(self.needed)
        self.needed_at = np.arange(rows.count, self.length)
        place_of = np.empty(rows.count, np.int64)
        place_of[self.order] = np.arange(rows.count)
        counts = np.diff(rows.starts)[self.order]
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        entries = np.repeat(rows.starts[:-1][self.order] - self.starts[:-1], counts) + np.arange(self.starts[-1])
        columns = rows.columns[entries]
        inside = ~outside[entries]
        local = np.empty(len(columns), np.uint32)
        local[inside] = place_of[columns[inside] - rows.first]
        local[~inside] = rows.count + np.searchsorted(self.needed, columns[~inside])
        self.columns, self.values = local, np.ascontiguousarray(rows.values[entries])
        small = self.values.shape[1:]
        self._kernel = kernels.csr if not small else kernels.blocks_of_3 if small == (3, 3) else kernels.blocks

    def independent_rows(self, x: np.ndarray, y: np.ndarray) -> None:
        """Compute the rows that need no other rank's entries."""
        self._kernel(self.starts, self.columns, self.values, x, y, 0, self.independent)

    def dependent_rows(self, x: np.ndarray, y: np.ndarray) -> None:
        """Compute the rest."""
        self._kernel(self.starts, self.columns, self.values, x, y, self.independent, self.count)

    def transposed(self, x: np.ndarray, y: np.ndarray) -> None:
        """Add the transposed rows' product with own entries to an extended vector."""
        kernel = kernels.csr_transposed if self.values.ndim == 1 else kernels.blocks_transposed
        kernel(self.starts, self.columns, self.values, x, y, self.count)


class ByDiagonals:
    """Diagonals, of a symmetric matrix only those on and above the main one.

    The rows keep their order; in an extended vector the entries of lower and of higher ranks stand before and after the own
    ones, where the diagonals find them.
    """

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
        self._inner = (min(low, rows.count), max(min(low, rows.count), rows.count - high))
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
                upper[number, low - offset:low] = table[np.searchsorted(offsets, -offset), :offset]
            table, self._kernel = upper, kernels.symmetric_diagonals
        self._offsets, self._values = kept.astype(np.int64), table
        self._rows = rows

    @staticmethod
    def _symmetric(table, offsets):
        """Whether the matrix is, as far as this rank has both of two mirrored entries."""
        if not (0 in offsets and np.array_equal(offsets, -offsets[::-1]) and offsets[-1] <= table.shape[1]):
            return False
        return all(np.array_equal(table[np.searchsorted(offsets, offset), :table.shape[1] - offset],
                                  table[np.searchsorted(offsets, -offset), offset:])
                   for offset in offsets[offsets > 0])

    def independent_rows(self, x: np.ndarray, y: np.ndarray) -> None:
        """Compute the rows that need no other rank's entries."""
        self._kernel(self._offsets, self._values, x, y, self._low, *self._inner)

    def dependent_rows(self, x: np.ndarray, y: np.ndarray) -> None:
        """Compute the rest."""
        self._kernel(self._offsets, self._values, x, y, self._low, 0, self._inner[0])
        self._kernel(self._offsets, self._values, x, y, self._low, self._inner[1], self.count)

    def transposed(self, x: np.ndarray, y: np.ndarray) -> None:
        """Add the transposed rows' product with own entries to an extended vector."""
        rows = self._rows
        kernels.csr_transposed(rows.starts, (rows.columns - rows.first + self._low).astype(np.uint32), rows.values, x, y,
                               rows.count)


def own_part(rows: Rows, order: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows and columns of this rank alone: starts, columns and values in the order of storage."""
    place_of = np.empty(rows.count, np.uint32)
    place_of[order] = np.arange(rows.count, dtype=np.uint32)
    starts = kernels.count_own(rows.starts, rows.columns, rows.first, order)
    columns = np.empty(starts[-1], np.uint32)
    values = np.empty((starts[-1], *rows.values.shape[1:]), rows.values.dtype)
    kernels.copy_own(rows.starts, rows.columns, _flat(rows.values), rows.first, order, place_of, starts, columns, _flat(values))
    return starts, columns, values


def _flat(values):
    """Entries with their numbers in one axis."""
    return values.reshape(len(values), int(np.prod(values.shape[1:])))


def stored(rows: Rows) -> ByRows | ByDiagonals:
    """Choose: diagonals where the rows' entries fill few of them well."""
    if rows.values.ndim == 1 and len(rows.columns):
        offsets = np.unique(rows.columns - rows.first - rows.row_of)
        if len(offsets) <= _MOST_DIAGONALS and len(rows.columns) >= _LEAST_FILLED * len(offsets) * rows.count and (
                np.abs(offsets).max() <= rows.count):
            return ByDiagonals(rows, offsets)
    return ByRows(rows)
