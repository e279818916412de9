"""Fields at several times in one HDF5 file: written by one rank, which the pieces of the fields travel to."""

from .arguments import Stored
from .output import Output

__all__ = ["Output", "Stored"]
