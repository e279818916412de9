"""The arguments of a `Halo`: what they mean, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from ..arrays.blocks import Blocks

TRANSPORTS = ("auto", "window", "messages")


def types_of(given: Any) -> tuple[list[tuple[np.dtype, tuple[int, ...]]], str | None]:
    """Each array's type and components, and what is wrong with what was given."""
    found: list[tuple[np.dtype, tuple[int, ...]]] = []
    for one in given if isinstance(given, list) else [given]:
        try:
            base, components = np.dtype(one).base, np.dtype(one).shape
        except TypeError as error:
            return [], f"expected a data type, or a list of them, received {one!r} ({error})"
        if base.hasobject or not base.itemsize:
            return [], f"expected a data type of numbers, received {one!r}"
        found.append((base, components))
    return found, None if found else "expected at least one data type, received none"


def problem_of(comm: MPI.Intracomm, parts: object, transport: object) -> str | None:
    """What is wrong with other arguments; None if nothing is."""
    if transport not in TRANSPORTS:
        return f"expected transport to be one of {', '.join(TRANSPORTS)}, received {transport!r}"
    if isinstance(parts, Blocks) and parts.size != comm.size:
        return f"expected a grid of {comm.size} ranks, received {parts.grid}"
    return None


def numbers_of(owned: Any, needed: Any) -> tuple[list[np.ndarray], str | None]:
    """Lists of global numbers as arrays, and what is wrong with them."""
    lists, problem = [], None
    for name, numbers in (("owned", owned), ("needed", needed)):
        found = np.asarray(numbers)
        if found.ndim != 1 or found.size and (found.dtype.kind not in "iu" or found.min() < 0):
            problem = (f"expected {name} to be a list of integers >= 0, received an array of shape {found.shape} "
                       f"and type {found.dtype}" + (f" from {found.min()} on" if found.dtype.kind == "i" else ""))
        elif len(np.unique(found)) < len(found):
            problem = f"expected every number of {name} once, received one twice"
        lists.append(found if problem else found.astype(np.int64))
    return lists, problem
