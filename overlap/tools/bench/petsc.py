"""Computes the same products and solutions with PETSc, if petsc4py can be imported and uses the same MPI."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from ...sparse import Matrix


def petsc_ways(A: Matrix, workload: str, b: np.ndarray, iterations: int, rtol: float) -> dict[str, Callable[[], Any]]:
    """Make functions that run a workload with PETSc. Collective.

    Parameters
    ----------
    A : Matrix
        Symmetric, of numbers or of blocks, on all ranks of the job.
    workload : {"spmv", "cg", "mgcg"}
        A product; CG with Jacobi for a number of iterations; CG with GAMG to a tolerance.
    b : ndarray
        This rank's right side, in the user's order.
    iterations : int
        Number of iterations of cg.
    rtol : float
        The tolerance of mgcg.

    Returns
    -------
    dict
        ``petsc`` (AIJ or BAIJ), and ``petsc_half`` (SBAIJ) of blocks, ``petsc_setup`` of mgcg. Empty if some rank has
        no petsc4py, if some ranks of the job take no part, or if GAMG does not converge.
    """
    try:
        PETSc: Any = import_module("petsc4py.PETSc")
    except ImportError:
        PETSc = None
    if A.halo.coordinator.maximum(int(PETSc is None or PETSc.COMM_WORLD.getSize() != A.halo.comm.size)):
        return {}
    matrix = _matrix(PETSc, A, half=False)
    if workload == "mgcg":
        solve, setup = _solution(PETSc, matrix, b, "gamg", rtol=rtol), lambda: _solver(PETSc, matrix, "gamg").destroy()
        return {"petsc": solve, "petsc_setup": setup} if solve() > 0 else {}
    matrices = {"petsc": matrix} if A.block == 1 else {"petsc": matrix, "petsc_half": _matrix(PETSc, A, half=True)}
    if workload == "cg":  # a tolerance of 0 is never reached: all iterations are made
        return {
            name: _solution(PETSc, operator, b, "jacobi", rtol=0.0, max_it=iterations)
            for name, operator in matrices.items()
        }
    return {name: _product(operator, b) for name, operator in matrices.items()}


def _matrix(PETSc: Any, A: Matrix, half: bool) -> Any:
    rows, size = A.local_rows, (A.count * A.block, A.shape[0])
    kept = rows.columns >= rows.first + rows.row_of if half else slice(None)
    counts = np.bincount(rows.row_of[kept], minlength=rows.count)
    csr = (
        np.concatenate([[0], np.cumsum(counts)]).astype(PETSc.IntType),
        rows.columns[kept].astype(PETSc.IntType),
        rows.values[kept].reshape(-1),
    )
    if A.block == 1:
        return PETSc.Mat().createAIJ((size, size), csr=csr, comm=PETSc.COMM_WORLD)
    make = PETSc.Mat().createSBAIJ if half else PETSc.Mat().createBAIJ
    return make((size, size), bsize=A.block, csr=csr, comm=PETSc.COMM_WORLD)


def _product(matrix: Any, b: np.ndarray) -> Callable[[], Any]:
    x, right = matrix.createVecs()
    right.setArray(b.reshape(-1))

    def multiply() -> Any:
        matrix.mult(right, x)
        return x

    return multiply


def _solver(PETSc: Any, matrix: Any, preconditioner: str) -> Any:
    solver = PETSc.KSP().create(PETSc.COMM_WORLD)
    solver.setOperators(matrix)
    solver.setType("cg")
    solver.getPC().setType(preconditioner)
    if preconditioner == "gamg":
        solver.setNormType(PETSc.KSP.NormType.UNPRECONDITIONED)
    solver.setUp()
    return solver


def _solution(PETSc: Any, matrix: Any, b: np.ndarray, preconditioner: str, **limits: float) -> Callable[[], int]:
    solver = _solver(PETSc, matrix, preconditioner)
    solver.setTolerances(atol=0.0, **limits)
    x, right = matrix.createVecs()
    right.setArray(b.reshape(-1))

    def solve() -> int:
        solver.solve(right, x)
        return int(solver.getConvergedReason())

    return solve
