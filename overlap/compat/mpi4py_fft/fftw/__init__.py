"""mpi4py-fft's `fftw`: FFTW's serial transforms, planned once and called often, with the FFTW that pyfftw ships.

Layers, lowest first: `utilities`, `plans`, `factory`, `xfftn`. mpi4py-fft has all of them except `plans`.
"""

from . import factory, utilities, xfftn
from .factory import *  # noqa: F403
from .utilities import *  # noqa: F403
from .xfftn import *  # noqa: F403

__all__ = [*factory.__all__, *utilities.__all__, *xfftn.__all__]
