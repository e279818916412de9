"""The transpose of a slab: who sends which piece of a group of planes to whom.

A plane of the spectrum-to-be is split over the ranks by rows (y) before the exchange and by columns
(x) after it, or the other way round. Both sides use one of two layouts of a message of several
planes, one contiguous piece per rank:

    by_columns   piece p is (planes, my rows, columns of p)    what a rank sends going forward
    by_rows      piece p is (planes, rows of p, my columns)    what it receives then

Going backward the two change places. The piece that stays on the rank is not sent: whoever packs
writes it straight to where it is received.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py.util import dtlib

from .partition import length_of
from .slab import Slab


def mpi_type(dtype: Any) -> Any:
    """MPI's datatype of a numpy dtype."""
    return dtlib.from_numpy_dtype(dtype)


class Pieces:
    """One side of the exchange: the pieces' shapes, counts and displacements.

    Parameters
    ----------
    planes : int
    shapes : list of (int, int)
        Rows and columns of each rank's piece.
    rank : int
    """

    def __init__(self, planes, shapes, rank):
        self.shapes = [(planes, *shape) for shape in shapes]
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.size = sum(sizes)
        self.displacements = [sum(sizes[:p]) for p in range(len(sizes))]
        self.counts = [size if p != rank else 0 for p, size in enumerate(sizes)]

    def views(self, buffer):
        """The pieces inside a one-dimensional buffer of `size` elements or more."""
        return [buffer[start:start + int(np.prod(shape))].reshape(shape)
                for start, shape in zip(self.displacements, self.shapes)]


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


class Exchange:
    """The exchange of `planes` planes of a slab.

    Parameters
    ----------
    slab : Slab
    planes : int
    dtype : dtype
        Type of the elements (complex).

    Attributes
    ----------
    by_columns, by_rows : Pieces
        Either side of the exchange.
    plane_by_rows : (int, int)
        Shape of one plane in the layout `by_rows`, its pieces joined.
    nbytes_sent : int
        What leaves this rank.
    """

    def __init__(self, slab: Slab, planes: int, dtype: Any) -> None:
        self.planes = planes
        self.plane_by_rows = slab.my, slab.my_columns
        self.by_columns = Pieces(
            planes, [(slab.my_rows, length_of(part)) for part in slab.columns], slab.rank)
        self.by_rows = Pieces(
            planes, [(length_of(part), slab.my_columns) for part in slab.rows], slab.rank)
        self.nbytes_sent = sum(self.by_columns.counts) * np.dtype(dtype).itemsize
        self._type = mpi_type(dtype)

    def forward(self, comm: Any, send: np.ndarray, receive: np.ndarray) -> Any:
        """The awaitable exchange from columns to rows of two one-dimensional buffers."""
        return self._exchange(comm, self.by_columns, send, self.by_rows, receive)

    def backward(self, comm: Any, send: np.ndarray, receive: np.ndarray) -> Any:
        """The awaitable exchange from rows to columns."""
        return self._exchange(comm, self.by_rows, send, self.by_columns, receive)

    def _exchange(self, comm, sent, send, received, receive):
        return comm.Alltoallv([send, sent.counts, sent.displacements, self._type],
                              [receive, received.counts, received.displacements, self._type])
