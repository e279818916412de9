"""FFTW by precision: its plans, and its wisdom in files, one per precision and rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike

from ....errors import InputError
from ....fft.engine.library import PREFIXES, Precision, precision
from .plans import FFTWPlan, set_timelimit
from .utilities import FFTW_FORWARD, FFTW_MEASURE

__all__ = [
    "FFT",
    "cleanup",
    "export_wisdom",
    "fftlib",
    "forget_wisdom",
    "get_fftw_lib",
    "get_planned_FFT",
    "import_wisdom",
    "set_timelimit",
]


FFT = FFTWPlan
"""mpi4py-fft's name of a plan."""


class Library:
    """FFTW in one precision."""

    FFT = FFTWPlan

    def __init__(self, functions: Precision) -> None:
        self.functions = functions

    def alignment_of(self, array: np.ndarray) -> int:
        """Return FFTW's alignment of an array; 0 is the best."""
        return self.functions.alignment_of(array)


fftlib = {char: Library(found) for char in PREFIXES if (found := precision(char))}
"""FFTW by precision: "F", "D" and, if the library has it, "G", long double."""


def get_fftw_lib(dtype: DTypeLike) -> Library | None:
    """Return FFTW in the precision of `dtype`, or None."""
    return fftlib.get(np.dtype(dtype).char.upper())


def get_planned_FFT(
    input_array: np.ndarray,
    output_array: np.ndarray,
    axes: Sequence[int] = (-1,),
    kind: int | Sequence[int] = FFTW_FORWARD,
    threads: int = 1,
    flags: int | Sequence[int] = (FFTW_MEASURE,),
    normalization: float = 1.0,
) -> FFTWPlan:
    """Return the plan of a transform from one array to another; see `FFTWPlan`."""
    if get_fftw_lib(input_array.dtype) is None:
        raise InputError(
            f"expected an array of the types {', '.join(fftlib)} or real ones of their precision, "
            f"received {input_array.dtype}"
        )
    return FFTWPlan(input_array, output_array, axes, kind, threads, flags, normalization)


def _name(char: str, filename: str) -> str:
    return f"{char}{MPI.COMM_WORLD.rank}_{filename}"


def export_wisdom(filename: str) -> None:
    """Write this rank's wisdom to the files ``F0_filename``, ``D0_filename``, ...; 0 is the rank."""
    for char, library in fftlib.items():
        with open(_name(char, filename), "wb") as file:
            file.write(library.functions.wisdom())


def import_wisdom(filename: str) -> None:
    """Read the wisdom that `export_wisdom` has written on the same number of ranks."""
    for char, library in fftlib.items():
        with open(_name(char, filename), "rb") as file:
            if not library.functions.take_wisdom(file.read()):
                raise ValueError(f"expected a file of FFTW's wisdom, received {file.name!r}")


def forget_wisdom() -> None:
    """Forget all wisdom."""
    for library in fftlib.values():
        library.functions.forget_wisdom()


def cleanup() -> None:
    """Forget all wisdom; plans free themselves."""
    forget_wisdom()
