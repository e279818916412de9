"""Balancing: shares in proportion to the ranks' speeds, measured by a plan's own computing on all ranks at once.

The speeds are found from the time of the steps that compute (`Load.computing_s`), not from that of calls, in which all
ranks take as long as the slowest. `overlap.arrays.speeds` estimates the certain gain of new shares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..arrays import Weights
from ..arrays.weights import ROUND_S, ROUNDS
from ..timing import seconds_of
from .planning.candidates import Tunable
from .planning.tournament import median_seconds, on_trial, seconds

KEPT_GAIN = 1.02  # least measured gain of new shares; with less the plan returns to the old ones


@dataclass(frozen=True)
class Balance:
    """The result of balancing; the same on all ranks, except for the arrays.

    Attributes
    ----------
    speeds : tuple of float
        Speeds of all ranks relative to the fastest one.
    weights : tuple of int or None
        The plan's weights from now on; None: shares are even.
    changed : bool
    gain : float
        Time of the plan's transforms before divided by that after, on arrays of zeros; 1 if nothing has changed.
    arrays : tuple of DistArray
        The arrays that were passed, in the plan's new distribution.

    Examples
    --------
    >>> with overlap.FFT2(comm, (8, 16, 16)) as plan:
    ...     found = plan.balance(plan.real.empty())
    >>> found.speeds[comm.rank] <= 1, found.arrays[0].global_shape
    (True, (8, 16, 16))
    """

    speeds: tuple[float, ...]
    weights: Weights
    changed: bool
    gain: float
    arrays: tuple[Any, ...] = ()

    def __str__(self) -> str:
        speeds = " : ".join(f"{speed:.2f}" for speed in self.speeds)
        if not self.changed:
            return f"balance: speeds {speeds}; nothing to gain, shares stay"
        return f"balance: speeds {speeds}; {self.gain:.2f}x as fast with weights {self.weights}"


def computing_s(transforms: Sequence[Tunable]) -> list[float]:
    """Measure, round by round, the seconds that this rank computes in a trial of all transforms (collective)."""
    measured_s = np.zeros(ROUNDS)
    for transform in transforms:
        settings = transform.settings
        count = transform.candidates(transform, transform.requested).parts[0]
        with on_trial(transform, "measuring the speeds of all ranks"):
            transform.configure(settings, count)
            arrays, coordinator = transform.trial_arrays(count), transform.runtime.coordinator
            # Including the synchronization of all ranks, which takes longer than a small run.
            once_s = coordinator.maximum(
                min(seconds_of(partial(seconds, transform, arrays, "compute")) for _ in range(2))
            )
            runs = max(1, math.ceil(ROUND_S / len(transforms) / max(once_s, 1e-6)))
            load = transform.runtime.load
            for number in range(ROUNDS):
                before_s = load.computing_s
                for _ in range(runs):
                    seconds(transform, arrays, "compute")
                measured_s[number] += (load.computing_s - before_s) / runs
            transform.configure(settings)
    return [float(each) for each in measured_s]


def whole_s(transforms: Sequence[Tunable]) -> float:
    """Measure the seconds of trials of all transforms with their present settings (collective)."""
    total_s = 0.0
    for transform in transforms:
        settings = transform.settings
        count = transform.candidates(transform, transform.requested).parts[0]
        with on_trial(transform, "timing a transform"):
            transform.configure(settings, count)
            median_seconds(transform, count, 1)
            total_s += median_seconds(transform, count)
            transform.configure(settings)
    return total_s
