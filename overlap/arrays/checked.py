"""`CheckedArray`: a part of a global array into which numpy writes only what is distributed alike. Sends no messages.

numpy knows local shapes only, and these fit by chance: a row that all ranks hold, and one of a row for each rank. So
every way in which numpy writes into an array is checked here by distributions. A plain array is taken for this rank's
part, and not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from inspect import signature
from typing import Any, TypeGuard

import numpy as np

from ..errors import InputError
from .distribution import Distribution
from .topology import is_communicator, is_freed, same_ranks


class CheckedArray(np.ndarray):
    """The base of `DistArray`: a local part that knows its place in the global array."""

    comm: Any = None
    _where: Distribution = None  # type: ignore[assignment]  # None only while an array is unpickled

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("shape", "strides", "dtype"):
            raise InputError(
                f"expected {name} of a DistArray not to be set, received {value!r}: use reshape, view or astype"
            )
        if name == "comm" and not (value is None or is_communicator(value)):
            raise InputError(f"expected comm to be an mpi4py.MPI.Comm or None, received {value!r}")
        super().__setattr__(name, value)

    def fill(self, value: Any) -> None:
        """Assign one value to all elements of the local part."""
        self._check_alike(value)
        super().fill(value)

    def put(self, indices: Any, values: Any, mode: Any = "raise") -> None:
        """Assign values to elements, counted in the local part."""
        self._check_one_element(values)
        super().put(indices, values, mode)

    def setfield(self, val: Any, dtype: Any, offset: Any = 0) -> None:
        """Assign values to a part of every element."""
        self._check_written(val)
        super().setfield(val, dtype, offset)

    def resize(self, *args: Any, **kwargs: Any) -> None:
        """Raise `InputError`, because the distribution fixes the shape of the local part."""
        self.shape = args

    # ---- checks before numpy writes into it; each raises an `InputError` -------------------------

    def _check_written(self, *sources: Any) -> None:
        """Check that element-wise results of some arrays can be written into this one."""
        for array in filter(is_checked, sources):
            if not self._where.takes(array._where):
                raise different(self._where, array._where)
            check_ranks(self.comm, array.comm)

    def _check_alike(self, *sources: Any) -> None:
        """Check that some arrays are distributed as this one, or have one element that all ranks hold."""
        for array in filter(is_checked, sources):
            if array._where != self._where and not _SCALAR.takes(array._where):
                raise different(self._where, array._where)
            check_ranks(self.comm, array.comm)

    def _check_one_element(self, values: Any) -> None:
        """Check values for positions of the local part: the same positions mean other elements on other ranks."""
        if isinstance(values, CheckedArray) and not _SCALAR.takes(values._where):
            raise different(self._where, values._where)

    def _check_assignment(self, index: Any, *values: Any) -> None:
        """Check the masks in an index, and the values that are assigned there."""
        items = index if isinstance(index, tuple) else (index,)
        given = tuple(item._where if _is_mask(item) else item for item in items)
        for array in filter(_is_mask, items):
            if not self._where.takes_at(given, None):
                raise different(self._where, array._where)
            check_ranks(self.comm, array.comm)
        for array in filter(is_checked, values):
            if not self._where.takes_at(given, array._where):
                raise different(self._where, array._where)
            check_ranks(self.comm, array.comm)


def is_checked(array: Any) -> TypeGuard[CheckedArray]:
    return isinstance(array, CheckedArray)


def _is_mask(item: Any) -> TypeGuard[CheckedArray]:
    return isinstance(item, CheckedArray) and item.dtype.kind == "b"


def any_checked(values: Any) -> bool:
    """Return whether there is a placed array in arguments of a function, which may be lists of arrays."""
    return any(map(any_checked, values)) if isinstance(values, list | tuple) else isinstance(values, CheckedArray)


def together(arrays: Iterable[Any]) -> tuple[Any, Distribution | None]:
    """Return communicator and distribution of element-wise arithmetic of those arrays that are distributed; raise an
    `InputError` if they are not distributed alike over the same ranks."""
    comm: Any = None
    where: Distribution | None = None
    for array in filter(is_checked, arrays):
        own = array._where
        common = own if where is None or where is own else where.broadcast(own)
        if where is not None and common is None:
            raise different(where, own)
        check_ranks(comm, array.comm)
        comm, where = array.comm if comm is None else comm, common
    return comm, where


def of_result(ufunc: np.ufunc, method: str, array: Any, kwargs: Any, where: Distribution) -> Distribution | None:
    """Return the distribution of a ufunc's result, or None if it depends on the local parts alone."""
    if method == "__call__":
        return where if ufunc.signature is None else None
    if method not in ("reduce", "accumulate") or not isinstance(array, CheckedArray) or not array._where.takes(where):
        return None
    reduced = array._where.reduced(kwargs.get("axis", 0), kwargs.get("keepdims", False))
    return array._where if method == "accumulate" and reduced is not None else reduced


def check_out(out: Iterable[Any], comm: Any, made: Distribution | None, name: str, repeated: bool = False) -> None:
    """Check that a result can be written into some arrays, if need be `repeated` along axes of length 1.

    The result has the distribution `made`, or depends on the local parts alone (None).
    """
    for array in filter(is_checked, out):
        if made is None:
            raise local_result(name)
        if array._where != made and not (repeated and array._where.takes(made)):
            raise different(array._where, made)
        check_ranks(array.comm, comm)


def different(where: Distribution, other: Distribution) -> InputError:
    """Make the error for two distributions. If shapes or axes differ, the text is the same on all ranks."""
    first, second = (
        (where, other)
        if (where.global_shape, where.axes) == (other.global_shape, other.axes)
        else (f"global shape {each.global_shape}, split along axes {each.axes}" for each in (where, other))
    )
    return InputError(f"expected arrays of one distribution, received one of {first} and one of {second}")


def local_result(name: str) -> InputError:
    return InputError(
        f"expected a plain array to write into, because what {name} computes depends on the local parts alone, "
        "received a DistArray: pass np.asarray(out)"
    )


def check_ranks(comm: Any, other: Any) -> None:
    """Raise an error if two arrays are distributed over different ranks."""
    if comm is not None and other is not None and not same_ranks(comm, other):
        raise InputError(
            "expected arrays distributed over the same ranks in the same order, received arrays of two communicators, "
            f"of {_size_of(comm)} and {_size_of(other)} rank(s)"
        )


def _size_of(comm: Any) -> str:
    return "no" if is_freed(comm) else str(comm.size)


# Functions that write into what they are given through the methods and ufuncs of this class, which check it.
CHECKED_BELOW = {
    np.all,
    np.amax,
    np.amin,
    np.any,
    np.around,
    np.clip,
    np.fix,
    np.isneginf,
    np.isposinf,
    np.max,
    np.mean,
    np.min,
    np.prod,
    np.ptp,
    np.round,
    np.std,
    np.sum,
    np.var,
}
_SCALAR = Distribution((), (), ())


def _check_copyto(dst: Any, src: Any, casting: Any = None, where: Any = True) -> None:
    if isinstance(dst, CheckedArray):
        dst._check_written(src, where)


def _check_putmask(a: Any, mask: Any, values: Any) -> None:
    if isinstance(a, CheckedArray):
        a._check_alike(mask, values)


def _check_place(arr: Any, mask: Any, vals: Any) -> None:
    if isinstance(arr, CheckedArray):
        arr._check_assignment(mask, vals)


def _check_fill_diagonal(a: Any, val: Any, wrap: Any = False) -> None:
    if isinstance(a, CheckedArray):
        a._check_one_element(val)
        if a._where.axes:
            raise InputError(
                "expected an array that is not split, because the diagonals of the parts are not that of the global "
                f"array, received a DistArray split along axes {a._where.axes}: pass np.asarray(a) to fill the former"
            )


CHECKS: dict[Any, Any] = {
    np.copyto: _check_copyto,
    np.fill_diagonal: _check_fill_diagonal,
    np.place: _check_place,
    np.putmask: _check_putmask,
}


def check_function(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Check what a function of numpy's writes into, and return its argument `out`."""
    if function in CHECKS:
        CHECKS[function](*args, **kwargs)
    out, *others = with_out_first(function, args, kwargs)
    if function in CHECKED_BELOW:  # but not arrays in lists, of which numpy makes a plain array first
        others = [one for one in others if isinstance(one, list | tuple)]
    if isinstance(out, CheckedArray) and any_checked(others):
        raise local_result(function.__name__)
    return out


def with_out_first(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the argument `out` of one of numpy's functions, or None, and then all others."""
    if "out" in kwargs:
        return kwargs["out"], *args, *(value for name, value in kwargs.items() if name != "out")
    at = _position_of_out(function)
    if at is None or at >= len(args):
        return None, *args, *kwargs.values()
    return args[at], *args[:at], *args[at + 1 :], *kwargs.values()


@cache
def _position_of_out(function: Any) -> int | None:
    try:
        parameters = list(signature(function).parameters.values())
    except (TypeError, ValueError):  # no function of numpy's, or a compiled one of an older version
        return {np.concatenate: 2, np.dot: 2}.get(function)
    return next((n for n, one in enumerate(parameters) if one.name == "out" and one.kind != one.KEYWORD_ONLY), None)
