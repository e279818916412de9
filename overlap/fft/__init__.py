"""Local FFTW plans, and `FFT2`: batches of 2-D FFTs on slabs."""

from .fft2 import FFT2
from .transform import Settings, Transform
from .tune import Trial

__all__ = ["FFT2", "Settings", "Transform", "Trial"]
