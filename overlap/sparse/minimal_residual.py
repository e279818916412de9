"""Krylov solvers that minimise a residual, with scipy's names and arguments: `gmres` and `minres`."""

from __future__ import annotations

from cmath import isfinite
from collections.abc import Callable
from math import hypot
from typing import Any

import numpy as np
from mpi4py import MPI

from ..checks import choice_problem, finite_problem, integer_problem
from ..errors import repr_of
from ..ranks.interrupts import holding_signals
from ..runtime.requests.requests import AsyncComm
from .krylov import ROUNDINGS, bad_preconditioner, check_finite
from .solution import Solution
from .system import Callback, System

CALLBACK_TYPES = ("x", "pr_norm")


@holding_signals
def gmres(
    A: Any,
    b: np.ndarray,
    x0: np.ndarray | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    restart: int | None = None,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callback | None = None,
    callback_type: str = "x",
    comm: MPI.Intracomm | AsyncComm | None = None,
) -> Solution:
    """Solve A x = b by generalised minimal residuals, for any matrix. Collective.

    The algorithm of Saad and Schultz (SIAM J. Sci. Stat. Comput. 7, 1986), restarted, preconditioned from the left as
    scipy's. Each step orthogonalises a vector twice against all vectors of its cycle, which takes two sums over all
    ranks, whatever the number of vectors (Giraud, Langou, Rozloznik and van den Eshof, Numerische Mathematik 101,
    2005).

    An iteration, as `maxiter` and the result count them, is a cycle of at most `restart` steps.

    Parameters
    ----------
    A, b, x0, rtol, atol, comm
        See `cg`.
    restart : int, optional
        Steps until a restart; 20 by default, and never more than there are unknowns. The solver keeps this many
        vectors.
    maxiter : int, optional
        Largest number of cycles; ten times the number of unknowns by default.
    M : optional
        As for `cg`, but need not be positive definite.
    callback : callable, optional
        See `cg`.
    callback_type : {"x", "pr_norm"}
        ``"x"``: `callback` is called with this rank's part of x after each cycle. ``"pr_norm"``: with norm(M r)/norm(b)
        after each step. scipy's ``"legacy"`` is refused.

    Returns
    -------
    Solution
        Its `residuals` are norms of b - A x at the start and after each cycle.

    Raises
    ------
    InputError, RankError
        As `cg`, but A and M need not be positive definite.

    Examples
    --------
    >>> from overlap.sparse import gmres, diffusion
    >>> blocks = overlap.Blocks((8 * comm.size, 8, 8), grid=(comm.size, 1, 1))
    >>> with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A:
    ...     b = np.ones(512)
    ...     x, info = gmres(A, b, rtol=1e-8, restart=30)
    >>> info
    0
    """
    problem = integer_problem("restart", restart, 1, none=True) or choice_problem(
        "callback_type", callback_type, CALLBACK_TYPES, listed=False
    )
    agreed = {"restart": restart, "callback_type": repr_of(callback_type)}
    with System(
        "gmres", A, b, x0, M, comm, rtol=rtol, atol=atol, maxiter=maxiter, callback=callback, problem=problem, **agreed
    ) as system:
        x, r, stop = system.x, system.r, system.stop
        basis = _Basis(system, min(restart or 20, system.size))
        z = np.empty_like(r)
        system.precondition(system.b, z)
        square, of_b, of_r = system.dots((z, z), (system.b, system.b), (r, r)).real
        check_finite(square + of_r, 0)
        norm = float(np.sqrt(of_b))
        residuals = [float(np.sqrt(of_r))]
        # Within a cycle only the norm of M r is known. The norm of r after each cycle corrects `factor`, the ratio of
        # the two.
        told = (lambda left: system.call_back(left / norm)) if callback_type == "pr_norm" else None
        factor, target = 1.0, float(np.sqrt(square)) * min(1.0, stop / norm) if norm else 0.0
        while residuals[-1] > stop and len(residuals) <= system.most:
            left, exhausted = basis.cycle(r, x, target, told)
            r = system.residual(x)
            (square,) = system.dots((r, r)).real
            check_finite(square, len(residuals))
            residuals.append(float(np.sqrt(square)))
            if told is None:
                system.call_back(x)
            if exhausted:
                break
            factor = max(basis.eps, 0.25 * factor) if left <= target else min(1.0, 1.5 * factor)
            target = left * min(factor, stop / residuals[-1]) if residuals[-1] else 0.0
        return system.solution(x, residuals)


class _Basis:
    """Holds orthonormal vectors of a Krylov space of M A, and the least-squares problem for their coefficients."""

    def __init__(self, system: System, most: int) -> None:
        self.eps = float(np.finfo(system.dtype).eps)
        self._system, self._most = system, most
        self._vectors = np.empty((most + 1, system.b.size), system.dtype)
        self._triangle = np.zeros((most + 1, most), np.result_type(system.dtype, float))
        self._product = np.empty_like(system.b)

    def cycle(
        self, r: np.ndarray, x: np.ndarray, target: float, told: Callable[[float], object] | None
    ) -> tuple[float, bool]:
        """Add to x the vector of the space that minimises the norm of M (b - A x), down to `target` if possible.

        Return this norm, and whether no further basis vector exists.
        """
        system, vectors, triangle = self._system, self._vectors, self._triangle
        extended, own = system.direction()
        system.precondition(r, vectors[0].reshape(r.shape))
        square = system.dots((vectors[0], vectors[0]))[0].real
        check_finite(square, 0)
        left, exhausted = float(np.sqrt(square)), square == 0
        if exhausted:
            return left, exhausted
        vectors[0] /= left
        right = np.zeros(self._most + 1, triangle.dtype)
        right[0] = left
        rotations: list[tuple[float, Any]] = []
        steps = 0
        while steps < self._most and not exhausted and (steps == 0 or left > target):
            own[...] = vectors[steps].reshape(own.shape)
            system.multiply(extended, self._product)
            system.precondition(self._product, vectors[steps + 1].reshape(r.shape))
            column, before, after = self._orthogonalize(steps + 1)
            exhausted = after <= self.eps * before
            if exhausted:
                after = 0.0
            else:
                vectors[steps + 1] /= after
            for place, (c, s) in enumerate(rotations):
                first, second = column[place], column[place + 1]
                column[place], column[place + 1] = c * first + s * second, c * second - np.conj(s) * first
            c, s, column[steps] = _rotation(column[steps], after)
            rotations.append((c, s))
            triangle[: steps + 1, steps] = column[: steps + 1]
            right[steps], right[steps + 1] = c * right[steps], -np.conj(s) * right[steps]
            left = float(abs(right[steps + 1]))
            steps += 1
            if told is not None:
                told(left)
        for place in reversed(range(steps)):  # a zero on the diagonal means that the matrix is singular
            rest = right[place] - triangle[place, place + 1 : steps] @ right[place + 1 : steps]
            right[place] = rest / triangle[place, place] if triangle[place, place] != 0 else 0
        x += (right[:steps].astype(x.dtype) @ vectors[:steps]).reshape(x.shape)
        return left, exhausted

    def _orthogonalize(self, count: int) -> tuple[np.ndarray, float, float]:
        """Make a vector orthogonal to the earlier ones; return its coefficients, and its norms before and after."""
        new, others = self._vectors[count], self._vectors[:count]
        column = np.zeros(count + 1, self._triangle.dtype)
        squares = []
        for _ in range(2):
            sums = self._system.sum(np.append(others.conj() @ new, np.vdot(new, new)).astype(column.dtype))
            check_finite(sums[-1], count)
            new -= sums[:-1].astype(new.dtype) @ others
            column[:-1] += sums[:-1]
            squares.append(float(sums[-1].real))
        # The second orthogonalisation removes little, so the difference has no cancellation.
        left = squares[1] - float(np.sum(np.abs(sums[:-1]) ** 2))
        return column, float(np.sqrt(squares[0])), float(np.sqrt(max(left, 0.0)))


def _rotation(a: Any, b: float) -> tuple[float, Any, Any]:
    """Return c, s and d with [c, s; -conj(s), c] (one, other) = (d, 0)."""
    size = hypot(abs(a), b)
    if size == 0:
        return 1.0, 0.0, 0.0
    if a == 0:
        return 0.0, 1.0, b
    phase = a / abs(a)
    return abs(a) / size, phase * b / size, phase * size


@holding_signals
def minres(
    A: Any,
    b: np.ndarray,
    x0: np.ndarray | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    shift: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callback | None = None,
    comm: MPI.Intracomm | AsyncComm | None = None,
) -> Solution:
    """Solve (A - shift I) x = b by minimal residuals, for a Hermitian A, which may be indefinite or singular.
    Collective.

    The algorithm of Paige and Saunders (SIAM Journal on Numerical Analysis 12, 1975), section 6. It stops by the rule
    of `cg`, and also if A r is zero up to rounding: x is then a least-squares solution. (scipy's `minres` stops
    earlier, by estimated norms of A and x.)

    Parameters
    ----------
    A, b, x0, rtol, atol, callback, comm
        See `cg`.
    shift : float
        A real number that is subtracted from the diagonal of A.
    maxiter : int, optional
        Five times the number of unknowns by default.
    M : optional
        As for `cg`: Hermitian and positive definite.

    Returns
    -------
    Solution

    Raises
    ------
    InputError
        On all ranks: M is not positive definite, numbers are not finite, or an argument makes no sense.
    RankError
        As `cg`.

    Examples
    --------
    >>> from overlap.sparse import minres, diffusion
    >>> blocks = overlap.Blocks((8 * comm.size, 8, 8), grid=(comm.size, 1, 1))
    >>> with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A:
    ...     b = np.ones(512)
    ...     x, info = minres(A, b, rtol=1e-8, shift=0.5)
    >>> info
    0
    """
    with System(
        "minres",
        A,
        b,
        x0,
        M,
        comm,
        rtol=rtol,
        atol=atol,
        maxiter=maxiter,
        callback=callback,
        problem=finite_problem("shift", shift),
        shift=shift,
    ) as system:
        x, r, stop = system.x, system.r, system.stop
        most = 5 * system.size if maxiter is None else system.most
        eps = float(np.finfo(system.dtype).eps)
        extended, v = system.direction()
        z = np.empty_like(r)
        system.precondition(r, z)
        square, product = system.dots((r, r), (r, z)).real
        residuals = [float(np.sqrt(square))]
        beta = _norm_of(product, square, 0)
        older, old = np.zeros_like(r), r.copy()  # Lanczos' vectors before M and before they are scaled
        w, before = np.zeros_like(r), np.zeros_like(r)  # directions of x
        left, last_beta, below, beyond, squares = beta, 0.0, 0.0, 0.0, 0.0
        c, s = -1.0, 0.0
        while residuals[-1] > stop and len(residuals) <= most and beta > 0:
            v[...] = z / beta
            kept = v.copy()  # a preconditioner may overwrite the vector that is multiplied
            y = np.empty_like(r)
            system.multiply(extended, y)
            if last_beta:
                y -= (beta / last_beta) * older
            alpha = float(system.dots((kept, y))[0].real)
            check_finite(alpha, len(residuals))
            y -= (alpha / beta) * old
            older, old = old, y
            system.precondition(y, z)
            square, product = system.dots((y, y), (y, z)).real
            # Of the tridiagonal matrix, to which the first beta, the norm of b - A x, does not belong.
            squares += alpha**2 + (beta**2 if last_beta else 0.0)
            last_beta, beta = beta, _norm_of(product, square, len(residuals))
            squares += beta**2
            # The rotation before this one, then this one, of the last column of the tridiagonal matrix.
            above, delta, corner = beyond, c * below + s * alpha, s * below - c * alpha
            beyond, below = s * beta, -c * beta
            if hypot(corner, below) <= ROUNDINGS * eps * np.sqrt(squares):
                break  # A r is zero up to rounding, so x cannot become better
            size = hypot(corner, beta)
            c, s = corner / size, beta / size
            step, left = c * left, s * left
            w, before = (kept - above * before - delta * w) / size, w
            x += step * w
            if not system.preconditioned:
                residuals.append(abs(left))
            else:
                r = s * s * r - (left * c / beta) * old if beta else r - r
                residuals.append(float(np.sqrt(system.dots((r, r))[0].real)))
            system.call_back(x)
        return system.solution(x, residuals)


def _norm_of(product: float, square: float, iteration: int) -> float:
    """Return the norm of a vector in the metric of M, the root of r.Mr; raise an error if r.Mr is not positive."""
    if not (product > 0 or square == 0) or not isfinite(square + product):
        raise bad_preconditioner(square, product, iteration)
    return float(np.sqrt(product))
