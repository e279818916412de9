"""Krylov solvers with scipy's names, arguments and stopping rule: norm(b - A x) <= max(rtol norm(b), atol).

All ranks take the same branch: every decision is made of numbers that a reduction has given to all of them, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from ..errors import InputError
from ..runtime.requests.requests import AsyncComm
from . import kernels
from .solution import Solution
from .system import System

Callback = Callable[[np.ndarray], object]


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

    Parameters
    ----------
    A : Matrix
        Or an object with ``A @ x`` for the own entries of a vector; then `comm` says which ranks take part.
    b : ndarray
        This rank's entries of the right side.
    x0 : ndarray, optional
        Where to start; zero by default.
    rtol, atol : float
        It ends when norm(b - A x) <= max(rtol norm(b), atol), by the recursion's residual.
    maxiter : int, optional
        Ten times the number of unknowns by default.
    M : optional
        Approximation of the inverse of A: `Jacobi`, `BlockJacobi`, or an object with ``M @ r``.
    callback : callable, optional
        Called with this rank's part of x after each iteration.
    comm : mpi4py.MPI.Intracomm or AsyncComm, optional
        The ranks, where A is no `Matrix`; the communicator of a runtime (``rt.comm``) brings its deadline, otherwise it is a minute.
    single_reduction : bool
        Sum over all ranks once per iteration instead of twice, for one vector more: the steps are the same but for rounding
        (Chronopoulos and Gear, J. Comput. Appl. Math. 25, 1989). It pays between nodes.

    Returns
    -------
    Solution
        ``x, info``, with the number of iterations and the residuals.

    Raises
    ------
    InputError
        On all ranks: A or M is not positive definite (p.Ap <= 0), or numbers are not finite.
    """
    with System(A, b, M, comm) as system:
        x, r = system.guess(x0)
        limit, most = _limits(system, rtol, atol, maxiter, single_reduction)
        if single_reduction:
            return _single_reduction(system, x, r, limit, most, callback)
        extended, p = system.direction()
        q = np.empty_like(r)
        z = np.empty_like(r) if system.scale is None else p  # an inverse diagonal is applied where its result is used
        system.precondition(r, z)
        p[...] = z
        square, rho = system.dots((r, r), (r, z)).real
        residuals = [float(np.sqrt(square))]
        flat_x, flat_r, flat_q, flat_z, flat_p = (array.reshape(-1) for array in (x, r, q, z, p))
        scale = system.scale.reshape(-1) if system.scale is not None else None
        sums = np.zeros(2)
        while residuals[-1] > limit and len(residuals) <= most:
            system.multiply(extended, q)
            curvature = system.dots((p, q))[0].real
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
            system.told(callback, x)
            rho = new
        return system.solution(x, residuals, limit)


def _single_reduction(system, x, r, limit, most, callback):
    """The iterations of `cg` with one sum each: that of r.r, r.u and u.w, where u = M r and w = A u."""
    extended, u = system.direction()
    w, p, s = np.empty_like(r), np.zeros_like(r), np.zeros_like(r)
    flat = tuple(array.reshape(-1) for array in (u, w, p, s, x, r))
    residuals: list[float] = []
    alpha = before = 0.0
    while True:
        system.precondition(r, u)
        if len(residuals) == most:  # nothing follows that would need the product
            residuals.append(float(np.sqrt(system.dots((r, r))[0].real)))
            return system.solution(x, residuals, limit)
        system.multiply(extended, w)
        square, gamma, delta = system.dots((r, r), (r, u), (u, w)).real
        _check_preconditioned(square, gamma, limit, len(residuals))
        residuals.append(float(np.sqrt(square)))
        if residuals[-1] <= limit:
            return system.solution(x, residuals, limit)
        beta = gamma / before if before else 0.0
        curvature = delta - beta * gamma / alpha if beta else delta
        _check_curvature(curvature, len(residuals))
        alpha, before = gamma / curvature, gamma
        kernels.single_step(alpha, beta, *flat)
        system.told(callback, x)


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

    The algorithm of Ghysels and Vanroose (Parallel Computing 40, 2014). It pays where a reduction takes longer
    than the preconditioner and the product, with very many ranks; on one node `cg` is faster (`faster_cg` measures it). Rounding
    errors grow faster than in `cg`. Arguments, result and errors as for `cg`.
    """
    with System(A, b, M, comm) as system:
        x, r = system.guess(x0)
        limit, most = _limits(system, rtol, atol, maxiter)
        extended, m = system.direction()  # holds M w, which is what is multiplied
        u, w, n = np.empty_like(r), np.empty_like(r), np.empty_like(r)
        system.precondition(r, u)
        m[...] = u
        system.multiply(extended, w)
        flat_m, flat_n, flat_r, flat_u, flat_w, flat_x = (array.reshape(-1) for array in (m, n, r, u, w, x))
        directions = tuple(np.zeros_like(flat_r) for _ in range(4))
        here = np.array([np.vdot(u, r), np.vdot(u, w), np.vdot(r, r)]).real.astype(float)
        sums = np.empty_like(here)
        before = alpha = 0.0
        residuals: list[float] = []
        while True:
            finish = system.start_sum(here, sums)
            system.precondition(w, m)
            system.multiply(extended, n)
            finish()
            gamma, delta, square = sums
            _check_preconditioned(square, gamma, limit, len(residuals))
            residuals.append(float(np.sqrt(square)))
            if len(residuals) > 1:
                system.told(callback, x)
            if residuals[-1] <= limit or len(residuals) > most:
                return system.solution(x, residuals, limit)
            beta = gamma / before if len(residuals) > 1 else 0.0
            curvature = delta - beta * gamma / alpha if beta else delta
            _check_curvature(curvature, len(residuals))
            alpha, before = gamma / curvature, gamma
            kernels.pipelined_step(alpha, beta, flat_n, flat_m, directions, (flat_x, flat_r, flat_u, flat_w), here)


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

    The algorithm of van der Vorst (SIAM J. Sci. Stat. Comput. 13, 1992), preconditioned from the right. Arguments and result as for `cg`.

    Raises
    ------
    InputError
        On all ranks: it breaks down (a zero or not a finite number where it divides).
    """
    with System(A, b, M, comm) as system:
        x, r = system.guess(x0)
        limit, most = _limits(system, rtol, atol, maxiter)
        extended, y = system.direction()
        shadow, p, v, s, t = r.copy(), r.copy(), np.empty_like(r), np.empty_like(r), np.empty_like(r)
        rho, square = system.dots((shadow, r), (r, r))
        residuals = [float(np.sqrt(square.real))]
        while residuals[-1] > limit and len(residuals) <= most:
            system.precondition(p, y)
            system.multiply(extended, v)
            alpha = _quotient(rho, system.dots((shadow, v))[0], "r0.Ap", len(residuals))
            np.subtract(r, alpha * v, out=s)
            x += alpha * y
            system.precondition(s, y)
            system.multiply(extended, t)
            cross, square, rest = system.dots((t, s), (t, t), (s, s))
            if np.sqrt(rest.real) <= limit:
                r[...] = s
                residuals.append(float(np.sqrt(rest.real)))
                system.told(callback, x)
                break
            omega = _quotient(cross, square, "As.As", len(residuals))
            x += omega * y
            np.subtract(s, omega * t, out=r)
            new, square = system.dots((shadow, r), (r, r))
            residuals.append(float(np.sqrt(square.real)))
            system.told(callback, x)
            beta = _quotient(new * alpha, rho * omega, "(r0.r) omega", len(residuals))
            p -= omega * v
            p *= beta
            p += r
            rho = new
        return system.solution(x, residuals, limit)


def _check_curvature(curvature, iteration):
    """Refuse a matrix that is not positive definite."""
    if not curvature > 0 or not np.isfinite(curvature):
        _refuse(f"expected a positive definite matrix, received one with p.Ap = {curvature:g} in iteration {iteration}")


def _check_preconditioned(square, product, limit, iteration):
    """Refuse a preconditioner that is not positive definite, and what is not finite; at the end rounding may decide on a sign."""
    if not np.isfinite((square, product)).all() or (product < 0 and square > limit**2):
        _refuse(
            f"expected a positive definite preconditioner and finite numbers, received r.Mr = {product:g} and "
            f"r.r = {square:g} in iteration {iteration}"
        )


def _limits(system, rtol, atol, maxiter, single_reduction=False):
    """The norm at which to stop, and the most iterations."""
    problem = None
    if not (np.isfinite([rtol, atol]).all() and rtol >= 0 and atol >= 0):
        problem = f"expected rtol and atol >= 0, received {rtol!r} and {atol!r}"
    elif maxiter is not None and maxiter < 0:
        problem = f"expected maxiter >= 0, received {maxiter!r}"
    system.control.check(
        "the limits of a solver", problem, rtol=rtol, atol=atol, maxiter=maxiter, single_reduction=single_reduction
    )
    size = system.control.sum(np.array([system.b.size], np.int64))
    norm = float(np.sqrt(system.dots((system.b, system.b))[0].real))
    return max(rtol * norm, atol), 10 * int(size[0]) if maxiter is None else maxiter


def _quotient(above, below, name, iteration):
    if below == 0 or not np.isfinite(below):
        _refuse(
            f"expected a matrix for which bicgstab does not break down, received {name} = {below:g} in iteration "
            f"{iteration}"
        )
    return above / below


def _refuse(text: str) -> NoReturn:
    """Raise on all ranks: what is decided on is the same on all of them."""
    raise InputError(text)
