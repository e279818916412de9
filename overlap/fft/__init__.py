"""Local FFTW plans; `FFT2`, batches of 2-D FFTs; `FFT3`, 3-D FFTs; `Bracket`, nonlinear terms."""

from .bracket import Bracket
from .fft2 import FFT2
from .fft3 import FFT3
from .planning.settings import Settings, Trial, Tuned
from .transform import Transform

__all__ = ["Bracket", "FFT2", "FFT3", "Settings", "Transform", "Trial", "Tuned"]
