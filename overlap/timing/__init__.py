"""Expected times: the timing model, models of all-to-alls, simulated ranks.

And the timing of several ways to do the same work: they run in turns, so that what disturbs one disturbs all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
