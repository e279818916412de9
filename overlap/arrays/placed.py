"""`PlacedArray`: an ndarray that is a part of a global array, and the results of numpy's functions on it. Sends no
messages.

numpy returns arrays of the type of its arguments, even if the result is distributed in another way. This module does
the opposite: every array that numpy makes becomes a `LocalArray`, and only an array that keeps its distribution becomes
a `PlacedArray` again.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from .checked import CheckedArray, check_function, check_out, is_checked, of_result, together, with_out_first
from .distribution import Distribution
from .topology import is_freed

Kind = TypeVar("Kind", bound="PlacedArray")


class LocalArray(np.ndarray):
    """An ndarray that numpy has made from a `PlacedArray` by itself, without a known place in the global array.

    Some functions, such as ``np.array(u, subok=True)``, make arrays of their argument's type without calling a method
    of this class. Results computed from such an array are plain ndarrays.
    """

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array if array is self else array[()] if return_scalar else np.asarray(array)

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()

    def __repr__(self) -> str:
        return np.array_repr(np.asarray(self))


class PlacedArray(CheckedArray):
    """The base of `DistArray`: a local part that knows its place in the global array."""

    def __array_finalize__(self, parent: Any) -> None:
        # numpy calls this for views, copies, parts and permutations; `placed_as` makes the arrays that have a place.
        if parent is not None:
            self.__class__ = LocalArray  # type: ignore[assignment]  # a view is made before its class is known

    def _like(self, array: Any, where: Distribution | None) -> Any:
        """Return a local array with a distribution or, if that is None, as a plain ndarray."""
        if where is None or array.shape != where.shape:
            return np.asarray(array)
        return placed_as(type(self), array, self.comm, where)

    @property
    def global_shape(self) -> tuple[int, ...]:
        """Return the shape of the global array."""
        return self._where.global_shape

    @property
    def axes(self) -> tuple[int, ...]:
        """Return the axes that are split."""
        return self._where.axes

    @property
    def local_slice(self) -> tuple[slice, ...]:
        """Return the place of the local part in the global array."""
        return self._where.local_slice

    @property
    def distribution(self) -> Distribution:
        """Return `global_shape`, `axes` and `local_slice` together."""
        return self._where

    # ---- what numpy makes of it ----------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "at":
            target, index, *values = inputs
            if isinstance(target, PlacedArray):
                target._check_assignment(index, *values)
            ufunc.at(*map(_local_part, inputs))
            return None
        comm, where = together((*inputs, kwargs.get("where")))
        out = kwargs.get("out", ())
        if where is not None and any(map(is_checked, out)):
            made = of_result(ufunc, method, inputs[0], kwargs, where)
            check_out(out, comm, made, f"{ufunc.__name__}.{method}", method == "__call__")
        if out:
            kwargs["out"] = tuple(map(_local_part, out))
        if "where" in kwargs:
            kwargs["where"] = _local_part(kwargs["where"])
        results = getattr(ufunc, method)(*map(_local_part, inputs), **kwargs)
        if out:
            if type(results) is not tuple:
                return out[0]
            return tuple(result if given is None else given for result, given in zip(results, out))
        if where is None or method != "__call__" or ufunc.signature is not None:  # reductions, matmul
            return results

        def in_place(result: Any) -> Any:
            if type(result) is np.ndarray and result.shape == where.shape:  # no plain array has given it another shape
                return placed_as(type(self), result, comm, where)
            return result

        return tuple(map(in_place, results)) if type(results) is tuple else in_place(results)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array if array is self else array[()] if return_scalar else np.asarray(array)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        out = check_function(function, args, kwargs)
        result = super().__array_function__(function, types, args, kwargs)
        if function in _LIKE:
            return self._like(result, self._where) if type(result) is LocalArray else result
        if isinstance(result, PlacedArray) and (function in _MOVING or result is out):
            return result
        return _plain(result)

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        return self._like(part, self._where.indexed(index)) if isinstance(part, np.ndarray) else part

    def __setitem__(self, index: Any, values: Any) -> None:
        self._check_assignment(index, values)
        super().__setitem__(index, values)

    @property
    def flat(self) -> Any:
        """Return an iterator over the elements of the local part; parts of it are plain arrays."""
        return np.asarray(self).flat

    @flat.setter
    def flat(self, values: Any) -> None:
        self._check_alike(values)
        np.asarray(self).flat[:] = values

    def transpose(self, *axes: Any) -> Any:
        """Permute the axes of the array and of its distribution."""
        moved = super().transpose(*axes)
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        order = range(self.ndim)[::-1] if given is None else [int(axis) for axis in given]
        return self._like(moved, self._where.transposed(order))

    @property
    def T(self) -> Any:
        """Return the transpose, with its distribution."""
        return self.transpose()

    @property
    def mT(self) -> Any:
        """Return the array with its last two axes swapped."""
        return self.swapaxes(-1, -2)

    def swapaxes(self, axis1: Any, axis2: Any) -> Any:
        """Swap two axes of the array and of its distribution."""
        order = list(range(self.ndim))
        order[axis1], order[axis2] = order[axis2], order[axis1]
        return self.transpose(order)

    def view(self, *args: Any, **kwargs: Any) -> Any:
        """Make a view, as numpy does; a view of another shape has no place in the global array."""
        viewed = super().view(*args, **kwargs)
        return self._like(viewed, self._where) if type(viewed) is LocalArray else viewed

    @property
    def real(self) -> Any:
        """Return the real part as a view."""
        return self._like(np.asarray(self).real, self._where)

    @real.setter
    def real(self, values: Any) -> None:
        self._check_written(values)
        np.asarray(self).real = values

    @property
    def imag(self) -> Any:
        """Return the imaginary part; a view if the numbers are complex."""
        return self._like(np.asarray(self).imag, self._where)

    @imag.setter
    def imag(self, values: Any) -> None:
        self._check_written(values)
        np.asarray(self).imag = values

    def __copy__(self) -> Any:
        return self.copy("K")

    def __deepcopy__(self, memo: Any) -> Any:
        # Keep the communicator of the original: a copy would be a different communicator.
        return self._like(np.asarray(self).__deepcopy__(memo), self._where)

    def __reduce__(self) -> Any:
        # Leave the communicator out: it means nothing in another process.
        reduced: Any = super().__reduce__()
        make, args, state = reduced
        return make, args, (state, self._where)

    def __setstate__(self, state: Any) -> None:
        own, where = state
        super().__setstate__(own)
        self._where = where

    def __repr__(self) -> str:
        local = np.array_repr(np.asarray(self))
        no_comm = self.comm is None or is_freed(self.comm)
        ranks = "no communicator" if no_comm else f"rank {self.comm.rank} of {self.comm.size}"
        held = ", ".join(f"{part.start}:{part.stop}" for part in self.local_slice)
        return (
            f"<DistArray of global shape {self.global_shape}, {self.dtype}, split along axes "
            f"{self.axes}; {ranks} holds [{held}]:\n{local}>"
        )


def placed_as(kind: type[Kind], array: np.ndarray, comm: Any, where: Distribution) -> Kind:
    """Return a view of an array as a part of a global array. `kind` is a subclass of `PlacedArray`; the shape is not
    checked."""
    placed: Any = np.asarray(array).view(LocalArray)
    placed.__class__ = kind
    placed.__dict__.update(comm=comm, _where=where)
    return placed


def _local_part(array: Any) -> Any:
    """Return a placed array as an ndarray, anything else as it is."""
    return np.asarray(array) if isinstance(array, PlacedArray) else array


# The result has the place of the argument.
_LIKE = {np.copy, np.empty_like, np.full_like, np.nan_to_num, np.ones_like, np.zeros_like}
# Functions made of indexing, transposes and element-wise arithmetic. Others (roll, sort, ...) permute the local part.
_MOVING = {
    np.angle,
    np.around,
    np.clip,
    np.flip,
    np.fliplr,
    np.flipud,
    np.imag,
    np.moveaxis,
    np.real,
    np.rollaxis,
    np.rot90,
    np.round,
    np.swapaxes,
    np.transpose,
}


def _plain(result: Any) -> Any:
    """Convert numpy's result so that all arrays in it are plain."""
    if isinstance(result, tuple | list):
        made = map(_plain, result)
        return type(result)(*made) if hasattr(result, "_fields") else type(result)(made)
    return np.asarray(result) if isinstance(result, PlacedArray | LocalArray) else result


def _local(name: str) -> Any:
    """Wrap a method of ndarray so that it returns plain arrays."""

    def method(self: PlacedArray, *args: Any, **kwargs: Any) -> Any:
        out = check_function(getattr(np, name, None), (self, *args), kwargs)
        result = getattr(super(PlacedArray, self), name)(*args, **kwargs)
        return result if result is out else _plain(result)

    method.__name__, method.__doc__ = name, "Do as `numpy.ndarray` does, of the local part alone: a plain ndarray."
    return method


def _same_place(name: str) -> Any:
    """Wrap a method of ndarray so that results of the same shape keep the place."""

    def method(self: PlacedArray, *args: Any, **kwargs: Any) -> Any:
        if name == "round":  # numpy rounds integers by a copy
            check_out(with_out_first(np.round, (self, *args), kwargs)[:1], self.comm, self._where, name)
        result = getattr(super(PlacedArray, self), name)(*args, **kwargs)
        return self._like(result, self._where) if type(result) is LocalArray else result

    method.__name__, method.__doc__ = name, "Do as `numpy.ndarray` does; the result belongs to the same place."
    return method


for _name in (
    "argmax",
    "argmin",
    "argpartition",
    "argsort",
    "choose",
    "compress",
    "cumprod",
    "cumsum",
    "diagonal",
    "dot",
    "flatten",
    "getfield",
    "nonzero",
    "ravel",
    "repeat",
    "searchsorted",
    "squeeze",
    "take",
    "trace",
):
    setattr(PlacedArray, _name, _local(_name))
for _name in ("astype", "byteswap", "clip", "conj", "conjugate", "copy", "reshape", "round"):
    setattr(PlacedArray, _name, _same_place(_name))
