"""What FFTW has learned, in files: one per precision and rank."""

from mpi4py import MPI

from .plans import fftlib


def _name(char, filename):
    return f"{char}{MPI.COMM_WORLD.rank}_{filename}"


def export_wisdom(filename):
    """Write this rank's wisdom to the files ``F0_filename``, ``D0_filename``, ...; 0 is the rank."""
    for char, library in fftlib.items():
        with open(_name(char, filename), "wb") as file:
            file.write(library.functions.wisdom())


def import_wisdom(filename):
    """Take the wisdom that `export_wisdom` wrote, with as many ranks."""
    for char, library in fftlib.items():
        with open(_name(char, filename), "rb") as file:
            if not library.functions.take_wisdom(file.read()):
                raise ValueError(f"expected a file of FFTW's wisdom, received {file.name!r}")


def forget_wisdom():
    """Forget all wisdom."""
    for library in fftlib.values():
        library.functions.forget_wisdom()


def cleanup():
    """Forget all wisdom; plans free themselves."""
    forget_wisdom()
