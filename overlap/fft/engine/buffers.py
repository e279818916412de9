"""The data of programs: arrays with their addresses, and the buffers of a slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...compiled.memory import address_of
from .fftw import ALIGNMENT, REQUIRED_ALIGNMENT
from .program import BASES, RECEIVE, SEND, View


class ArrayReference:
    """An array with its address, or with a placeholder address that represents all arrays of its kind."""

    __slots__ = ("address", "array", "strides")

    def __init__(self, array: np.ndarray, address: int | None = None) -> None:
        self.array = array
        self.strides = array.strides
        self.address = address_of(array) if address is None else address

    @property
    def kind(self) -> tuple[tuple[int, ...], bool]:
        """Return its strides, and whether it is aligned as FFTW requires; programs depend on these."""
        return self.strides, self.address % REQUIRED_ALIGNMENT == 0

    def part(self, view: np.ndarray) -> ArrayReference:
        """Locate a view of its memory."""
        return ArrayReference(view, self.address + address_of(view) - address_of(self.array))

    def at(self, part: slice) -> ArrayReference:
        """Locate some of its entries along axis 0."""
        return ArrayReference(self.array[part], self.address_at(part.start))

    def address_at(self, number: int) -> int:
        """Return the address of one of its entries along axis 0."""
        return self.address + number * self.strides[0]

    def view(self, base: int) -> View:
        """Return the array as a view on base `base`, for programs."""
        strides, aligned = self.kind
        return View(base, self.array.shape, strides, self.array.dtype, aligned=aligned)


class Buffers:
    """The buffers of a slot: for the pieces of a message sent to other ranks, and for those received.

    Attributes
    ----------
    send, receive : ArrayReference
    bases : ndarray of int64
        The addresses of the bases of programs: those of the buffers, and entries for others.
    """

    def __init__(self, send: np.ndarray, receive: np.ndarray) -> None:
        self.send, self.receive = ArrayReference(send), ArrayReference(receive)
        self.bases = np.zeros(BASES, np.int64)
        self.bases[SEND], self.bases[RECEIVE] = self.send.address, self.receive.address


def on_lines(lengths: Sequence[int], dtype: np.dtype) -> list[int]:
    """Return the lengths of a slot's buffers such that each of them, even an empty one, starts on a cache line.

    If the two buffers of a nonblocking exchange start at the same address, Open MPI takes it for an exchange in place,
    whatever the counts.
    """
    line = ALIGNMENT // dtype.itemsize
    return [max(1, -(-length // line)) * line for length in lengths]
