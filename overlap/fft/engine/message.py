"""`Message`: the places of an exchange's pieces, and the views of them for programs; `WireFormat`: their numbers."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TypeVar

from numpy.typing import DTypeLike

from ...arrays import MessageBoxes, box_shape, contiguous, mpi_type, offset
from ...arrays.exchange import Overflow, dtype_sent
from .program import CompiledProgram, View


class WireFormat:
    """The format of numbers in messages, for arrays of `dtype` and the `exchange` of `FFT2`.

    A program that packs a message notes whether a finite number is too large for a single; a step between packing and
    exchanging then raises an error (`steps.checked`). All numbers of an exchange are rounded, also those that stay on
    their rank, so results do not depend on the distribution.
    """

    def __init__(self, dtype: DTypeLike, exchange: str | None = None) -> None:
        self._exchange = exchange
        self.rounds = exchange is not None  # messages have another type than the arrays
        self.dtype = dtype_sent(dtype, exchange)  # type in messages
        self.overflow = Overflow()  # whether a number was too large

    def of(self, dtype: DTypeLike) -> WireFormat:
        """Return the wire format for arrays of another type; both share the error."""
        wire = WireFormat(dtype, self._exchange)
        wire.overflow = self.overflow
        return wire

    def rounded(self, view: View) -> View:
        """Return a view of memory in which numbers are rounded when they are stored, as in messages."""
        return replace(view, rounding=self.overflow.address) if self.rounds else view


Piece = TypeVar("Piece")


class Message:
    """The places of a message's pieces: in a slot's buffers, in the target or, if sent unpacked, in the source."""

    def __init__(
        self,
        boxes: MessageBoxes,
        rank: int,
        target_shape: tuple[int, ...],
        straight: bool,
        direct: bool,
        wire: WireFormat,
        source_shape: tuple[int, ...] | None = None,
    ) -> None:
        self.sent, self.received = boxes.sent, boxes.received
        self.wire, self.mpi_type = wire, mpi_type(wire.dtype)
        self._straight = rank if straight else None  # the rank whose piece is in the target before the exchange
        self.shapes_sent = [box_shape(box) for box in boxes.sent]
        self.shapes_received = [box_shape(box) for box in boxes.received]
        sent = [prod(shape) for shape in self.shapes_sent]
        received = [prod(shape) for shape in self.shapes_received]
        sent[rank] = 0
        if straight:
            received[rank] = 0
        self.counts_sent = sent
        self.starts_sent = starts_of(sent)
        self.send_size = sum(sent)
        self.unpacked = (  # all pieces are sent from the source
            source_shape is not None and not wire.rounds and all(contiguous(box, source_shape) for box in boxes.sent)
        )
        if source_shape is not None and self.unpacked:
            self.starts_sent, self.send_size = [offset(box, source_shape) for box in boxes.sent], 0
        self.starts_received = starts_of(received)
        self.direct = (  # all pieces are received in the target
            direct
            and not wire.rounds
            and all(contiguous(box, target_shape) for number, box in enumerate(boxes.received) if number != rank)
        )
        if self.direct:
            self.starts_received = [offset(box, target_shape) for box in boxes.received]
        self.receive_size = 0 if self.direct else sum(received)
        self.counts_received = received[:rank] + [0] + received[rank + 1 :]

    @property
    def nbytes_sent(self) -> int:
        """Return the bytes sent to other ranks."""
        return sum(self.counts_sent) * self.wire.dtype.itemsize

    def gathered(self, pieces: list[Piece]) -> list[Piece]:
        """Return entries of the ranks' pieces, without that of a piece that goes directly to the target."""
        return [piece for number, piece in enumerate(pieces) if number != self._straight]

    def arrived(self, pieces: list[View], target: View) -> list[View]:
        """Return the place of every rank's piece after the exchange: in the target, or in the receive buffer."""
        return [
            target[box] if self.direct or number == self._straight else piece
            for number, (piece, box) in enumerate(zip(pieces, self.received))
        ]

    def pieces_sent(self, base: int) -> list[View]:
        """Return the pieces as views of the send buffer."""
        return [self._piece(base, start, shape) for start, shape in zip(self.starts_sent, self.shapes_sent)]

    def pieces_received(self, base: int) -> list[View]:
        """Return the pieces as views of the receive buffer, which may be overwritten once they are read."""
        return [
            replace(self._piece(base, start, shape), spare=True)
            for start, shape in zip(self.starts_received, self.shapes_received)
        ]

    def _piece(self, base: int, start: int, shape: tuple[int, ...]) -> View:
        return self.wire.rounded(View.contiguous(base, shape, self.wire.dtype, start))


def write_unpacking(program: CompiledProgram, message: Message, pieces: list[View], target: View) -> None:
    """Write copies of received pieces to the target, without those that are there already."""
    if message.direct:
        return
    for piece, box in zip(message.gathered(pieces), message.gathered(message.received)):
        program.copy(target[box], piece)


def starts_of(counts: list[int]) -> list[int]:
    """Return the starts of consecutive pieces."""
    return [sum(counts[:number]) for number in range(len(counts))]
