"""Sends a distributed array to one rank in pieces of at most `PIECE_NBYTES`: besides the result no rank holds more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from math import prod
from typing import Any

import numpy as np

from .layout import Box, box_shape

PIECE_NBYTES = 2**22


def chunk_of(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the shape of the largest pieces of an array that are allowed; leading axes are cut first."""
    return tuple(
        max(1, min(length, PIECE_NBYTES // max(1, itemsize * prod(shape[axis + 1 :]))))
        for axis, length in enumerate(shape)
    )


def boxes(shape: Sequence[int], itemsize: int) -> Iterator[Box]:
    """Cut an array into pieces."""
    cuts = [
        [slice(start, min(start + each, length)) for start in range(0, length, each)]
        for length, each in zip(shape, chunk_of(shape, itemsize))
    ]
    return product(*cuts)


def shifted(box: Box, where: Sequence[slice]) -> Box:
    """Return the place in the global array of a box of the local array, which holds the part `where`."""
    return tuple(slice(each.start + part.start, each.start + part.stop) for part, each in zip(box, where))


def holders(everyone: Sequence[Box | None], first: int = 0) -> list[Box | None]:
    """Return the part that each rank sends, given the parts of all; None if an earlier rank, or rank `first`, has the
    same part."""
    bounds = [None if box is None else tuple((part.start, part.stop) for part in box) for box in everyone]
    senders = {bounds[rank]: rank for rank in (*reversed(range(len(everyone))), first)}
    return [box if senders[bounds[rank]] == rank else None for rank, box in enumerate(everyone)]


@contextmanager
def pieces_on(root: int, comm: Any, local: np.ndarray, place: Sequence[slice]) -> Iterator[Any]:
    """Send every rank's part, which may be empty and has a place in the global array, to rank `root`, one piece after
    the other (collective).

    An iterator yields places and values on `root`, which stay until the next ones are asked for; other ranks get None.
    The iterator need not be exhausted: when the block ends, even by an exception, all messages have been received.
    """
    parts = holders(comm.allgather(tuple(place) if local.size else None), root)
    if comm.rank != root:
        if parts[comm.rank] is not None:
            for box in boxes(local.shape, local.itemsize):
                _send(comm, _cut_out(local, box), root)
        yield None
        return
    pieces = _received(comm, local, parts)
    try:
        yield pieces
    finally:
        for _ in pieces:
            pass


def _cut_out(array: Any, box: Box) -> np.ndarray:
    """Return a part of an array as a view, also if there are no axes."""
    return array[(..., *box)]


def _send(comm: Any, piece: np.ndarray, root: int) -> None:
    if piece.dtype.hasobject:
        comm.send(piece, root)
    else:
        comm.Send(np.ascontiguousarray(piece).reshape(-1).view(np.uint8), root)


def _received(comm: Any, local: np.ndarray, parts: Sequence[Box | None]) -> Iterator[tuple[Box, np.ndarray]]:
    """Yield the place and the values of every piece, those of this rank first."""
    own = parts[comm.rank]
    if own is not None:
        for box in boxes(local.shape, local.itemsize):
            yield shifted(box, own), _cut_out(local, box)
    buffer = np.empty(max(1, PIECE_NBYTES // max(1, local.itemsize)), local.dtype)
    for rank, part in enumerate(parts):
        if part is None or rank == comm.rank:
            continue
        for box in boxes(box_shape(part), local.itemsize):
            shape = box_shape(box)
            piece = buffer[: prod(shape)]
            if local.dtype.hasobject:
                piece[...] = comm.recv(source=rank).reshape(-1)
            else:
                comm.Recv(piece.view(np.uint8), rank)
            yield shifted(box, part), piece.reshape(shape)
