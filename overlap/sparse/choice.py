"""Chooses the faster of two solvers for a system on this machine."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from ..ranks.interrupts import holding_signals
from ..runtime.requests.requests import AsyncComm
from .krylov import cg, pipecg
from .solution import Solution
from .system import System

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
