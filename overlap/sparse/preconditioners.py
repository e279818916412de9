"""What preconditioners have in common, and those that need no other rank: inverse diagonals, of numbers or of blocks."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from ..freed import Freed
from . import kernels
from .matrix import Matrix


class Preconditioner(Freed):
    """An approximation of the inverse of a matrix: ``M @ r`` for users, `apply` for solvers. Both may be collective.

    Parameters
    ----------
    A : Matrix
    """

    def __init__(self, A: Matrix) -> None:
        self._matrix = A

    @abstractmethod
    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """Compute z = M r, in the order of storage; two arrays."""

    def __matmul__(self, r: np.ndarray) -> np.ndarray:
        """The own entries of M r, in the user's order."""
        inside = np.ascontiguousarray(self._matrix.inward(r))
        z = np.empty_like(inside)
        self.apply(inside, z)
        return self._matrix.outward(z)

    def free(self) -> None:
        """Free what it has made beside the matrix (collective); most have made nothing."""


class Jacobi(Preconditioner):
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
        A.halo.control.check(
            "making a Jacobi", None if diagonal.all() else "expected a diagonal without zeros, received one with them"
        )
        super().__init__(A)
        self.inverse = 1 / A.inward(diagonal)

    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """Compute z = M r, in the order of storage."""
        np.multiply(self.inverse, r, out=z)


class BlockJacobi(Preconditioner):
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
        A.halo.control.check("making a BlockJacobi", problem)
        super().__init__(A)
        self.inverse = np.ascontiguousarray(inverse[A.order])

    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """Compute z = M r, in the order of storage."""
        shape = self.inverse.shape[:2]
        kernels.scale_blocks(self.inverse, r.reshape(shape), z.reshape(shape))
