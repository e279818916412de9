"""Describes for one rank the exchange of boxes that takes an array from one distribution to another.

Pieces are packed into one buffer, rank after rank, and unpacked from another one, whose end holds the pieces that the
rank keeps. The caller makes the exchange between packing and unpacking: at once, or as an operation of a slice program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from ..compiled.copy_table import ArrayRegion, CopyTable, strides_of
from ..compiled.memory import address_of
from .distribution import overlapping, within
from .exchange import Overflow
from .layout import Box, box_shape

Pair = tuple[ArrayRegion, ArrayRegion]
SEND, RECEIVE = range(2)  # indices of the buffers
KEPT = 8  # copy tables that are kept, one for each kind of array
Pieces = Sequence[Sequence[np.ndarray]]
"""For each rank the parts of arrays that it is sent."""


class Crossing:
    """Describes which parts of an array one rank sends, and where it stores those that it receives.

    For each rank there are boxes of the local array before the exchange (`sent`), and of that after it (`received`), in
    the order in which they are sent. Pieces that this rank sends to itself are only copied. Arrays may have an
    additional first axis, which the boxes do not have: its *entries* are sent together.
    """

    def __init__(self, sent: Sequence[Sequence[Box]], received: Sequence[Sequence[Box]], rank: int) -> None:
        self._sent, self._received, self._rank = sent, received, rank
        self._counts = [[sum(prod(box_shape(box)) for box in sides) for sides in boxes] for boxes in (sent, received)]
        (kept, whole), (send_counts, receive_counts) = (self._counts[1][rank], sum(self._counts[1])), self._counts
        send_counts[rank] = receive_counts[rank] = 0
        self._kept = whole - kept
        self._tables: dict[Any, CopyTable] = {}
        self.sizes = sum(send_counts), whole  # numbers of elements of the two buffers, for one entry

    @classmethod
    def between(cls, everyone: Sequence[tuple[Box, Box]], rank: int) -> Crossing:
        """Return the crossing between two distributions, given every rank's box before and after."""
        source_box, target_box = everyone[rank]
        return cls(
            [[within(box, source_box) for box in common(source_box, [peer_box])] for _, peer_box in everyone],
            [[within(box, target_box) for box in common(target_box, [peer_box])] for peer_box, _ in everyone],
            rank,
        )

    def reversed(self) -> Crossing:
        """Return the crossing that undoes this one."""
        return Crossing(self._received, self._sent, self._rank)

    def buffers(self, dtype: np.dtype[Any], entries: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Make the two buffers. Neither is empty: Open MPI takes two buffers that begin at the same address for one."""
        send, receive = (np.empty(max(1, entries * size), dtype) for size in self.sizes)
        return send, receive

    def pack(
        self,
        source: np.ndarray,
        send: np.ndarray,
        receive: np.ndarray,
        entries: int = 1,
        overflow: Overflow | None = None,
    ) -> None:
        """Copy the pieces that are sent into the send buffer, and those that are kept to the end of the receive buffer.

        If the buffers have singles, doubles are converted; an `InputError` says that a finite number is too large for a
        single, which `overflow` records.
        """
        source = _aligned(source)
        _execute(self.packing(source, send.dtype, entries, overflow), [source], [send, receive])
        if overflow is not None:
            overflow.check()

    def packing(
        self, source: np.ndarray, dtype: np.dtype[Any], entries: int = 1, overflow: Overflow | None = None
    ) -> CopyTable:
        """Return the copies that `pack` makes of aligned arrays like this one, to the buffers SEND and RECEIVE."""
        return self._table(
            (source.strides, entries),
            lambda: self._pairs(_parts(source, self._sent), address_of(source), dtype, entries, SEND, overflow),
        )

    def counts(self, entries: int = 1) -> list[list[int]]:
        """Return the numbers of elements sent to and received from each rank, without those that are kept."""
        return [[entries * count for count in counts] for counts in self._counts]

    def messages(self, send: np.ndarray, receive: np.ndarray, entries: int = 1) -> tuple[list[Any], list[Any]]:
        """Return the arguments of an `Alltoallv` between the two buffers: in bytes, so that any type can be sent."""
        sent, received = ([entries * count * send.itemsize for count in counts] for counts in self._counts)
        return [send.view(np.uint8), sent], [receive.view(np.uint8), received]

    def unpack(self, receive: np.ndarray, target: np.ndarray, entries: int = 1) -> None:
        """Store the pieces that were received or kept in the local array."""
        if not target.flags.aligned:
            whole = np.empty(target.shape, target.dtype)
            self.unpack(receive, whole, entries)
            target[...] = whole
            return

        # The second buffer has the index `RECEIVE`.
        _execute(self.unpacking(target, receive.dtype, entries), [receive, receive], [target])

    def unpacking(self, target: np.ndarray, dtype: np.dtype[Any], entries: int = 1) -> CopyTable:
        """Return the copies that `unpack` makes to aligned arrays like this one, from the buffer RECEIVE."""

        def pairs() -> Iterator[Pair]:
            places = _parts(target, self._received)
            for place, packed in self._pairs(places, address_of(target), dtype, entries, RECEIVE):
                yield packed, place

        return self._table((target.strides, entries, RECEIVE), pairs)

    def exchange(self, comm: Any, source: np.ndarray | Pieces, target: np.ndarray, dtype: np.dtype[Any]) -> None:
        """Exchange the pieces of one array, or of several arrays of one type together (collective)."""
        send, receive = self.buffers(dtype)
        if isinstance(source, np.ndarray):
            self.pack(source, send, receive)
        else:
            pieces = [[_aligned(piece) for piece in some] for some in source]
            _execute(CopyTable(self._pairs(pieces, address_of(send), dtype, 1, SEND)), [send], [send, receive])
        comm.Alltoallv(*self.messages(send, receive))
        self.unpack(receive, target)

    def _table(self, kind: Any, pairs: Callable[[], Iterable[Pair]]) -> CopyTable:
        """Return the copy table for a kind of array; it is made at the first use and kept."""
        found = self._tables.get(kind)
        if found is None:
            if len(self._tables) >= KEPT:
                self._tables.clear()
            found = self._tables[kind] = CopyTable(pairs())
        return found

    def _pairs(
        self,
        pieces: Pieces,
        origin: int,
        dtype: np.dtype[Any],
        entries: int,
        buffer: int,
        overflow: Overflow | None = None,
    ) -> Iterator[Pair]:
        """Yield the place of each piece in an array, relative to an address, and in a buffer; pieces that are kept are
        in `RECEIVE`."""
        rounding = 0 if overflow is None else overflow.address
        *others, own = [*pieces[: self._rank], *pieces[self._rank + 1 :], pieces[self._rank]]
        for number, start, some in (
            (buffer, 0, [piece for each in others for piece in each]),
            (RECEIVE, entries * self._kept, own),
        ):
            for piece in some:
                shape, nbytes = piece.shape, dtype.itemsize
                halves = piece.itemsize == 2 * nbytes  # doubles that are sent as singles
                precision, singles = (8, 4) if halves else (0, 0)
                offset, strides = address_of(piece) - origin, strides_of(shape, nbytes)
                yield (
                    ArrayRegion(0, offset, shape, piece.strides, piece.itemsize, None, precision),
                    ArrayRegion(number, start * nbytes, shape, strides, nbytes, None, singles, rounding),
                )
                start += piece.size


def common(box: Sequence[slice], others: Sequence[Sequence[slice]]) -> list[tuple[slice, ...]]:
    """Return the non-empty intersections of a box of a global array with other boxes."""
    return [shared for other in others if (shared := overlapping(box, other)) is not None]


def _parts(array: np.ndarray, boxes: Sequence[Sequence[Box]]) -> Pieces:
    """Return boxes of every entry, for each rank."""
    indices: Any = [[(..., *box) for box in some] for some in boxes]
    return [[array[index] for index in some] for some in indices]


def _aligned(array: np.ndarray) -> np.ndarray:
    """Return an array whose elements are aligned, as compiled code needs: numpy's views of records may not be."""
    return array if array.flags.aligned else array.copy()


def _execute(table: CopyTable, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> None:
    here, there = (np.array([address_of(one) for one in some], np.int64) for some in (sources, targets))
    table.execute(address_of(here), address_of(there))
