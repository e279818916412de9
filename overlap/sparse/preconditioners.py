"""Preconditioners that need no other rank: the inverse diagonal, of numbers or of small blocks."""

from __future__ import annotations

import numpy as np

from ..errors import InputError
from ..halo.plan import agree
from . import kernels
from .matrix import Matrix


class Jacobi:
    """Divide by the diagonal (collective to make); of blocks, by the diagonals of the diagonal blocks.

    Parameters
    ----------
    A : Matrix

    Raises
    ------
    InputError
        On all ranks: a zero on the diagonal.
    """

    def __init__(self, A: Matrix) -> None:
        diagonal = A.diagonal()
        if diagonal.ndim == 3:
            diagonal = np.ascontiguousarray(np.diagonal(diagonal, axis1=1, axis2=2))
        agree(A.halo.comm, None if diagonal.all() else "expected a diagonal without zeros, received one with them")
        self._matrix = A
        self.inverse = 1 / A.inward(diagonal)

    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """Compute z = M r, in the order of storage."""
        np.multiply(self.inverse, r, out=z)

    def __matmul__(self, r: np.ndarray) -> np.ndarray:
        return _applied(self, self._matrix, r)


class BlockJacobi:
    """Multiply by the inverse diagonal blocks of a matrix of blocks (collective to make).

    Parameters
    ----------
    A : Matrix
        One of blocks; for one of numbers it is `Jacobi`.

    Raises
    ------
    InputError
        On all ranks: a block has no inverse.
    """

    def __init__(self, A: Matrix) -> None:
        diagonal = A.diagonal().reshape(A.count, A.block, A.block)
        problem = None
        try:
            inverse = np.linalg.inv(diagonal)
        except np.linalg.LinAlgError:
            problem, inverse = "expected diagonal blocks that have an inverse, received one without", diagonal
        agree(A.halo.comm, problem)
        self._matrix = A
        self.inverse = np.ascontiguousarray(inverse[A.order])

    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """Compute z = M r, in the order of storage."""
        shape = self.inverse.shape[:2]
        kernels.scale_blocks(self.inverse, r.reshape(shape), z.reshape(shape))

    def __matmul__(self, r: np.ndarray) -> np.ndarray:
        return _applied(self, self._matrix, r)


def _applied(preconditioner, matrix, r):
    inside = np.ascontiguousarray(matrix.inward(r))
    z = np.empty_like(inside)
    preconditioner.apply(inside, z)
    return matrix.outward(z)
