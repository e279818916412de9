"""`BoundArrays`: the arrays of a transform's last calls, which need not be checked again.

A program calls a transform with the same few arrays again and again. The results of checking and preparing them (that
they fit, their addresses, the arguments of compiled code) stay valid as long as they are the same arrays at the same
addresses. Of plain arrays, such as ``u[0]``, which is a new object each time, only address, layout and type matter. The
arrays are not kept alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import DistArray
from ..lowlevel.memory import address_of

CALLS = 32  # number of calls whose arrays are remembered
PLACES = 64  # largest number of addresses of results that a transform has made


class BoundCall:
    """The prepared call of a transform with certain arrays.

    Attributes
    ----------
    planes : list of list of ndarray
        Inputs and outputs with joined batch axes.
    call : callable or None
        Makes the whole call in compiled code.
    prepared : tuple or None
        The arguments of pipelines, if one has been needed.
    """

    __slots__ = ("call", "planes", "prepared")

    def __init__(self, planes: list[list[np.ndarray]], call: Callable[[], None] | None) -> None:
        self.planes, self.call = planes, call
        self.prepared: tuple[Any, ...] | None = None


class BoundArrays:
    """The arrays of a few calls of one transform, with the prepared calls."""

    def __init__(self) -> None:
        self._calls: dict[tuple[Any, ...], tuple[list[Any], BoundCall]] = {}
        self._places: set[tuple[Any, ...]] = set()

    def prepared(self, arrays: tuple[Any, ...], out: Any, made: tuple[Any, ...] = ()) -> BoundCall | None:
        """Return the prepared call of these arguments, or None if there is none or they have changed.

        If the transform has `made` arrays for its result, without `out`, only their addresses matter.
        """
        if not self._calls:
            return None
        given = _given(arrays, out)
        found = self._calls.get((type(out), *map(_name, given), *map(address_of, made)))
        if found is None:
            return None
        for array, (reference, state) in zip(given, found[0]):
            if reference is not None and (reference() is not array or _state(array) != state):
                return None
        return found[1]

    def keep(self, arrays: tuple[Any, ...], out: Any, prepared: BoundCall, made: tuple[Any, ...] = ()) -> None:
        """Keep a call that was prepared from `unowned` views of these arguments, which fit."""
        given = _given(arrays, out)
        if len(self._calls) == CALLS:
            del self._calls[next(iter(self._calls))]
        self._calls[type(out), *map(_name, given), *map(address_of, made)] = (
            [(None if type(array) is np.ndarray else weakref.ref(array), _state(array)) for array in given],
            prepared,
        )

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


def _name(array: np.ndarray) -> Any:
    """Return a key that identifies an array: of a plain array, everything that may change."""
    return _state(array) if type(array) is np.ndarray else id(array)


def _state(array: np.ndarray) -> tuple[Any, ...]:
    """Return everything that may change of an array: address, writeability, layout and type."""
    if type(array) is DistArray:  # its layout and type never change
        return address_of(array), array.flags.writeable
    return address_of(array), array.flags.writeable, array.shape, array.strides, array.dtype
