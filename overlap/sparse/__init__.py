"""Distributed sparse matrices and Krylov solvers: products hide their halo behind the rows that need none of it."""

from .cells import diffusion
from .incomplete import IC0
from .krylov import bicgstab, cg, faster_cg, pipecg
from .matrix import Matrix
from .minimal_residual import gmres, minres
from .multigrid import Multigrid
from .preconditioners import BlockJacobi, Chebyshev, Jacobi, Preconditioner
from .schwarz import AdditiveSchwarz
from .solution import Solution

__all__ = [
    "IC0",
    "AdditiveSchwarz",
    "BlockJacobi",
    "Chebyshev",
    "Jacobi",
    "Matrix",
    "Multigrid",
    "Preconditioner",
    "Solution",
    "bicgstab",
    "cg",
    "diffusion",
    "faster_cg",
    "gmres",
    "minres",
    "pipecg",
]
