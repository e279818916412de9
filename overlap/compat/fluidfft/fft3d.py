"""fluidfft's three-dimensional FFT class on an `FFT3`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fluiddyn.util import mpi
from fluidfft.fft3d.base import BaseFFTMPI

from ...fft import FFT3
from .base import PlanFFT


class FFT3DMPIWithOverlap(PlanFFT, BaseFFTMPI):
    """The transforms of a field of n0 x n1 x n2 points, (z, y, x), split into slabs over all ranks.

    Parameters
    ----------
    n0, n1, n2 : int
    largest : sequence of int, optional
        Largest wavenumbers along z, y and x, in units of the smallest one, that arrays of Fourier space have; by
        default they have all. The others are 0.
    """

    def __init__(self, n0: int = 2, n1: int = 2, n2: int = 4, largest: Sequence[int] | None = None) -> None:
        points = n0, n1, n2
        resolved = points if largest is None else tuple(min(2 * k + 1, n) for k, n in zip(largest, points))
        layout: dict[str, Any] = {"grid": (1, mpi.nb_proc)}
        if resolved != points:
            layout["dealias"] = points
        PlanFFT.__init__(self, FFT3, resolved, layout)
        BaseFFTMPI.__init__(self, *points)

    def get_dimX_K(self) -> tuple[int, int, int]:
        """Return the axes of real space in the order of those of Fourier space, which is the same."""
        return 0, 1, 2

    def build_invariant_arrayK_from_2d_indices12X(self, o2d: Any, arr2d: np.ndarray) -> np.ndarray:
        """Make this rank's part of an array of Fourier space that is constant along z, from the whole 2-D array."""
        array = self.create_arrayK(0.0)
        _, y, x = self.get_k_adim_loc()
        array[:1] = arr2d[np.ix_(y, x)]
        return array


FFTclass = FFT3DMPIWithOverlap
