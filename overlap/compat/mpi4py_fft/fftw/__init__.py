"""mpi4py-fft's `fftw`: FFTW's serial transforms, planned once and called often, on FFTW as pyfftw ships it.

Layers, lowest first: `constants`, `plans`, `xfftn`, `wisdom`.
"""

from . import constants, xfftn
from .constants import *  # noqa: F403
from .plans import FFT, fftlib, get_fftw_lib, get_planned_FFT, set_timelimit
from .wisdom import cleanup, export_wisdom, forget_wisdom, import_wisdom
from .xfftn import *  # noqa: F403

__all__ = ["FFT", "cleanup", "export_wisdom", "fftlib", "forget_wisdom", "get_fftw_lib", "get_planned_FFT",
           "import_wisdom", "set_timelimit", *constants.__all__, *xfftn.__all__]
