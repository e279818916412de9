"""`Chebyshev`: a preconditioner that is a polynomial in A; its steps are products, whose halos are hidden."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..checks import bound_problem, integer_problem
from ..compiled import njit
from ..errors import InputError
from .matrix import Matrix
from .preconditioners import Preconditioner


class Chebyshev(Preconditioner):
    """A Chebyshev polynomial in D^-1 A, D the diagonal: it damps the upper eigenvectors (collective to make).

    It needs no global sums and no order of rows. The interval is from b / `ratio` to b, where b is Gershgorin's bound
    of the largest eigenvalue, from the sums of rows. Saad, Iterative Methods for Sparse Linear Systems, algorithm 12.1.

    Parameters
    ----------
    A : Matrix
        Hermitian and positive definite, of numbers (not of blocks).
    degree : int
        Number of steps; each one after the first takes a product.
    ratio : float
        Upper over lower end of the interval, > 1.

    Attributes
    ----------
    largest : float
        The bound of the largest eigenvalue.

    Raises
    ------
    InputError
        On all ranks: arguments that make no sense, a matrix of blocks, a diagonal that is not positive.

    Examples
    --------
    >>> from overlap.sparse import Chebyshev, cg, diffusion
    >>> blocks = overlap.Blocks((8 * comm.size, 8, 8), grid=(comm.size, 1, 1))
    >>> with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A, Chebyshev(A, degree=3) as M:
    ...     b = np.ones(512)
    ...     x, info = cg(A, b, rtol=1e-8, M=M)
    >>> info
    0
    """

    def __init__(self, A: Matrix, degree: int = 2, ratio: float = 6.0) -> None:
        super().__init__(A)
        problem = integer_problem("degree", degree, 1) or bound_problem("ratio", ratio, 1, above=True)
        with self._made(problem, degree=degree, ratio=ratio):
            diagonal = A.diagonal()
            if A.block > 1:
                raise InputError(f"expected a matrix of numbers, received one of blocks of {A.block} x {A.block}")
            A.halo.coordinator.check(
                "the diagonal of a Chebyshev",
                None if (diagonal.real > 0).all() else "expected a positive diagonal, received one with other numbers",
            )
            self._inverse = np.ascontiguousarray(1 / diagonal[A.order].real)
            self.largest = A.halo.coordinator.maximum(float((A.row_sums() / diagonal.real).max(initial=0.0)))
            self._middle = self.largest * (1 + 1 / ratio) / 2
            self._half = self.largest * (1 - 1 / ratio) / 2
            self._degree = degree
            self._extended, self._own = A.vector(fresh=True)
            self._step, self._product = np.zeros_like(self._own), np.zeros_like(self._own)

    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """Compute z = M r, in the order of storage (collective)."""
        self.check_open()
        own = self._own if self._degree > 1 else z
        sigma = self._middle / self._half
        rho = 1 / sigma
        _first(1 / self._middle, self._inverse, r, self._step, own)
        for number in range(1, self._degree):
            self._matrix.multiply(self._extended, self._product)
            after = 1 / (2 * sigma - rho)
            target = z if number == self._degree - 1 else own
            _next(after * rho, 2 * after / self._half, self._inverse, r, self._product, self._step, own, target)
            rho = after


@njit
def _first(factor: Any, inverse: Any, r: Any, step: Any, x: Any) -> None:
    """Compute step = x = factor D^-1 r."""
    for place in range(len(r)):
        change = factor * inverse[place] * r[place]
        step[place] = change
        x[place] = change


@njit
def _next(old: Any, new: Any, inverse: Any, r: Any, product: Any, step: Any, x: Any, out: Any) -> None:
    """Compute step = old step + new D^-1 (r - product); out = x + step."""
    for place in range(len(r)):
        change = old * step[place] + new * inverse[place] * (r[place] - product[place])
        step[place] = change
        out[place] = x[place] + change
