"""Writes fields at several times to one HDF5 file: one rank writes the file, and receives the fields in pieces."""

from .output import Output
from .problems import Stored

__all__ = ["Output", "Stored"]
