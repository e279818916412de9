"""Data types as MPI wants them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from mpi4py.util import dtlib


def mpi_type(dtype: Any) -> Any:
    """Return MPI's datatype of a numpy dtype; nobody frees it."""
    return _type_of(np.dtype(dtype))


@cache
def _type_of(dtype: np.dtype) -> Any:
    # mpi4py makes a new datatype with every call, and MPI keeps it until it is freed.
    return dtlib.from_numpy_dtype(dtype)
