"""Sends a field to the rank that writes it, in pieces, which are the slices of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arrays import DistArray, pieces
from ..arrays.distribution import overlapping, within
from ..arrays.exchange import rounded
from ..arrays.layout import Box, box_shape
from ..runtime import Pipeline, Runtime
from .problems import Stored

DEPTH = 4  # pieces in flight


def count(box: Box) -> int:
    """Count the elements of a box."""
    return prod(box_shape(box))


class FieldPieces:
    """The fields of one step, cut into pieces that are sent to the file's rank.

    Parameters
    ----------
    arrays : dict of str to DistArray
    stored : dict of str to Stored
    held : dict of str to list
        Their `pieces.holders`.
    file : h5py.File or None
        The file, on rank 0: pieces are stored at the end of the first axis of the data sets.
    exchange : {None, "f4"}
    """

    def __init__(
        self,
        arrays: Mapping[str, DistArray],
        stored: Mapping[str, Stored],
        held: Mapping[str, list[Box | None]],
        file: Any,
        exchange: str | None,
    ) -> None:
        self._arrays, self._held, self._file, self._exchange = arrays, held, file, exchange
        self._dtypes = {name: np.dtype(stored[name].dtype) for name in arrays}
        self.pieces = [
            (name, box) for name in arrays for box in pieces.boxes(stored[name].shape, self._dtypes[name].itemsize)
        ]

    def parts(self, piece: tuple[str, Box]) -> list[Box | None]:
        """Return the part of a piece that each rank sends."""
        name, box = piece
        return [None if held is None else overlapping(box, held) for held in self._held[name]]

    def counts(self, piece: tuple[str, Box]) -> list[int]:
        """Return the number of bytes of a piece that each rank sends."""
        size = self._dtypes[piece[0]].itemsize
        return [0 if part is None else size * count(part) for part in self.parts(piece)]

    def pack(self, piece: tuple[str, Box], rank: int, buffer: np.ndarray) -> None:
        """Copy this rank's part of a piece into the send buffer."""
        name, part = piece[0], self.parts(piece)[rank]
        if part is not None:
            array, dtype = self._arrays[name], self._dtypes[name]
            sent = np.asarray(array)[within(part, array.local_slice)]
            rounding = self._exchange if dtype.itemsize < sent.dtype.itemsize else None
            _view(buffer, dtype, part)[...] = rounded(sent, rounding)

    def store(self, piece: tuple[str, Box], received: np.ndarray, buffer: np.ndarray) -> None:
        """Write a piece to the file."""
        name, box = piece
        dtype, start = self._dtypes[name], 0
        whole = _view(buffer, dtype, box)
        for part in self.parts(piece):
            if part is not None:
                whole[within(part, box)] = _view(received[start:], dtype, part)
                start += dtype.itemsize * count(part)
        self._file[name][(-1, *box)] = whole


def _view(buffer: np.ndarray, dtype: np.dtype, box: Box) -> np.ndarray:
    """Return the beginning of a buffer as an array with the shape of a box."""
    return buffer[: dtype.itemsize * count(box)].view(dtype).reshape(box_shape(box))


def to_rank_0(runtime: Runtime) -> Pipeline:
    """Make the pipeline that brings pieces to rank 0 and writes them; call it with the pieces and `FieldPieces`."""
    comm = runtime.comm
    rank = comm.rank

    def buffers() -> list[np.ndarray]:
        return [np.empty(pieces.PIECE_NBYTES, np.uint8) for _ in range(1 if rank else 3)]

    def gathering(piece: tuple[str, Box], slot: list[np.ndarray], fields: FieldPieces) -> Any:
        counts = fields.counts(piece)
        return comm.Gatherv([slot[0], counts[rank], MPI.BYTE], None if rank else [slot[1], counts, MPI.BYTE], 0)

    async def program(piece: tuple[str, Box], slot: list[np.ndarray], fields: FieldPieces) -> None:
        fields.pack(piece, rank, slot[0])
        await gathering(piece, slot, fields)
        if rank == 0:
            fields.store(piece, slot[1], slot[2])

    return runtime.pipelined(program, buffers=buffers, skeleton=gathering, depth=DEPTH)
