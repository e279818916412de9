"""A drop-in for mpi4py-fft: ``from overlap.compat.mpi4py_fft import PFFT, newDistArray``.

A script runs with only its import changed: arguments, distributions, scaling and results are that
library's, the transforms are pipelines that hide their exchanges. What is not there says so by name.

Layers, lowest first: `pencil`, `distarray`, `request`, `route`, `mpifft`.
"""

from .distarray import DistArray, Function, newDistArray
from .mpifft import PFFT
from .pencil import Subcomm

__all__ = ["DistArray", "Function", "PFFT", "Subcomm", "newDistArray"]

_MISSING = {
    "HDF5File": "files", "NCFile": "files", "generate_xdmf": "files", "io": "files",
    "fftw": "cosine and sine transforms, and bare FFTW plans",
    "fftlib": "bare FFTW plans", "libfft": "serial transforms"}


def __getattr__(name):
    if name in _MISSING:
        raise ImportError(f"overlap.compat.mpi4py_fft has no {name}: {_MISSING[name]} are not "
                          "supported; use mpi4py_fft itself for them")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
