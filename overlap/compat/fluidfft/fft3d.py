"""fluidfft's three-dimensional FFT class on an `FFT3`."""

from __future__ import annotations

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
    modes : int, optional
        How many modes along x, from 0 on, arrays of Fourier space have; all n2 // 2 + 1 by default. The others are 0.
    """

    def __init__(self, n0: int = 2, n1: int = 2, n2: int = 4, modes: int | None = None) -> None:
        layout: dict[str, Any] = {"grid": (1, mpi.nb_proc)}
        resolved = n2
        if modes is not None and modes < n2 // 2 + 1:
            resolved, layout["dealias"] = 2 * modes - 1, (n0, n1, n2)
        PlanFFT.__init__(self, FFT3, (n0, n1, resolved), layout)
        BaseFFTMPI.__init__(self, n0, n1, n2)

    def get_dimX_K(self) -> tuple[int, int, int]:
        """Return the axes of real space in the order of Fourier space's: they are the same."""
        return 0, 1, 2

    def build_invariant_arrayK_from_2d_indices12X(self, o2d: Any, arr2d: np.ndarray) -> np.ndarray:
        """Make an array of Fourier space of one that has no z: this rank's part, from the whole."""
        found = self.create_arrayK(0.0)
        _, y, x = self.plan.spectrum.local_slice
        found[:1] = arr2d[y, x]
        return found


FFTclass = FFT3DMPIWithOverlap
