"""Balancing: shares that follow the ranks' speeds, found by running a plan's own computing on all ranks at once.

What counts is the time of the steps that compute (`Load.computing_s`), not that of the calls: in a call all ranks take as
long as the slowest. A rank's speed is its share of the points over that time. New shares must gain by more than that speed errs, and
those that follow from one half of the rounds must do so in the other: so ranks that are equal stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arrays import Weights
from .candidates import Tunable
from .trials import median_seconds, on_trial, seconds

ROUNDS = 8          # in two halves
ROUND_S = 0.06      # of computing, in all transforms together; several turns of a scheduler that shares a core out
STRAY = 1           # rounds of a half that something else may have disturbed
LEAST_GAIN = 1.04   # what new shares must promise, or nothing changes
KEPT_GAIN = 1.02    # what they must then show, or the plan goes back
RESOLUTION = 1000   # weights are integers up to that


@dataclass(frozen=True)
class Balance:
    """What balancing found; alike on all ranks, but for the arrays.

    Attributes
    ----------
    speeds : tuple of float
        All ranks' speeds, where the fastest one's is 1.
    weights : tuple of int or None
        The plan's from now on; None where shares are even.
    changed : bool
    gain : float
        Time of the plan's transforms before over that after, on arrays of zeros; 1 where nothing changed.
    arrays : tuple of DistArray
        Those that were given, distributed as the plan now has it.
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
    """Seconds that this rank computes in a trial of all transforms, round by round, all ranks at once (collective)."""
    found = np.zeros(ROUNDS)
    for transform in transforms:
        settings = transform.settings
        count = transform.candidates(transform, transform.requested).parts[0]
        with on_trial(transform, "measuring the speeds of all ranks"):
            transform.configure(settings, count)
            arrays, control = transform.trial_arrays(count), transform.runtime.control
            once_s = control.maximum(min(seconds(transform, arrays, "compute") for _ in range(2)))
            runs = max(1, math.ceil(ROUND_S / len(transforms) / max(once_s, 1e-6)))
            load = transform.runtime.load
            for number in range(ROUNDS):
                before_s = load.computing_s
                for _ in range(runs):
                    seconds(transform, arrays, "compute")
                found[number] += (load.computing_s - before_s) / runs
            transform.configure(settings)
    return [float(each) for each in found]


def whole_s(transforms: Sequence[Tunable]) -> float:
    """Seconds of trials of all transforms as they are configured (collective)."""
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


def speeds_of(times_s: Sequence[Sequence[float]], shares: Sequence[float]) -> tuple[tuple[float, ...], bool]:
    """The speeds of all ranks, and whether shares in proportion to them gain enough.

    Parameters
    ----------
    times_s : sequence of sequences of float
        Every rank's times of computing, round by round.
    shares : sequence of float
        Every rank's part of the work. One without work is taken to be as fast as the others are on average.
    """
    all_shares, all_times = np.array(shares), np.array(times_s)
    works = all_shares > 0
    share, times = all_shares[works], all_times[works]
    middle = np.median(times, axis=1)
    speeds = np.full(len(works), np.nan)
    speeds[works] = share / middle
    speeds[~works] = speeds[works].mean()
    # If errors are normal, times differ from their median by 0.67 standard deviations in the median, and that of n of them errs by
    # 1.25 deviations over the root of n.
    noise = 1.25 / 0.67 / times.shape[1]**0.5 * (np.median(abs(times - middle[:, None]), axis=1) / middle).max()
    half = times.shape[1] // 2
    first, second = times[:, :half], times[:, half:]
    gain = min(_sure_gain(first, second, share, len(works)), _sure_gain(second, first, share, len(works)))
    return tuple(float(one) for one in speeds / speeds.max()), bool(gain >= max(LEAST_GAIN, 1 + noise))


def _sure_gain(known_s, other_s, share, ranks):
    """What shares that follow from some rounds gain in other ones, but for `STRAY` of these.

    Ranks without work, which have no times, will get some as if they were as fast as the others on average.
    """
    speeds = share / np.median(known_s, axis=1)
    fair = speeds / (speeds.mean() * ranks)
    then_s = (other_s * (fair / share)[:, None]).max(axis=0)
    return np.sort(other_s.max(axis=0) / then_s)[STRAY]


def weights_of(speeds: Sequence[float]) -> tuple[int, ...]:
    """Speeds as small integers."""
    return tuple(max(1, round(RESOLUTION * speed)) for speed in speeds)
