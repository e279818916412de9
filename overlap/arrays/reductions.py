"""Reduces distributed arrays over all ranks.

Every rank reduces its part; all ranks combine the results of the parts in the order of the ranks, so that every rank
has the same number to the last bit. Sums of single-precision numbers are made in double precision. A sum over P ranks
of n elements each has a rounding error of at most (log2(n) + P) eps sum(abs(a)), eps of double precision.

Where squares or products could leave the range of their type, the numbers of a part are first multiplied by a power of
two, which the result of the part is accompanied by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import copysign, inf, ldexp, prod
from typing import Any

import numpy as np

from ..errors import InputError, repr_of
from .distribution import Distribution
from .exchange import array_section
from .placed import PlacedArray
from .topology import same_ranks

_WIDE = {"f": np.float64, "c": np.complex128}
_NO_NUMBERS = "OSUV"  # kinds of types without sums
_NO_TIMES = _NO_NUMBERS + "mM"  # a time has no product with another one
Array = np.ndarray[Any, Any]


def total(comm: Any, local: Array, where: Distribution) -> Any:
    """Sum all elements of the global array (collective); see `DistArray.global_sum`."""
    dtype = None if _problem(local) else np.sum(np.empty(0, local.dtype)).dtype
    return _combined("global_sum", comm, where, lambda: _sum(local), _sum_of_parts, dtype, problem=_problem(local))


def mean(comm: Any, local: Array, where: Distribution) -> Any:
    """Average all elements of the global array (collective); see `DistArray.global_mean`."""
    count = prod(where.global_shape)

    def of_part() -> tuple[Any, int]:
        scaled, exponent = in_range(_as_floats(local))
        return _sum(scaled), exponent

    def together(parts: Sequence[tuple[Any, int]]) -> Any:
        total, exponent = _added(parts, 1)
        return times_power(np.asarray(total / count), exponent)

    dtype = local.dtype if local.dtype.kind in "fc" else np.dtype(float)
    problem = _problem(local, _NO_TIMES)
    return _combined("global_mean", comm, where, of_part, together, dtype, empty=not count, problem=problem)


def extremum(comm: Any, local: Array, where: Distribution, reduce: Callable[..., Any]) -> Any:
    """Find the largest or smallest element of the global array (collective): `reduce` is `numpy.max` or `numpy.min`."""
    empty = not prod(where.global_shape)
    name = f"global_{reduce.__name__}"
    return _combined(
        name, comm, where, lambda: reduce(local), reduce, local.dtype, empty=empty, problem=_problem(local)
    )


def norm(comm: Any, local: Array, where: Distribution, order: Any) -> Any:
    """Compute a norm of all elements of the global array (collective); see `DistArray.global_norm`."""

    def of_part() -> Any:
        if order == 1:
            return _sum(np.abs(_as_floats(local)))
        if order == np.inf:
            return np.max(np.abs(_as_floats(local)))
        return _sum_of_squares(local)

    problem = _problem(local, _NO_TIMES)
    dtype = np.dtype(float) if problem else np.abs(np.empty(0, local.dtype)).dtype
    if not (np.isscalar(order) and order in (1, 2, np.inf)):
        problem = problem or f"expected ord to be 1, 2 or numpy.inf, received {repr_of(order)}"
    together: Any = np.max if order == np.inf else _sum_of_parts if order == 1 else _root_of_sum
    empty = order == np.inf and not prod(where.global_shape)
    total = _combined("global_norm", comm, where, of_part, together, None, empty=empty, problem=problem, ord=order)
    return _typed(total, dtype if dtype.kind == "f" else np.dtype(float))


def product(comm: Any, local: Array, where: Distribution, factor: Any) -> Any:
    """Compute the scalar product of two global arrays, the first one conjugated (collective)."""
    problem: str | None
    if not isinstance(factor, PlacedArray):
        problem = f"expected a DistArray, received {type(factor).__name__}"
    elif factor.distribution != where or not same_ranks(factor.comm, comm):
        problem = f"expected a DistArray of {where} over the same ranks, received one of {factor.distribution}"
    else:
        problem = _problem(local, _NO_TIMES) or _problem(np.asarray(factor), _NO_TIMES)
    # Products and sums of integers wrap, as in `numpy.vdot`; of truth values the result is one.
    dtype = None if problem else np.result_type(local, np.asarray(factor))

    def of_part() -> Any:
        return _sum_of_products(local, np.asarray(factor))

    return _combined("global_vdot", comm, where, of_part, _sum_of_parts, dtype, problem=problem)


def _combined(
    name: str,
    comm: Any,
    where: Distribution,
    of_part: Callable[[], Any],
    combine: Callable[[list[Any]], Any],
    dtype: np.dtype[Any] | None,
    *,
    empty: bool = False,
    problem: str | None = None,
    **agreed: Any,
) -> Any:
    """Reduce the parts and combine the results (collective). A part that several ranks hold counts once.

    Raises
    ------
    InputError, RankError
        On all ranks.
    """
    with array_section(comm, name, where) as common:
        if problem is None and empty:
            problem = f"expected an array with elements, received one of global shape {where.global_shape}"
        if problem is not None:
            raise InputError(problem)
        own_value = of_part() if prod(where.shape) else None
        common.update(agreed)
    parts: dict[tuple[tuple[int, int], ...], Any] = {}
    for box, value in comm.allgather((_bounds(where.local_slice), own_value)):
        if value is not None:
            parts.setdefault(box, value)
    return _typed(combine(list(parts.values())), dtype)


def _problem(local: Array, refused: str = _NO_NUMBERS) -> str | None:
    """Return why an array cannot be reduced, or None."""
    return f"expected an array of numbers, received {local.dtype}" if local.dtype.kind in refused else None


def _as_floats(values: Array) -> Array:
    """Return integers and truth values in double precision, as `numpy.mean` and `numpy.linalg.norm` take them."""
    return values if values.dtype.kind in "fc" else values.astype(np.float64)


def _bounds(box: Sequence[slice]) -> tuple[tuple[int, int], ...]:
    return tuple((part.start, part.stop) for part in box)


def _sum(values: Array) -> Any:
    wide = _WIDE.get(values.dtype.kind)
    return np.sum(values, dtype=wide if wide is not None and values.dtype.itemsize < np.dtype(wide).itemsize else None)


def _sum_of_parts(parts: Sequence[Any]) -> Any:
    return np.sum(np.array(parts))  # integers wrap without a warning, as within a part


def _real_parts(values: Array) -> list[Array]:
    return [values.real, values.imag] if values.dtype.kind == "c" else [values]


def _squares(values: Array) -> Array:
    return np.square(values, dtype=np.float64 if values.dtype.itemsize <= 8 else None)


def _sum_of_squares(values: Array) -> tuple[Any, int]:
    """Return the sum of squared moduli divided by 4**e, and e: 0 if squares of this size fit."""
    scaled, exponent = in_range(values)
    return sum((_sum(_squares(part)) for part in _real_parts(scaled)), start=np.float64(0)), exponent


def _root_of_sum(parts: Sequence[tuple[Any, int]]) -> Any:
    total, exponent = _added(parts, 2)
    return times_power(np.sqrt(total), exponent)


def _added(parts: Sequence[tuple[Any, int]], power: int) -> tuple[Any, int]:
    """Add numbers that were divided by 2**(power e); return the sum, divided likewise, and its e."""
    most = max((exponent for total, exponent in parts if total), default=0)
    return sum(times_power(np.asarray(total), power * (exponent - most)) for total, exponent in parts), most


def _sum_of_products(left: Array, right: Array) -> Any:
    (left, of_left), (right, of_right) = in_range(left), in_range(right)
    return times_power(np.asarray(_sum(np.conj(left) * right)), of_left + of_right)


def _typed(value: Any, dtype: np.dtype[Any] | None) -> Any:
    return np.asarray(value, dtype)[()]


# ---- powers of two -------------------------------------------------------------------------------
#
# Powers of two by which numbers are brought into the middle of their type's range, so that their squares fit, too.
#
# A product with a power of two is exact: a result that fits has the same bits whether its numbers were scaled or not.


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
