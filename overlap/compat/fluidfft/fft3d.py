"""fluidfft's three-dimensional FFT class on an `FFT3`."""

from __future__ import annotations

from fluidfft.fft3d.base import BaseFFTMPI

from ...fft import FFT3
from .base import PlanFFT


class FFT3DMPIWithOverlap(PlanFFT, BaseFFTMPI):
    """The transforms of a field of n0 x n1 x n2 points, (z, y, x), split into slabs over all ranks.

    Parameters
    ----------
    n0, n1, n2 : int
    """

    def __init__(self, n0: int = 2, n1: int = 2, n2: int = 4) -> None:
        from fluiddyn.util import mpi

        PlanFFT.__init__(self, FFT3, (n0, n1, n2), {"grid": (1, mpi.nb_proc)})
        BaseFFTMPI.__init__(self, n0, n1, n2)

    def get_dimX_K(self) -> tuple[int, int, int]:
        """Return the axes of real space in the order of Fourier space's: they are the same."""
        return 0, 1, 2


FFTclass = FFT3DMPIWithOverlap
