"""Ways to multiply with a sparse matrix: the library's, and those that it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from time import perf_counter, sleep
from typing import Any

import numpy as np
from mpi4py import MPI

from ...arrays import block
from ...compiled import njit
from ...compiled.memory import FAR, prefetch
from ...sparse import Matrix
from ...sparse.kernels import product_of_3
from ...sparse.rows import Rows
from ...sparse.storage import ByRows, Run

SEVEN = ((0, 0, 0), (-1, 0, 0), (1, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, -1), (0, 0, 1))


class NotHidden(Matrix):
    """Wraps a matrix so that products exchange the halo before they compute. Free the matrix, not this object."""

    def __init__(self, A: Matrix) -> None:
        vars(self).update(vars(A))

    def multiply(self, extended: np.ndarray, out: np.ndarray) -> None:
        """Exchange, then compute."""
        self.halo.exchange(extended)
        self.compute(extended, out)


class LateSums(Matrix):
    """Wraps a matrix so that each sum over all ranks takes at least a given time, as on a machine with very many ranks.
    Free the matrix, not this object.
    """

    def __init__(self, A: Matrix, delay_s: float) -> None:
        vars(self).update(vars(A))
        self._original, self._delay_s = A, delay_s

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum, then sleep for the rest of the time."""
        end_s = perf_counter() + self._delay_s
        self._original.sum(values)
        _sleep_until(end_s)
        return values

    def start_sum(self, values: np.ndarray, sums: np.ndarray) -> Callable[[], None]:
        """Begin to sum; the returned function sleeps for the rest of the time."""
        end_s = perf_counter() + self._delay_s
        finish = self._original.start_sum(values, sums)

        def late() -> None:
            finish()
            _sleep_until(end_s)

        return late


def _sleep_until(end_s: float) -> None:
    sleep(max(0.0, end_s - perf_counter()))


class StoredByRows(Matrix):
    """Stores all entries of the rows, also of symmetric matrices, with the independent rows first."""

    _choose = staticmethod(ByRows)


class ByIndexLists:
    """Stores rows of 3 x 3 blocks in the user's order; two lists name the independent and the dependent rows.

    The published code of this comparison hid its halo in this way. It lost time, because every row is found indirectly.
    Attributes are those of `ByRows`.
    """

    name = "index lists"
    is_short = False

    def __init__(self, rows: Rows) -> None:
        outside = rows.external
        self.order = self.owned_at = np.arange(rows.count)
        self.needed = np.unique(rows.columns[outside])
        self.length = rows.count + len(self.needed)
        self.needed_at = np.arange(rows.count, self.length)
        columns = np.where(outside, rows.count + np.searchsorted(self.needed, rows.columns), rows.columns - rows.first)
        self._rows = rows.starts, columns.astype(np.uint32), rows.values
        dependent = np.zeros(rows.count, bool)
        dependent[rows.row_of[outside]] = True
        self._independent, self._dependent = (
            np.flatnonzero(kind).astype(np.uint32) for kind in (~dependent, dependent)
        )

    def compute(self, x: np.ndarray, y: np.ndarray, run: Run) -> None:
        """Compute all rows."""
        self.start(x, y, run)
        self.finish(x, y, run)

    def start(self, x: np.ndarray, y: np.ndarray, run: Run) -> None:
        """Compute the rows that need no other rank's entries."""
        run(lambda first, last: _listed(self._independent, *self._rows, x, y, first, last), 0, len(self._independent))

    def finish(self, x: np.ndarray, y: np.ndarray, run: Run) -> None:
        """Compute the rest."""
        run(lambda first, last: _listed(self._dependent, *self._rows, x, y, first, last), 0, len(self._dependent))


@njit
def _listed(rows: Any, starts: Any, columns: Any, values: Any, x: Any, y: Any, first: int, last: int) -> None:
    """Multiply the rows of a list, as `kernels.blocks_of_3` multiplies consecutive rows."""
    for number in range(first, last):
        row = rows[number]
        a = b = c = values.dtype.type(0)
        for entry in range(starts[row], starts[row + 1]):
            column = columns[entry]
            prefetch(values, 9 * entry + FAR)
            u, v, w = product_of_3(values, entry, x[column, 0], x[column, 1], x[column, 2])
            a, b, c = a + u, b + v, c + w
        y[row, 0] = a
        y[row, 1] = b
        y[row, 2] = c


class Listed(Matrix):
    """Stores a matrix with index lists."""

    _choose = staticmethod(ByIndexLists)


def springs(comm: MPI.Intracomm, shape: tuple[int, ...], kind: Callable[..., Matrix] = Matrix) -> Matrix:
    """Make the stiffness matrix of a lattice whose points are joined to 26 neighbours by springs; points outside are
    fixed. Collective.

    It has the pattern of elasticity by trilinear hexahedra: 27 blocks of 3 x 3 in a row. It is symmetric and positive
    definite.
    """
    planes = block(shape[0], comm.size)[comm.rank]
    grid = np.meshgrid(np.arange(planes.start, planes.stop), *map(np.arange, shape[1:]), indexing="ij")
    offsets = list(product((-1, 0, 1), repeat=3))
    stiffness = {offset: np.eye(3) + np.outer(offset, offset) for offset in offsets if any(offset)}
    entries: list[tuple[Any, Any, Any]] = []
    for offset in offsets:
        neighbour = [axis + step for axis, step in zip(grid, offset)]
        inside = np.all([(axis >= 0) & (axis < length) for axis, length in zip(neighbour, shape)], axis=0)
        value = -stiffness[offset] if any(offset) else np.sum(list(stiffness.values()), axis=0)
        entries.append(
            (
                np.ravel_multi_index([axis[inside] for axis in grid], shape),
                np.ravel_multi_index([axis[inside] for axis in neighbour], shape),
                np.broadcast_to(value, (int(inside.sum()), 3, 3)),
            )
        )
    rows, columns, values = (np.concatenate(arrays) for arrays in zip(*entries))
    return kind(comm, rows, columns, values, grid[0].size)


def products(A: Matrix) -> dict[str, Callable[[], Any]]:
    """Return the functions ``C``, ``T``, ``off`` and ``auto`` of a product. Each returns the product, except ``T``."""
    extended, x = A.vector()
    x[...] = np.random.default_rng(A.halo.comm.rank).random(x.shape)
    y = np.empty_like(x)

    def multiplied(how: Callable[[np.ndarray, np.ndarray], Any]) -> np.ndarray:
        how(extended, y)
        return y

    return {
        "C": lambda: multiplied(A.compute),
        "T": lambda: A.halo.exchange(extended),
        "off": lambda: multiplied(NotHidden(A).multiply),
        "auto": lambda: multiplied(A.multiply),
    }
