"""Speeds of ranks, from times of computing: whether shares in proportion to them pay.

A rank's speed is its share of the work over the time that this takes while all ranks compute. New shares must gain by
more than that speed errs, and those that follow from one half of the rounds must do so in the other: so ranks that are
equal stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MEASURE = "measure"  # in place of weights
ROUNDS = 8  # in two halves
ROUND_S = 0.06  # of computing; several turns of a scheduler that shares a core out
STRAY = 1  # rounds of a half that something else may have disturbed
LEAST_GAIN = 1.04  # what new shares must promise, or nothing changes
RESOLUTION = 1000  # weights are integers up to that


def speeds_of(times_s: Sequence[Sequence[float]], shares: Sequence[float]) -> tuple[tuple[float, ...], bool]:
    """Find the speeds of all ranks, and whether shares in proportion to them gain enough.

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
    # If errors are normal, times differ from their median by 0.67 standard deviations in the median, and that of n of
    # them errs by 1.25 deviations over the root of n.
    noise = 1.25 / 0.67 / times.shape[1] ** 0.5 * (np.median(abs(times - middle[:, None]), axis=1) / middle).max()
    half = times.shape[1] // 2
    first, second = times[:, :half], times[:, half:]
    gain = min(_sure_gain(first, second, share, len(works)), _sure_gain(second, first, share, len(works)))
    return tuple(float(speed) for speed in speeds / speeds.max()), bool(gain >= max(LEAST_GAIN, 1 + noise))


def _sure_gain(known_s: np.ndarray, other_s: np.ndarray, share: np.ndarray, ranks: int) -> float:
    """Return what shares that follow from some rounds gain in other ones, but for `STRAY` of these.

    Ranks without work, which have no times, will get some as if they were as fast as the others on average.
    """
    speeds = share / np.median(known_s, axis=1)
    fair = speeds / (speeds.mean() * ranks)
    then_s = (other_s * (fair / share)[:, None]).max(axis=0)
    return np.sort(other_s.max(axis=0) / then_s)[STRAY]


def weights_of(speeds: Sequence[float]) -> tuple[int, ...]:
    """Return speeds as small integers."""
    return tuple(max(1, round(RESOLUTION * speed)) for speed in speeds)
