"""CG: the smallest eigenvalue of a sparse matrix by inverse iteration, on `overlap.sparse`.

NPB's matrix is shifted so far that it is negative definite. Its negative is stored. For it conjugate gradients take the
same steps with the opposite sign of z, so zeta = shift - 1 / (x . z).
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import numpy as np
from mpi4py import MPI

from overlap.arrays import block
from overlap.compiled import njit
from overlap.sparse import Matrix, cg

from .kernel import Advance, Check, Kernel, Weights, nodes
from .random_numbers import MASK, SCALE, jumped, power

SEED = 314159265
CONDITION = 0.1
STEPS = 25  # steps of conjugate gradients for each z
ROUNDS = 9  # number of rounds of products in which speeds are measured
ROWS = {"S": 1400, "W": 7000, "A": 14000, "B": 75000, "C": 150000}
ENTRIES = {"S": 7, "W": 8, "A": 11, "B": 13, "C": 15}  # entries per random vector
ITERATIONS = {"S": 15, "W": 15, "A": 15, "B": 75, "C": 75}
SHIFTS = {"S": 10.0, "W": 12.0, "A": 20.0, "B": 60.0, "C": 110.0}
ZETAS = {"S": 8.5971775078648, "W": 10.362595087124, "A": 17.130235054029, "B": 22.712745482631, "C": 28.973605592845}

_STEP = power(1)


@njit
def vectors(state, n, nonzer, places, values):
    """Draw the random sparse vectors: `places` (n, nonzer + 1) from 0 on, the last one -1 where there is none, and
    `values`.
    """
    limit = 1
    while limit < n:
        limit *= 2
    state = (state * _STEP) & MASK
    for row in range(n):
        count = 0
        while count < nonzer:
            state = (state * _STEP) & MASK
            value = np.int64(state) * SCALE
            state = (state * _STEP) & MASK
            place = int(limit * (np.int64(state) * SCALE))
            if place >= n:
                continue
            known = False
            for other in range(count):
                known |= places[row, other] == place
            if known:
                continue
            places[row, count], values[row, count] = place, value
            count += 1
        places[row, nonzer] = -1
        at = nonzer
        for other in range(nonzer):
            if places[row, other] == row:
                at = other
        places[row, at], values[row, at] = row, 0.5


@njit
def products(places, values, first, last, ratio, rows, columns, entries):
    """List the entries of the sum of w^i x_i x_i^T in some rows; return their number.

    Without arrays, only count them.
    """
    count = 0
    size = 1.0
    for vector in range(len(places)):
        for i in range(places.shape[1]):
            row = places[vector, i]
            if first <= row < last:
                for j in range(places.shape[1]):
                    if places[vector, j] >= 0:
                        if len(rows):
                            rows[count], columns[count] = row, places[vector, j]
                            entries[count] = size * values[vector, i] * values[vector, j]
                        count += 1
        size *= ratio
    return count


def triplets(letter: str, part: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row numbers, columns and values of the negative of NPB's matrix in some rows; values of the same place
    must be added.
    """
    n, nonzer = ROWS[letter], ENTRIES[letter]
    places, values = np.empty((n, nonzer + 1), np.int64), np.zeros((n, nonzer + 1))
    vectors(jumped(SEED, 0), n, nonzer, places, values)
    ratio = CONDITION ** (1 / n)
    nothing = np.empty(0, np.int64)
    count = products(places, values, part.start, part.stop, ratio, nothing, nothing, np.empty(0))
    rows, columns, entries = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count)
    products(places, values, part.start, part.stop, ratio, rows, columns, entries)
    mine = np.arange(part.start, part.stop)
    return (
        np.concatenate([rows, mine]),
        np.concatenate([columns, mine]),
        -np.concatenate([entries, np.full(len(mine), CONDITION - SHIFTS[letter])]),
    )


class PlainMatrix(Matrix):
    """Wraps a matrix so that products wait for other ranks' entries before they begin."""

    def multiply(self, extended: np.ndarray, out: np.ndarray) -> None:
        self.halo.exchange(extended)
        self.compute(extended, out)


class CG(Kernel):
    """The kernel CG; see `Kernel`."""

    name, title, unit = "cg", "CG", "rows"

    def __init__(self, comm: MPI.Intracomm, letter: str, weights: Weights, advance: Advance, hide: bool = True) -> None:
        super().__init__(comm, letter, weights, advance, hide)
        part = block(ROWS[letter], comm.size, weights)[comm.rank]
        self.share = part.stop - part.start
        self._matrix = (Matrix if hide else PlainMatrix)(comm, *triplets(letter, part), self.share)
        # A sum of two numbers takes next to no time on a node, but as long as any message between nodes.
        self._single = hide and nodes(comm) > 1
        self._zeta = np.nan

    @property
    def size(self) -> str:
        return str(ROWS[self.letter])

    @property
    def iterations(self) -> int:
        return ITERATIONS[self.letter]

    @property
    def mop(self) -> float:
        z = ENTRIES[self.letter] * (ENTRIES[self.letter] + 1)
        return 2 * self.iterations * ROWS[self.letter] * (3 + z + STEPS * (5 + z) + 3) / 1e6

    def warm_up(self) -> None:
        self._iterate(np.ones(self.share))
        extended, own = self._matrix.vector()
        product = np.empty_like(own)
        found = []
        for _ in range(ROUNDS):
            self.comm.Barrier()
            begun = perf_counter()
            for _ in range(STEPS):
                self._matrix.compute(extended, product)
            found.append((perf_counter() - begun) / STEPS)
        self._product_s = median(found)

    def run(self) -> None:
        begun = perf_counter()
        x = np.ones(self.share)
        for iteration in range(self.iterations):
            x = self._iterate(x)
            self.advance(iteration + 1, self.iterations)
        products = self.iterations * (STEPS + 1)
        # All but the products counts as waiting, which is little here.
        self.waited_s = max(0.0, perf_counter() - begun - products * self._product_s)
        self.messages = products * len(self._matrix.halo.transports)

    def _iterate(self, x):
        """Return the next x, and zeta."""
        z = cg(self._matrix, x, rtol=0.0, maxiter=STEPS, single_reduction=self._single).x
        sums = self._matrix.sum(np.array([x @ z, z @ z]))
        self._zeta = SHIFTS[self.letter] - 1 / sums[0]
        return z / -np.sqrt(sums[1])

    def checks(self) -> list[Check]:
        return [Check("zeta", float(self._zeta), ZETAS[self.letter], 1e-10)]

    def close(self) -> None:
        self._matrix.free()
