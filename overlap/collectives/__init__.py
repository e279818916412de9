"""Collectives by remote writes: stores into memory that ranks of a node share, instead of messages."""

from . import numba_support as _  # noqa: F401 (numba learns to take a `Collectives`)
from .collectives import Collectives
from .combine import Op

__all__ = ["Collectives", "Op"]
