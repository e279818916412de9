"""`WireFormat`: how numbers travel in messages: as they are, or doubles as singles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ...errors import InputError, repr_of
from ...lowlevel.memory import address_of
from .program import View

EXCHANGES = (None, "f4")


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
        given = np.dtype(dtype)
        self.rounds = exchange is not None
        self.dtype = np.dtype(f"{given.kind}{given.itemsize // 2}") if self.rounds else given
        self._overflown = np.zeros(1, np.int64)

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
            raise InputError(
                f"expected numbers of at most {np.finfo(np.float32).max:.3g} in an exchange in single precision "
                "(exchange='f4'), received a larger one"
            )


def exchange_problem(exchange: Any, dtype: Any = complex) -> str | None:
    """Say what is wrong with a way to exchange arrays of a dtype, or None."""
    if not isinstance(exchange, str | None) or exchange not in EXCHANGES:
        return f"expected exchange to be one of {EXCHANGES}, received {repr_of(exchange)}"
    if exchange is not None and np.dtype(dtype) not in (np.float64, np.complex128):
        return f"expected exchange='f4' for arrays of double precision, received {np.dtype(dtype)}"
    return None
