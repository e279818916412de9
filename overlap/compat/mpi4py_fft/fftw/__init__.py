"""mpi4py-fft's `fftw`: FFTW's serial transforms, planned once and called often, on FFTW as pyfftw ships it.

Layers, lowest first: `utilities`, `plans`, `factory`, `xfftn`. All but `plans` are there as well.
"""

from . import factory, utilities, xfftn
from .factory import *  # noqa: F403
from .utilities import *  # noqa: F403
from .xfftn import *  # noqa: F403

__all__ = [*factory.__all__, *utilities.__all__, *xfftn.__all__]
