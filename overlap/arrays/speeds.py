"""Finds the speeds of ranks from their times of computing, and whether shares in proportion to them gain time.

The speed of a rank is its share of the work over the time that it takes while all ranks compute. New shares must gain
more than the error of the speeds, and shares that follow from one half of the rounds must gain in the other half. So
equal ranks keep even shares.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MEASURE = "measure"  # given instead of weights
ROUNDS = 8  # rounds, in two halves
ROUND_S = 0.06  # computing time of a round: several time slices of a scheduler
STRAY = 1  # rounds in each half that other programs may have disturbed
LEAST_GAIN = 1.04  # smallest expected gain for which shares are changed
RESOLUTION = 1000  # largest weight; weights are integers


def speeds_of(times_s: Sequence[Sequence[float]], shares: Sequence[float]) -> tuple[tuple[float, ...], bool]:
    """Find the speeds of all ranks, and whether shares in proportion to them gain enough.

    Parameters
    ----------
    times_s : sequence of sequences of float
        Every rank's times of computing, round by round.
    shares : sequence of float
        Every rank's part of the work. A rank without work counts as fast as the average of the others.
    """
    all_shares, all_times = np.array(shares), np.array(times_s)
    works = all_shares > 0
    if not works.any():
        return (1.0,) * len(works), False
    share, times = all_shares[works], all_times[works]
    middle = np.median(times, axis=1)
    speeds = np.full(len(works), np.nan)
    speeds[works] = share / middle
    speeds[~works] = speeds[works].mean()
    # For normal errors the median distance of times from their median is 0.67 standard deviations, and the median of n
    # times has an error of 1.25 standard deviations over the root of n.
    noise = 1.25 / 0.67 / times.shape[1] ** 0.5 * (np.median(abs(times - middle[:, None]), axis=1) / middle).max()
    half = times.shape[1] // 2
    first, second = times[:, :half], times[:, half:]
    gain = min(_sure_gain(first, second, share, len(works)), _sure_gain(second, first, share, len(works)))
    return tuple(float(speed) for speed in speeds / speeds.max()), bool(gain >= max(LEAST_GAIN, 1 + noise))


def _sure_gain(known_s: np.ndarray, other_s: np.ndarray, share: np.ndarray, ranks: int) -> float:
    """Return the gain, in all but `STRAY` rounds, of shares that follow from other rounds.

    Ranks without work have no times; they count as fast as the average of the others.
    """
    speeds = share / np.median(known_s, axis=1)
    fair = speeds / (speeds.mean() * ranks)
    then_s = (other_s * (fair / share)[:, None]).max(axis=0)
    return np.sort(other_s.max(axis=0) / then_s)[STRAY]


def weights_of(speeds: Sequence[float]) -> tuple[int, ...]:
    """Round speeds to small integers, the weights."""
    return tuple(max(1, round(RESOLUTION * speed)) for speed in speeds)
