"""`WireFormat`: the format of numbers in messages: unchanged, or doubles as singles."""

from __future__ import annotations

from dataclasses import replace

from numpy.typing import DTypeLike

from ...arrays.exchange import Overflow, dtype_sent
from .program import View


class WireFormat:
    """The format of numbers in messages.

    A program that packs a message notes whether a finite number is too large for a single; a step between packing and
    exchanging then raises an error (`steps.checked`). All numbers of an exchange are rounded, also those that stay on
    their rank, so results do not depend on the distribution.

    Parameters
    ----------
    dtype : dtype
        Type in the arrays.
    exchange : {None, "f4"}
        See `FFT2`.

    Attributes
    ----------
    dtype : dtype
        Type in messages.
    rounds : bool
        Messages have another type than the arrays.
    """

    def __init__(self, dtype: DTypeLike, exchange: str | None = None) -> None:
        self._exchange, self.rounds = exchange, exchange is not None
        self.dtype = dtype_sent(dtype, exchange)
        self._overflow = Overflow()

    def of(self, dtype: DTypeLike) -> WireFormat:
        """Return the wire format for arrays of another type; both share the error."""
        wire = WireFormat(dtype, self._exchange)
        wire._overflow = self._overflow
        return wire

    def rounded(self, view: View) -> View:
        """Return a view of memory in which numbers are rounded when they are stored, as in messages."""
        return replace(view, rounding=self._overflow.address) if self.rounds else view

    def raise_overflow(self) -> None:
        """Raise an error if a number was too large.

        Raises
        ------
        InputError
        """
        self._overflow.check()
