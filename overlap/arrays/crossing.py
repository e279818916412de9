"""The exchange of boxes that takes an array from one distribution to another, as one rank sees it.

Pieces are packed into one buffer, rank after rank, and unpacked from another one, at whose end lies what the rank
keeps. Whoever has both makes the exchange in between: at once, or as an operation of a slice program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from .distribution import overlapping, within
from .exchange import rounded
from .layout import Box, box_shape

Pieces = Sequence[Sequence[np.ndarray]]
"""For each rank the parts of arrays that it is sent."""


class Crossing:
    """What one rank sends of an array, and where it stores what it receives.

    Arrays may have one axis more than the boxes, the first one: then its *entries* travel together.

    Parameters
    ----------
    sent, received : sequence of sequence of tuple of slice
        For each rank, boxes of the local array before, and of that after, in the order in which they travel.
    rank : int
        This rank. What it sends to itself does not travel.

    Attributes
    ----------
    sizes : (int, int)
        Elements of the two buffers, for one entry.
    """

    def __init__(self, sent: Sequence[Sequence[Box]], received: Sequence[Sequence[Box]], rank: int) -> None:
        self._sent, self._received, self._rank = sent, received, rank
        self._counts = [[sum(prod(box_shape(box)) for box in sides) for sides in boxes] for boxes in (sent, received)]
        (kept, whole), (send_counts, receive_counts) = (self._counts[1][rank], sum(self._counts[1])), self._counts
        send_counts[rank] = receive_counts[rank] = 0
        self._kept = whole - kept
        self.sizes = sum(send_counts), whole

    @classmethod
    def between(cls, everyone: Sequence[tuple[Box, Box]], rank: int) -> Crossing:
        """Return the crossing of an array of which every rank holds the one box before, and the other after."""
        source_box, target_box = everyone[rank]
        return cls(
            [[within(box, source_box) for box in common(source_box, [peer_box])] for _, peer_box in everyone],
            [[within(box, target_box) for box in common(target_box, [peer_box])] for peer_box, _ in everyone],
            rank,
        )

    def reversed(self) -> Crossing:
        """Return the crossing that undoes this one."""
        return Crossing(self._received, self._sent, self._rank)

    def pieces(self, source: np.ndarray) -> Pieces:
        """Return the parts of a local array that are sent."""
        return [[_part(source, box) for box in boxes] for boxes in self._sent]

    def buffers(self, dtype: np.dtype[Any], entries: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Make the two buffers. None is empty: Open MPI takes two that begin at one address for one."""
        send, receive = (np.empty(max(1, entries * size), dtype) for size in self.sizes)
        return send, receive

    def pack(
        self, pieces: Pieces, send: np.ndarray, receive: np.ndarray, entries: int = 1, exchange: str | None = None
    ) -> None:
        """Fill a buffer with what is sent, and the end of the other with what is kept; numbers are rounded.

        Raises
        ------
        InputError
            With ``exchange="f4"``: a finite number is too large.
        """
        for buffer, peer_boxes in (
            (send, _others_first(pieces, self._rank)[:-1]),
            (receive[entries * self._kept :], [pieces[self._rank]]),
        ):
            parts = [piece for each in peer_boxes for piece in each]
            for place, piece in zip(_cut(buffer, (piece.shape for piece in parts)), parts):
                place[...] = rounded(piece, exchange)

    def messages(self, send: np.ndarray, receive: np.ndarray, entries: int = 1) -> tuple[list[Any], list[Any]]:
        """Return the arguments of an `Alltoallv` between the two buffers: in bytes, as MPI need not know the type."""
        sent, received = ([entries * count * send.itemsize for count in counts] for counts in self._counts)
        return [send.view(np.uint8), sent], [receive.view(np.uint8), received]

    def unpack(self, receive: np.ndarray, target: np.ndarray) -> None:
        """Store what was received, and kept, in the local array."""
        places = [_part(target, box) for peer_boxes in _others_first(self._received, self._rank) for box in peer_boxes]
        for place, piece in zip(places, _cut(receive, (place.shape for place in places))):
            place[...] = piece

    def exchange(self, comm: Any, pieces: Pieces, target: np.ndarray, dtype: np.dtype[Any]) -> None:
        """Exchange pieces of a type at once (collective)."""
        send, receive = self.buffers(dtype)
        self.pack(pieces, send, receive)
        comm.Alltoallv(*self.messages(send, receive))
        self.unpack(receive, target)


def common(box: Sequence[slice], others: Sequence[Sequence[slice]]) -> list[tuple[slice, ...]]:
    """Return what a box of a global array has in common with others, where that is anything."""
    return [shared for other in others if (shared := overlapping(box, other)) is not None]


def _part(array: np.ndarray, box: Box) -> np.ndarray:
    """Return a box of every entry."""
    index: Any = (..., *box)
    return array[index]


def _others_first(of_ranks: Sequence[Any], rank: int) -> list[Any]:
    """Return what there is of each rank, that of this one at the end."""
    return [*of_ranks[:rank], *of_ranks[rank + 1 :], of_ranks[rank]]


def _cut(buffer: np.ndarray, shapes: Iterable[tuple[int, ...]]) -> Iterator[np.ndarray]:
    """Yield arrays of some shapes that lie one after the other in a buffer."""
    start = 0
    for shape in shapes:
        yield buffer[start : start + prod(shape)].reshape(shape)
        start += prod(shape)
