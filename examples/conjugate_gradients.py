"""Conjugate gradients as one compiled loop: the vector is gathered and the sums are reduced by remote writes.

    mpiexec -n 2 python examples/conjugate_gradients.py [nasa2910 | ... | nd24k | FILE.mtx] [--iterations 1000]

Rows of a sparse matrix are split over the ranks, as in Matsumoto et al. (2015), figure 13, with the quotient taken
after the reduction and without its third reduction. The matrices of its table 7 are stood in for by random bands with
as many rows and entries, symmetric and positive definite, made from a seed; a Matrix Market file is read as it is. The
same compiled loops run once more with mpi4py's collectives between them. The solution is known.
"""

import argparse
import os
import warnings
from pathlib import Path
from time import perf_counter

import mpi4py

# Serialized is enough, and with it MPI is fastest. MPI4PY_RC_THREAD_LEVEL=multiple in the environment chooses mpi4py's
# default.
mpi4py.rc.thread_level = os.environ.get("MPI4PY_RC_THREAD_LEVEL", "serialized")
import numba
import numpy as np
from cg_scaling import MATRICES
from mpi4py import MPI

from overlap.collectives import Collectives

ROUNDS, TOLERANCE = 9, 1e-11


def band(rows, entries, begin, end, seed=1):
    """Make the rows `begin` to `end` of a symmetric matrix with a dominant diagonal and random diagonals beside it.

    The length of the last diagonal is chosen such that the whole matrix has the given number of entries.
    """
    chance = np.random.default_rng(seed)
    offsets, wanted = [], (entries - rows) // 2
    for offset in 1 + chance.permutation(rows // 3):
        offsets.append(offset)
        if (wanted := wanted - (rows - offset)) <= 0:
            break
    lengths = {offset: rows - offset for offset in offsets}
    lengths[offsets[-1]] += wanted
    signed = np.array(sorted([0, *offsets, *(-offset for offset in offsets)]))
    first = np.arange(begin, end)[:, None] + np.minimum(signed, 0)  # the smaller of row and column
    lengths[0] = rows
    there = (first >= 0) & (first < np.array([lengths[abs(offset)] for offset in signed]))
    columns = np.broadcast_to(np.arange(begin, end)[:, None] + signed, there.shape)
    values = np.broadcast_to(np.where(signed == 0, 2.0 * len(offsets) + 1, -1.0 / (1 + abs(signed) % 7)), there.shape)
    starts = np.concatenate([[0], np.cumsum(there.sum(1))])
    return starts, columns[there].astype(np.uint32), values[there]


def from_file(path, begin, end):
    """Read the same rows from a Matrix Market file; return them and the file's numbers of rows and entries."""
    from scipy.io import mmread

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # SciPy may return a matrix or an array; both will do
        whole = mmread(path).tocsr()
    begin, end = min(begin, whole.shape[0]), min(end, whole.shape[0])
    part = whole[begin:end].sorted_indices()
    return part.indptr.astype(np.int64), part.indices.astype(np.uint32), part.data.astype(float)


@numba.njit(nogil=True, error_model="numpy")
def product(starts, columns, values, vector, result):
    for row in range(len(starts) - 1):
        total = 0.0
        for entry in range(np.uint64(starts[row]), np.uint64(starts[row + 1])):  # signed ones may count from the end
            total += values[entry] * vector[columns[entry]]
        result[row] = total


@numba.njit(nogil=True, fastmath=True)
def dot(a, b):
    total = 0.0
    for place in range(len(a)):
        total += a[place] * b[place]
    return total


@numba.njit(nogil=True, error_model="numpy")
def step(alpha, direction, image, x, remainder):
    """Make a step along the direction; return the square of this rank's part of the new residual."""
    for place in range(len(x)):
        x[place] += alpha * direction[place]
        remainder[place] -= alpha * image[place]
    return dot(remainder, remainder)


@numba.njit(nogil=True, error_model="numpy")
def turn(beta, remainder, direction):
    for place in range(len(direction)):
        direction[place] = remainder[place] + beta * direction[place]


@numba.njit(nogil=True, error_model="numpy")
def solve(fast, size, starts, columns, values, b, x, iterations, tolerance):
    """Solve A x = b for this rank's rows of x; return the number of iterations."""
    direction, everything, image = b.copy(), np.empty(len(b) * size), np.zeros(len(b))
    remainder = b.copy()
    rho = first = fast.allreduce(dot(remainder, remainder))
    for number in range(iterations):
        fast.Allgather(direction, everything)
        product(starts, columns, values, everything, image)
        alpha = rho / fast.allreduce(dot(direction, image))
        before, rho = rho, fast.allreduce(step(alpha, direction, image, x, remainder))
        if rho <= tolerance**2 * first:
            return number + 1
        turn(rho / before, remainder, direction)
    return iterations


def solve_by_mpi(comm, size, starts, columns, values, b, x, iterations, tolerance):
    """Solve with the same compiled loops and mpi4py's collectives."""
    direction, everything, image = b.copy(), np.empty(len(b) * size), np.zeros(len(b))
    remainder, send, sums = b.copy(), np.zeros(1), np.zeros(1)

    def total(value):
        send[0] = value
        comm.Allreduce(send, sums)
        return float(sums[0])

    rho = first = total(dot(remainder, remainder))
    for number in range(iterations):
        comm.Allgather(direction, everything)
        product(starts, columns, values, everything, image)
        alpha = rho / total(dot(direction, image))
        before, rho = rho, total(step(alpha, direction, image, x, remainder))
        if rho <= tolerance**2 * first:
            return number + 1
        turn(rho / before, remainder, direction)
    return iterations


def microseconds(comm, runs, b, expected, iterations):
    """Time an iteration of several solvers in turns, on the slowest rank; return the medians, also of the quotient in
    each round.

    Each round repeats the whole solution until it has made the given number of iterations, because a solver cannot
    iterate beyond the solution.
    """

    def solved_s(run, least):
        x, done = np.empty_like(b), 0
        comm.Barrier()
        started = perf_counter()
        while done < least:
            x[:] = 0.0
            done += run(b, x, 10_000, TOLERANCE)
        seconds = comm.allreduce(perf_counter() - started, MPI.MAX)
        error = comm.allreduce(float(np.abs(x - expected).max()), MPI.MAX)
        assert error < 1e-6, error
        return seconds / done

    for run in runs:
        solved_s(run, 1)  # compiles
    rounds = 1e6 * np.array([[solved_s(run, iterations) for run in runs] for _ in range(ROUNDS)])
    return *np.median(rounds, 0), np.median(rounds[:, 1] / rounds[:, 0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "matrices",
        nargs="*",
        default=["nasa2910"],
        metavar="MATRIX",
        help=f"{', '.join(MATRICES)} or a Matrix Market file",
    )
    parser.add_argument("--iterations", type=int, default=1000, help="of a round at least")
    given = parser.parse_args()
    comm = MPI.COMM_WORLD
    for name in given.matrices:
        if name in MATRICES:
            rows, entries = MATRICES[name]
        else:
            rows, _, entries = map(
                int, next(line for line in Path(name).read_text().splitlines() if line[0] != "%").split()
            )
        count = -(-rows // comm.size)  # the last rank has as many unknowns, but fewer rows
        begin, end = (min(rows, place * count) for place in (comm.rank, comm.rank + 1))
        matrix = band(rows, entries, begin, end) if name in MATRICES else from_file(name, begin, end)
        entries = comm.allreduce(len(matrix[2]))
        solution = np.zeros(count * comm.size)
        solution[:rows] = np.random.default_rng(2).standard_normal(rows)
        b = np.zeros(count)
        product(*matrix, solution, b)
        expected = solution[comm.rank * count : (comm.rank + 1) * count]
        with Collectives(comm) as fast:
            by_writes, by_mpi, gain = microseconds(
                comm,
                [
                    lambda *to: solve(fast, comm.size, *matrix, *to),
                    lambda *to: solve_by_mpi(comm, comm.size, *matrix, *to),
                ],
                b,
                expected,
                given.iterations,
            )
        if comm.rank == 0:
            print(
                f"{Path(name).stem}: {rows} rows, {entries} entries, {comm.size} ranks: "
                f"remote writes {by_writes:.1f} us an iteration, mpi4py {by_mpi:.1f} us, {gain:.2f}x",
                flush=True,
            )


if __name__ == "__main__":
    main()
