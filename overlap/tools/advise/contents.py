"""How many bytes the buffers of a call have, in all the ways in which mpi4py takes them."""

from __future__ import annotations

from typing import Any

import numpy as np


def nbytes(message: Any) -> int:
    """Count the bytes of a buffer as mpi4py takes it: an object with a buffer, or a list of it, counts and types.

    Parameters
    ----------
    message : object

    Returns
    -------
    int
    """
    if not isinstance(message, (list, tuple)):
        if message is None:
            return 0
        return int(message.nbytes if hasattr(message, "nbytes") else memoryview(message).nbytes)
    buffer, *rest = message
    types: Any = rest.pop() if rest and _is_type(rest[-1]) else None
    counts: Any = rest[0] if rest else None
    if isinstance(counts, tuple):
        counts = counts[0]  # (counts, displacements)
    if counts is None:
        return sum(map(_size, types)) if _is_sequence(types) else nbytes(buffer)  # one item of each type
    if _is_sequence(types):
        return sum(int(count) * _size(each) for count, each in zip(counts, types))
    size = memoryview(buffer).itemsize if types is None else _size(types)
    return (counts if isinstance(counts, int) else int(sum(counts))) * size


def _is_type(value: Any) -> bool:
    return hasattr(value, "Get_size") or isinstance(value, str) or (_is_sequence(value) and _is_type(value[0]))


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple, np.ndarray)) and len(value) > 0


def _size(datatype: Any) -> int:
    return np.dtype(datatype).itemsize if isinstance(datatype, str) else int(datatype.Get_size())
