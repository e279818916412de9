"""Halos and sparse solvers, measured on the ranks of a communicator: `overlap bench halo | spmv | cg | mgcg`.

The ways take turns (`rounds.seconds_of`), and the report has the medians.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from ...arrays import Blocks
from ...errors import InputError
from ...sparse import Jacobi, Matrix, Multigrid, cg, diffusion, faster_cg, pipecg
from ...timing import model
from .petsc import petsc_ways
from .products import SEVEN, LateSums, Listed, NotHidden, StoredByRows, products, springs
from .rounds import medians, seconds_of
from .sweeps import Ways, sweeps

_ITERATIONS = 30
_RTOL = 1e-8  # tolerance of a multigrid solution
MATRICES = ("poisson", "elastic", "rock")


@dataclass(frozen=True)
class SolverJob:
    """Names what is measured, in words, and gives its default shape."""

    title: str
    detail: str
    shape: tuple[int, int, int]


SOLVERS = {
    "halo": SolverJob(
        "7-point sweep", " (--shape: cells of each rank; --slices: planes that are exchanged)", (128, 128, 128)
    ),
    "spmv": SolverJob("sparse product", " (--matrix; --shape: points of all ranks)", (64, 64, 64)),
    "cg": SolverJob("conjugate gradients with Jacobi", " (--matrix; --shape: points of all ranks)", (64, 64, 64)),
    "mgcg": SolverJob(
        "conjugate gradients with multigrid", ", to 1e-8 (--matrix; --shape: cells of all ranks)", (64, 64, 64)
    ),
}


def measure(
    comm: MPI.Intracomm,
    workload: str,
    shape: tuple[int, ...],
    planes: int,
    rounds: int,
    matrix: str = "poisson",
    delay_s: float = 0.0,
    workers: int = 1,
) -> dict[str, Any]:
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
    matrix : {"poisson", "elastic", "rock"}
        7 points; 3 x 3 blocks at 27 points (spmv and cg); diffusion whose coefficient goes from 1e-5 to 1e5 (mgcg).
    delay_s : float
        Least time of a sum over all ranks in the `delayed` ways of cg, in seconds; 0 leaves these ways out.
    workers : int
        Threads of a rank that share the products of a matrix.

    Returns
    -------
    dict
        ``C_s`` and ``T_s``, computing and exchanging alone; ``off_s``, one after the other; ``auto_s``, hidden by this
        library; ``hidden`` and ``control_hidden``, the shares of min(C, T) that auto and off hide; ``seconds``, all
        times. Further

        * halo: ``plain_s``, by Irecv and Isend; ``tested_s``, by persistent requests with a Testall after each chunk;
          ``sendrecv_s``, blocking calls alone, as T_s.
        * cg: ``iteration_s``; ``plain_s``, an iteration that hides nothing; ``pipelined_s``, one of `pipecg`;
          ``delayed_s`` and ``delayed_pipelined_s``, the first and the third with delayed sums; ``chosen``, what
          `faster_cg` chooses, and ``delayed_chosen``.
        * spmv and cg, elastic: ``full_s`` with both halves of the matrix stored; ``naive_s`` moreover with rows in the
          user's order, found by lists.
        * cg and mgcg: ``iterations`` to 1e-8; for an elastic cg one number for each way.
        * mgcg: ``iteration_s``, ``setup_s``, ``solve_s``; ``switch``, the level from which coarser ones are gathered.
        * where petsc4py is installed: ``petsc_s``, a product, an iteration or a solution of PETSc (BAIJ where there are
          blocks); ``petsc_half_s``, the same with half of the blocks stored (SBAIJ); ``petsc_setup_s``, GAMG's.
    """
    facts: dict[str, Any] = {}
    if workload == "halo":
        ways, close = sweeps(comm, shape, planes)
    elif (matrix == "elastic") if workload == "mgcg" else (matrix == "rock"):
        raise InputError(f"expected another matrix with {workload}, received {matrix}")
    elif workload == "mgcg":
        ways, close, facts = _multigrid(comm, shape, matrix, workers)
    else:
        ways, close, facts = _sparse(comm, shape, workload, matrix, delay_s, workers)
    seconds = seconds_of(comm, ways, rounds)
    close()
    median = medians(seconds)
    if workload == "cg":
        median = {
            name: value if name in ("C", "T", "off", "auto") else value / _ITERATIONS for name, value in median.items()
        }
    if workload == "mgcg":
        median["iteration"] = median["solve"] / facts["iterations"]
    C, T = median["C"], median["T"]
    return (
        {f"{name}_s": value for name, value in median.items()}
        | {
            "workload": workload,
            "matrix": matrix if workload != "halo" else None,
            "shape": list(shape),
            "planes": planes if workload == "halo" else None,
            "ranks": comm.size,
            "workers": workers,
            "rounds": rounds,
            "hidden": model.hidden(C, T, median["auto"]),
            "control_hidden": model.hidden(C, T, median["off"]),
            "seconds": seconds,
        }
        | facts
    )


def _sparse(
    comm: MPI.Intracomm, shape: tuple[int, ...], workload: str, matrix: str, delay_s: float, workers: int
) -> tuple[Ways, Callable[[], None], dict[str, Any]]:
    elastic = matrix == "elastic"
    A = springs(comm, shape) if elastic else Matrix.from_stencil(comm, shape, SEVEN, [6.0] + [-1.0] * 6)
    A.workers = workers
    ways, b = products(A), np.random.default_rng(comm.rank).random(A.vector()[1].shape)
    facts: dict[str, Any] = {}
    kinds = {"full": springs(comm, shape, StoredByRows), "naive": springs(comm, shape, Listed)} if elastic else {}
    for operator in kinds.values():
        operator.workers = workers
    if workload == "spmv":
        ways |= {name: products(variant)["auto"] for name, variant in kinds.items()}
    else:
        M, operators = Jacobi(A), {"iteration": A, "plain": NotHidden(A)} | kinds
        late = {"delayed": LateSums(A, delay_s)} if delay_s else {}
        ways |= {
            name: partial(cg, variant, b, rtol=0.0, maxiter=_ITERATIONS, M=M)
            for name, variant in (operators | late).items()
        }
        for name, variant in ({"": A} | late).items():
            joined = f"{name}_" if name else ""
            ways[f"{joined}pipelined"] = partial(pipecg, variant, b, rtol=0.0, maxiter=_ITERATIONS, M=M)
            facts[f"{joined}chosen"] = faster_cg(variant, b, M=M).__name__
        if elastic:
            facts["iterations"] = {
                name: cg(variant, b, rtol=_RTOL, M=M).iterations for name, variant in operators.items()
            }
    ways |= petsc_ways(A, workload, b, _ITERATIONS, _RTOL)

    def close() -> None:
        for operator in (A, *kinds.values()):
            operator.free()

    return ways, close, facts


def _multigrid(
    comm: MPI.Intracomm, shape: tuple[int, ...], matrix: str, workers: int
) -> tuple[Ways, Callable[[], None], dict[str, Any]]:
    """Measure a diffusion problem with u = 0 on the last plane and sources of 1, on slabs.

    The coefficient of "rock" is log10(c) = 5 sin sin sin with a period of 16 cells.
    """
    blocks = Blocks(shape, (comm.size, 1, 1))
    waves = np.meshgrid(
        *(np.sin(np.pi / 8 * (np.arange(side.start, side.stop) + 0.5)) for side in blocks.part(comm.rank)),
        indexing="ij",
        sparse=True,
    )
    A = diffusion(
        comm, blocks, 1.0 if matrix == "poisson" else 10 ** (5 * waves[0] * waves[1] * waves[2]), fixed=[(0, 1)]
    )
    A.workers = workers
    M, b = Multigrid(A, blocks), np.ones(A.count)

    def setup() -> None:
        with Multigrid(A, blocks, switch=M.switch):
            pass

    def close() -> None:
        M.free()
        A.free()

    solution = cg(A, b, rtol=_RTOL, M=M)
    ways = products(A) | {"setup": setup, "solve": lambda: cg(A, b, rtol=_RTOL, M=M)}
    return (
        ways | petsc_ways(A, "mgcg", b, _ITERATIONS, _RTOL),
        close,
        {"iterations": solution.iterations, "switch": M.switch},
    )
