"""Weights of ranks, to which their shares of the work are proportional. Exact arithmetic, no MPI.

A weight is a positive number: a rank's speed, say. Shares are the same on all ranks wherever the weights are, as
nothing is rounded before a share is. Shares that are given are weights, too, which may be 0: those of an axis as long
as they are in all are exactly these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from numbers import Rational, Real
from operator import index as as_integer
from typing import Any

import numpy as np

from ..errors import repr_of

Weights = tuple[int | float | Fraction, ...] | None
"""One positive number per rank; None: all ranks are equal."""

Shares = dict[int, tuple[int, ...]]
"""For some axes how many indices each part has, in order."""


@lru_cache(maxsize=4096)
def shares(total: int, weights: tuple[int | float | Fraction, ...]) -> tuple[int, ...]:
    """Split a number of things into integer shares in proportion to weights, by the largest remainders.

    A share is its exact quota, ``total * weight / sum(weights)``, rounded down; the things that are left go, one each,
    to the shares that lost most by rounding, the first ones among equals. So shares add up to the total, each differs
    from its quota by less than 1, and with equal weights the first shares get one more. A share may be 0.

    Parameters
    ----------
    total : int
        At least 0.
    weights : tuple of numbers
        Positive and finite, as from `checked`; or shares. One that is 0 has a share of 0.

    Returns
    -------
    tuple of int

    Examples
    --------
    >>> from overlap.arrays import shares
    >>> shares(10, (7, 4))
    (6, 4)
    """
    exact = [Fraction(weight) for weight in weights]
    whole = sum(exact) or 1  # shares of an axis without indices
    quotas = [total * weight / whole for weight in exact]
    counts = [math.floor(quota) for quota in quotas]
    by_loss = sorted(range(len(quotas)), key=lambda rank: counts[rank] - quotas[rank])
    for rank in by_loss[: total - sum(counts)]:
        counts[rank] += 1
    return tuple(counts)


def checked(given: Any, count: int, what: str = "rank") -> tuple[Weights, str | None]:
    """Return `count` weights as a tuple of Python's numbers, and what is wrong with them or None.

    The weights are None where all are equal, or something is wrong. `what` each is of goes into the message.
    """
    if given is None:
        return None, None
    try:
        numbers = None if isinstance(given, str | bytes) else [_number(value) for value in given]
    except Exception:  # iterating over a user's object can raise anything
        numbers = None
    if numbers is None or len(numbers) != count or None in numbers:
        try:
            received = repr(given)
        except Exception:  # of a user's object
            received = f"a {type(given).__name__}"
        return None, (
            f"expected weights to be positive finite numbers, one for each {what}, {count} in all, received {received}"
        )
    weights: Any = tuple(numbers)
    return (None if len(set(weights)) == 1 else weights), None


def checked_shares(given: Any, lengths: Sequence[int], parts: Sequence[int]) -> tuple[Shares, str | None]:
    """Return given shares with Python's numbers and axes counted from 0, and what is wrong with them or None.

    Each axis has a length, and is split into so many parts: 1 if it is whole. Axes of given shares may count from the
    end. There are no shares where something is wrong.
    """
    if given is None:
        return {}, None
    counts_by_axis: Shares = {}
    try:
        for axis, counts in given.items():
            counts_by_axis[range(len(lengths))[as_integer(axis)]] = tuple(map(as_integer, counts))
        alike = len(counts_by_axis) == len(given)
    except Exception:  # a user's object can raise anything
        alike = False
    if not alike:
        return {}, f"expected shares as a dict of axes and their parts' lengths, received {repr_of(given)}"
    for axis, each in counts_by_axis.items():
        if len(each) != parts[axis] or min(each) < 0 or sum(each) != lengths[axis]:
            return {}, (
                f"expected shares of axis {axis} to be {parts[axis]} integers >= 0 with the sum {lengths[axis]}, "
                f"received {repr_of(each)}"
            )
    return counts_by_axis, None


def combined(weights: Sequence[int | float | Fraction], groups: Sequence[int]) -> Weights:
    """Add up the weights of groups of ranks, exactly. `groups` has each rank's group, from 0 on."""
    sums = [Fraction(0)] * (max(groups) + 1)
    for weight, group in zip(weights, groups, strict=True):
        sums[group] += Fraction(weight)
    return tuple(sums)


def integers(values: Any) -> tuple[int, ...] | None:
    """Return a sequence of integers as a tuple of Python's; None if the value is no such sequence."""
    try:
        values = tuple(values)
        if any(isinstance(value, bool) for value in values):
            return None
        return tuple(map(as_integer, values))  # it refuses NumPy's truth values
    except Exception:  # iterating over a user's object can raise anything
        return None


def _number(value: Any) -> int | float | Fraction | None:
    """Return a positive finite number as one of Python's, the simplest that is equal to it, or None."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    exact = Fraction(int(value.numerator), int(value.denominator)) if isinstance(value, Rational) else float(value)
    if not 0 < exact < math.inf:
        return None
    return int(exact) if exact == int(exact) else exact


# ---- weights from measured speeds ----------------------------------------------------------------
#
# Finds the speeds of ranks from their times of computing, and whether shares in proportion to them gain time.
#
# The speed of a rank is its share of the work over the time that it takes while all ranks compute. New shares must gain
# more than the error of the speeds, and shares that follow from one half of the rounds must gain in the other half. So
# equal ranks keep even shares.

MEASURE = "measure"  # given instead of weights
ROUNDS = 8  # rounds, in two halves
ROUND_S = 0.06  # computing time of a round: several time slices of a scheduler
STRAY = 1  # rounds in each half that other programs may have disturbed
LEAST_GAIN = 1.04  # smallest expected gain for which shares are changed
RESOLUTION = 1000  # largest weight; weights are integers


def speeds_of(times_s: Sequence[Sequence[float]], shares: Sequence[float]) -> tuple[tuple[float, ...], bool]:
    """Find the speeds of all ranks, and whether shares in proportion to them gain enough.

    Every rank has times of computing, round by round, and a part of the work. A rank without work counts as fast as the
    average of the others.
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
