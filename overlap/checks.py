"""Checks of the numbers and arrays that users give.

A check named `..._problem` returns as text what is wrong, so that all ranks can raise it together, or None. Formulas,
which need no other rank, use those that raise a `ValueError`.
"""

from __future__ import annotations

import math
import sys
from numbers import Integral, Real
from typing import Any

import numpy as np

from .errors import InputError, formatted, repr_of

WAITS = ("off", "block", "poll")

# The largest values of counts. Larger values gain nothing, and could exhaust the threads or the memory of some rank.
BOUNDS = {
    "workers": 2**12,
    "depth": 2**16,
    "in_flight": 2**16,
    "polls": 2**20,
    "agree_every": 2**31 - 1,
    "chunk": 2**31 - 1,
    "entries": 2**31 - 1,
    "max_nbytes": 2**31 - 1,
}


def count_problem(name: str, value: Any) -> str | None:
    """Return what is wrong with a count, one of `BOUNDS`, as text, or None."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= int(value) <= BOUNDS[name]:
        return f"expected {name} to be an integer from 1 to {BOUNDS[name]}, received {repr_of(value)}"
    return None


def options_problem(wait: Any = None, **counts: Any) -> str | None:
    """Return what is wrong with options of a runtime or a pipeline, as text, or None; None is a valid option."""
    for name, value in counts.items():
        if value is not None and (problem := count_problem(name, value)):
            return problem
    if not isinstance(wait, str | None) or wait not in (None, "auto", *WAITS):
        return f"expected wait to be one of auto, {', '.join(WAITS)}, received {repr_of(wait)}"
    return None


def number_problem(name: str, value: Any, positive: bool = False, none: bool = False) -> str | None:
    """Return why a value is not a finite number >= 0 (or None, if `none`), as text; None if it is one."""
    if value is None and none:
        return None
    number: Any = value if isinstance(value, Real) and not isinstance(value, bool) else -1
    if not 0 <= number <= sys.float_info.max or (positive and number == 0):
        return f"expected {name} to be a {'positive' if positive else 'non-negative'} number, received {repr_of(value)}"
    return None


def mask_problem(**arrays: Any) -> str | None:
    """Return a text that names the first argument that is a masked array; None if there is none."""
    for name, array in arrays.items():
        if isinstance(array, np.ma.MaskedArray):
            return f"expected {name} to be an array without a mask, received a masked array"
    return None


def refuse_masks(**arrays: Any) -> None:
    """Raise an `InputError`, on this rank, if an argument is a masked array."""
    if problem := mask_problem(**arrays):
        raise InputError(problem)


def whole_problem(name: str, value: Any, least: int, none: bool = False) -> str | None:
    """Return what is wrong with an integer that has a lower bound, or None."""
    if value is None and none:
        return None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral) or value < least:
        return f"expected {name} to be an integer >= {least}{' or None' if none else ''}, received {repr_of(value)}"
    return None


def truth_problem(name: str, value: Any) -> str | None:
    """Return what is wrong with a truth value, or None."""
    try:
        bool(value)
    except Exception as error:  # a user's object can raise anything
        return f"expected {name} to be a truth value, received one that fails: {formatted(error)[0]}"
    return None


def bound_problem(name: str, value: Any, least: float, above: bool = False) -> str | None:
    """Return what is wrong with a number that has a lower bound (`above`: exclusive) and may be infinite, or None."""
    number: Any = value if isinstance(value, Real) and not isinstance(value, (bool, np.bool_)) else np.nan
    if not (number > least if above else number >= least):
        return f"expected {name} to be a number {'>' if above else '>='} {least:g}, received {repr_of(value)}"
    return None


def finite_problem(name: str, value: Any) -> str | None:
    """Return what is wrong with a number that must be real and finite, or None."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real) or not np.isfinite(float(value)):
        return f"expected {name} to be a finite number, received {repr_of(value)}"
    return None


# ---- of formulas' arguments, on one rank -------------------------------------------------------------


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
