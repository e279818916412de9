"""Checks of the arguments of formulas."""

from __future__ import annotations

import math
from numbers import Integral


def seconds(name: str, value: float) -> float:
    """Return a finite time >= 0 as a float, or raise ValueError."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}: expected a finite time >= 0 in seconds, received {value!r}")
    return float(value)


def amount(name: str, value: float) -> float:
    """Return a finite number >= 0 as a float, or raise ValueError."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}: expected a finite number >= 0, received {value!r}")
    return float(value)


def positive(name: str, value: float) -> float:
    """Return a number > 0 as a float, or raise ValueError."""
    if not value > 0:
        raise ValueError(f"{name}: expected a number > 0, received {value!r}")
    return float(value)


def count(name: str, value: int) -> int:
    """Return an integer >= 1 as an int, or raise ValueError."""
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}: expected an integer >= 1, received {value!r}")
    return int(value)
