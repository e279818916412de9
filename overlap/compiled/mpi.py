"""The MPI library for compiled code: addresses of its functions, and its handles as words."""

from __future__ import annotations

import ctypes
from typing import Any

from mpi4py import MPI


def mpi_function(name: str) -> int:
    """Find the address of a function of the MPI library that mpi4py is linked with."""
    function = getattr(ctypes.CDLL(MPI.__file__), f"MPI_{name}")
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def handle_of(thing: Any) -> int:
    """Return the handle of a communicator, a type or a reduction in the MPI library: a number or a pointer."""
    handle: int = MPI._handleof(thing)
    return handle


def memory_at(address: int, nbytes: int) -> Any:
    """Return `nbytes` bytes of memory as a buffer for MPI calls; the caller keeps the memory alive."""
    return MPI.memory.fromaddress(address, nbytes)
