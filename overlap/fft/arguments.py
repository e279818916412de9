"""Checks of the arguments of plans, which return what is wrong with an argument, as text, or None.

No function here raises or communicates: plans pass the results to `Runtime.preflight`, which raises on all ranks
together.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays.weights import integers as integers
from ..errors import repr_of as shown
from .engine.axis import KINDS, REAL_KINDS

ORDERS = ("natural", "transposed")
NORMS = {None: 0.0, "backward": 0.0, "ortho": 0.5, "forward": 1.0}
"""For every norm, minus the power of the number of points by which the forward transform is scaled."""
DTYPES = tuple(np.dtype(kind) for kind in ("f4", "f8", "c8", "c16"))


def axes_of_array(axes: Any, count: int) -> tuple[int, ...] | None:
    """Return axes of an array of `count` dimensions, counted from 0; None if there are none, or one is given twice."""
    listed = integers(axes)
    if not listed or any(not -count <= axis < count for axis in listed):
        return None
    positive = tuple(axis % count for axis in listed)
    return positive if len(set(positive)) == len(positive) else None


def shape_problem(shape: Any, axes: tuple[str, ...]) -> str | None:
    """Return what is wrong with a global shape of batch axes, 0 or more, and of `axes`, 1 or more."""
    lengths, count = integers(shape), len(axes)
    if lengths is None or len(lengths) < count or min(lengths) < 0 or min(lengths[-count:]) < 1:
        names = ", ".join(axes)
        return f"expected a shape (..., {names}) of integers with {names} >= 1, received {shown(shape)}"
    return None


def dtype_problem(dtype: Any) -> str | None:
    """Return what is wrong with a data type of real space, or None."""
    try:
        known = np.dtype(dtype) in DTYPES
    except Exception:  # a bad text can be a SyntaxError, among others
        known = False
    return None if known else (f"expected a dtype of {', '.join(map(str, DTYPES))}, received {shown(dtype)}")


def kinds_of(kinds: Any, dtype: Any, count: int) -> Any:
    """Return the kinds of `count` axes as a tuple, by default FFTs; a value that is no list of kinds as it is."""
    if kinds is None:
        return ("c2c",) * (count - 1) + ("r2c" if np.dtype(dtype).kind == "f" else "c2c",)
    return tuple(kinds) if isinstance(kinds, list) else kinds


def kinds_problem(
    kinds: Any,
    shape: Sequence[int],  # points of the transforms along the last axes
    dtype: Any,
    axes: tuple[str, ...],  # names of the lengths of the transformed axes
) -> str | None:
    """Return what is wrong with the kinds that `kinds_of` returned, for a valid shape and data type, or None."""
    names, count = ", ".join(axes), len(axes)
    known = isinstance(kinds, tuple) and len(kinds) == count and all(isinstance(each_kind, str) for each_kind in kinds)
    if not known or not set(kinds) <= {*KINDS}:
        return (
            f"expected kinds to be None or {count} of {', '.join(KINDS)}, one for each of {names}, received "
            f"{shown(kinds)}"
        )
    dtype = np.dtype(dtype)
    if dtype.kind == "c" and "r2c" in kinds:
        return f"expected kinds without 'r2c', as {dtype} data are complex, received {kinds}"
    waves = [kind for kind in kinds if kind not in REAL_KINDS]
    if dtype.kind == "f" and waves and waves != ["c2c"] * (len(waves) - 1) + ["r2c"]:
        return (
            f"expected, for {dtype} data, kinds with 'r2c' along the last axis with FFTs and 'c2c' along the others, "
            f"received {kinds}"
        )
    for name, kind, length in zip(axes, kinds, shape[-count:]):
        if kind == "dct1" and length < 2:
            return f"expected {name} >= 2 points for a 'dct1', received {length}"
    return None


def memory_problem(nbytes: int) -> str | None:
    """Return, as text, that this computer does not have `nbytes` bytes for every rank, or None if it has."""
    available = memory_nbytes()
    if nbytes <= available:
        return None
    return (
        f"expected arrays that fit into memory, received a shape that needs about "
        f"{_gib(nbytes)} on every rank, where this computer has {_gib(available)}"
    )


def local_nbytes(shape: Sequence[int], dtype: Any, ranks: int) -> int:
    """Return the approximate bytes of an array on each of `ranks` ranks.

    An empty batch counts as one plane, for which the plan is made.
    """
    return math.prod(max(1, length) for length in shape) * np.dtype(dtype).itemsize // ranks


def memory_nbytes() -> int:
    """Return the memory of this computer, or of this process's control group if that has less."""
    nbytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text()
        return min(nbytes, int(limit))
    except (OSError, ValueError):  # no such file, or "max"
        return nbytes


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.3g} GiB" if nbytes < 2**80 else f"1e{len(str(nbytes)) - 1} bytes"


def path_problem(tuning: Any) -> str | None:
    """Return what is wrong with the name of a tuning file."""
    if isinstance(tuning, str | None):
        return None
    return f"expected tuning to be a file's name or None, received {shown(tuning)}"


def record(kind: type, value: Any, name: str) -> tuple[Any, str | None]:
    """Convert an argument that may be a frozen record, a dict of its fields, or None for its defaults.

    Return the record, with the defaults if there is a problem, and the problem or None.
    """
    if value is None:
        return kind(), None
    if isinstance(value, kind):
        return value, None
    names = [field.name for field in fields(kind)]
    if not isinstance(value, Mapping):
        return kind(), (
            f"expected {name} to be a {kind.__name__}, a dict of its fields or None, received {shown(value)}"
        )
    unknown = [key for key in value if key not in names]
    if unknown:
        return kind(), f"expected {name} with the keys {', '.join(names)}, received {shown(unknown)}"
    return kind(**value), None
