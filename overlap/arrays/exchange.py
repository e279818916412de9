"""Data types of messages: MPI's data types, and doubles that are sent as singles; sections of all ranks of an array."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.util import dtlib

from ..checks import choice_problem
from ..compiled.memory import address_of
from ..errors import InputError
from ..ranks.door import collective_section
from .distribution import Distribution, parts_problem

EXCHANGES = (None, "f4")


def mpi_type(dtype: Any) -> Any:
    """Return MPI's data type for a numpy dtype; it is never freed."""
    return _type_of(np.dtype(dtype))


@cache
def _type_of(dtype: np.dtype) -> Any:
    # mpi4py makes a new data type in every call, which MPI would keep until it is freed.
    return dtlib.from_numpy_dtype(dtype).Commit()


def exchange_problem(exchange: Any, dtype: Any = complex) -> str | None:
    """Return what is wrong with the option `exchange` for arrays of a dtype, or None."""
    if problem := choice_problem("exchange", exchange, EXCHANGES):
        return problem
    if exchange is not None and np.dtype(dtype) not in (np.float64, np.complex128):
        return f"expected exchange='f4' for arrays of double precision, received {np.dtype(dtype)}"
    return None


def refuse_objects(dtype: Any) -> None:
    """Raise an `InputError` on this rank if elements are Python's objects, which cannot be sent."""
    if np.dtype(dtype).hasobject:
        raise InputError(f"expected an array without Python's objects, received {np.dtype(dtype)}")


def dtype_sent(dtype: Any, exchange: str | None) -> np.dtype:
    """Return the type in which numbers of a dtype are sent."""
    given = np.dtype(dtype)
    return given if exchange is None else np.dtype(f"{given.kind}{given.itemsize // 2}")


def travelling(exchange: str | None) -> str:
    """Return the words for descriptions if numbers are converted before they are sent, else an empty text."""
    return "" if exchange is None else ", exchanged in single precision"


def rounded(array: np.ndarray, exchange: str | None) -> np.ndarray:
    """Return an array's numbers, rounded as if they had been sent; raise an `InputError` if a finite one is too
    large."""
    with np.errstate(over="ignore"):
        sent = array.astype(dtype_sent(array.dtype, exchange), copy=False)
    if exchange is not None and any(
        (np.isinf(part(sent)) & np.isfinite(part(array))).any() for part in (np.real, np.imag)
    ):
        raise too_large()
    return sent


class Overflow:
    """Records whether a conversion to singles has met a finite number that is too large."""

    def __init__(self) -> None:
        self._word = np.zeros(1, np.int64)  # compiled code sets it
        self.address = address_of(self._word)

    def check(self) -> None:
        """Raise an `InputError` on this rank, once, if a number was too large."""
        if self._word[0]:
            self._word[0] = 0
            raise too_large()


def too_large() -> InputError:
    """Make the error for a finite number that is too large for a single."""
    return InputError(
        f"expected numbers of at most {np.finfo(np.float32).max:.3g} in an exchange in single precision "
        "(exchange='f4'), received a larger one"
    )


def array_section(comm: Any, call: str, where: Distribution) -> AbstractContextManager[dict[str, Any]]:
    """Make a `collective_section` before which the parts of all ranks are checked: they must make up one array."""

    def parts_problem_of(own_comm: MPI.Intracomm) -> str | None:
        everyone = np.empty((own_comm.size, len(where.global_shape), 2), np.int64)
        own_comm.Allgather(np.array([(part.start, part.stop) for part in where.local_slice], np.int64), everyone)
        places = (tuple(slice(*bounds) for bounds in box) for box in everyone.tolist())
        return parts_problem(places, where.global_shape)

    return collective_section(comm, call, parts_problem_of, global_shape=where.global_shape)
