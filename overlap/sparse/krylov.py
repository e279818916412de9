"""Krylov solvers with scipy's names, arguments and stopping rule: norm(b - A x) <= max(rtol norm(b), atol).

All ranks take the same branches: every decision depends on results of reductions, which have the same bits on all
ranks.
"""

from __future__ import annotations

from cmath import isfinite
from collections.abc import Callable
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from ..checks import truth_problem
from ..errors import InputError
from ..ranks.interrupts import holding_signals
from ..runtime.requests.requests import AsyncComm
from . import kernels
from .solution import Solution
from .system import Callback, System

_RHO_BREAKDOWN, _OMEGA_BREAKDOWN = -10, -11  # scipy's codes

ROUNDINGS = 64  # bound for the errors of a product and a sum, in units of the last place


@holding_signals
def cg(
    A: Any,
    b: np.ndarray,
    x0: np.ndarray | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callback | None = None,
    comm: MPI.Intracomm | AsyncComm | None = None,
    single_reduction: bool = False,
) -> Solution:
    """Solve A x = b by conjugate gradients, A Hermitian and positive definite. Collective.

    The solver computes in the common type of A, b and a complex x0. A and b may be as large or as small as this type
    allows, even if it cannot hold the squares of their entries.

    Parameters
    ----------
    A : Matrix
        The matrix, or an object whose ``A @ x`` takes and returns this rank's entries of a vector; `comm` then names
        the ranks.
    b : ndarray
        This rank's entries of the right side.
    x0 : ndarray, optional
        First guess; zero by default.
    rtol, atol : float
        The solver stops when norm(b - A x) <= max(rtol norm(b), atol), by the residual of the recursion. Infinity is
        allowed. If b is zero, x is zero, whatever `x0`.
    maxiter : int, optional
        Ten times the number of unknowns by default.
    M : optional
        Approximation of the inverse of A: `Jacobi`, `BlockJacobi`, or an object with ``M @ r``.
    callback : callable, optional
        Called with this rank's part of x after each iteration. If the callback, M or an operator raises on one rank,
        all ranks raise in this iteration.
    comm : mpi4py.MPI.Intracomm or AsyncComm, optional
        The ranks, if A is no `Matrix`. The communicator of a runtime (``rt.comm``) brings its deadline; otherwise the
        deadline is a minute.
    single_reduction : bool
        Sum over all ranks once per iteration instead of twice, for one vector more: the steps are the same up to
        rounding (Chronopoulos and Gear, J. Comput. Appl. Math. 25, 1989). It pays between nodes.

    Returns
    -------
    Solution
        ``x, info``, with the number of iterations and the residuals.

    Raises
    ------
    InputError
        On all ranks: A or M is not positive definite (p.Ap <= 0), numbers are not finite, x is too large or too small
        for its type, or an argument makes no sense.
    RankError
        On all ranks: the callback, M or an operator has raised on one rank. An exception that it raises on all ranks
        is passed on unchanged.

    Examples
    --------
    >>> from overlap.sparse import cg, diffusion
    >>> blocks = overlap.Blocks((8 * comm.size, 8, 8), grid=(comm.size, 1, 1))
    >>> with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A:
    ...     b = np.ones(512)
    ...     x, info = cg(A, b, rtol=1e-8)
    >>> info
    0
    """
    problem = truth_problem("single_reduction", single_reduction)
    single = problem is None and bool(single_reduction)
    name = "cg with single reductions" if single else "cg"
    with System(
        name, A, b, x0, M, comm, rtol=rtol, atol=atol, maxiter=maxiter, callback=callback, problem=problem
    ) as system:
        if single:
            return _single_reduction(system)
        x, r, limit, most = system.x, system.r, system.stop, system.most
        extended, p = system.direction()
        q = np.empty_like(r)
        z = np.empty_like(r) if system.diagonal is None else p  # an inverse diagonal is applied in passing
        system.precondition(r, z)
        p[...] = z
        square, rho = system.dots((r, r), (r, z)).real
        residuals = [float(np.sqrt(square))]
        flat_x, flat_r, flat_q, flat_z, flat_p = (array.reshape(-1) for array in (x, r, q, z, p))
        diagonal = system.diagonal  # whose scale the first result has determined
        scale = None if diagonal is None else diagonal.reshape(-1)
        sums = np.zeros(2)
        while residuals[-1] > limit and len(residuals) <= most:
            system.multiply(extended, q)
            curvature = system.dots((p, q))[0].real
            if not curvature > 0 and _is_rounding(system, curvature, p, r):
                break  # the matrix is singular, and x cannot become better
            _check_curvature(curvature, len(residuals))
            alpha = rho / curvature
            if scale is not None:
                kernels.scaled_step(alpha, flat_q, scale, flat_r, sums)
                square, new = system.sum(sums)
            else:
                kernels.step(alpha, flat_q, flat_r)
                system.precondition(r, z)
                square, new = system.dots((r, r), (r, z)).real
            _check_preconditioned(square, new, limit, len(residuals))
            residuals.append(float(np.sqrt(square)))
            if scale is not None:
                kernels.scaled_turn(alpha, new / rho, scale, flat_r, flat_x, flat_p)
            else:
                kernels.turn(alpha, new / rho, flat_z, flat_x, flat_p)
            system.call_back(x)
            rho = new
        return system.solution(x, residuals)


def _single_reduction(system: System) -> Solution:
    """Iterate as `cg` with one reduction per step, of r.r, r.u and u.w, where u = M r and w = A u."""
    x, r, limit, most = system.x, system.r, system.stop, system.most
    extended, u = system.direction()
    w, p, s = np.empty_like(r), np.zeros_like(r), np.zeros_like(r)
    flat = tuple(array.reshape(-1) for array in (u, w, p, s, x, r))
    residuals: list[float] = []
    alpha = before = 0.0
    while True:
        system.precondition(r, u)
        if len(residuals) == most:  # the last iteration needs no further product
            residuals.append(float(np.sqrt(system.dots((r, r))[0].real)))
            return system.solution(x, residuals)
        system.multiply(extended, w)
        square, gamma, delta = system.dots((r, r), (r, u), (u, w)).real
        _check_preconditioned(square, gamma, limit, len(residuals))
        residuals.append(float(np.sqrt(square)))
        if residuals[-1] <= limit:
            return system.solution(x, residuals)
        beta = gamma / before if before else 0.0
        curvature = delta - beta * gamma / alpha if beta else delta
        if not curvature > 0 and _only_rounded(system, u + beta * p, r, len(residuals)):
            return system.solution(x, residuals)
        alpha, before = gamma / curvature, gamma
        kernels.single_step(alpha, beta, *flat)
        system.call_back(x)


@holding_signals
def pipecg(
    A: Any,
    b: np.ndarray,
    x0: np.ndarray | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callback | None = None,
    comm: MPI.Intracomm | AsyncComm | None = None,
) -> Solution:
    """Solve A x = b by pipelined conjugate gradients: one reduction per iteration, hidden behind M and A.

    The algorithm of Ghysels and Vanroose (Parallel Computing 40, 2014). It pays if a reduction takes longer than the
    preconditioner and the product, which happens with very many ranks; on one node `cg` is faster (`faster_cg` measures
    it). Rounding errors grow faster than in `cg`. Arguments, result and errors as for `cg`.

    Parameters
    ----------
    A, b, x0, rtol, atol, maxiter, M, callback, comm
        See `cg`.

    Returns
    -------
    Solution

    Raises
    ------
    InputError, RankError
        As `cg`.

    Examples
    --------
    >>> from overlap.sparse import pipecg, diffusion
    >>> blocks = overlap.Blocks((8 * comm.size, 8, 8), grid=(comm.size, 1, 1))
    >>> with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A:
    ...     b = np.ones(512)
    ...     x, info = pipecg(A, b, rtol=1e-8)
    >>> info
    0
    """
    with System("pipecg", A, b, x0, M, comm, rtol=rtol, atol=atol, maxiter=maxiter, callback=callback) as system:
        x, r, limit, most = system.x, system.r, system.stop, system.most
        extended, m = system.direction()  # for M w, which A is applied to
        u, w, n = np.empty_like(r), np.empty_like(r), np.empty_like(r)
        system.precondition(r, u)
        m[...] = u
        system.multiply(extended, w)
        flat_m, flat_n, flat_r, flat_u, flat_w, flat_x = (array.reshape(-1) for array in (m, n, r, u, w, x))
        directions = tuple(np.zeros_like(flat_r) for _ in range(4))
        own_sums = np.array([np.vdot(u, r), np.vdot(u, w), np.vdot(r, r)]).real.astype(float)
        sums = np.empty_like(own_sums)
        before = alpha = 0.0
        residuals: list[float] = []
        while True:
            finish = system.start_sum(own_sums, sums)
            system.precondition(w, m)
            system.multiply(extended, n)
            finish()
            gamma, delta, square = sums
            if gamma < 0 and square > limit * limit:  # u differs from M r by rounding errors: compute it anew
                system.precondition(r, u)
                gamma = system.dots((r, u))[0].real
                _check_preconditioned(square, gamma, limit, len(residuals))
                return system.solution(x, residuals)
            _check_preconditioned(square, gamma, limit, len(residuals))
            residuals.append(float(np.sqrt(square)))
            if len(residuals) > 1:
                system.call_back(x)
            if residuals[-1] <= limit or len(residuals) > most:
                return system.solution(x, residuals)
            beta = gamma / before if len(residuals) > 1 else 0.0
            curvature = delta - beta * gamma / alpha if beta else delta
            if not curvature > 0 and _only_rounded(
                system, u + beta * directions[3].reshape(u.shape), r, len(residuals)
            ):
                return system.solution(x, residuals)
            alpha, before = gamma / curvature, gamma
            kernels.pipelined_step(alpha, beta, flat_n, flat_m, directions, (flat_x, flat_r, flat_u, flat_w), own_sums)


@holding_signals
def bicgstab(
    A: Any,
    b: np.ndarray,
    x0: np.ndarray | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callback | None = None,
    comm: MPI.Intracomm | AsyncComm | None = None,
) -> Solution:
    """Solve A x = b by stabilised biconjugate gradients, for any matrix. Collective.

    The algorithm of van der Vorst (SIAM J. Sci. Stat. Comput. 13, 1992), preconditioned from the right. Arguments,
    result and errors are those of `cg`, except that A and M need not be positive definite. If the algorithm breaks
    down, `info` is scipy's: -10 if the residual is orthogonal to the first one, -11 if another divisor is zero.

    Parameters
    ----------
    A, b, x0, rtol, atol, maxiter, M, callback, comm
        See `cg`.

    Returns
    -------
    Solution

    Raises
    ------
    InputError, RankError
        As `cg`, but A and M need not be positive definite.

    Examples
    --------
    >>> from overlap.sparse import bicgstab, diffusion
    >>> blocks = overlap.Blocks((8 * comm.size, 8, 8), grid=(comm.size, 1, 1))
    >>> with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A:
    ...     b = np.ones(512)
    ...     x, info = bicgstab(A, b, rtol=1e-8)
    >>> info
    0
    """
    with System("bicgstab", A, b, x0, M, comm, rtol=rtol, atol=atol, maxiter=maxiter, callback=callback) as system:
        x, r, limit, most = system.x, system.r, system.stop, system.most
        extended, y = system.direction()
        shadow, p, v, s, t = r.copy(), r.copy(), np.empty_like(r), np.empty_like(r), np.empty_like(r)
        rho, square = system.dots((shadow, r), (r, r))
        residuals = [float(np.sqrt(square.real))]
        while residuals[-1] > limit and len(residuals) <= most:
            if rho == 0:
                return system.solution(x, residuals, _RHO_BREAKDOWN)
            system.precondition(p, y)
            system.multiply(extended, v)
            (below,) = system.dots((shadow, v))
            check_finite(below, len(residuals))
            if below == 0:
                return system.solution(x, residuals, _OMEGA_BREAKDOWN)
            alpha = rho / below
            np.subtract(r, alpha * v, out=s)
            x += alpha * y
            system.precondition(s, y)
            system.multiply(extended, t)
            cross, square, rest = system.dots((t, s), (t, t), (s, s))
            check_finite(cross + square + rest, len(residuals))
            if np.sqrt(rest.real) <= limit or cross == 0 or square == 0:
                residuals.append(float(np.sqrt(rest.real)))
                system.call_back(x)
                return system.solution(x, residuals, 0 if residuals[-1] <= limit else _OMEGA_BREAKDOWN)
            omega = cross / square
            x += omega * y
            np.subtract(s, omega * t, out=r)
            new, square = system.dots((shadow, r), (r, r))
            check_finite(new + square, len(residuals))
            residuals.append(float(np.sqrt(square.real)))
            system.call_back(x)
            p -= omega * v
            p *= (new / rho) * (alpha / omega)
            p += r
            rho = new
        return system.solution(x, residuals)


def _check_curvature(curvature: float, iteration: int) -> None:
    """Raise an error if the matrix is not positive definite."""
    if not 0 < curvature < inf:
        raise InputError(
            f"expected a positive definite matrix, received one with p.Ap = {curvature:g} in iteration {iteration}"
        )


def _is_rounding(system: System, curvature: float, p: np.ndarray, r: np.ndarray) -> bool:
    """Return whether rounding errors alone can explain the distance of p.Ap from 0; the norm of A is estimated from
    r."""
    square = system.dots((p, p))[0].real
    product = system.product(r)  # overwrites p
    squares = system.dots((product, product), (r, r)).real
    norm = np.sqrt(squares[0] / squares[1])
    return bool(abs(curvature) <= ROUNDINGS * np.finfo(r.dtype).eps * norm * square)


def _only_rounded(system: System, p: np.ndarray, r: np.ndarray, iteration: int) -> bool:
    """Return whether p.Ap is not positive because of rounding errors alone, so that the solver must end.

    Otherwise raise an error about the matrix.
    """
    curvature = system.dots((p, system.product(p)))[0].real
    if not curvature > 0 and not _is_rounding(system, curvature, p, r):
        _check_curvature(curvature, iteration)
    return True


def _check_preconditioned(square: float, product: float, limit: float, iteration: int) -> None:
    """Raise an error if the preconditioner is not positive definite, or a number is not finite."""
    # Near the end rounding errors may make the sign negative.
    if not (isfinite(square) and isfinite(product)) or (product < 0 and square > limit * limit):
        raise bad_preconditioner(square, product, iteration)


def bad_preconditioner(square: float, product: float, iteration: int) -> InputError:
    """Make the error for a preconditioner that is not positive definite, or a number that is not finite."""
    return InputError(
        f"expected a positive definite preconditioner and finite numbers, received r.Mr = {product:g} and "
        f"r.r = {square:g} in iteration {iteration}"
    )


def check_finite(number: complex, iteration: int) -> None:
    """Raise an error if a number is not finite."""
    if not isfinite(number):
        raise InputError(f"expected finite numbers, received {number:g} in iteration {iteration}")


_ROUNDS = 3
_ITERATIONS = 10
_MARGIN = 0.95  # `pipecg`, whose rounding errors grow faster, must take less than this share of the time of `cg`


@holding_signals
def faster_cg(
    A: Any, b: np.ndarray, *, M: Any = None, comm: MPI.Intracomm | AsyncComm | None = None
) -> Callable[..., Solution]:
    """Choose `cg` or `pipecg`, whichever takes less time for an iteration, measured in some of each. Collective.

    Parameters
    ----------
    A, b, M, comm
        See `cg`.

    Returns
    -------
    callable
        `cg` on all ranks, or `pipecg` on all: `pipecg` if it takes less than 0.95 of the other's time.

    Raises
    ------
    InputError
        As `cg`.

    Examples
    --------
    >>> from overlap.sparse import diffusion, faster_cg
    >>> blocks = overlap.Blocks((8 * comm.size, 8, 8), grid=(comm.size, 1, 1))
    >>> with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A:
    ...     b = np.ones(512)
    ...     solve = faster_cg(A, b)
    ...     x, info = solve(A, b, rtol=1e-8)
    >>> info
    0
    """
    seconds: dict[Callable[..., Solution], list[float]] = {cg: [], pipecg: []}
    with System("faster_cg", A, b, None, M, comm, rtol=0, atol=0, maxiter=None, callback=None) as system:
        for _ in range(_ROUNDS):
            for solver, times in seconds.items():
                started = perf_counter()
                solution = solver(A, b, maxiter=_ITERATIONS, M=M, comm=comm)
                times.append(system.coordinator.maximum(perf_counter() - started) / max(solution.iterations, 1))
    return pipecg if min(seconds[pipecg]) < _MARGIN * min(seconds[cg]) else cg
