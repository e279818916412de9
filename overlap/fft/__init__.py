"""`FFT2`, batches of 2-D FFTs; `FFT3`, 3-D FFTs; `Bracket`, nonlinear terms; functions like scipy.fft's."""

from .array_layout import ArrayLayout
from .array_spec import ArraySpec
from .bracket import Bracket
from .fft2 import FFT2
from .fft3 import FFT3
from .functional import close_plans, fft2, fftn, ifft2, ifftn, irfft2, irfftn, rfft2, rfftn
from .plan import Plan
from .planning.settings import Settings, Trial, Tuned
from .transform import Transform

__all__ = ["ArrayLayout", "ArraySpec", "Bracket", "FFT2", "FFT3", "Plan", "Settings", "Transform",
           "Trial", "Tuned", "close_plans", "fft2", "fftn", "ifft2", "ifftn", "irfft2", "irfftn", "rfft2", "rfftn"]
