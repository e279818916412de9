"""`IC0`: incomplete Cholesky factors of the rows and columns of a rank, in an order with colours."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from ..checks import integer_problem, number_problem
from ..compiled import njit
from ..compiled.memory import FAR, prefetch
from ..errors import InputError
from .kernels import product_of_3
from .matrix import Matrix
from .preconditioners import Preconditioner

_LEAST_ROWS = 512  # workers share a colour of at least this many rows


class IC0(Preconditioner):
    """Incomplete Cholesky factors without fill-in of the diagonal part of each rank (collective to make).

    M is the inverse of (L + D) D^-1 (D + L^H), where L has the pattern of A below the diagonal and D is diagonal, or
    block diagonal if the matrix has blocks. Rows of one colour depend only on rows of other colours, so they can be
    computed in any order. The fewer colours, the worse the factors approximate A. Columns of other ranks are left out
    (block Jacobi over the ranks); `AdditiveSchwarz` takes them into account.

    Parameters
    ----------
    A : Matrix
        Hermitian and positive definite.
    colours : int, optional
        Colours of a CM-RCM order; by default the smallest number that a greedy colouring in the order of rows finds.
    shift : float
        The diagonal is first multiplied by 1 + shift, for matrices that have no such factors otherwise.

    Attributes
    ----------
    colours : int
        Colours of this rank.

    Raises
    ------
    InputError
        On all ranks: a pivot is not positive definite.

    Examples
    --------
    >>> from overlap.sparse import IC0, cg, diffusion
    >>> blocks = overlap.Blocks((8 * comm.size, 8, 8), grid=(comm.size, 1, 1))
    >>> with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A, IC0(A, colours=4) as M:
    ...     b = np.ones(512)
    ...     x, info = cg(A, b, rtol=1e-8, M=M)
    >>> info
    0
    """

    def __init__(self, A: Matrix, colours: int | None = None, shift: float = 0.0) -> None:
        super().__init__(A)
        problem = integer_problem("colours", colours, 1, none=True) or number_problem("shift", shift)
        with self._made(problem, colours=colours, shift=shift):
            starts, columns, values = A.local_rows.own_part(A.order)
            colour = colours_of(starts, columns, colours)
            self.colours = int(colour.max(initial=-1)) + 1
            rows = np.argsort(colour, kind="stable")
            blocks = values.reshape(len(values), A.block, A.block)
            self._lower, self._upper, self._inverse, bad = _factors(starts, columns, blocks, rows, 1.0 + shift)
            if bad >= 0:
                raise InputError(
                    "expected a matrix whose incomplete Cholesky factors exist, received one with a pivot that is not "
                    f"positive definite in row {A.rows.start + A.order[bad]}; try shift=0.1"
                )
            self._rows = rows.astype(np.uint32)
            if values.ndim == 1:
                self._lower, self._upper = (
                    (first, where, numbers.reshape(-1)) for first, where, numbers in (self._lower, self._upper)
                )
                self._inverse = self._inverse.reshape(-1)
            self._limits = np.concatenate([[0], np.cumsum(np.bincount(colour, minlength=self.colours))]).tolist()
            self._forward, self._backward = (
                (_forward, _backward)
                if values.ndim == 1
                else (_forward_blocks_of_3, _backward_blocks_of_3)
                if A.block == 3
                else (_forward_blocks, _backward_blocks)
            )

    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """Compute z = M r, in the order of storage; the matrix's workers share the rows of each colour."""
        self.check_open()
        team, rows, inverse = self._matrix.team, self._rows, self._inverse
        limits = self._limits if team.workers > 1 else [0, len(rows)]
        colours = list(pairwise(limits))
        for begin, end in colours:
            team.run(
                lambda first, last: self._forward(rows, *self._lower, inverse, r, z, first, last),
                begin,
                end,
                _LEAST_ROWS,
            )
        for begin, end in reversed(colours):
            team.run(
                lambda first, last: self._backward(rows, *self._upper, inverse, z, first, last), begin, end, _LEAST_ROWS
            )


@njit
def _factors(starts: Any, columns: Any, values: Any, rows: Any, diagonal: Any) -> Any:
    """Return lower and upper entries and inverse pivots, by place in the order `rows`, and a row with a bad pivot, or
    -1."""
    count, size = len(rows), values.shape[1]
    place = np.empty(count, np.int64)
    for number in range(count):
        place[rows[number]] = number
    lower, upper = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    for number in range(count):
        row = rows[number]
        for entry in range(starts[row], starts[row + 1]):
            neighbour = place[columns[entry]]
            if neighbour < number:
                lower[number + 1] += 1
                upper[neighbour + 1] += 1
    for number in range(count):
        lower[number + 1] += lower[number]
        upper[number + 1] += upper[number]
    below, above = np.empty(lower[count], np.uint32), np.empty(upper[count], np.uint32)
    left = np.zeros((lower[count], size, size), values.dtype)
    right = np.zeros((upper[count], size, size), values.dtype)
    inverse = np.zeros((count, size, size), values.dtype)
    filled = upper[:count].copy()
    where = np.full(count, -1, np.int64)  # for each column, the place of the current row's entry, or -1
    product, pivot = np.empty((size, size), values.dtype), np.empty((size, size), values.dtype)
    for number in range(count):
        row, last = rows[number], lower[number]
        pivot[:] = 0
        for entry in range(starts[row], starts[row + 1]):
            column = columns[entry]
            if column == row:
                pivot[:] = diagonal * values[entry]
            elif place[column] < number:
                at = last  # insert in the order of places, so that the operands of a product are complete before it
                while at > lower[number] and place[below[at - 1]] > place[column]:
                    below[at] = below[at - 1]
                    left[at] = left[at - 1]
                    at -= 1
                below[at] = column
                left[at] = values[entry]
                last += 1
        for entry in range(lower[number], last):
            where[below[entry]] = entry
        for entry in range(lower[number], last):
            neighbour = place[below[entry]]
            for common in range(lower[neighbour], lower[neighbour + 1]):
                own_entry = where[below[common]]
                if own_entry >= 0:
                    _scaled(left[own_entry], inverse[place[below[common]]], product)
                    _subtract(product, left[common], left[entry])
            _scaled(left[entry], inverse[neighbour], product)
            _subtract(product, left[entry], pivot)
            above[filled[neighbour]] = row
            for i in range(size):
                for j in range(size):
                    right[filled[neighbour], i, j] = np.conj(left[entry, j, i])
            filled[neighbour] += 1
        for entry in range(lower[number], last):
            where[below[entry]] = -1
        if not _invert(pivot, inverse[number]):
            return (lower, below, left), (upper, above, right), inverse, row
    return (lower, below, left), (upper, above, right), inverse, -1


@njit
def _scaled(a: Any, b: Any, c: Any) -> None:
    """Compute c = a b."""
    size = len(a)
    for i in range(size):
        for j in range(size):
            total = a.dtype.type(0)
            for k in range(size):
                total += a[i, k] * b[k, j]
            c[i, j] = total


@njit
def _subtract(a: Any, b: Any, c: Any) -> None:
    """Subtract: c -= a b^H."""
    size = len(a)
    for i in range(size):
        for j in range(size):
            total = a.dtype.type(0)
            for k in range(size):
                total += a[i, k] * np.conj(b[j, k])
            c[i, j] -= total


@njit
def _invert(a: Any, inverse: Any) -> Any:
    """Invert a Hermitian block, which is overwritten; return False if it is not positive definite."""
    size = len(a)
    for i in range(size):
        for j in range(size):
            inverse[i, j] = 1 if i == j else 0
    for k in range(size):
        pivot = a[k, k].real
        if not (pivot > 0 and pivot < np.inf):
            return False
        for j in range(size):
            a[k, j] /= pivot
            inverse[k, j] /= pivot
        for i in range(size):
            if i != k:
                factor = a[i, k]
                for j in range(size):
                    a[i, j] -= factor * a[k, j]
                    inverse[i, j] -= factor * inverse[k, j]
    return True


@njit
def _forward(rows: Any, lower: Any, below: Any, left: Any, inverse: Any, r: Any, z: Any, first: Any, last: Any) -> None:
    """Solve (L D^-1 + 1) D z = r for the rows at places `first` to `last` - 1, which do not depend on each other."""
    for number in range(first, last):
        row = rows[number]
        total = r[row]
        for entry in range(lower[number], lower[number + 1]):
            total -= left[entry] * z[below[entry]]
        z[row] = total * inverse[number]


@njit
def _backward(rows: Any, upper: Any, above: Any, right: Any, inverse: Any, z: Any, first: Any, last: Any) -> None:
    """Solve (1 + D^-1 L^H) z = z, in place, for the rows at places from `last` - 1 down to `first`."""
    for number in range(last - 1, first - 1, -1):
        total = z.dtype.type(0)
        for entry in range(upper[number], upper[number + 1]):
            total += right[entry] * z[above[entry]]
        z[rows[number]] -= total * inverse[number]


@njit
def _forward_blocks(
    rows: Any, lower: Any, below: Any, left: Any, inverse: Any, r: Any, z: Any, first: Any, last: Any
) -> None:
    """Do as `_forward`, for blocks."""
    size = inverse.shape[1]
    total = np.empty(size, r.dtype)
    for number in range(first, last):
        row = rows[number]
        for i in range(size):
            total[i] = r[row, i]
        for entry in range(lower[number], lower[number + 1]):
            column = below[entry]
            for i in range(size):
                for j in range(size):
                    total[i] -= left[entry, i, j] * z[column, j]
        for i in range(size):
            z[row, i] = 0
            for j in range(size):
                z[row, i] += inverse[number, i, j] * total[j]


@njit
def _backward_blocks(
    rows: Any, upper: Any, above: Any, right: Any, inverse: Any, z: Any, first: Any, last: Any
) -> None:
    """Do as `_backward`, for blocks."""
    size = inverse.shape[1]
    total = np.empty(size, z.dtype)
    for number in range(last - 1, first - 1, -1):
        total[:] = 0
        for entry in range(upper[number], upper[number + 1]):
            column = above[entry]
            for i in range(size):
                for j in range(size):
                    total[i] += right[entry, i, j] * z[column, j]
        for i in range(size):
            for j in range(size):
                z[rows[number], i] -= inverse[number, i, j] * total[j]


@njit
def _forward_blocks_of_3(
    rows: Any, lower: Any, below: Any, left: Any, inverse: Any, r: Any, z: Any, first: Any, last: Any
) -> None:
    """Do as `_forward`, for 3 x 3 blocks, whose sums stay in registers."""
    for number in range(first, last):
        row = rows[number]
        a, b, c = r[row, 0], r[row, 1], r[row, 2]
        for entry in range(lower[number], lower[number + 1]):
            column = below[entry]
            prefetch(left, 9 * entry + FAR)
            u, v, w = product_of_3(left, entry, z[column, 0], z[column, 1], z[column, 2])
            a, b, c = a - u, b - v, c - w
        z[row, 0], z[row, 1], z[row, 2] = product_of_3(inverse, number, a, b, c)


@njit
def _backward_blocks_of_3(
    rows: Any, upper: Any, above: Any, right: Any, inverse: Any, z: Any, first: Any, last: Any
) -> None:
    """Do as `_backward`, for 3 x 3 blocks."""
    for number in range(last - 1, first - 1, -1):
        row = rows[number]
        a = b = c = z.dtype.type(0)
        for entry in range(upper[number], upper[number + 1]):
            column = above[entry]
            prefetch(right, 9 * entry - FAR)
            u, v, w = product_of_3(right, entry, z[column, 0], z[column, 1], z[column, 2])
            a, b, c = a + u, b + v, c + w
        u, v, w = product_of_3(inverse, number, a, b, c)
        z[row, 0] -= u
        z[row, 1] -= v
        z[row, 2] -= w


# ---- colours -------------------------------------------------------------------------------------
#
# Orders of elimination with many independent rows: the graph of the matrix is coloured so that neighbours differ.


def colours_of(starts: np.ndarray, columns: np.ndarray, wanted: int | None) -> np.ndarray:
    """Choose the colour of each row of a matrix with a symmetric pattern and local columns only, from 0 on.

    `wanted` colours are those of a cyclic reverse Cuthill-McKee order (CM-RCM): the levels of a breadth-first search,
    numbered from the last one, take the colours in turn; at most as many as there are levels. If two rows of a level
    are neighbours, or with None, each row in turn takes the first colour that no neighbour has: two colours for a
    7-point stencil, eight for 27 points.
    """
    if wanted is not None:
        levels = _levels(starts, columns)
        colours = (levels.max(initial=0) - levels) % max(2, min(wanted, int(levels.max(initial=0)) + 1))
        if _proper(starts, columns, colours):
            return colours
    return _greedy(starts, columns)


@njit
def _greedy(starts: Any, columns: Any) -> Any:
    """Give each row the first colour that no earlier neighbour has."""
    rows = len(starts) - 1
    colour = np.full(rows, -1, np.int64)
    taken = np.full(rows + 1, -1, np.int64)  # for each colour, the last row that has a neighbour of this colour
    for row in range(rows):
        for entry in range(starts[row], starts[row + 1]):
            neighbour_colour = colour[columns[entry]]
            if neighbour_colour >= 0:
                taken[neighbour_colour] = row
        chosen = 0
        while taken[chosen] == row:
            chosen += 1
        colour[row] = chosen
    return colour


@njit
def _levels(starts: Any, columns: Any) -> Any:
    """Return the levels of a breadth-first search from a row at the border of the graph, for each connected part."""
    rows = len(starts) - 1
    level = np.full(rows, -1, np.int64)
    queue = np.empty(rows, np.int64)
    for root in range(rows):
        if level[root] >= 0:
            continue
        begin = root
        for attempt in range(2):  # the row that a first search reaches last lies at the border: search again from it
            first, last = 0, 1
            queue[0] = begin
            level[begin] = 0
            while first < last:
                row = queue[first]
                first += 1
                for entry in range(starts[row], starts[row + 1]):
                    column = columns[entry]
                    if level[column] < 0:
                        level[column] = level[row] + 1
                        queue[last] = column
                        last += 1
            begin = queue[last - 1]
            if attempt == 0:
                for place in range(last):
                    level[queue[place]] = -1
    return level


@njit
def _proper(starts: Any, columns: Any, colour: Any) -> Any:
    """Return whether no two neighbours have the same colour."""
    for row in range(len(starts) - 1):
        for entry in range(starts[row], starts[row + 1]):
            if columns[entry] != row and colour[columns[entry]] == colour[row]:
                return False
    return True
