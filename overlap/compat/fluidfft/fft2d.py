"""fluidfft's two-dimensional FFT class on an `FFT2`."""

from __future__ import annotations

import numpy as np
from fluiddyn.calcul.easypyfft import BaseFFT

from ...fft import FFT2
from ...fft.operators import counts_of_half
from .base import PlanFFT


class FFT2DMPIWithOverlap(PlanFFT, BaseFFT):
    """The transforms of a field of n0 x n1 points, (y, x), split into slabs over all ranks.

    Parameters
    ----------
    n0, n1 : int
    """

    def __init__(self, n0: int = 2, n1: int = 2) -> None:
        PlanFFT.__init__(self, FFT2, (n0, n1), {"order": "transposed"})
        modes = np.arange(n1 // 2 + 1)[self.plan.spectrum.local_slice[0]]
        self._counts = counts_of_half(modes, n1)[:, np.newaxis]

    def get_is_transposed(self) -> bool:
        """Return True, because Fourier space has the axes (x, y)."""
        return True

    def get_x_adim_loc(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of this rank's points along y and x, in points."""
        y, x = (np.arange(part.start, part.stop) for part in self.plan.real.local_slice)
        return y, x

    def get_k_adim_loc(self) -> tuple[np.ndarray, np.ndarray]:
        """Return this rank's mode numbers along x and y; the Nyquist mode of y is positive."""
        n0, n1 = self.get_shapeX_seq()
        kx, ky = self.plan.spectrum.local_slice
        modes = np.arange(n0)
        return np.arange(n1 // 2 + 1)[kx], np.where(modes > n0 // 2, modes - n0, modes)[ky]

    def sum_wavenumbers(self, field_fft: np.ndarray) -> float:
        """Sum values of all modes of the whole spectrum (collective)."""
        return self.total(float(np.sum(self._counts * field_fft)))

    def compute_energy_from_Fourier(self, fieldK: np.ndarray) -> float:
        """Compute half the mean square of a field of Fourier space (collective)."""
        return 0.5 * self.sum_wavenumbers(np.abs(fieldK) ** 2)

    def compute_energy_from_spatial(self, fieldX: np.ndarray) -> float:
        """Compute half the mean square of a field of real space (collective)."""
        total = self.total(float(np.sum(np.square(fieldX))))
        return float(0.5 * total / np.prod(self.get_shapeX_seq()))

    compute_energy_from_K = compute_energy_from_Fourier
    compute_energy_from_X = compute_energy_from_spatial


FFTclass = FFT2DMPIWithOverlap
