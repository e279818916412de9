"""The same products and solutions by PETSc, where petsc4py can be imported and uses the same MPI."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from ...sparse import Matrix


def petsc_way(A: Matrix, workload: str, b: np.ndarray, iterations: int, rtol: float) -> Callable[[], Any] | None:
    """A function that computes with PETSc what a workload does. Collective.

    Parameters
    ----------
    A : Matrix
        On all ranks of the job, of numbers or of blocks (AIJ, BAIJ).
    workload : {"spmv", "cg", "mgcg"}
        A product; CG with Jacobi for a number of iterations; CG with GAMG to a tolerance, set-up not included.
    b : ndarray
        This rank's right side, in the user's order.
    iterations : int
        How many cg makes.
    rtol : float
        The tolerance of mgcg.

    Returns
    -------
    callable or None
        None where some rank has no petsc4py, or ranks of the job take no part.
    """
    try:
        PETSc: Any = import_module("petsc4py.PETSc")
    except ImportError:
        PETSc = None
    if A.halo.control.maximum(int(PETSc is None or PETSc.COMM_WORLD.getSize() != A.halo.comm.size)):
        return None
    rows, size = A.local_rows, (A.count * A.block, A.shape[0])
    csr = rows.starts.astype(PETSc.IntType), rows.columns.astype(PETSc.IntType), rows.values.reshape(-1)
    make = PETSc.Mat().createAIJ if A.block == 1 else PETSc.Mat().createBAIJ
    matrix = make((size, size), **({} if A.block == 1 else {"bsize": A.block}), csr=csr, comm=PETSc.COMM_WORLD)
    x, right = matrix.createVecs()
    right.setArray(b.reshape(-1))
    if workload == "spmv":
        return lambda: matrix.mult(right, x)
    solver = PETSc.KSP().create(PETSc.COMM_WORLD)
    solver.setOperators(matrix)
    solver.setType("cg")
    solver.getPC().setType("jacobi" if workload == "cg" else "gamg")
    if workload == "cg":
        solver.setConvergenceTest(lambda solver, iteration, norm: iteration >= iterations)
    else:
        solver.setNormType(PETSc.KSP.NormType.UNPRECONDITIONED)
        solver.setTolerances(rtol=rtol)
    solver.setUp()

    def solve():
        solver.solve(right, x)

    return solve
