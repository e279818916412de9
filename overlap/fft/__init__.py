"""Local FFTW plans, and `FFT2`: batches of 2-D FFTs on slabs."""

from .fft2 import FFT2
from .settings import Settings, Trial, Tuned
from .transform import Transform

__all__ = ["FFT2", "Settings", "Transform", "Trial", "Tuned"]
