"""Checks whether elements of an array share memory."""

from __future__ import annotations

import numpy as np


def overlaps_itself(array: np.ndarray) -> bool:
    """Return whether elements of an array share memory with each other, as in a broadcast array."""
    if array.flags.c_contiguous or array.size == 0:
        return False
    steps = sorted((abs(stride), length) for stride, length in zip(array.strides, array.shape) if length > 1)
    reach = array.itemsize  # bytes covered by the axes with smaller strides
    for stride, length in steps:
        if stride < reach:
            break
        reach += stride * (length - 1)
    else:
        return False
    # Strides that are not nested are rare, and elements need not overlap even then: compare the places of all elements.
    starts = np.zeros(array.shape, np.int64)
    for axis, (stride, length) in enumerate(zip(array.strides, array.shape)):
        starts += (stride * np.arange(length)).reshape([-1 if axis == place else 1 for place in range(array.ndim)])
    starts = np.sort(starts, axis=None)
    return bool((np.diff(starts) < array.itemsize).any())
