"""Masked arrays, which are refused: what is behind a mask would be computed with."""

from __future__ import annotations

from typing import Any

import numpy as np


def mask_problem(**arrays: Any) -> str | None:
    """What is wrong with the first of some arguments that is a masked array; None if none is."""
    for name, array in arrays.items():
        if isinstance(array, np.ma.MaskedArray):
            return f"expected {name} to be an array without a mask, received a masked array"
    return None
