"""Checks of the numbers and arrays that users give.

A check named `..._problem` returns as text what is wrong, so that all ranks can raise it together, or None. Formulas,
which need no other rank, use those that raise a `ValueError`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
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


def _unless(good: bool, name: str, wanted: str, value: Any, none: bool = False) -> str | None:
    return None if good else f"expected {name} to be {wanted}{' or None' if none else ''}, received {repr_of(value)}"


def _real(value: Any) -> Any:
    """Return a real number as Python's; NaN, which passes no comparison, for other values, truth values among them."""
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        return math.nan
    return value.item() if isinstance(value, np.generic) else value  # NumPy would round the bounds to its type


def integer_problem(name: str, value: Any, least: int, most: float = math.inf, none: bool = False) -> str | None:
    """Return what is wrong with an integer from `least` to `most` (or None, if `none`), or None."""
    good = (none and value is None) or (isinstance(value, Integral) and least <= _real(value) <= most)
    return _unless(
        good, name, f"an integer >= {least}" if most == math.inf else f"an integer from {least} to {most}", value, none
    )


def count_problem(name: str, value: Any) -> str | None:
    """Return what is wrong with a count, one of `BOUNDS`, or None."""
    return integer_problem(name, value, 1, BOUNDS[name])


def number_problem(name: str, value: Any, positive: bool = False, none: bool = False) -> str | None:
    """Return why a value is not a finite number >= 0 (`positive`: > 0; `none`: or None), or None."""
    number = _real(value)
    good = (none and value is None) or (0 <= number <= sys.float_info.max and not (positive and number == 0))
    return _unless(good, name, f"a {'positive' if positive else 'non-negative'} number", value)


def bound_problem(name: str, value: Any, least: float, above: bool = False) -> str | None:
    """Return what is wrong with a number that has a lower bound (`above`: exclusive) and may be infinite, or None."""
    number = _real(value)
    good = number > least if above else number >= least
    return _unless(good, name, f"a number {'>' if above else '>='} {least:g}", value)


def finite_problem(name: str, value: Any) -> str | None:
    """Return what is wrong with a number that must be real and finite, or None."""
    return _unless(bool(np.isfinite(float(_real(value)))), name, "a finite number", value)


def choice_problem(name: str, value: Any, allowed: Collection[str | None], listed: bool = True) -> str | None:
    """Return what is wrong with a value that must be one of a few, or None; `listed`: the text has them as a tuple."""
    good = isinstance(value, str | None) and value in allowed
    return _unless(good, name, f"one of {tuple(allowed) if listed else ', '.join(map(str, allowed))}", value)


def function_problem(name: str, value: Any, none: bool = False) -> str | None:
    """Return what is wrong with a function (or None, if `none`), or None."""
    return _unless(callable(value) or (none and value is None), name, "a function", value, none)


def truth_problem(name: str, value: Any) -> str | None:
    """Return what is wrong with a truth value, or None."""
    try:
        bool(value)
    except Exception as error:  # a user's object can raise anything
        return f"expected {name} to be a truth value, received one that fails: {formatted(error)[0]}"
    return None


def options_problem(wait: Any = None, **counts: Any) -> str | None:
    """Return what is wrong with options of a runtime or a pipeline, or None; None is a valid option."""
    for name, value in counts.items():
        if value is not None and (problem := count_problem(name, value)):
            return problem
    return None if wait is None else choice_problem("wait", wait, ("auto", *WAITS), listed=False)


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


# ---- of formulas' arguments, on one rank -------------------------------------------------------------


def seconds(name: str, value: float) -> float:
    """Return a finite time >= 0 as a float, or raise ValueError."""
    return amount(name, value, "time >= 0 in seconds")


def amount(name: str, value: float, wanted: str = "number >= 0") -> float:
    """Return a finite number >= 0 as a float, or raise ValueError."""
    if not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{name}: expected a finite {wanted}, received {value!r}")
    return float(value)


def positive(name: str, value: float) -> float:
    """Return a number > 0 as a float, or raise ValueError."""
    if not value > 0:
        raise ValueError(f"{name}: expected a number > 0, received {value!r}")
    return float(value)


def count(name: str, value: int) -> int:
    """Return an integer >= 1 as an int, or raise ValueError."""
    if not isinstance(value, Integral) or not 1 <= value <= sys.float_info.max:
        raise ValueError(f"{name}: expected an integer >= 1, received {value!r}")
    return int(value)
