"""The rows of a rank as the user gives them, and their part in the rank's own columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import repr_of
from ..ranks.standalone_coordinator import StandaloneCoordinator

TYPES = tuple(map(np.dtype, ("f4", "f8", "c8", "c16")))
LEAST_ROWS = 1024  # least number of rows in a part
MOST_PARTS = 16


def supported(values: np.ndarray) -> np.ndarray:
    """Convert integers, half precision and other byte orders to a type that the kernels support."""
    kind = values.dtype.newbyteorder("=")
    if kind.kind in "biu":
        kind = np.dtype(float)
    return values.astype(np.float32 if kind == np.float16 else kind, copy=False)


def common_type(*types: Any) -> np.dtype:
    """Choose the type that a solver computes in from the types of its arrays; unsupported types count as ``f8`` or
    ``c16``, as in scipy."""
    dtypes = [np.dtype(dtype) for dtype in types]
    return np.result_type(*(dtype if dtype in TYPES else "c16" if dtype.kind == "c" else "f8" for dtype in dtypes))


@dataclass(frozen=True)
class Rows:
    """Holds the rows of a rank, sorted by columns, with duplicate entries added."""

    first: int  # global number of the first row
    count: int
    starts: np.ndarray  # (count + 1,)
    columns: np.ndarray  # global numbers
    values: np.ndarray  # (entries,) or (entries, b, b)

    @property
    def parts(self) -> int:
        """Return the number of parts that rows are cut into. It does not depend on the number of workers, because it
        determines the order of sums."""
        return max(1, min(MOST_PARTS, self.count // LEAST_ROWS))

    @property
    def row_of(self) -> np.ndarray:
        """Return the local row of each entry."""
        return np.repeat(np.arange(self.count), np.diff(self.starts))

    @property
    def external(self) -> np.ndarray:
        """Return for each entry whether its column belongs to another rank."""
        return (self.columns < self.first) | (self.columns >= self.first + self.count)

    def entries_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of the entries of some local rows, row after row, and the number of entries of each."""
        counts = np.diff(self.starts)[rows]
        before = np.cumsum(counts) - counts
        return np.repeat(self.starts[rows] - before, counts) + np.arange(counts.sum()), counts

    def diagonal(self) -> np.ndarray:
        """Return the entries (or blocks) of the diagonal, zeros for missing ones."""
        diagonal = np.zeros((self.count, *self.values.shape[1:]), self.values.dtype)
        row_of = self.row_of
        found = self.columns == self.first + row_of
        diagonal[row_of[found]] = self.values[found]
        return diagonal

    def sums(self) -> np.ndarray:
        """Sum the magnitudes of each row, (count,) or (count, b)."""
        sums = np.zeros((self.count, *self.values.shape[2:]), self.values.real.dtype)
        magnitudes = np.abs(self.values)
        np.add.at(sums, self.row_of, magnitudes if magnitudes.ndim == 1 else magnitudes.sum(axis=-1))
        return sums

    def own_part(self, order: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return starts, columns and values of the rows in their own columns, both in another order."""
        place_of = np.empty(self.count, np.uint32)
        place_of[order] = np.arange(self.count, dtype=np.uint32)
        entries, counts = self.entries_of(order)
        own = ~self.external[entries]
        entries, row_of = entries[own], np.repeat(np.arange(self.count), counts)[own]
        starts = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=self.count))])
        return starts, place_of[self.columns[entries] - self.first], self.values[entries]


def entries_problem(rows: np.ndarray, columns: np.ndarray, values: np.ndarray, count: Any, total: int) -> str | None:
    """Return what is wrong with entries of a matrix of `total` rows, `count` of them on this rank, or None."""
    if not isinstance(count, (int, np.integer)) or not 0 <= count < 2**62:
        return f"expected a number of rows, received count={repr_of(count)}"
    if total < 1:
        return "expected a matrix of at least one row, received none on any rank"
    if values.ndim not in (1, 3) or (values.ndim == 3 and values.shape[1] != values.shape[2]):
        return f"expected values of shape (entries,) or (entries, b, b), received {values.shape}"
    if values.dtype.kind not in "fc":
        return f"expected values that are numbers, received {values.dtype}"
    if not rows.shape == columns.shape == values.shape[:1]:
        return (
            f"expected a row and a column for each of {len(values)} values, received arrays of shapes "
            f"{rows.shape} and {columns.shape}"
        )
    for name, numbers in (("rows", rows), ("columns", columns)):
        if numbers.size and (numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= total):
            return (
                f"expected {name} to be integers from 0 to {total - 1}, received {numbers.dtype} from {numbers.min()} "
                f"to {numbers.max()}"
            )
    if values.dtype not in TYPES:
        return f"expected values of one of {', '.join(map(str, TYPES))}, received {values.dtype}: convert them first"
    if not np.isfinite(values).all():
        return "expected finite values, received some that are not"
    return None


def assembled(
    coordinator: StandaloneCoordinator, rows: np.ndarray, columns: np.ndarray, values: np.ndarray, counts: Sequence[int]
) -> Rows:
    """Assemble this rank's rows from the entries that all ranks have given."""
    limits = np.cumsum(counts)
    owner = np.searchsorted(limits, rows, side="right")
    if coordinator.maximum(int((owner != coordinator.rank).any())):
        parts = coordinator.alltoall(
            [(rows[owner == rank], columns[owner == rank], values[owner == rank]) for rank in range(coordinator.size)]
        )
        rows, columns, values = (np.concatenate(arrays) for arrays in zip(*parts))
    first, count = int(limits[coordinator.rank] - counts[coordinator.rank]), counts[coordinator.rank]
    key = (rows - first) * int(limits[-1]) + columns
    if not (np.diff(key) > 0).all():
        order = np.argsort(key, kind="stable")
        rows, columns, values, key = rows[order], columns[order], values[order], key[order]
        new = np.concatenate([[True], key[1:] != key[:-1]])
        if not new.all():
            values = np.add.reduceat(values, np.flatnonzero(new), axis=0)
            rows, columns = rows[new], columns[new]
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows - first, minlength=count))])
    return Rows(first, count, starts, columns, values)
