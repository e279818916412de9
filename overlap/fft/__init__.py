"""Local FFTW plans; `FFT2`, batches of 2-D FFTs on slabs; `FFT3`, 3-D FFTs on slabs and pencils."""

from .fft2 import FFT2
from .fft3 import FFT3
from .settings import Settings, Trial, Tuned
from .transform import Transform

__all__ = ["FFT2", "FFT3", "Settings", "Transform", "Trial", "Tuned"]
