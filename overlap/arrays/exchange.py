"""What an exchange sends and receives of an array whose own piece stays where it is, as MPI wants it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from mpi4py.util import dtlib


def mpi_type(dtype: Any) -> Any:
    """MPI's datatype of a numpy dtype; nobody frees it."""
    return _type_of(np.dtype(dtype))


@cache
def _type_of(dtype):
    # mpi4py makes a new datatype with every call, and MPI keeps it until it is freed.
    return dtlib.from_numpy_dtype(dtype)


class RemotePieces:
    """One side of an exchange whose own piece stays where it is: the pieces of the other ranks.

    Parameters
    ----------
    shapes : list of tuple of int
        Rows and columns of each rank's piece.
    rank : int
    starts : list of int, optional
        Where each rank's piece starts in the buffer, in elements; by default the pieces that travel
        lie one after the other.

    Attributes
    ----------
    size : int
        Elements that travel.
    """

    def __init__(self, shapes, rank, starts=None):
        sizes = [int(np.prod(shape)) for shape in shapes]
        self._shapes, self._rank = shapes, rank
        self._counts = [0 if other == rank else size for other, size in enumerate(sizes)]
        self.size = sum(self._counts)
        self._starts = starts or [sum(self._counts[:other]) for other in range(len(sizes))]

    def message(self, buffer):
        """mpi4py's buffer argument for all pieces that travel."""
        return [buffer, (self._counts, self._starts), mpi_type(buffer.dtype)]

    def views(self, buffer):
        """The pieces inside a one-dimensional buffer; None for the one that stays."""
        return [None if other == self._rank else buffer[start:start + count].reshape(shape)
                for other, (start, count, shape) in enumerate(
                    zip(self._starts, self._counts, self._shapes))]
