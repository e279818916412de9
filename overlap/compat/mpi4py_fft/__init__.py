"""A drop-in for mpi4py-fft: ``from overlap.compat.mpi4py_fft import PFFT, newDistArray``.

A script runs with only its import changed: arguments, distributions, scaling and results are those of mpi4py-fft, and
the transforms are pipelines that hide their exchanges. Features that are not supported raise an error that names them.

`stand_in` provides it to programs and libraries that import mpi4py_fft themselves.

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

__version__ = "2.0.6"  # the version of mpi4py-fft whose names and semantics this package has

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
