"""Rounds in which all that is compared takes its turn: so other work of the machine affects all of it alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

Key = TypeVar("Key")
Value = TypeVar("Value")


def turns(
    runs: Mapping[Key, Callable[[], Value]],
    rounds: int,
    warm: int = 1,
    begin: Callable[[int], object] = lambda number: None,
) -> dict[Key, list[Value]]:
    """Call functions in every round, in random order, so that none always follows the same other one.

    Parameters
    ----------
    runs : mapping
        Functions that measure something. The order is the same on all ranks that give the same keys in the same order.
    rounds, warm : int
        Rounds whose values are kept, and rounds before these.
    begin : callable
        Called with the number of each round that is kept, from 0 on.

    Returns
    -------
    dict
        The values of each function, round by round.
    """
    names, order = list(runs), np.random.default_rng(0)
    found: dict[Key, list[Value]] = {name: [] for name in names}
    for number in range(-warm, rounds):
        if number >= 0:
            begin(number)
        for place in order.permutation(len(names)).tolist():
            value = runs[names[place]]()
            if number >= 0:
                found[names[place]].append(value)
    return found


def timed(comm: MPI.Intracomm, run: Callable[[], object], calls: int = 1) -> float:
    """Time a function from a barrier to the end of the slowest rank. Collective.

    Returns
    -------
    float
        Seconds per call, the same on all ranks.
    """
    comm.Barrier()
    started_s = perf_counter()
    for _ in range(calls):
        run()
    return comm.allreduce(perf_counter() - started_s, MPI.MAX) / calls


def seconds_of(
    comm: MPI.Intracomm,
    runs: Mapping[Key, Callable[[], object]],
    rounds: int,
    warm: int = 1,
    calls: Mapping[Key, int] | None = None,
) -> dict[Key, list[float]]:
    """Time functions in turns. Collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    runs : mapping
    rounds, warm : int
        Rounds whose times are kept, and rounds before these.
    calls : mapping, optional
        How many calls of each function make one of its times; by default one.

    Returns
    -------
    dict
        Seconds per call of the slowest rank, round by round.
    """

    def timing(name: Key, run: Callable[[], object]) -> Callable[[], float]:
        return lambda: timed(comm, run, 1 if calls is None else calls[name])

    return turns({name: timing(name, run) for name, run in runs.items()}, rounds, warm)


def medians(found: Mapping[Key, list[float]]) -> dict[Key, float]:
    """Return the median of each list."""
    return {name: statistics.median(values) for name, values in found.items()}


def fastest(comm: MPI.Intracomm, runs: Mapping[Key, Callable[[], object]], trials: int = 3) -> Key:
    """Find the function with the smallest time of some trials, the first of which is not counted. Collective."""
    found = seconds_of(comm, runs, trials)
    return min(found, key=lambda name: min(found[name]))


def alike(comm: MPI.Intracomm, results: Mapping[str, Any], tolerance: float) -> None:
    """Compare this rank's parts of results with those of the first one. Collective.

    Raises
    ------
    AssertionError
        Parts of some rank differ by more than `tolerance` times the largest value of all ranks; raised on all ranks.
    """
    name, *others = results
    first = np.asarray(results[name])
    limit = tolerance * comm.allreduce(float(np.abs(first).max(initial=0.0)), MPI.MAX)
    for other in others:
        worst = comm.allreduce(float(np.abs(np.asarray(results[other]) - first).max(initial=0.0)), MPI.MAX)
        if not worst <= limit:
            raise AssertionError(f"expected {other} to differ from {name} by at most {limit:.1e}, received {worst:.1e}")
