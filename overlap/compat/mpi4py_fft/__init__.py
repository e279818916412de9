"""A drop-in for mpi4py-fft: ``from overlap.compat.mpi4py_fft import PFFT, newDistArray``.

A script runs with only its import changed: arguments, distributions, scaling and results are that
library's, the transforms are pipelines that hide their exchanges. What is not there says so by name.

`stand_in` gives it to programs and libraries that import mpi4py_fft themselves.

Layers, lowest first: `fftw`, `libfft`, `pencil`, `io`, `distarray`, `request`, `route`, `shared`, `transform`,
`pipelined`, `mpifft`, `stand_in`.
"""

from . import fftw
from .distarray import DistArray, Function, newDistArray
from .fftw import fftlib
from .io import HDF5File, NCFile, generate_xdmf
from .mpifft import PFFT
from .pencil import Subcomm
from .stand_in import stand_in

__version__ = "2.0.6"  # of mpi4py-fft, whose names and semantics these are

__all__ = [
    "PFFT",
    "DistArray",
    "Function",
    "HDF5File",
    "NCFile",
    "Subcomm",
    "fftlib",
    "fftw",
    "generate_xdmf",
    "newDistArray",
    "stand_in",
]
