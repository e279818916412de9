"""The base class of all preconditioners, and those that need no order of rows.

Inverse diagonals of numbers or blocks need no other rank. `Chebyshev` is a polynomial in A, whose steps are products
with hidden halos.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from ..checks import bound_problem, integer_problem
from ..compiled import njit
from ..errors import InputError
from ..ranks.holding import DropWarning
from ..ranks.interrupts import holding_signals
from ..ranks.resource import Calls, CollectiveContext, Telling, marked_call
from . import kernels
from .matrix import Matrix


class Preconditioner(CollectiveContext):
    """An approximation of the inverse of a matrix: ``M @ r`` for users, `apply` for solvers. Both may be collective.

    Parameters
    ----------
    A : Matrix

    Attributes
    ----------
    matrix : Matrix

    Examples
    --------
    >>> from overlap.sparse import Jacobi, diffusion
    >>> blocks = overlap.Blocks((8 * comm.size, 8, 8), grid=(comm.size, 1, 1))
    >>> with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A, Jacobi(A) as M:
    ...     b = np.ones(512)
    ...     z = M @ b  # an approximation of the solution of A z = b
    >>> z.shape
    (512,)
    """

    def __init__(self, A: Matrix) -> None:
        super().__init__()
        if not isinstance(A, Matrix):
            raise InputError(f"expected {type(self).__name__} of a Matrix, received {type(A).__name__}")
        A.check_open()
        # Tells the preconditioners of a matrix apart, on all ranks alike.
        self._matrix, self._known_as = A, type(self).__name__
        self._dropping = DropWarning(f"a preconditioner, {type(self).__name__},")

    @contextmanager
    def _made(self, problem: str | None = None, **agreed: Any) -> Iterator[None]:
        """Run a ``with`` block that makes the preconditioner on all ranks, or raises on all of them."""
        coordinator = self._matrix.halo.coordinator
        with coordinator.collective_section(f"making {self._known_as}", self.close, problem, **agreed):
            self._known_as += f", number {coordinator.next_number()} of its matrix"
            yield

    def _title(self) -> str:
        return f"{type(self).__name__} of a {self._matrix._title()}"

    def _has_ended(self) -> bool:
        return self.closed or self._matrix.closed

    @property
    def matrix(self) -> Matrix:
        """Return the matrix whose inverse is approximated."""
        self.check_open()
        return self._matrix

    def check_open(self) -> None:
        """Raise a `ClosedError` if the preconditioner or its matrix was freed; it names which one."""
        super().check_open()
        self._matrix.check_open()

    @abstractmethod
    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """Compute z = M r in the order of storage; both arrays have the matrix's type.

        Parameters
        ----------
        r : ndarray
            Read; this rank's entries in the order of storage.
        z : ndarray
            Written.
        """

    @holding_signals
    @marked_call
    def __matmul__(self, r: np.ndarray) -> np.ndarray:
        """Compute the own entries of M r, in the user's order. Collective.

        Raises
        ------
        InputError
            On all ranks: the vector of some rank does not fit, or types differ between ranks.
        """
        self.check_open()
        return self.apply_to(self._matrix._agreed(r, f"a product with {self._known_as}"))

    def apply_to(self, r: np.ndarray) -> np.ndarray:
        """Compute M r in the user's order and the type of r; if r is complex and M is real, part by part."""
        A = self._matrix
        if r.dtype.kind == "c" and A.dtype.kind != "c":
            return self.apply_to(r.real) + 1j * self.apply_to(r.imag)
        inside = np.ascontiguousarray(A.inward(r), A.dtype)
        z = np.empty_like(inside)
        self.apply(inside, z)
        return A.outward(z).astype(r.dtype, copy=False)

    def _fail(self, error: BaseException) -> Telling | None:
        self._silence()
        return self._matrix.halo.coordinator.notify(error)

    @property
    def _calls(self) -> Calls:
        return self._matrix.halo.coordinator._calls

    def _ending_calls(self) -> AbstractContextManager[bool]:
        return self._matrix.halo.coordinator.ending_calls()

    def _silence(self) -> None:
        """Give no warning when it is dropped: an exception has left its block, after which no rank frees it."""
        self._dropping.wanted = False

    def close(self) -> None:
        """Free the preconditioner, but not its matrix (collective); later calls raise `ClosedError`.

        Raises
        ------
        BusyError
            A call of the matrix is under way, such as a solver; nothing is freed.
        """
        if not self.closed:
            with self._matrix.halo.coordinator.closing("freeing a preconditioner"):
                self.closed = True
                self._free_parts()

    def _free_parts(self) -> None:
        """Free what the preconditioner holds besides arrays (collective)."""


class Jacobi(Preconditioner):
    """Divide by the diagonal (collective to make); for blocks, by the diagonals of the diagonal blocks.

    Parameters
    ----------
    A : Matrix

    Raises
    ------
    InputError
        On all ranks: a zero on the diagonal.

    Examples
    --------
    >>> from overlap.sparse import Jacobi, cg, diffusion
    >>> blocks = overlap.Blocks((8 * comm.size, 8, 8), grid=(comm.size, 1, 1))
    >>> with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A, Jacobi(A) as M:
    ...     b = np.ones(512)
    ...     x, info = cg(A, b, rtol=1e-8, M=M)
    >>> info
    0
    """

    def __init__(self, A: Matrix) -> None:
        super().__init__(A)
        with self._made():
            diagonal = A.diagonal()
            if diagonal.ndim == 3:
                diagonal = np.ascontiguousarray(np.diagonal(diagonal, axis1=1, axis2=2))
            if not diagonal.all():
                raise InputError("expected a diagonal without zeros, received one with them")
            self.inverse = 1 / A.inward(diagonal)

    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """Compute z = M r, in the order of storage."""
        self.check_open()
        np.multiply(self.inverse, r, out=z)


class BlockJacobi(Preconditioner):
    """Multiply by the inverse diagonal blocks of a matrix of blocks (collective to make).

    Parameters
    ----------
    A : Matrix
        A matrix of blocks. For a matrix of numbers the result is that of `Jacobi`.

    Raises
    ------
    InputError
        On all ranks: a block has no inverse.

    Examples
    --------
    >>> from overlap.sparse import BlockJacobi, cg, diffusion
    >>> blocks = overlap.Blocks((8 * comm.size, 8, 8), grid=(comm.size, 1, 1))
    >>> with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A, BlockJacobi(A) as M:
    ...     b = np.ones(512)
    ...     x, info = cg(A, b, rtol=1e-8, M=M)
    >>> info
    0
    """

    def __init__(self, A: Matrix) -> None:
        super().__init__(A)
        with self._made():
            diagonal = A.diagonal().reshape(A.count, A.block, A.block)
            try:
                inverse = np.linalg.inv(diagonal)
            except np.linalg.LinAlgError:
                raise InputError("expected diagonal blocks that have an inverse, received one without") from None
            self.inverse = np.ascontiguousarray(inverse[A.order])

    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """Compute z = M r, in the order of storage."""
        self.check_open()
        shape = self.inverse.shape[:2]
        kernels.scale_blocks(self.inverse, r.reshape(shape), z.reshape(shape))


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
            self.largest = A.halo.coordinator.maximum(float((A.local_rows.sums() / diagonal.real).max(initial=0.0)))
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
