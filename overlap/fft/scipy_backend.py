"""`overlap.fft` as a backend of `scipy.fft`: ``with scipy.fft.set_backend(overlap.fft): ...``, in the uarray protocol.

What is served is what the functions of `overlap.fft` do to an array that this process has alone, on a plan with as
many workers as the call asks for: transforms along the last two or three axes of plain arrays in FFTW's precisions.
All else goes back to scipy, with the results or the errors that it has for it: other transforms, other axes,
subclasses of ndarray (`DistArray` too: to scipy it is this rank's part), calls by other threads than the main one or
from slices of a pipeline, and small arrays, which scipy has transformed before a pipeline has begun (half a
millisecond).
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

LEAST_POINTS = 2**16  # of an array; scipy takes about half a millisecond for so many


def serve(method: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Return what a function of `scipy.fft` returns, or NotImplemented where that is left to scipy.

    Parameters
    ----------
    method : callable
        The function.
    args, kwargs
        What it was called with.
    """
    if method.__name__ not in SERVED or threading.current_thread() is not threading.main_thread():
        return NotImplemented
    try:
        call = inspect.signature(method).bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        x, s, axes = given["x"], given["s"], given["axes"]
        if type(x) is not np.ndarray or x.dtype not in DTYPES or x.size < LEAST_POINTS or given["plan"] is not None:
            return NotImplemented
        if axes is None and s is not None:
            axes = range(-len(s), 0)
        places = [range(x.ndim)[axis] for axis in (range(x.ndim) if axes is None else axes)]
        if len(places) not in (2, 3) or places != list(range(x.ndim - len(places), x.ndim)):
            return NotImplemented
        transform = getattr(functional, method.__name__)
        return np.asarray(
            transform(x, MPI.COMM_SELF, s=s, axes=axes, norm=given["norm"], workers=_workers(given["workers"]))
        )
    except (
        OverlapError,
        TypeError,
        ValueError,
        IndexError,
        RuntimeError,
    ):  # scipy has its own words for it, or can do it
        return NotImplemented


def _workers(workers: int | None) -> int:
    """Return the number of workers that scipy would take.

    Raises
    ------
    TypeError, ValueError
        Where scipy refuses it.
    """
    if workers is None:
        from scipy.fft import get_workers  # who calls this has imported it

        return get_workers()
    workers = index(workers)
    count = workers if workers >= 0 else (os.cpu_count() or 1) + 1 + workers
    if count < 1:
        raise ValueError(f"expected one worker or more, received {workers}")
    return count
