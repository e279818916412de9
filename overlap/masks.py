"""Masked arrays, which are rejected because the values behind a mask would enter the computation."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import InputError


def mask_problem(**arrays: Any) -> str | None:
    """Return a text that names the first argument that is a masked array; None if there is none."""
    for name, array in arrays.items():
        if isinstance(array, np.ma.MaskedArray):
            return f"expected {name} to be an array without a mask, received a masked array"
    return None


def refuse_masks(**arrays: Any) -> None:
    """Raise an `InputError`, on this rank, if an argument is a masked array."""
    if problem := mask_problem(**arrays):
        raise InputError(problem)
