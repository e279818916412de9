"""pytest's plugin by which scipy's tests of iterative solvers call ours; each rank holds a part of the rows."""

import numpy as np
from mpi4py import MPI
from scipy.sparse import csr_array, issparse
from scipy.sparse.linalg import LinearOperator, _isolve

from overlap import sparse

comm = MPI.COMM_WORLD


def _whole(part):
    return np.concatenate(comm.allgather(part))


class _Part:
    """This rank's rows of an operator that the test has whole."""

    def __init__(self, operator, rows):
        self.operator, self.rows, self.dtype = operator, rows, operator.dtype

    def __matmul__(self, x):
        return np.asarray(self.operator @ _whole(x))[self.rows]


def _with_scipys_arguments(solver):
    """The solver for vectors and operators that every rank has whole."""

    def solve(A, b, x0=None, *, M=None, callback=None, **options):
        size = len(b)
        rows = slice(size * comm.rank // comm.size, size * (comm.rank + 1) // comm.size)
        if M is not None:
            options["M"] = _Part(M, rows)
        if x0 is not None:
            options["x0"] = x0[rows]
        if callback is not None:
            options["callback"] = lambda x: callback(_whole(x) if isinstance(x, np.ndarray) else x)
        if isinstance(A, LinearOperator):
            x, info = solver(_Part(A, rows), b[rows], comm=comm, **options)
        else:
            with sparse.Matrix.from_scipy(comm, csr_array(A.tocsr() if issparse(A) else A)[rows]) as matrix:
                x, info = solver(matrix, b[rows], **options)
        return _whole(x), info

    solve.__name__ = solver.__name__
    return solve


for name in ("bicgstab", "cg", "gmres", "minres"):
    setattr(_isolve, name, _with_scipys_arguments(getattr(sparse, name)))
