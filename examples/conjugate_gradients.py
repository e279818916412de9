"""Conjugate gradients, compiled whole: the vector is gathered and the sums are reduced by remote writes.

    mpiexec -n 2 python examples/conjugate_gradients.py [rows] [entries per row] [iterations]

Rows of a sparse matrix are split over the ranks of one node, as in Matsumoto et al. (2015), figure 13, with the
quotient taken after the reduction and without its third reduction. The matrix is random, symmetric and positive
definite; its solution is known.
"""

import sys
from time import perf_counter

import numba
import numpy as np
from mpi4py import MPI

from overlap.collectives import Collectives


def matrix(rows, per_row, seed=1):
    """Row pointers, columns and values of a band of random entries, symmetric, with a dominant diagonal."""
    half = (per_row - 1) // 2
    chance = np.random.default_rng(seed)
    offsets = np.concatenate([[1], np.sort(chance.choice(np.arange(2, max(4 * half, half + 2)), half - 1,
                                                         replace=False))]) if half else np.zeros(0, int)
    starts, columns, values = [0], [], []
    for row in range(rows):
        here = np.concatenate([row - offsets[::-1], [row], row + offsets])
        here = here[(0 <= here) & (here < rows)]
        entries = -1.0 / (1 + np.abs(here - row) % 7)
        entries[here == row] = 2 * len(offsets) + 1
        columns.append(here)
        values.append(entries)
        starts.append(starts[-1] + len(here))
    return np.array(starts), np.concatenate(columns).astype(np.uint32), np.concatenate(values)


@numba.njit(nogil=True, error_model="numpy")
def product(starts, columns, values, vector, result):
    for row in range(len(result)):
        total = 0.0
        for entry in range(starts[row], starts[row + 1]):
            total += values[entry] * vector[columns[entry]]
        result[row] = total


@numba.njit(nogil=True, fastmath=True)
def dot(a, b):
    total = 0.0
    for place in range(len(a)):
        total += a[place] * b[place]
    return total


@numba.njit(nogil=True, error_model="numpy")
def solve(fast, size, starts, columns, values, b, x, iterations, tolerance):
    """x with A x = b, of this rank's rows; returns the iterations that it took."""
    count = len(b)
    direction, everything, image = b.copy(), np.empty(count * size), np.empty(count)
    remainder = b.copy()
    rho = first = fast.allreduce(dot(remainder, remainder))
    for number in range(iterations):
        fast.Allgather(direction, everything)
        product(starts, columns, values, everything, image)
        alpha = rho / fast.allreduce(dot(direction, image))
        x += alpha * direction
        remainder -= alpha * image
        before, rho = rho, fast.allreduce(dot(remainder, remainder))
        if rho <= tolerance**2 * first:
            return number + 1
        direction *= rho / before
        direction += remainder
    return iterations


def main(rows=2910, per_row=59, iterations=1000):
    comm = MPI.COMM_WORLD
    count = -(-rows // comm.size)  # the last rank's rows are filled up with those of the identity
    starts, columns, values = matrix(rows, per_row)
    mine = np.minimum(np.arange(comm.rank * count, (comm.rank + 1) * count + 1), rows)
    mine_starts = starts[mine] - starts[mine[0]]
    part = slice(starts[mine[0]], starts[mine[-1]])
    expected = np.zeros(count * comm.size)
    expected[:rows] = np.random.default_rng(2).standard_normal(rows)
    b, x = np.zeros(count), np.zeros(count)
    product(mine_starts, columns[part], values[part], expected, b)
    with Collectives(comm) as fast:
        arguments = comm.size, mine_starts, columns[part], values[part], b
        solve(fast, *arguments, np.zeros(count), 1, 0.0)  # compiles
        comm.Barrier()
        started = perf_counter()
        taken = solve(fast, *arguments, x, iterations, 1e-10)
        wall_s = perf_counter() - started
    error = np.abs(x - expected[comm.rank * count:(comm.rank + 1) * count]).max()
    assert comm.allreduce(error, MPI.MAX) < 1e-7, error
    if comm.rank == 0:
        print(f"{rows} rows, {len(values)} entries, {comm.size} ranks: {taken} iterations, "
              f"{1e6 * wall_s / taken:.1f} us each")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
