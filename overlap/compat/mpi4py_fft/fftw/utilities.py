"""FFTW's kinds and flags as numbers, and arrays that are aligned for FFTW."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from ....compiled.memory import address_of
from ....fft.engine import fftw as memory

FFTW_FORWARD, FFTW_BACKWARD = -1, 1
FFTW_R2HC, FFTW_HC2R, FFTW_DHT = 0, 1, 2
FFTW_REDFT00, FFTW_REDFT01, FFTW_REDFT10, FFTW_REDFT11 = 3, 4, 5, 6
FFTW_RODFT00, FFTW_RODFT01, FFTW_RODFT10, FFTW_RODFT11 = 7, 8, 9, 10

C2C_FORWARD, C2C_BACKWARD, R2C, C2R = -1, 1, -2, 2
"""The kinds of Fourier transforms; the real-to-real kinds are FFTW_REDFT00 to FFTW_RODFT11."""

FFTW_MEASURE = 0
FFTW_DESTROY_INPUT = 1
FFTW_UNALIGNED = 2
FFTW_CONSERVE_MEMORY = 4
FFTW_EXHAUSTIVE = 8
FFTW_PRESERVE_INPUT = 16
FFTW_PATIENT = 32
FFTW_ESTIMATE = 64
FFTW_WISDOM_ONLY = 2097152

flag_dict = {name: value for name, value in globals().items() if name.startswith("FFTW_")}

# Cosine and sine transforms by their usual numbers, and their inverses.
dct_type = {1: FFTW_REDFT00, 2: FFTW_REDFT10, 3: FFTW_REDFT01, 4: FFTW_REDFT11}
dst_type = {1: FFTW_RODFT00, 2: FFTW_RODFT10, 3: FFTW_RODFT01, 4: FFTW_RODFT11}
idct_type = {1: FFTW_REDFT00, 2: FFTW_REDFT01, 3: FFTW_REDFT10, 4: FFTW_REDFT11}
idst_type = {1: FFTW_RODFT00, 2: FFTW_RODFT01, 3: FFTW_RODFT10, 4: FFTW_RODFT11}

__all__ = [
    "C2C_BACKWARD",
    "C2C_FORWARD",
    "C2R",
    "FFTW_BACKWARD",
    "FFTW_CONSERVE_MEMORY",
    "FFTW_DESTROY_INPUT",
    "FFTW_DHT",
    "FFTW_ESTIMATE",
    "FFTW_EXHAUSTIVE",
    "FFTW_FORWARD",
    "FFTW_HC2R",
    "FFTW_MEASURE",
    "FFTW_PATIENT",
    "FFTW_PRESERVE_INPUT",
    "FFTW_R2HC",
    "FFTW_REDFT00",
    "FFTW_REDFT01",
    "FFTW_REDFT10",
    "FFTW_REDFT11",
    "FFTW_RODFT00",
    "FFTW_RODFT01",
    "FFTW_RODFT10",
    "FFTW_RODFT11",
    "FFTW_UNALIGNED",
    "FFTW_WISDOM_ONLY",
    "R2C",
    "aligned",
    "aligned_like",
    "dct_type",
    "dst_type",
    "flag_dict",
    "get_alignment",
    "idct_type",
    "idst_type",
]


def get_alignment(array: np.ndarray) -> int:
    """Find the largest power of two, 32 at most, by which an array's address can be divided."""
    return next(n for n in (32, 16, 8, 4, 2, 1) if address_of(array) % n == 0)


def aligned(
    shape: int | Sequence[int], n: int = 32, dtype: DTypeLike = np.dtype("d"), fill: complex | None = None
) -> np.ndarray:
    """Make an array that begins at a multiple of `n` bytes; uninitialised, or filled with `fill`."""
    array = memory.empty(tuple(np.atleast_1d(shape)), dtype, n)
    if fill is not None:
        array[...] = fill
    return array


def aligned_like(z: np.ndarray, fill: complex | None = None) -> np.ndarray:
    """Make an array with the shape, type and alignment of another one."""
    return aligned(z.shape, get_alignment(z), z.dtype, fill)
