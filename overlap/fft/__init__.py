"""`FFT2`, `FFT3`, `FFTN`, plans of FFTs; `Bracket`, nonlinear terms; `Transpose`; functions like scipy.fft's."""

from .array_layout import ArrayLayout
from .array_spec import ArraySpec
from .bracket import Bracket
from .fft2 import FFT2
from .fft3 import FFT3
from .fftn import FFTN
from .functional import close_plans, fft, fft2, fftn, ifft, ifft2, ifftn, irfft, irfft2, irfftn, rfft, rfft2, rfftn
from .operators import SpectralOperators
from .plan import Balance, Plan
from .planning.settings import Settings, Trial, Tuned
from .pointwise import Pointwise
from .scipy_backend import serve as __ua_function__  # noqa: F401
from .stepping import TimeStepper
from .transform import Transform
from .transpose import Transpose, TransposeDirection

__ua_domain__ = "numpy.scipy.fft"  # with `__ua_function__`: for scipy.fft.set_backend

__all__ = [
    "FFT2",
    "FFT3",
    "FFTN",
    "ArrayLayout",
    "ArraySpec",
    "Balance",
    "Bracket",
    "Plan",
    "Pointwise",
    "Settings",
    "SpectralOperators",
    "TimeStepper",
    "Transform",
    "Transpose",
    "TransposeDirection",
    "Trial",
    "Tuned",
    "close_plans",
    "fft",
    "fft2",
    "fftn",
    "ifft",
    "ifft2",
    "ifftn",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftn",
]
