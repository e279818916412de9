"""The system that solvers work on: products, preconditioner and sums, of a `Matrix` or any object with a product.

The user's code (a product, a preconditioner, a callback) may raise on one rank alone. The other ranks are then on their
way to the next sum, and this rank must take part in all communication until then. So it goes on with the values that it
has, and adds NaN to the sum. If a sum is NaN, all ranks synchronize and raise the error. This costs nothing while
nothing fails. Exceptions of signal handlers are treated in the same way.

Solvers compute squares of what they are given, and products of several such numbers, which can leave the range of the
type although the solution does not. So they work on 2**-b b, 2**-a A and 2**-m M, whose solution is 2**(a - b) x. The
exponent b brings the largest entry of the right side near 1. The exponents a and m are 0 except for operators whose
results are so large or so small that squares could leave the range. Powers of two change no digit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from math import inf, isfinite
from statistics import median
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import numpy as np
from mpi4py import MPI

from ..arrays.reductions import exponent_of, float_times_power, times_power
from ..checks import bound_problem, integer_problem, mask_problem
from ..errors import InputError, RankError, RankLost
from ..ranks.interrupts import held_signals
from ..ranks.standalone_coordinator import StandaloneCoordinator
from ..runtime.requests.requests import AsyncComm
from ..timing.model import hidden_share
from . import kernels
from .matrix import Matrix
from .preconditioners import Jacobi, Preconditioner
from .rows import common_type
from .solution import Solution

Callback = Callable[[Any], object]


class System:
    """Holds A x = b and its preconditioner in the order of storage, during a ``with`` block; arguments as for `cg`.
    Collective.

    `b`, `x` and `r` are the right side, the first x and its residual, scaled.
    """

    b: np.ndarray
    x: np.ndarray
    r: np.ndarray
    dtype: np.dtype  # the common type of all arguments, in which everything is computed
    # The norm of the recursion's residual, scaled, at which to stop; larger than the tolerance if that cannot be
    # reached.
    stop: float

    def __init__(
        self,
        name: str,
        A: Any,
        b: Any,
        x0: Any,
        M: Any,
        comm: MPI.Intracomm | AsyncComm | None,
        *,
        rtol: Any,
        atol: Any,
        maxiter: Any,
        callback: Callback | None,
        problem: str | None = None,  # what is wrong with the solver's other arguments on this rank
        shift: Any = 0.0,  # a real number that is subtracted from the diagonal of A
        **agreed: Any,  # the solver's other arguments, which must be the same on all ranks
    ) -> None:
        self._name, self._callback, self._shift = name, callback, shift
        self._product = A
        self._matrix: Matrix | None = None
        self._watch = _Watch()
        self._error: BaseException | None = None
        if isinstance(M, Preconditioner):
            M.check_open()
        self.coordinator = self._coordinator_for(A, comm)  # for the collectives besides those of the product
        self._owned = not isinstance(A, Matrix)
        with ExitStack() as held:
            with self.coordinator.collective_section(f"solving with {name}", self._close):
                held.enter_context(self.coordinator._calls.marked())
                if isinstance(M, Preconditioner):
                    held.enter_context(M._calls.marked())
                known_as = M._known_as if isinstance(M, Preconditioner) else None
                agreed |= {"M": known_as, "rtol": rtol, "atol": atol, "maxiter": maxiter, "shift": shift}
                b, x0 = self._checked(A, b, x0, M, callback, problem, agreed)
                self._rtol, self._atol = float(rtol), float(atol)
                if isinstance(A, Matrix):
                    self._matrix = A._in_type(self.dtype)
                    self._extended, self._own = self._matrix._lend_vector()
                    held.callback(self._matrix._take_back, self._extended, self._own)
                else:
                    self._extended = self._own = np.zeros(b.shape, self.dtype)
                self.b = self._inward(b.astype(self.dtype))
                self.x = np.zeros_like(self.b) if x0 is None else self._inward(x0.astype(self.dtype))
                self.real = self.dtype.kind == "f"
                self._A = _Operator(self._multiply, self.dtype, 4)
                self._M = _Operator(self._preconditioner(M), self.dtype, 6)
                self._diagonal = None
                if self.real and (M is None or (isinstance(M, Jacobi) and self._stored_alike(M.matrix))):
                    self._diagonal = np.ones_like(self.b) if M is None else M.inverse
                given = [self.b.size, x0 is not None, M is not None]
                size, guesses, preconditioners = self.coordinator.sum(np.array(given, np.int64))
                self.preconditioned = self._M.unknown = bool(preconditioners > 0)  # on some rank
                self._guessed = guesses > 0  # if some rank has a first guess, all compute the residual
                self.size = int(size)  # unknowns on all ranks
                self.most = 10 * self.size if maxiter is None else int(maxiter)  # iterations
            self._held = held.pop_all()  # until the solver's end; the end of the section may have raised

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            # A collective call may follow only if all ranks raise the same error, or none.
            if error is None or isinstance(error, InputError) or self.coordinator.is_known(error):
                self._close()
        finally:
            self._held.close()

    # ---- what is given -----------------------------------------------------------------------

    @staticmethod
    def _coordinator_for(A: Any, comm: Any) -> StandaloneCoordinator:
        if isinstance(A, Matrix):
            A.check_open()
            return A.halo.coordinator
        if isinstance(comm, AsyncComm):
            return StandaloneCoordinator(comm.source, comm.runtime.deadline_s, None)
        if isinstance(comm, MPI.Intracomm):
            return StandaloneCoordinator(comm, 60.0, None)
        raise InputError(
            "expected a Matrix, or an operator with comm=, received an operator of type "
            f"{type(A).__name__} and comm={comm!r}"
        )

    def _checked(
        self, A: Any, b: Any, x0: Any, M: Any, callback: Any, problem: str | None, agreed: dict[str, Any]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Check the arguments on all ranks and choose the common type; return the vectors as arrays."""
        problem = (
            problem
            or mask_problem(b=b, x0=x0)
            or bound_problem("rtol", agreed["rtol"], 0)
            or bound_problem("atol", agreed["atol"], 0)
            or integer_problem("maxiter", agreed["maxiter"], 0, none=True)
        )
        for what, operator in (("A", A), ("M", M)):
            if problem is None and not (operator is None and what == "M") and not hasattr(type(operator), "__matmul__"):
                problem = f"expected {what} to be an object with {what} @ x, received {type(operator).__name__}"
        if problem is None and callback is not None and not callable(callback):
            problem = f"expected callback to be callable, received {type(callback).__name__}"
        b = np.asarray(b)
        problem = problem or self._vector_problem("a right side", A, b)
        if x0 is not None:
            x0 = np.asarray(x0)
            if problem is None and x0.shape != b.shape:
                problem = f"expected x0 to have shape {b.shape}, received shape {x0.shape}"
            problem = problem or self._vector_problem("x0", A, x0)
        self.coordinator.check(self._name, problem, **agreed)
        dtype = getattr(A, "dtype", None)
        if dtype is None:  # as scipy does
            dtype = np.asarray(A @ b.astype(common_type(b.dtype), copy=False)).dtype
        self.dtype = common_type(dtype, b.dtype)
        if x0 is not None and x0.dtype.kind == "c":
            self.dtype = np.result_type(self.dtype, np.complex64)
        if isinstance(M, Preconditioner) and M.matrix.dtype.kind == "c" and self.dtype.kind == "f":
            problem = "expected a preconditioner of real numbers for a real system, received one of a complex matrix"
        self.coordinator.check(self._name, problem, dtype=self.dtype.str)
        return b, x0

    @staticmethod
    def _vector_problem(name: str, A: Any, vector: np.ndarray) -> str | None:
        if vector.dtype.kind not in "biufc":
            return f"expected {name} of numbers, received an array of type {vector.dtype}"
        if isinstance(A, Matrix) and (problem := A._shape_problem(vector)):
            return problem
        if not np.isfinite(vector).all():
            return f"expected {name} of finite numbers, received some that are not finite"
        return None

    def _preconditioner(self, M: Any) -> Callable[[np.ndarray, np.ndarray], object]:
        """Choose how z = M r is computed."""
        if M is None:
            return lambda r, z: np.copyto(z, r)
        if not isinstance(M, Preconditioner):
            return lambda r, z: self._take("M @ r", M @ self.outward(r), z)
        if self._stored_alike(M.matrix):
            return M.apply
        return lambda r, z: self._take("M @ r", M.apply_to(self.outward(r)), z)

    def _stored_alike(self, matrix: Matrix) -> bool:
        """Return whether a preconditioner's matrix has the type and order of A, as it has if it shares A's storage."""
        own = self._matrix
        return own is not None and (
            matrix is own or (matrix.dtype == own.dtype and np.array_equal(matrix.order, own.order))
        )

    def _begin(self) -> None:
        """Scale the system, and compute the norm at which to stop and the first residual."""
        (of_b,) = self._exponents(self.b)
        nothing = of_b == -inf
        if nothing or not self._guessed:  # as scipy does, b = 0 has the solution 0, whatever the first x is
            self.x[...] = 0
            self._exponent = 0 if nothing else int(of_b)
            self.b = times_power(self.b, -self._exponent)
            self.r = self.b.copy()
        else:
            self._begin_with_guess(of_b)
        norm = float(np.sqrt(self.dots((self.b, self.b))[0].real))
        if not isfinite(float_times_power(norm, self._exponent)):
            raise InputError("expected a right side whose norm can be computed in float64, received one with inf")
        limit = self._rtol * norm if norm else 0.0  # an infinite rtol is allowed
        self._tolerance = max(self._atol, float_times_power(limit, self._exponent))
        limit = max(limit, float_times_power(self._atol, -self._exponent))
        # A residual below this changes no digit of x, and could underflow.
        self.stop = max(limit, float(np.finfo(self.dtype).eps) ** 2 * norm)

    def _begin_with_guess(self, of_b: float) -> None:
        """Scale by the larger one of b and A x, both of which the residual is made of."""
        (exponent,) = self._exponents(self.x)
        of_x = 0 if exponent == -inf else int(exponent)
        product = self.product(times_power(self.x, -of_x))
        (of_product,) = self._exponents(product)
        # A first x that A maps to 0 says nothing of the size of A.
        self._A.unknown = of_product == -inf
        of_x += self._A.exponent
        self._exponent = int(max(of_b, of_product + of_x))
        self.b = times_power(self.b, -self._exponent)
        self.x = times_power(self.x, self._A.exponent - self._exponent)
        self.r = self.b - times_power(product, of_x - self._exponent)

    def _close(self) -> None:
        """Free the objects that were made for the solver (collective)."""
        if self._owned:
            self.coordinator.close()

    # ---- what solvers compute with -----------------------------------------------------------

    def direction(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the vector that is multiplied, and its own entries."""
        return self._extended, self._own

    @property
    def diagonal(self) -> np.ndarray | None:
        """Return the inverse diagonal, scaled as M, where M is that, or ones where there is no M; otherwise None."""
        return None if self._diagonal is None else times_power(self._diagonal, -self._M.exponent)

    def multiply(self, extended: np.ndarray, out: np.ndarray) -> None:
        """Compute out = A extended, scaled."""
        self._apply(self._A, self._own, out)

    def precondition(self, r: np.ndarray, z: np.ndarray) -> None:
        """Compute z = M r, scaled."""
        self._apply(self._M, r, z)

    def _apply(self, operator: _Operator, x: np.ndarray, out: np.ndarray) -> None:
        """Apply an operator, scaled; its first result determines by how much, on all ranks alike."""
        try:
            operator.apply(x, out)
        except BaseException as error:
            self._failed(error)
        if operator.unknown:
            of_x, of_result = self._exponents(x, out)
            operator.scale(of_x, of_result, out)

    def _exponents(self, *arrays: np.ndarray) -> list[float]:
        """Find the exponents of the largest numbers of arrays over all ranks; see `exponent_of`."""
        own = np.zeros((self.coordinator.size, len(arrays)))
        own[self.coordinator.rank] = [exponent_of(array) for array in arrays]
        exponents: list[float] = self.sum(own.reshape(-1)).reshape(own.shape).max(axis=0).tolist()
        return exponents

    def _multiply(self, own: np.ndarray, out: np.ndarray) -> None:
        """Compute out = (A - shift I) x; `own` are this rank's entries of the vector that is multiplied."""
        if self._matrix is None:
            self._take("A @ x", self._product @ own, out)
        else:
            self._watch.begin()
            if self._watch.apart:
                self._matrix.halo.exchange(self._extended)
                self._watch.exchanged()
                self._matrix.compute(self._extended, out)
            else:
                self._matrix.multiply(self._extended, out)
            self._watch.end()
        if self._shift:
            out -= self._shift * own

    def call_back(self, x: np.ndarray | float) -> None:
        """Call the user's callback, with the user's x, or with a ratio of norms of M r and b."""
        if self._callback is not None:
            try:
                self._callback(self._user_x(x) if isinstance(x, np.ndarray) else float_times_power(x, self._M.exponent))
            except BaseException as error:
                self._failed(error)

    def dots(self, *pairs: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Compute the global products <a, b> (the first one conjugated) of pairs of vectors, in one reduction."""
        values = np.array([kernels.dot((a if self.real else a.conj()).reshape(-1), b.reshape(-1)) for a, b in pairs])
        return self.sum(values)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum over all ranks, in place."""
        self._begin_sum(values)
        (self._matrix or self.coordinator).sum(values)
        self._end_sum(values)
        return values

    def start_sum(self, values: np.ndarray, sums: np.ndarray) -> Callable[[], None]:
        """Begin to sum numbers of all ranks; the returned function waits for the sums.

        Do not touch either array until then.
        """
        self._begin_sum(values)
        if self._matrix is not None:
            wait = self._matrix.start_sum(values, sums)
        else:
            request = self.coordinator.start_sum(values, sums)

            def wait() -> None:
                self.coordinator.end_sum(request)

        def finish() -> None:
            wait()
            self._end_sum(sums)

        return finish

    def product(self, x: np.ndarray) -> np.ndarray:
        """Compute A x, scaled; this overwrites the vector that the solver multiplies."""
        extended, own = self.direction()
        own[...] = x
        product = np.empty_like(self.b)
        self.multiply(extended, product)
        return product

    def residual(self, x: np.ndarray) -> np.ndarray:
        """Compute b - A x, scaled."""
        return self.b - self.product(x)

    def outward(self, x: np.ndarray) -> np.ndarray:
        """Return a vector in the user's order."""
        return self._matrix.outward(x) if self._matrix is not None else x.copy()

    def _user_x(self, x: np.ndarray) -> np.ndarray:
        """Return x in the user's order, not scaled."""
        return times_power(self.outward(x), self._exponent - self._A.exponent)

    def solution(self, x: np.ndarray, residuals: list[float], breakdown: int = 0) -> Solution:
        """Return the result, with the residual computed from x."""
        rest = self.residual(x)
        square = kernels.dot(rest.conj().reshape(-1), rest.reshape(-1)).real
        square, *times = self.sum(np.array([square, *self._watch.times()], float))
        known = self._matrix is not None and self.coordinator.size > 1
        self._check_range(x)
        return Solution(
            self._user_x(x),
            [float_times_power(norm, self._exponent) for norm in residuals],
            self._tolerance,
            float_times_power(float(np.sqrt(square)), self._exponent),
            hidden_share(*times) if known else np.nan,
            breakdown,
        )

    def _check_range(self, x: np.ndarray) -> None:
        """Raise an error if the type cannot hold x."""
        exponent, limits = self._exponent - self._A.exponent, np.finfo(self.dtype)
        if abs(exponent) > limits.maxexp // 4:  # otherwise it can, unless A is almost singular
            (of_x,) = self._exponents(x)
            if not (of_x == -inf or limits.minexp < of_x + exponent <= limits.maxexp):
                raise InputError(
                    f"expected a solution in the range of {self.dtype}, received a system with one of about "
                    f"2**{int(of_x + exponent)}: scale A or b"
                )

    def _inward(self, x: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(self._matrix.inward(x)) if self._matrix is not None else np.asarray(x)

    def _take(self, what: str, result: Any, out: np.ndarray) -> None:
        """Check the result of an object of the user, and copy it if it fits."""
        result = np.asarray(result)
        if result.shape != self.b.shape or result.dtype.kind not in "biufc":
            raise InputError(
                f"expected {what} to return {self.b.shape} numbers, received {result.shape} of type {result.dtype}"
            )
        if result.dtype.kind == "c" and self.real:
            raise InputError(
                f"expected {what} to be real for real vectors, received complex numbers (of an object "
                "whose dtype says that it is real, or without one)"
            )
        out[...] = self._inward(result)

    # ---- what fails --------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        """Note a failure on this rank; all ranks learn of it at the next sum."""
        if isinstance(error, RankLost):  # there is no next sum, because this rank cannot reach the others any more
            raise error
        if self._error is None:
            self._error = error

    def _begin_sum(self, values: np.ndarray) -> None:
        if self._error is None:
            self._error = held_signals().error
        if self._error is not None:
            values.fill(np.nan)

    def _end_sum(self, sums: np.ndarray) -> None:
        if sums[0] != sums[0]:  # NaN, on all ranks
            self._meet()

    def _meet(self) -> None:
        """Raise on all ranks the error of one rank.

        A rank's own error takes precedence over one that another rank has reported.
        """
        error, self._error = self._error, None
        kind = 0 if error is None else 1 if isinstance(error, RankError) else 2 if isinstance(error, InputError) else 3
        kinds = self.coordinator.allgather(kind)
        if error is not None and set(kinds) in ({1}, {3}):
            # All ranks leave in the same step, each by its own exception, as a serial program with scipy would.
            raise self.coordinator.mark(error)
        self.coordinator.synchronize(self._name, error=error if kind == max(kinds) else None)


class _Operator:
    """A or M, scaled by 2**-exponent: by 0 unless the exponent of its results is large.

    ``function(x, out)`` computes the result without scaling, ``apply(x, out)`` the scaled one.
    """

    def __init__(self, function: Callable[[np.ndarray, np.ndarray], object], dtype: np.dtype, share: int) -> None:
        self.apply = self._function = function
        self._share, self._most = share, np.finfo(dtype).maxexp  # scaled from this part of the largest exponent on
        self.exponent, self.unknown = 0, True  # unknown: the first result will determine the exponent
        self._before = 0

    def scale(self, of_x: float, of_result: float, out: np.ndarray) -> None:
        """Choose the exponent from those of a first vector and its result `out`, which is scaled."""
        self.unknown = False
        if of_result > -inf and abs(of_result - of_x) > self._most // self._share:
            self.exponent = int(of_result - of_x)
            out[...] = times_power(out, -self.exponent)
            self.apply = self._apply_scaled
            if abs(self.exponent) > self._most // 2:  # x takes a part, so that the result is in the range, too
                self._before = self.exponent // 2

    def _apply_scaled(self, x: np.ndarray, out: np.ndarray) -> None:
        if self._before:
            x *= 2.0**-self._before
        self._function(x, out)
        if self._before:
            x *= 2.0**self._before
        out *= 2.0 ** (self._before - self.exponent)


class _Watch:
    """Measures the times of products.

    The third, ninth, 27th, ... product exchanges first and then computes, with the same bits as result.
    """

    def __init__(self) -> None:
        self.apart = False
        self._count, self._next, self._at = 0, 3, 0.0
        self._whole: list[float] = []
        self._parts: list[tuple[float, float]] = []

    def begin(self) -> None:
        self._count += 1
        self.apart = self._count == self._next
        self._at = perf_counter()

    def exchanged(self) -> None:
        """Note the end of the exchange."""
        self._next *= 3
        self._middle = perf_counter()

    def end(self) -> None:
        """End the measurement of a product."""
        now = perf_counter()
        if self.apart:
            self._parts.append((now - self._middle, self._middle - self._at))
        else:
            self._whole.append(now - self._at)

    def times(self) -> tuple[float, float, float]:
        """Return the medians of C, T and t; zeros if nothing was measured."""
        if not self._parts:
            return 0.0, 0.0, 0.0
        compute_s, exchange_s = (median(times) for times in zip(*self._parts))
        return compute_s, exchange_s, median(self._whole)
