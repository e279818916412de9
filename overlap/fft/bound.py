"""`BoundArrays`: the arguments of a transform's last calls, which need no second check.

A code calls a transform with the same few arrays again and again. What was found out of them (that they fit, where
they lie, what the compiled code is to be told) stays true as long as they are the same arrays at the same
place; of plain ones, such as ``u[0]``, which is another object each time, only place, layout and type matter.
None of them is kept alive by that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import DistArray
from ..lowlevel.memory import address_of

CALLS = 32  # whose arrays are remembered
PLACES = 64  # of results that a transform has made, at most


class BoundCall:
    """What is known of a call with certain arrays.

    Attributes
    ----------
    planes : list of list of ndarray
        Its inputs and outputs, batch axes joined.
    call : callable or None
        Makes the whole call in compiled code.
    prepared : tuple or None
        What pipelines take, once one was needed.
    """

    __slots__ = ("call", "planes", "prepared")

    def __init__(self, planes: list[list[np.ndarray]], call: Callable[[], None] | None) -> None:
        self.planes, self.call = planes, call
        self.prepared: tuple[Any, ...] | None = None


class BoundArrays:
    """The arrays of a few calls of one transform, and what was prepared of them."""

    def __init__(self) -> None:
        self._calls: dict[tuple[Any, ...], tuple[list[Any], BoundCall]] = {}
        self._places: set[tuple[Any, ...]] = set()

    def prepared(self, arrays: tuple[Any, ...], out: Any, made: tuple[Any, ...] = ()) -> BoundCall | None:
        """Tell what was prepared of these arguments, if they are still what they were; else None.

        Of arrays that the transform has `made` for its result, in place of `out`, only the place matters.
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
        """Remember what was prepared of `unowned` views of these arguments, which fit."""
        given = _given(arrays, out)
        if len(self._calls) == CALLS:
            del self._calls[next(iter(self._calls))]
        self._calls[type(out), *map(_name, given), *map(address_of, made)] = (
            [(None if type(array) is np.ndarray else weakref.ref(array), _state(array)) for array in given],
            prepared,
        )

    def comes_again(self, arrays: tuple[Any, ...], made: tuple[Any, ...]) -> bool:
        """Tell whether a result was made here for these arrays before: then it is worth to prepare something."""
        place = *map(_name, arrays), *map(address_of, made)
        if place in self._places:
            return True
        if len(self._places) == PLACES:
            self._places.clear()
        self._places.add(place)
        return False

    def forget(self) -> None:
        """Remember nothing: what was prepared is no longer right."""
        self._calls.clear()
        self._places.clear()


def unowned(array: np.ndarray) -> np.ndarray:
    """Return the same memory as an array that does not keep it alive: for whoever knows that others do."""
    return np.asarray(_Unowned(array))


class _Unowned:
    def __init__(self, array: np.ndarray) -> None:
        self.__array_interface__ = array.__array_interface__


def _given(arrays: tuple[Any, ...], out: Any) -> tuple[Any, ...]:
    if out is None:
        return arrays
    return (*arrays, *out) if type(out) is tuple else (*arrays, out)


def _name(array: np.ndarray) -> Any:
    """Describe an array by what tells it from others: of a plain one, all that may change of it."""
    return _state(array) if type(array) is np.ndarray else id(array)


def _state(array: np.ndarray) -> tuple[Any, ...]:
    """All that may change of an array: its address, whether it may be written to, its layout and type."""
    if type(array) is DistArray:  # its layout and type stay
        return address_of(array), array.flags.writeable
    return address_of(array), array.flags.writeable, array.shape, array.strides, array.dtype
