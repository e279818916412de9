"""Checks and conversions of the arguments of a `Halo`."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arrays.blocks import Blocks
from ..arrays.exchange import Overflow, dtype_sent, exchange_problem
from ..checks import choice_problem, mask_problem
from ..compiled.memory import address_of
from ..errors import InputError, repr_of, text_of
from .traffic import Entries, LocalArrays

Types = list[tuple[np.dtype, tuple[int, ...]]]

TRANSPORTS = ("auto", "window", "messages")


def types_of(given: Any) -> tuple[Types, str | None]:
    """Return each array's type and components, and what is wrong with the argument, or None."""
    found: Types = []
    for one in given if isinstance(given, list) else [given]:
        try:
            base, components = np.dtype(one).base, np.dtype(one).shape
        except Exception as error:  # the conversion of an object can raise anything
            return [], f"expected a data type, or a list of them, received {repr_of(one)} ({text_of(error)})"
        if base.hasobject or not base.itemsize:
            return [], f"expected a data type of numbers, received {repr_of(one)}"
        found.append((base, components))
    return found, None if found else "expected at least one data type, received none"


def problem_of(
    comm: MPI.Intracomm, parts: object, transport: object, exchange: Any = None, types: Types | None = None
) -> str | None:
    """Return what is wrong with the other arguments, or None."""
    problems = [exchange_problem(exchange, dtype) for dtype, _ in types or [(np.dtype(float), ())]]
    if all(problems):
        return problems[0]
    if problem := choice_problem("transport", transport, TRANSPORTS, listed=False):
        return problem
    if not isinstance(parts, (Blocks, Entries)):
        return f"expected Blocks, received {type(parts).__name__}"
    if isinstance(parts, Blocks) and parts.size != comm.size:
        return f"expected a grid of {comm.size} ranks, received {parts.grid}"
    return None


def numbers_of(owned: Any, needed: Any) -> tuple[list[np.ndarray], str | None]:
    """Return lists of global numbers as arrays, and what is wrong with them, or None."""
    lists, problem = [], None
    for name, numbers in (("owned", owned), ("needed", needed)):
        found = np.asarray(numbers)
        if found.ndim != 1 or (found.size and (found.dtype.kind not in "iu" or found.min() < 0)):
            problem = (
                f"expected {name} to be a list of integers >= 0, received an array of shape {found.shape} "
                f"and type {found.dtype}" + (f" from {found.min()} on" if found.dtype.kind == "i" else "")
            )
        elif len(np.unique(found)) < len(found):
            problem = f"expected every number of {name} once, received one twice"
        lists.append(found if problem else found.astype(np.int64))
    return lists, problem


class RoundArrays:
    """Checks the arrays of rounds and finds their addresses.

    Arrays of the last rounds are recognised and not checked again. After a sweep, when the caches hold nothing of this
    code, a check takes longer than starting an MPI message. The arrays are kept alive, so their addresses stay valid.

    Parameters
    ----------
    shape : tuple of int
        Shape of each array, without the components of an item.
    types : sequence of (numpy.dtype, tuple of int)
        Type and components of each array.
    exchange : {None, "f4"}
        See `Halo`.

    Attributes
    ----------
    kinds : list of (tuple of int, numpy.dtype)
        Shape and type of each array.
    exchange_dtypes : tuple of dtype
        The type in which the numbers of each array are sent.
    local : LocalArrays
    """

    _KNOWN = 2  # rounds: often two arrays are used in turns

    def __init__(self, shape: tuple[int, ...], types: Types, exchange: str | None = None) -> None:
        self.kinds = [(shape + components, dtype) for dtype, components in types]
        items = [dtype.itemsize * prod(components) for dtype, components in types]
        ways = [None if exchange_problem(exchange, dtype) else exchange for dtype, _ in types]
        self.exchange_dtypes = tuple(dtype_sent(dtype, way) for (dtype, _), way in zip(types, ways))
        singles = [number for number, way in enumerate(ways) if way is not None]
        self.local = LocalArrays(shape, items, singles, Overflow() if singles else None)
        self._known: dict[tuple[int, ...], tuple[tuple[np.ndarray, ...], tuple[int, ...]]] = {}

    def addresses(self, arrays: tuple[np.ndarray, ...]) -> tuple[int, ...]:
        """Return the addresses of the arrays of a round; raise an `InputError` if they do not fit the halo."""
        number = tuple(map(id, arrays))
        if number not in self._known:
            self._check(arrays)
            if len(self._known) == self._KNOWN:
                del self._known[next(iter(self._known))]
            self._known[number] = arrays, tuple(map(address_of, arrays))
        return self._known[number][1]

    def _check(self, arrays: tuple[Any, ...]) -> None:
        if len(arrays) != len(self.kinds):
            raise InputError(f"expected {len(self.kinds)} arrays (one per data type), received {len(arrays)}")
        for array, (shape, dtype) in zip(arrays, self.kinds):
            if not isinstance(array, np.ndarray) or mask_problem(array=array):
                raise InputError(f"expected an array, received {type(array).__name__}")
            if array.shape != shape or array.dtype != dtype:
                raise InputError(
                    f"expected an array of shape {shape} and type {dtype}, received {array.shape} and {array.dtype}"
                )
            if not array.flags.c_contiguous or not array.flags.writeable:
                raise InputError(
                    "expected an array that is contiguous in C order and can be written to, received another one"
                )
