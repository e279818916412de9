"""Weights: what each rank's share of the work is in proportion to. Exact arithmetic, no MPI.

A weight is a positive number: a rank's speed, say. Shares are the same on all ranks wherever the weights are, as
nothing is rounded before a share is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from numbers import Rational, Real
from typing import Any

Weights = tuple[int | float | Fraction, ...] | None
"""One positive number per rank; None: all ranks are equal."""


@lru_cache(maxsize=4096)
def shares(total: int, weights: tuple[int | float | Fraction, ...]) -> tuple[int, ...]:
    """Split a number of things into whole shares in proportion to weights, by the largest remainders.

    A share is its exact quota, ``total * weight / sum(weights)``, rounded down; the things that are left go, one each,
    to those who lost most by that, the first ones among equals. So shares add up to the total, none is as much as 1
    off its quota, and with equal weights the first shares get one more. A share may be 0.

    Parameters
    ----------
    total : int
        At least 0.
    weights : tuple of numbers
        Positive and finite, as from `checked`.

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
    whole = sum(exact)
    quotas = [total * weight / whole for weight in exact]
    found = [math.floor(quota) for quota in quotas]
    by_loss = sorted(range(len(quotas)), key=lambda rank: found[rank] - quotas[rank])
    for rank in by_loss[: total - sum(found)]:
        found[rank] += 1
    return tuple(found)


def checked(given: Any, count: int, what: str = "rank") -> tuple[Weights, str | None]:
    """Return weights as a tuple of Python's numbers, and what is wrong with them.

    Parameters
    ----------
    given : sequence of numbers, or None
    count : int
        How many there must be.
    what : str
        What each is of, for the message.

    Returns
    -------
    weights : tuple or None
        None where all are equal, or something is wrong.
    problem : str or None
    """
    if given is None:
        return None, None
    try:
        found = None if isinstance(given, str | bytes) else [_number(value) for value in given]
    except Exception:  # iterating over a user's object can raise anything
        found = None
    if found is None or len(found) != count or None in found:
        try:
            received = repr(given)
        except Exception:  # of a user's object
            received = f"a {type(given).__name__}"
        return None, (
            f"expected weights to be positive finite numbers, one for each {what}, {count} in all, received {received}"
        )
    weights: Any = tuple(found)
    return (None if len(set(weights)) == 1 else weights), None


def combined(weights: Sequence[int | float | Fraction], groups: Sequence[int]) -> Weights:
    """Add up the weights of groups of ranks, exactly. `groups` has each rank's group, from 0 on."""
    sums = [Fraction(0)] * (max(groups) + 1)
    for weight, group in zip(weights, groups, strict=True):
        sums[group] += Fraction(weight)
    return tuple(sums)


def _number(value: Any) -> int | float | Fraction | None:
    """Return a positive finite number as one of Python's, the simplest that is equal to it, or None."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    exact = Fraction(int(value.numerator), int(value.denominator)) if isinstance(value, Rational) else float(value)
    if not 0 < exact < math.inf:
        return None
    return int(exact) if exact == int(exact) else exact
