"""Checks of the runtime's arguments."""

from __future__ import annotations

import sys
from numbers import Integral, Real
from typing import Any

from ..errors import repr_of

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
