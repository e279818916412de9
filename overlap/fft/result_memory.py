"""`ResultMemory`: memory of results that nobody holds any more, kept for the next ones.

A transform whose caller gives no ``out`` makes its result anew at every call. To take large memory from the
system and give it back each time costs page faults, up to a third of the transform, and these do not run
faster with more workers. One result is kept: in a loop, ``uh = plan.forward(u)``, that is enough, as each
frees the one before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .engine.fftw import empty

LEAST_NBYTES = 1 << 20  # smaller memory comes from the process's own heap


class ResultMemory:
    """Makes uninitialised, aligned arrays of one shape and type.

    Memory goes back when the last view of it has gone, in whatever thread that happens.

    Parameters
    ----------
    shape : sequence of int
    dtype : dtype
    """

    def __init__(self, shape: Sequence[int], dtype: DTypeLike) -> None:
        self._shape, self._dtype = tuple(shape), np.dtype(dtype)
        self._nbytes = prod(self._shape) * self._dtype.itemsize
        self._free: deque[np.ndarray] = deque(maxlen=1)

    def empty(self) -> np.ndarray:
        """Make an array that nobody else has."""
        if self._nbytes < LEAST_NBYTES:
            return empty(self._shape, self._dtype)
        try:
            memory = self._free.pop()
        except IndexError:
            memory = empty(self._shape, self._dtype)
        return np.asarray(_Lent(memory, self._free))


class _Lent:
    """What all views of a result hold: numpy keeps the owner of memory, and no array on the way to it."""

    def __init__(self, memory: np.ndarray, free: deque[np.ndarray]) -> None:
        self._memory, self._free = memory, free

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._memory.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._memory)
