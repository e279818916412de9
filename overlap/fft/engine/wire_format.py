"""`WireFormat`: how numbers travel in messages: as they are, or doubles as singles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike

from ...arrays.exchange import dtype_sent, too_large
from ...lowlevel.memory import address_of
from .program import View


class WireFormat:
    """How numbers travel.

    A program that packs a message notes where a finite number is too large for a single; a step between packing and
    exchanging raises an error then (`steps.checked`). All numbers of an exchange are rounded, those that stay on their
    rank too: so what comes out does not depend on which rank holds what.

    Parameters
    ----------
    dtype : dtype
        In the arrays.
    exchange : {None, "f4"}
        As of `FFT2`.

    Attributes
    ----------
    dtype : dtype
        In messages.
    rounds : bool
        It is another one than in the arrays.
    """

    def __init__(self, dtype: DTypeLike, exchange: str | None = None) -> None:
        self._exchange, self.rounds = exchange, exchange is not None
        self.dtype = dtype_sent(dtype, exchange)
        self._overflown = np.zeros(1, np.int64)

    def of(self, dtype: DTypeLike) -> WireFormat:
        """Return the same for arrays of a type; an error is raised by either."""
        other = WireFormat(dtype, self._exchange)
        other._overflown = self._overflown
        return other

    def rounded(self, view: View) -> View:
        """Return a view of memory in which numbers are stored as if they had travelled."""
        return replace(view, rounding=address_of(self._overflown)) if self.rounds else view

    def raise_overflow(self) -> None:
        """Raise an error where a number was too large.

        Raises
        ------
        InputError
        """
        if self._overflown[0]:
            self._overflown[0] = 0
            raise too_large()
