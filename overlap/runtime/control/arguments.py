"""What is wrong with the runtime's arguments."""

from numbers import Integral, Real

import numpy as np

WAITS = ("off", "block", "poll")


def options_problem(wait=None, **counts):
    """What is wrong with a runtime's or a pipeline's options, or None; None is always right."""
    for name, value in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < 1):
            return f"expected {name} to be a positive integer, received {value!r}"
    if wait is not None and wait not in ("auto", *WAITS):
        return f"expected wait to be one of auto, {', '.join(WAITS)}, received {wait!r}"
    return None


def number_problem(name, value, positive=False, none=False):
    """What is wrong with a finite number that may not be negative (but None, if `none`), or None."""
    if value is None and none:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value < np.inf or (positive and value == 0):
        return f"expected {name} to be a {'positive' if positive else 'non-negative'} number, received {value!r}"
    return None
