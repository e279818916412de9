"""Weights and blocks on which all ranks agree: an error of one rank raises on all; speeds may be measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arrays.blocks import Blocks
from ..arrays.weights import MEASURE, ROUND_S, ROUNDS, Weights, checked, speeds_of, weights_of
from ..compiled import njit
from ..ranks.interrupts import holding_signals
from ..ranks.standalone_coordinator import StandaloneCoordinator

_COUNT = 2**20  # items of each of three arrays: more than caches hold, as in a sweep or a sparse product


@holding_signals
def agreed_blocks(
    comm: MPI.Intracomm,
    shape: Sequence[int],
    grid: Sequence[int],
    *,
    weights: Sequence[Any] | str | None = None,
    deadline_s: float | None = 60.0,
    **geometry: Any,
) -> Blocks:
    """Make `Blocks` on all ranks, or raise the same error on all. Collective.

    `Blocks` itself is local: if an argument is wrong on one rank only, the other ranks go on and wait for that rank.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    shape, grid, **geometry
        Arguments of `Blocks`.
    weights : sequence of numbers or "measure", optional
        One per rank; "measure": the ranks' speeds in a sweep through memory, if these differ clearly.
    deadline_s : float or None
        See `Halo`.

    Returns
    -------
    Blocks

    Raises
    ------
    InputError
        On all ranks, if an argument is not valid or differs between ranks.

    Examples
    --------
    >>> blocks = overlap.agreed_blocks(comm, (8, 8), grid=(comm.size, 1), width=1)
    >>> blocks.size == comm.size
    True
    """
    coordinator = StandaloneCoordinator(comm, deadline_s, None)
    with coordinator.collective_section("making blocks", coordinator.close):
        blocks = Blocks(shape, grid, weights=agreed_weights(coordinator, weights), **geometry)
        coordinator.check(
            "making blocks",
            None if blocks.size == comm.size else f"expected a grid of {comm.size} ranks, received {blocks.grid}",
            blocks=vars(blocks),
        )
    coordinator.close()
    return blocks


def agreed_weights(coordinator: StandaloneCoordinator, given: Any) -> Weights:
    """Agree on the weights of ranks, or raise an `InputError` on all; for "measure", measure them. Collective."""
    measure = isinstance(given, str) and given == MEASURE
    weights, problem = checked(None if measure else given, coordinator.size)
    coordinator.check("the weights of ranks", problem, weights=MEASURE if measure else weights)
    return _measured(coordinator) if measure else weights


def _measured(coordinator: StandaloneCoordinator) -> Weights:
    """Measure the ranks' speeds in simultaneous sweeps through memory; None if unequal shares would gain nothing."""
    a, b, c = np.zeros(_COUNT), np.ones(_COUNT), np.ones(_COUNT)
    once_s = coordinator.maximum(min(_seconds(1, a, b, c) for _ in range(3)))  # the first run compiles
    runs = math.ceil(ROUND_S / once_s)
    times_s = []
    for _ in range(ROUNDS):
        coordinator.maximum(0)
        times_s.append(_seconds(runs, a, b, c))
    speeds, pays = speeds_of(coordinator.allgather(times_s), (1 / coordinator.size,) * coordinator.size)
    return weights_of(speeds) if pays else None


def _seconds(runs: int, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> float:
    begun = perf_counter()
    _sweep(runs, a, b, c)
    return perf_counter() - begun


@njit
def _sweep(runs: Any, a: Any, b: Any, c: Any) -> None:
    for _ in range(runs):
        for place in range(len(a)):
            a[place] = b[place] + 3.0 * c[place]
