"""What the solvers see: products, preconditioner and sums, of a `Matrix` or of anything with a product."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import numpy as np
from mpi4py import MPI

from ..arrays.masks import mask_problem
from ..errors import InputError
from ..runtime.control.own_control import OwnControl
from ..runtime.requests.requests import AsyncComm
from ..timing.model import hidden
from . import kernels
from .matrix import Matrix
from .preconditioners import Jacobi
from .solution import Solution


class System:
    """A x = b with its preconditioner, in the order of storage. Collective.

    Parameters
    ----------
    A : Matrix, or an object with ``A @ x`` for a rank's own entries
    b : ndarray
        The own entries of the right side.
    M : Jacobi, BlockJacobi, an object with ``M @ r``, or None
    comm : mpi4py.MPI.Intracomm or AsyncComm, optional
        Needed where A is no `Matrix`. A rank waits for others in a sum as long as the runtime of an `AsyncComm` says, else for a minute.

    Attributes
    ----------
    control : OwnControl
        The solver's collectives, besides those of the product.
    scale : ndarray or None
        The inverse diagonal, where the preconditioner is that; ones where there is none.
    """

    def __init__(self, A: Any, b: Any, M: Any, comm: MPI.Intracomm | AsyncComm | None) -> None:
        self._matrix = A if isinstance(A, Matrix) else None
        self._product, self._M = A, M
        self._watch = _Watch()
        if isinstance(A, Matrix):
            self.control = A.halo.control
        elif isinstance(comm, AsyncComm):
            self.control = OwnControl(comm.source, comm.runtime.deadline_s)
        elif isinstance(comm, MPI.Intracomm):
            self.control = OwnControl(comm, 60.0)
        else:
            raise InputError(
                "expected a Matrix, or an operator with comm=, received an operator of type "
                f"{type(A).__name__} and comm={comm!r}"
            )
        problem, b = mask_problem(b=b), np.asarray(b)
        if problem is None and isinstance(A, Matrix):
            problem = A.vector_problem(b)
        if problem is None and not np.isfinite(b).all():
            problem = "expected a right side of finite numbers, received some that are not finite"
        try:
            self.control.check("solving", problem)
        except InputError:
            self.__exit__(None, None, None)
            raise
        self.dtype = (
            A.dtype if isinstance(A, Matrix) else np.result_type(b.dtype, np.float32, getattr(A, "dtype", "f4"))
        )
        self.b = self._inward(b).astype(self.dtype)
        self.real = self.dtype.kind == "f"
        diagonal = M.inverse if isinstance(M, Jacobi) else np.ones_like(self.b) if M is None else None
        self.scale = diagonal if self.real else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Only what all ranks raise, or nothing, may be followed by a collective call.
        if self._matrix is None and (error is None or isinstance(error, InputError)):
            self.control.close()

    def _inward(self, x):
        return np.ascontiguousarray(self._matrix.inward(x)) if self._matrix is not None else np.asarray(x)

    def direction(self) -> tuple[np.ndarray, np.ndarray]:
        """A vector that can be multiplied, and its own entries."""
        if self._matrix is not None:
            return self._matrix.vector()
        vector = np.zeros_like(self.b)
        return vector, vector

    def multiply(self, extended: np.ndarray, out: np.ndarray) -> None:
        """Compute out = A extended."""
        if self._matrix is None:
            out[...] = self._product @ extended
            return
        self._watch.begin()
        if self._watch.apart:
            self._matrix.halo.exchange(extended)
            self._watch.exchanged()
            self._matrix.compute(extended, out)
        else:
            self._matrix.multiply(extended, out)
        self._watch.end()

    def precondition(self, r: np.ndarray, z: np.ndarray) -> None:
        """Compute z = M r."""
        if self._M is None:
            z[...] = r
        elif hasattr(self._M, "apply"):
            self._M.apply(r, z)
        elif self._matrix is not None:
            z[...] = self._inward(self._M @ self._matrix.outward(r))
        else:
            z[...] = self._M @ r

    def dots(self, *pairs: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """The global products <a, b> (the first one conjugated) of pairs of vectors, in one reduction."""
        values = np.array([kernels.dot((a if self.real else a.conj()).reshape(-1), b.reshape(-1)) for a, b in pairs])
        return self.sum(values)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sums over all ranks, in place."""
        if self._matrix is not None:
            return self._matrix.sum(values)
        return self.control.sum(values)

    def start_sum(self, values: np.ndarray, sums: np.ndarray) -> Callable[[], None]:
        """Begin to sum numbers of all ranks; what is returned waits for the sums. Neither array may be touched until then."""
        if self._matrix is not None:
            return self._matrix.start_sum(values, sums)
        request = self.control.start_sum(values, sums)
        return lambda: self.control.end_sum(request)

    def guess(self, x0: Any) -> tuple[np.ndarray, np.ndarray]:
        """The first x, and its residual."""
        if x0 is None:
            return np.zeros_like(self.b), self.b.copy()
        masked, x0 = mask_problem(x0=x0), np.asarray(x0)
        self.control.check(
            "the first x",
            masked
            if masked or (x0.shape == self.b.shape and np.isfinite(x0).all())
            else f"expected x0 to have shape {self.b.shape} and finite numbers, received shape {x0.shape}",
        )
        x = self._inward(x0).astype(self.dtype)
        return x, self.residual(x)

    def residual(self, x: np.ndarray) -> np.ndarray:
        """Compute b - A x."""
        extended, own = self.direction()
        own[...] = x
        product = np.empty_like(self.b)
        self.multiply(extended, product)
        return self.b - product

    def told(self, callback: Callable[[np.ndarray], object] | None, x: np.ndarray) -> None:
        """Call the user's function, with x in the user's order."""
        if callback is not None:
            callback(self.outward(x))

    def outward(self, x: np.ndarray) -> np.ndarray:
        """A vector in the user's order."""
        return self._matrix.outward(x) if self._matrix is not None else x.copy()

    def solution(self, x: np.ndarray, residuals: list[float], limit: float) -> Solution:
        """The result, with the residual computed from x."""
        rest = self.residual(x)
        square = kernels.dot(rest.conj().reshape(-1), rest.reshape(-1)).real
        square, *times = self.sum(np.array([square, *self._watch.times()], float))
        known = self._matrix is not None and self.control.size > 1
        return Solution(self.outward(x), residuals, limit, float(np.sqrt(square)), hidden(*times) if known else np.nan)


class _Watch:
    """Times of products. The third, the ninth, the 27th, ... are made in two parts, the exchange and the computing: the same bits."""

    def __init__(self) -> None:
        self.apart = False
        self._count, self._next, self._at = 0, 3, 0.0
        self._whole: list[float] = []
        self._parts: list[tuple[float, float]] = []

    def begin(self) -> None:
        """Begin a product."""
        self._count += 1
        self.apart = self._count == self._next
        self._at = perf_counter()

    def exchanged(self) -> None:
        """Its first part has ended."""
        self._next *= 3
        self._middle = perf_counter()

    def end(self) -> None:
        """It has ended."""
        now = perf_counter()
        if self.apart:
            self._parts.append((now - self._middle, self._middle - self._at))
        else:
            self._whole.append(now - self._at)

    def times(self) -> tuple[float, float, float]:
        """Medians of C, T and t; zeros where there are none."""
        if not self._parts:
            return 0.0, 0.0, 0.0
        compute_s, exchange_s = (median(times) for times in zip(*self._parts))
        return compute_s, exchange_s, median(self._whole)
