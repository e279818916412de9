"""Powers of two by which numbers are brought into the middle of their type's range, so that their squares fit, too.

A product with a power of two is exact: a result that fits has the same bits whether its numbers were scaled or not.
"""

from __future__ import annotations

from math import copysign, inf, ldexp

import numpy as np


def exponent_of(numbers: np.ndarray) -> float:
    """Return the smallest e for which all magnitudes are less than 2**e: -inf for zeros or no numbers, 0 if one is not
    finite."""
    parts = (numbers.real, numbers.imag) if numbers.dtype.kind == "c" else (numbers,)
    largest = max(max(part.max(initial=0), -part.min(initial=0)) for part in parts)
    return float(np.frexp(largest)[1]) if largest else -inf


def times_power(numbers: np.ndarray, exponent: int) -> np.ndarray:
    """Multiply numbers by 2**exponent; what is too large becomes infinite, what is too small loses digits."""
    if not exponent:
        return numbers
    if abs(exponent) >= np.finfo(numbers.dtype).maxexp - 1:
        half = exponent // 2
        return times_power(times_power(numbers, half), exponent - half)
    with np.errstate(over="ignore", under="ignore"):
        scaled: np.ndarray = numbers * np.ldexp(numbers.real.dtype.type(1), exponent)
        return scaled


def float_times_power(number: float, exponent: int) -> float:
    """Do as `times_power` for one number."""
    try:
        return ldexp(number, exponent)
    except OverflowError:
        return copysign(inf, number)


def in_range(numbers: np.ndarray) -> tuple[np.ndarray, int]:
    """Return numbers divided by 2**e, and e: that of the largest one if its square could leave the type's range, else
    0."""
    if numbers.dtype.kind not in "fc":
        return numbers, 0
    exponent = exponent_of(numbers)
    if exponent == -inf or abs(exponent) < np.finfo(numbers.dtype).maxexp // 4:
        return numbers, 0
    return times_power(numbers, -int(exponent)), int(exponent)
