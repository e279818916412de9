"""Distributed sparse matrices and Krylov solvers: products hide their halo behind the rows that need none of it."""

from .incomplete import IC0
from .krylov import bicgstab, cg, pipecg
from .matrix import Matrix
from .preconditioners import BlockJacobi, Jacobi
from .solution import Solution

__all__ = ["IC0", "BlockJacobi", "Jacobi", "Matrix", "Solution", "bicgstab", "cg", "pipecg"]
