"""What FFTW has learned, in files: one per precision and rank."""

import pyfftw
from mpi4py import MPI

from .plans import fftlib

ORDER = {"D": 0, "F": 1, "G": 2}  # pyfftw's


def _name(char, filename):
    return f"{char}{MPI.COMM_WORLD.rank}_{filename}"


def export_wisdom(filename):
    """Write this rank's wisdom to the files ``F0_filename``, ``D0_filename``, ...; 0 is the rank."""
    wisdom = pyfftw.export_wisdom()
    for char in fftlib:
        with open(_name(char, filename), "wb") as file:
            file.write(wisdom[ORDER[char]])


def import_wisdom(filename):
    """Take the wisdom that `export_wisdom` wrote, with as many ranks."""
    wisdom = [b"", b"", b""]
    for char in fftlib:
        with open(_name(char, filename), "rb") as file:
            wisdom[ORDER[char]] = file.read()
    accepted = pyfftw.import_wisdom(tuple(wisdom))
    if not all(accepted[ORDER[char]] for char in fftlib):
        raise ValueError(f"expected files of FFTW's wisdom at {filename!r}, received others")


def forget_wisdom():
    """Forget all wisdom."""
    pyfftw.forget_wisdom()


def cleanup():
    """Forget all wisdom; plans free themselves."""
    pyfftw.forget_wisdom()
