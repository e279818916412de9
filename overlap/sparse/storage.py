"""Stores a rank's rows: by rows with the independent ones first, by diagonals, or one half of symmetric blocks.

A row is *independent* if it has no column of another rank, else *dependent*. In the storage by rows both kinds are
contiguous, so that no list of rows is needed to compute the independent ones while other ranks' entries are under way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import kernels
from .rows import Rows
from .symmetric import BySymmetricBlocks, is_symmetric

_MOST_DIAGONALS = 40
_LEAST_FILLED = 0.5  # least share of filled places in the diagonals
_SHORT_ROWS, _SHORT_DIAGONALS = 2**10, 2**14  # in numbers: a product of this size takes about a microsecond

Run = Callable[..., None]  # the type of `ThreadPool.run`


class ByRows:
    """Stores compressed rows, of numbers or of small blocks.

    The own entries of a vector are in the order of the rows here (`order`), and the entries of other ranks come after
    them.

    Attributes
    ----------
    order : ndarray
        The row in the user's numbering at each place.
    needed, needed_at, owned_at, length
        Global numbers of the other ranks' entries; the places of these and of the own entries in an extended vector;
        its length.
    independent : int
        Number of independent rows.
    is_short : bool
        All rows together take no longer than a call of compiled code, so hiding an exchange behind some of them gains
        nothing.
    """

    name = "rows"

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
        # Use the shortest possible integers, because memory limits the speed of a product.
        local = np.empty(len(columns), np.uint16 if self.length <= 2**16 else np.uint32)
        local[inside] = place_of[columns[inside] - rows.first]
        local[~inside] = rows.count + np.searchsorted(self.needed, columns[~inside])
        self.columns, self.values = local, np.ascontiguousarray(rows.values[entries])
        small = self.values.shape[1:]
        self.is_short = self.values.size <= _SHORT_ROWS
        self._kernel = kernels.csr if not small else kernels.blocks_of_3 if small == (3, 3) else kernels.blocks

    def compute(self, x: np.ndarray, y: np.ndarray, run: Run) -> None:
        """Compute all rows."""
        self._compute(x, y, run, 0, self.count)

    def start(self, x: np.ndarray, y: np.ndarray, run: Run) -> None:
        """Compute the rows that need no other rank's entries."""
        self._compute(x, y, run, 0, self.independent)

    def finish(self, x: np.ndarray, y: np.ndarray, run: Run) -> None:
        """Compute the rest."""
        self._compute(x, y, run, self.independent, self.count)

    def _compute(self, x: np.ndarray, y: np.ndarray, run: Run, begin: int, end: int) -> None:
        run(
            lambda first, last: self._kernel(self.starts, self.columns, self.values, x, y, first, last),
            begin,
            end,
        )

    def transposed(self, x: np.ndarray, y: np.ndarray) -> None:
        """Add the transposed rows' product with own entries to an extended vector."""
        kernel = kernels.csr_transposed if self.values.ndim == 1 else kernels.blocks_transposed
        kernel(self.starts, self.columns, self.values, x, y, self.count)


class ByDiagonals:
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

    def compute(self, x: np.ndarray, y: np.ndarray, run: Run) -> None:
        """Compute all rows."""
        self._compute(x, y, run, 0, self.count)

    def start(self, x: np.ndarray, y: np.ndarray, run: Run) -> None:
        """Compute the rows that need no other rank's entries."""
        self._compute(x, y, run, *self._inner)

    def finish(self, x: np.ndarray, y: np.ndarray, run: Run) -> None:
        """Compute the rest."""
        self._compute(x, y, run, 0, self._inner[0])
        self._compute(x, y, run, self._inner[1], self.count)

    def _compute(self, x: np.ndarray, y: np.ndarray, run: Run, begin: int, end: int) -> None:
        run(
            lambda first, last: self._kernel(self._offsets, self._values, x, y, self._low, first, last),
            begin,
            end,
        )

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
