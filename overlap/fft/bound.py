"""`BoundArrays`: the arrays of a transform's last calls, which need not be checked again.

A program calls a transform with the same few arrays again and again. The results of checking and preparing them (that
they fit, their addresses, the arguments of compiled code) stay valid for every array of the same type, address and
layout: an array such as ``u[0]`` is a new object each time. A distributed array must have the same distribution, too.
The arrays are not kept alive.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import DistArray
from ..compiled.memory import address_of

CALLS = 32  # number of calls whose arrays are remembered
PLACES = 64  # largest number of addresses of results that a transform has made


class BoundCall:
    """The prepared calls of a transform with certain arrays.

    Attributes
    ----------
    planes : list of list of ndarray
        Inputs and outputs with joined batch axes.
    calls : dict
        By what is done ("whole", "compute", "exchange"): a `PlanCall` and the addresses of its arrays.
    """

    __slots__ = ("calls", "planes")

    def __init__(self, planes: list[list[np.ndarray]]) -> None:
        self.planes = planes
        self.calls: dict[str, tuple[Any, Any]] = {}


class BoundArrays:
    """The arrays of a few calls of one transform, with the prepared calls."""

    def __init__(self) -> None:
        # Prepared calls, with the distributions and communicators whose `id` is in the key.
        self._calls: dict[tuple[Any, ...], tuple[BoundCall, list[Any]]] = {}
        self._places: set[tuple[Any, ...]] = set()

    def prepared(self, arrays: tuple[Any, ...], out: Any, made: tuple[Any, ...] = ()) -> BoundCall | None:
        """Return the prepared call of these arguments, or None if there is none for arrays like them.

        If the transform has `made` arrays for its result, without `out`, only their addresses matter.
        """
        if not self._calls:
            return None
        found = self._calls.get((type(out), *map(_name, _given(arrays, out)), *map(address_of, made)))
        return None if found is None else found[0]

    def keep(self, arrays: tuple[Any, ...], out: Any, prepared: BoundCall, made: tuple[Any, ...] = ()) -> None:
        """Keep a call that was prepared from `unowned` views of these arguments, which fit."""
        listed = _given(arrays, out)
        if len(self._calls) == CALLS:
            del self._calls[next(iter(self._calls))]
        places = [(array.distribution, array.comm) for array in listed if isinstance(array, DistArray)]
        self._calls[type(out), *map(_name, listed), *map(address_of, made)] = prepared, places

    def comes_again(self, arrays: tuple[Any, ...], made: tuple[Any, ...]) -> bool:
        """Return whether a result for these arrays was at the same address before, so that preparing the call pays."""
        place = *map(_name, arrays), *map(address_of, made)
        if place in self._places:
            return True
        if len(self._places) == PLACES:
            self._places.clear()
        self._places.add(place)
        return False

    def forget(self) -> None:
        """Forget all prepared calls, which are not valid any more."""
        self._calls.clear()
        self._places.clear()


def unowned(array: np.ndarray) -> np.ndarray:
    """Return an array of the same memory that does not keep it alive; the caller must ensure that it exists."""
    return np.asarray(_Unowned(array))


class _Unowned:
    def __init__(self, array: np.ndarray) -> None:
        self.__array_interface__ = array.__array_interface__


def _given(arrays: tuple[Any, ...], out: Any) -> tuple[Any, ...]:
    if out is None:
        return arrays
    return (*arrays, *out) if type(out) is tuple else (*arrays, out)


def _name(array: Any) -> tuple[Any, ...] | None:
    """Return a key with everything that may differ between arrays or change; None for what is no array."""
    if type(array) is DistArray:  # its distribution determines its layout, and the plan its type
        return address_of(array), array.flags.writeable, id(array.distribution), id(array.comm)
    if not isinstance(array, np.ndarray):
        return None
    place = (id(array.distribution), id(array.comm)) if isinstance(array, DistArray) else None
    return type(array), address_of(array), array.flags.writeable, array.shape, array.strides, array.dtype, place
