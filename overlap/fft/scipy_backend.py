"""`overlap.fft` as a backend of `scipy.fft`: ``with scipy.fft.set_backend(overlap.fft): ...``, in the uarray protocol.

The backend transforms plain arrays in FFTW's precisions along the last two or three axes, by the functions of
`overlap.fft` on this process alone, with the workers of the call. Everything else is left to scipy, with its results or
its errors: other transforms, other axes, subclasses of ndarray (also `DistArray`, which for scipy is this rank's part),
calls by threads other than the main one or from slices of a pipeline, and small arrays, which scipy transforms in less
time than a pipeline takes to begin (half a millisecond).
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from ..errors import OverlapError
from . import functional
from .arguments import DTYPES

SERVED = ("fft2", "ifft2", "fftn", "ifftn", "rfft2", "irfft2", "rfftn", "irfftn")

LEAST_POINTS = 2**16  # least size of an array: for smaller ones scipy takes less than about half a millisecond


def serve(method: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Return the result of a function of `scipy.fft`, or NotImplemented if the call is left to scipy."""
    if method.__name__ not in SERVED or threading.current_thread() is not threading.main_thread():
        return NotImplemented
    try:
        call = inspect.signature(method).bind(*args, **kwargs)
        call.apply_defaults()
        named = call.arguments
        x, s, axes = named["x"], named["s"], named["axes"]
        if type(x) is not np.ndarray or x.dtype not in DTYPES or x.size < LEAST_POINTS or named["plan"] is not None:
            return NotImplemented
        if axes is None and s is not None:
            axes = range(-len(s), 0)
        places = [range(x.ndim)[axis] for axis in (range(x.ndim) if axes is None else axes)]
        if len(places) not in (2, 3) or places != list(range(x.ndim - len(places), x.ndim)):
            return NotImplemented
        transform = getattr(functional, method.__name__)
        return np.asarray(
            transform(x, MPI.COMM_SELF, s=s, axes=axes, norm=named["norm"], workers=_workers(named["workers"]))
        )
    except (
        OverlapError,
        TypeError,
        ValueError,
        IndexError,
        RuntimeError,
    ):  # scipy raises its own error, or can transform it
        return NotImplemented


def _workers(workers: int | None) -> int:
    """Return the number of workers that scipy would take; raise TypeError or ValueError if scipy rejects `workers`."""
    if workers is None:
        from scipy.fft import get_workers  # imported already by the caller

        return get_workers()
    workers = index(workers)
    count = workers if workers >= 0 else (os.cpu_count() or 1) + 1 + workers
    if count < 1:
        raise ValueError(f"expected one worker or more, received {workers}")
    return count
