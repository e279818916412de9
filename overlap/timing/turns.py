"""Comparing several ways to do the same work: they run in turns, and the one with the smallest median is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Way = TypeVar("Way")


def in_turns(ways: Sequence[Callable[[], float]], rounds: Iterable[Any]) -> NDArray[np.float64]:
    """Run all ways once in every round; each round begins with another way.

    Parameters
    ----------
    ways : sequence of callable
        Each returns the seconds that it took.
    rounds : iterable
        One item per round.

    Returns
    -------
    ndarray
        Seconds, (ways, rounds).
    """
    rows = []
    for number, _ in enumerate(rounds):
        row = np.empty(len(ways))
        for turn in range(len(ways)):
            at = (turn + number) % len(ways)
            row[at] = ways[at]()
        rows.append(row)
    return np.array(rows).T.copy()


def seconds_of(function: Callable[[], object], runs: int = 1) -> float:
    """Return the wall time of `runs` runs."""
    started = perf_counter()
    for _ in range(runs):
        function()
    return perf_counter() - started


def fastest(ways: Sequence[Way], times_s: Iterable[Any], near_tie: float = 1.0) -> Way:
    """Return the way with the smallest median time; an earlier one stays unless a later one is clearly faster.

    Parameters
    ----------
    ways : sequence
    times_s : iterable of sequence of float
        The seconds of every way; if all ranks must choose the same way, those of the slowest rank.
    near_tie : float
        A later way wins only if its median is less than this share of the best earlier one.
    """
    medians = [float(np.median(each)) for each in times_s]
    best = 0
    for position, median_s in enumerate(medians):
        if median_s < near_tie * medians[best]:
            best = position
    return ways[best]
