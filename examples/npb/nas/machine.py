"""Measures the machine at the time of a run: memory bandwidth and plain FFTs, on all ranks at once."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pyfftw
from mpi4py import MPI

from overlap.compiled import njit

_COUNT = 2**22  # length of each of three arrays
_ROUNDS = 5
_LINES, _LENGTH = 256, 256


@njit
def _triad(a, b, c):
    for place in range(len(a)):
        a[place] = b[place] + 3.0 * c[place]


def triad_gb_per_s(comm: MPI.Intracomm) -> float:
    """Measure STREAM's triad, a = b + 3 c, on all ranks together, in 1e9 bytes per second (collective)."""
    a, b, c = np.zeros(_COUNT), np.ones(_COUNT), np.ones(_COUNT)
    _triad(a[:1], b, c)
    return 24 * _COUNT * comm.size / _best(comm, lambda: _triad(a, b, c)) / 1e9


def fft_mflop_per_s(comm: MPI.Intracomm) -> float:
    """Measure complex FFTs of 256 points in the cache, by FFTW on all ranks, with 5 n log2 n operations each
    (collective)."""
    lines = pyfftw.zeros_aligned((_LINES, _LENGTH), complex)
    transform = pyfftw.FFTW(lines, lines, axes=(1,), flags=("FFTW_MEASURE",))
    operations = 5 * _LINES * _LENGTH * np.log2(_LENGTH) * comm.size
    return float(operations / _best(comm, transform.execute) / 1e6)


def _best(comm, function):
    """Return the time of the slowest rank in the fastest round, in seconds."""
    found = []
    for _ in range(_ROUNDS):
        comm.Barrier()
        started = perf_counter()
        function()
        found.append(comm.allreduce(perf_counter() - started, MPI.MAX))
    return min(found)
