"""`ResultMemory`: memory of results that are not referenced any more, kept for later results.

If a call has no ``out``, the transform makes a new result. Allocating large memory and returning it to the system each
time costs page faults, which take up to a third of the transform's time and do not get faster with more workers. One
result is kept. That is enough for a loop with ``uh = plan.forward(u)``, in which each result frees the one before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .engine.fftw import empty

LEAST_NBYTES = 1 << 20  # smaller memory comes from the process's heap


class ResultMemory:
    """Makes uninitialised, aligned arrays of one shape and type.

    Memory is taken back when its last view is deleted, in whatever thread.

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
        """Make an array whose memory is not in use."""
        if self._nbytes < LEAST_NBYTES:
            return empty(self._shape, self._dtype)
        try:
            memory = self._free.pop()
        except IndexError:
            memory = empty(self._shape, self._dtype)
        return np.asarray(_Lent(memory, self._free))


class _Lent:
    """The owner of a result's memory, to which all views refer; numpy skips intermediate arrays."""

    def __init__(self, memory: np.ndarray, free: deque[np.ndarray]) -> None:
        self._memory, self._free = memory, free

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._memory.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._memory)
