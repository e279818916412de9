"""Halos and sparse solvers, measured on the ranks of a communicator: `overlap bench halo | spmv | cg | mgcg`.

In every round each way is timed once, one after the other, in an order that is rotated; a time is from a barrier to the end of the
slowest rank, and what is told is the median.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from ...arrays import Blocks, block
from ...compiled import njit
from ...halo import Halo
from ...sparse import Jacobi, Matrix, Multigrid, cg, diffusion
from ...timing import model
from .petsc import petsc_way

_CHUNK = 16         # planes of a sweep between two looks at the halo
_ITERATIONS = 30
_RTOL = 1e-8        # of a multigrid solution
MATRICES = ("poisson", "elastic")
SEVEN = ((0, 0, 0), (-1, 0, 0), (1, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, -1), (0, 0, 1))


@dataclass(frozen=True)
class SolverJob:
    """What is measured: its name in words, and the default shape."""

    title: str
    detail: str
    shape: tuple[int, int, int]


SOLVERS = {
    "halo": SolverJob("7-point sweep", ", shape per rank, --slices planes exchanged", (128, 128, 128)),
    "spmv": SolverJob("sparse product", ", --matrix, global shape", (64, 64, 64)),
    "cg": SolverJob("conjugate gradients with Jacobi", ", --matrix, global shape", (64, 64, 64)),
    "mgcg": SolverJob("conjugate gradients with multigrid", ", to 1e-8, global shape", (64, 64, 64))}


@njit
def sweep(u, v, first, last):
    """v = (sum of six neighbours - 6 u) of the planes from `first` to `last` - 1; no ghost cells along the other axes."""
    for z in range(first, last):
        for y in range(1, u.shape[1] - 1):
            low, high, here, down, up, out = u[z, y - 1], u[z, y + 1], u[z, y], u[z - 1, y], u[z + 1, y], v[z, y]
            for x in range(1, len(out) - 1):
                out[x] = low[x] + high[x] + down[x] + up[x] + here[x - 1] + here[x + 1] - 6 * here[x]


def measure(comm: MPI.Intracomm, workload: str, shape: tuple[int, ...], planes: int, rounds: int,
            matrix: str = "poisson") -> dict[str, Any]:
    """Measure one workload. Collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    workload : str
        One of `SOLVERS`.
    shape : tuple of int
    planes : int
        Width of a halo.
    rounds : int
    matrix : {"poisson", "elastic"}
        What spmv and cg multiply with: 7 points, or 3 x 3 blocks at 27 points.

    Returns
    -------
    dict
        ``C_s`` and ``T_s``, computing and exchanging alone; ``off_s``, one after the other; ``auto_s``, hidden by this library;
        ``plain_s`` (halo), by Irecv and Isend; ``full_s`` (spmv, elastic), the same product if no half of the matrix is left out; ``hidden`` and ``control_hidden``, the shares of min(C, T) that auto and
        off hide; ``iteration_s`` (cg, mgcg); ``setup_s``, ``solve_s``, ``iterations`` and ``switch``, the level from which coarser ones
        are gathered (mgcg); ``petsc_s``, a product, an iteration or a solution of PETSc, where petsc4py is installed; ``seconds``, all times.
    """
    facts: dict[str, Any] = {}
    if workload == "halo":
        ways, close = _halo(comm, shape, planes)
    elif workload == "mgcg":
        ways, close, facts = _multigrid(comm, shape)
    else:
        ways, close = _sparse(comm, shape, workload, matrix)
    names = list(ways)
    for name in names:
        ways[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            comm.Barrier()
            started = perf_counter()
            ways[name]()
            seconds[name].append(comm.allreduce(perf_counter() - started, MPI.MAX))
    close()
    median = {name: statistics.median(values) for name, values in seconds.items()}
    for name in ("iteration", "petsc") if workload == "cg" else ():
        if name in median:
            median[name] /= _ITERATIONS
    if workload == "mgcg":
        median["iteration"] = median["solve"] / facts["iterations"]
    C, T = median["C"], median["T"]
    return {f"{name}_s": value for name, value in median.items()} | {
        "workload": workload, "matrix": matrix if workload in ("spmv", "cg") else None, "shape": list(shape), "planes": planes if workload == "halo" else None,
        "ranks": comm.size, "rounds": rounds, "hidden": model.hidden(C, T, median["auto"]),
        "control_hidden": model.hidden(C, T, median["off"]), "seconds": seconds} | facts


Ways = dict[str, Callable[[], Any]]


def _halo(comm: MPI.Intracomm, shape: tuple[int, ...], planes: int) -> tuple[Ways, Callable[[], None]]:
    blocks = Blocks((shape[0] * comm.size, *shape[1:]), (comm.size, 1, 1), width=((planes, planes), 0, 0))
    halo = Halo(comm, blocks)
    u, = halo.empty()
    v = np.zeros_like(u)
    own, inner = blocks.own(comm.rank)[0], blocks.inner(comm.rank, ((1, 1), 0, 0))[0]
    u[own] = np.random.default_rng(comm.rank).random(u[own].shape)
    up, down = comm.rank + 1, comm.rank - 1
    messages = [(there, u[send], u[receive]) for there, send, receive in (
        (down, slice(own.start, own.start + planes), slice(0, planes)),
        (up, slice(own.stop - planes, own.stop), slice(own.stop, own.stop + planes))) if 0 <= there < comm.size]

    def compute():
        sweep(u, v, own.start, own.stop)

    def rest():
        sweep(u, v, own.start, inner.start)
        sweep(u, v, inner.stop, own.stop)

    def off():
        halo.exchange(u)
        compute()

    def hidden():
        pending = halo.start(u)
        for first in range(inner.start, inner.stop, _CHUNK):
            sweep(u, v, first, min(first + _CHUNK, inner.stop))
            pending.test()
        pending.wait()
        rest()

    def plain():
        requests = [comm.Irecv(receive, there) for there, _, receive in messages]
        requests += [comm.Isend(send, there) for there, send, _ in messages]
        sweep(u, v, inner.start, inner.stop)
        MPI.Request.Waitall(requests)
        rest()

    return {"C": compute, "T": lambda: halo.exchange(u), "off": off, "auto": hidden, "plain": plain}, halo.free


def _sparse(comm: MPI.Intracomm, shape: tuple[int, ...], workload: str, matrix: str) -> tuple[Ways, Callable[[], None]]:
    elastic = matrix == "elastic"
    A = springs(comm, shape) if elastic else Matrix.from_stencil(comm, shape, SEVEN, [6.0] + [-1.0] * 6)
    ways, matrices = _products(A), [A]
    b = np.random.default_rng(comm.rank).random(A.vector()[1].shape)
    if petsc := petsc_way(A, workload, b, _ITERATIONS, _RTOL):
        ways["petsc"] = petsc
    if workload == "cg":
        M = Jacobi(A)
        ways["iteration"] = lambda: cg(A, b, rtol=0.0, maxiter=_ITERATIONS, M=M)
    elif elastic:
        matrices.append(springs(comm, shape, bias=0.1))
        ways["full"] = _products(matrices[1])["auto"]

    def close():
        for one in matrices:
            one.free()

    return ways, close


def springs(comm: MPI.Intracomm, shape: tuple[int, ...], bias: float = 0.0) -> Matrix:
    """The matrix of a lattice of points that springs hold to their 26 neighbours, those beside the lattice fixed. Collective.

    It has the pattern of elasticity by trilinear hexahedra: 27 blocks of 3 x 3 in a row. It is symmetric and positive definite; a `bias`
    other than 0 makes those forces larger that come from points with higher numbers, and the matrix unsymmetric.
    """
    planes = block(shape[0], comm.size)[comm.rank]
    grid = np.meshgrid(np.arange(planes.start, planes.stop), *map(np.arange, shape[1:]), indexing="ij")
    offsets = list(product((-1, 0, 1), repeat=3))
    stiffness = {offset: np.eye(3) + np.outer(offset, offset) for offset in offsets if any(offset)}
    found: list[tuple[Any, Any, Any]] = []
    for offset in offsets:
        there = [axis + step for axis, step in zip(grid, offset)]
        inside = np.logical_and.reduce([(0 <= axis) & (axis < length) for axis, length in zip(there, shape)])
        value = -stiffness[offset] * (1 + bias * (offset > (0, 0, 0))) if any(offset) else np.sum(list(stiffness.values()), axis=0)
        found.append((np.ravel_multi_index([axis[inside] for axis in grid], shape),
                      np.ravel_multi_index([axis[inside] for axis in there], shape),
                      np.broadcast_to(value, (int(inside.sum()), 3, 3))))
    rows, columns, values = (np.concatenate(one) for one in zip(*found))
    return Matrix(comm, rows, columns, values, grid[0].size)


def _multigrid(comm: MPI.Intracomm, shape: tuple[int, ...]) -> tuple[Ways, Callable[[], None], dict[str, Any]]:
    """Diffusion with coefficient 1, u = 0 on the last plane, and sources of 1; slabs."""
    blocks = Blocks(shape, (comm.size, 1, 1))
    A = diffusion(comm, blocks, 1.0, fixed=[(0, 1)])
    M, b = Multigrid(A, blocks), np.ones(A.count)

    def setup():
        with Multigrid(A, blocks, switch=M.switch):
            pass

    def close():
        M.free()
        A.free()

    found = cg(A, b, rtol=_RTOL, M=M)
    ways = _products(A) | {"setup": setup, "solve": lambda: cg(A, b, rtol=_RTOL, M=M)}
    if petsc := petsc_way(A, "mgcg", b, _ITERATIONS, _RTOL):
        ways["petsc"] = petsc
    return ways, close, {
        "iterations": found.iterations, "switch": M.switch}


def _products(A: Matrix) -> Ways:
    extended, x = A.vector()
    x[...] = np.random.default_rng(A.halo.comm.rank).random(x.shape)
    y = np.empty_like(x)

    def off():
        A.halo.exchange(extended)
        A.compute(extended, y)

    return {"C": lambda: A.compute(extended, y), "T": lambda: A.halo.exchange(extended), "off": off,
            "auto": lambda: A.multiply(extended, y)}
