"""Types that matrices and solvers compute in, and checks of numbers that users give."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np

from ..errors import formatted, repr_of

TYPES = tuple(map(np.dtype, ("f4", "f8", "c8", "c16")))


def supported(values: np.ndarray) -> np.ndarray:
    """Convert integers, half precision and other byte orders to a type that the kernels support."""
    kind = values.dtype.newbyteorder("=")
    if kind.kind in "biu":
        kind = np.dtype(float)
    return values.astype(np.float32 if kind == np.float16 else kind, copy=False)


def common_type(*types: Any) -> np.dtype:
    """Choose the type that a solver computes in from the types of its arrays; unsupported types count as ``f8`` or
    ``c16``, as in scipy."""
    dtypes = [np.dtype(dtype) for dtype in types]
    return np.result_type(*(dtype if dtype in TYPES else "c16" if dtype.kind == "c" else "f8" for dtype in dtypes))


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
