"""Checks of the arguments of an `Output`: each returns what is wrong as text, or None."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from numbers import Number, Real
from operator import index as as_integer
from typing import Any, NamedTuple

import numpy as np

from ..arrays import DistArray, same_ranks
from ..arrays.hdf5_storage import Axes
from ..errors import InputError, repr_of

MODES = ("r", "w", "a")
TIME, STEP, MARK = "time", "step", "overlap_output"  # names in the file


class Stored(NamedTuple):
    """Describes a field of an `Output`.

    Attributes
    ----------
    shape : tuple of int
        The shape of the global array; () for a number.
    dtype : str
        In the file.

    Examples
    --------
    >>> overlap.output.Stored((4, 8), "<f8").shape
    (4, 8)
    """

    shape: tuple[int, ...]
    dtype: str


def opening_problem(path: Any, mode: Any, attrs: Any, dims: Any, coords: Any) -> str | None:
    """Return what is wrong with the arguments of an `Output`, or None."""
    if not isinstance(path, str | os.PathLike):
        return f"expected a file's name, received {repr_of(path):.200}"
    if not isinstance(mode, str) or mode not in MODES:
        return f"expected mode to be one of {MODES}, received {repr_of(mode):.200}"
    for name, given in (("attrs", attrs), ("dims", dims), ("coords", coords)):
        if given is not None and not (isinstance(given, Mapping) and all(isinstance(key, str) for key in given)):
            return f"expected {name} by name, or None, received {repr_of(given):.200}"
    for name, names in (dims or {}).items():
        if (
            isinstance(names, str)
            or not isinstance(names, Sequence)
            or not all(isinstance(text, str) for text in names)
        ):
            return f"expected dims[{name!r}] to be names of axes, received {repr_of(names):.200}"
    try:
        for values in (coords or {}).values():
            np.asarray(values, float)
    except Exception:
        return f"expected coords to be numbers, received {repr_of(coords):.200}"
    if MARK in (attrs or {}):
        return f"expected attrs without {MARK!r}, which marks the file as an Output's"
    return None


def fields_problem(fields: Any, comm: Any, numbers: bool) -> str | None:
    """Return what is wrong with a dictionary of fields, or None; `numbers` says whether it may contain numbers."""
    if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
        return f"expected fields by name, {{'u': u}}, received {repr_of(fields):.200}"
    for name, value in fields.items():
        if numbers and isinstance(value, Number | np.bool_):
            continue
        if not isinstance(value, DistArray) or value.dtype.kind not in "biufc":
            plain = type(value) is np.ndarray
            received = "a plain array: use plan.real.wrap(array)" if plain else f"{repr_of(value):.200}"
            return f"expected {name!r} to be a DistArray of numbers, received {received}"
        if value.comm is None or not same_ranks(value.comm, comm):
            return f"expected {name!r} to be distributed over the ranks of the Output, in their order"
    return None


def layout_problem(like: Mapping[str, Stored], axes_of: Callable[[str, tuple[int, ...]], Axes]) -> str | None:
    """Return what is wrong with the names of fields and axes of a new file, or None."""
    if not like or {TIME, STEP} & like.keys():
        return f"expected fields with other names than {TIME!r} and {STEP!r}, received {list(like)}"
    lengths: dict[str, int] = {}
    for name, (shape, _) in like.items():
        try:
            axes = axes_of(name, shape)
        except InputError as error:
            return str(error)
        for axis, values in axes.items():
            if axis in (*like, TIME, STEP) or lengths.setdefault(axis, len(values)) != len(values):
                return f"expected axes with one length each and other names than the fields, received {axis!r}"
    return None


def stored_problem(field: DistArray, name: str, fields: Mapping[str, Stored], path: Any) -> str | None:
    """Return what is wrong with an array that is to be filled with a field of a file, or None."""
    known = fields.get(name)
    if known is None or not known.shape:
        return f"expected fields of {str(path)!r}, which has {listed(fields)}, received {name!r}"
    if known.shape != field.global_shape or not np.can_cast(known.dtype, field.dtype, "same_kind"):
        return (
            f"expected {name!r} to be of global shape {known.shape} and a type that fits {known.dtype}, "
            f"received {field.global_shape} and {field.dtype}"
        )
    return None if field.flags.writeable else f"expected {name!r} to be writeable, received a read-only array"


def time_problem(time: Any) -> str | None:
    """Return what is wrong with a time, or None."""
    good = isinstance(time, Real) and isfinite(time)
    return None if good else f"expected time to be a finite number, received {repr_of(time)}"


def step_problem(step: Any) -> str | None:
    """Return what is wrong with the number of a step, or None."""
    try:
        good = not isinstance(step, bool) and -(2**63) <= as_integer(step) < 2**63
    except Exception:
        good = False
    return None if good else f"expected step to be an integer, received {repr_of(step)}"


def shown(value: Any) -> Any:
    """Return a value in a form that can be compared with those of other ranks."""
    return value if isinstance(value, str | int | float | np.number) else repr_of(value)


def series(steps: Sequence[int]) -> str:
    """Return the numbers of the steps in words."""
    return f"steps {steps[0]} to {steps[-1]}" if steps else "no steps"


def listed(fields: Mapping[str, Stored]) -> str:
    """Return names, shapes and types of fields in words."""
    return ", ".join(f"{name} {shape} {np.dtype(dtype)}" for name, (shape, dtype) in fields.items())
