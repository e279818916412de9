"""`DistArray`: this rank's part of a distributed array, an ndarray that knows where it belongs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from . import storage
from .distribution import Distribution, Placed, overlapping, part_of, within
from .masks import refuse_masks
from .partition import length_of
from .weights import checked


class DistArray(np.ndarray):
    """The local part of an array split over the ranks along one axis or several.

    An ordinary `numpy.ndarray` of the local shape, with the attributes below. Copies, results of element-wise
    arithmetic, transposes and views by integers and slices along whole axes are `DistArray` too, with
    the distribution that is theirs. All else is a plain ndarray: what knows of the local part only.

    Parameters
    ----------
    buffer : array_like
        The local part; not copied.
    comm : mpi4py.MPI.Comm
        The communicator over which it is distributed.
    global_shape : tuple of int
    axes : tuple of int
        The axes that are split.
    local_slice : tuple of slice
        Where the local part lies in the global array.

    Attributes
    ----------
    comm, global_shape, axes, local_slice
        As given. A pickle keeps all but the communicator, which means nothing in another process: an unpickled array's
        is None, and `gather` and all else that ranks do together refuse until it is set, ``u.comm = comm``.

    Raises
    ------
    InputError
        On this rank, when the local part is not of the shape of `local_slice`, or is a masked array.
    """

    comm: Any
    _where: Distribution | None

    def __new__(
        cls,
        buffer: ArrayLike,
        comm: Any,
        global_shape: Sequence[int],
        axes: Sequence[int],
        local_slice: Sequence[slice],
    ) -> Self:
        refuse_masks(buffer=buffer)
        array = np.asarray(buffer).view(cls)
        where = Distribution(tuple(global_shape), tuple(axes), tuple(local_slice))
        if array.shape != where.shape:
            raise InputError(f"expected a local part of shape {where.shape}, received {array.shape}")
        return array._with(comm, where)

    def __array_finalize__(self, parent: Any) -> None:
        # Whatever keeps the distribution says so itself: numpy also comes here with parts and permutations.
        self.comm = self._where = None

    def _with(self, comm: Any, where: Distribution | None) -> Self:
        self.comm, self._where = comm, where
        return self

    def _like(self, array: np.ndarray, where: Distribution | None) -> Any:
        """An array of this rank's, with a distribution or, if it has none, as a plain ndarray."""
        if where is None or array.shape != where.shape or self._where is None:
            return np.asarray(array)
        return array.view(np.ndarray).view(type(self))._with(self.comm, where)

    @property
    def global_shape(self) -> tuple[int, ...]:
        return getattr(self._where, "global_shape", None)  # type: ignore[return-value]

    @property
    def axes(self) -> tuple[int, ...]:
        return getattr(self._where, "axes", None)  # type: ignore[return-value]

    @property
    def local_slice(self) -> tuple[slice, ...]:
        return getattr(self._where, "local_slice", None)  # type: ignore[return-value]

    # ---- what numpy makes of it ----------------------------------------------------------------

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if array is self:
            return self
        if return_scalar:
            return array[()]
        if context is None or context[0].signature is not None:  # reductions, matmul
            return np.asarray(array)
        found: Distribution | None = None
        for source in context[1]:
            where = getattr(source, "_where", None)
            if not isinstance(where, Distribution) or source.shape != array.shape:
                continue
            if found is not None and not found.agrees_with(where):
                raise InputError(
                    f"expected arrays of one distribution, received global shapes {found.global_shape} "
                    f"and {where.global_shape}, split along axes {found.axes} and {where.axes}"
                )
            found = where
        return self._like(array, found)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = super().__array_function__(function, types, args, kwargs)
        if function in _LIKE:
            return self._like(result, self._where) if type(result) is type(self) else result
        return result if function in _MOVING or result is kwargs.get("out") else _plain(result)

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        if not isinstance(part, DistArray):
            return part
        return self._like(part, None if self._where is None else self._where.indexed(index))

    def transpose(self, *axes: Any) -> Any:
        moved = super().transpose(*axes)
        if self._where is None:
            return np.asarray(moved)
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        order = range(self.ndim)[::-1] if given is None else [int(axis) for axis in given]
        return self._like(moved, self._where.transposed(order))

    @property
    def T(self) -> Any:
        return self.transpose()

    @property
    def mT(self) -> Any:
        return self.swapaxes(-1, -2)

    def swapaxes(self, axis1: Any, axis2: Any) -> Any:
        order = list(range(self.ndim))
        order[axis1], order[axis2] = order[axis2], order[axis1]
        return self.transpose(order)

    def reshape(self, *args: Any, **kwargs: Any) -> Any:
        return self._like(super().reshape(*args, **kwargs), self._where)

    def copy(self, order: Any = "C") -> Any:
        return self._like(super().copy(order), self._where)

    def astype(self, *args: Any, **kwargs: Any) -> Any:
        found = super().astype(*args, **kwargs)
        return found if found is self else self._like(found, self._where)

    def view(self, *args: Any, **kwargs: Any) -> Any:
        found = super().view(*args, **kwargs)
        return self._like(found, self._where) if isinstance(found, DistArray) else found

    @property
    def real(self) -> Any:
        return self._like(self.view(np.ndarray).real, self._where)

    @real.setter
    def real(self, values: Any) -> None:
        self.view(np.ndarray).real = values

    @property
    def imag(self) -> Any:
        return self._like(self.view(np.ndarray).imag, self._where)

    @imag.setter
    def imag(self, values: Any) -> None:
        self.view(np.ndarray).imag = values

    def __copy__(self) -> Any:
        return self.copy("K")

    def __deepcopy__(self, memo: Any) -> Any:
        return self.copy("K")

    def __reduce__(self) -> Any:
        # The communicator stays behind: it means nothing in another process.
        reduced: Any = super().__reduce__()
        make, args, state = reduced
        return make, args, (state, self._where)

    def __setstate__(self, state: Any) -> None:
        own, where = state
        super().__setstate__(own)
        self._with(None, where)

    def __repr__(self) -> str:
        local = np.array_repr(self.view(np.ndarray))
        if self._where is None:
            return local
        ranks = "no communicator" if self.comm is None else (f"rank {self.comm.rank} of {self.comm.size}")
        here = ", ".join(f"{part.start}:{part.stop}" for part in self.local_slice)
        return (
            f"<DistArray of global shape {self.global_shape}, {self.dtype}, split along axes "
            f"{self.axes}; {ranks} holds [{here}]:\n{local}>"
        )

    # ---- all ranks together --------------------------------------------------------------------

    def gather(self, root: int = 0, index: Sequence[int | slice] | None = None) -> np.ndarray | None:
        """The global array, or a part of it, on rank `root`, None on the others (collective).

        Parameters
        ----------
        root : int
        index : sequence of int and slice, optional
            The part, one entry per axis of the global array, the same on all ranks: ``(0, slice(None), 5)``.
        """
        comm, where = self._known()
        wanted = (slice(None),) * self.ndim if index is None else tuple(index)
        if len(wanted) != self.ndim:
            raise InputError(f"expected {self.ndim} indices, received {index!r}")
        try:
            shape, here, there = part_of(wanted, where.global_shape, where.local_slice)
        except (IndexError, TypeError) as error:
            raise InputError(
                f"expected integers and slices inside of {where.global_shape}, received {index!r}: {error}"
            ) from None
        values = np.asarray(self)[np.ix_(*here)]
        parts = comm.gather((there, values) if values.size else None, root)
        if parts is None:
            return None
        whole = np.empty(shape, self.dtype)
        for place, part in filter(None, parts):
            whole[np.ix_(*place)] = part.reshape([len(one) for one in place])
        return whole

    def redistribute(
        self,
        axes: int | Sequence[int] | Placed,
        grid: Sequence[int] | None = None,
        weights: Sequence[Any] | None = None,
    ) -> Self:
        """The same global array, split otherwise (collective); one exchange among all ranks.

        Parameters
        ----------
        axes : int, sequence of int, DistArray or ArraySpec
            The axes to split; or what to be distributed like.
        grid : sequence of int, optional
            Ranks along each of `axes`, for more axes than one.
        weights : sequence of numbers, optional
            One per rank, what its share shall be in proportion to, see `overlap.arrays.shares`; by default all are equal.

        Returns
        -------
        DistArray
            A new one.

        Raises
        ------
        InputError
            On all ranks, when `axes`, `grid` or `weights` do not fit the array or the number of ranks; `weights` that
            differ between ranks among it.
        """
        comm, where = self._known()
        uneven, problem = checked(weights, comm.size)
        if isinstance(axes, DistArray):
            axes._known()
        if isinstance(axes, Placed):
            there = Distribution(axes.global_shape, axes.axes, axes.local_slice)
            if there.global_shape != where.global_shape:
                raise InputError(
                    f"expected an array of global shape {where.global_shape}, received {there.global_shape}"
                )
        else:
            chosen = [axes] if isinstance(axes, (int, np.integer)) else list(axes)
            sizes = [comm.size] if grid is None and len(chosen) == 1 else list(grid or ())
            if (
                len(sizes) != len(chosen)
                or int(np.prod(sizes)) != comm.size
                or len({axis % self.ndim for axis in chosen}) < len(chosen)
                or not all(-self.ndim <= axis < self.ndim for axis in chosen)
            ):
                raise InputError(
                    f"expected different axes of {self.ndim} and a grid of {comm.size} "
                    f"ranks along them, received axes {axes!r} and grid {grid!r}"
                )
            there = where.split_along([int(axis) % self.ndim for axis in chosen], sizes, comm.rank, uneven)
        target = np.empty(there.shape, self.dtype)
        everyone = comm.allgather((where.local_slice, there.local_slice, uneven, problem))
        for rank, (_, _, theirs, wrong) in enumerate(everyone):
            if wrong or theirs != everyone[0][2]:
                raise InputError(
                    f"{wrong} (rank {rank})"
                    if wrong
                    else f"expected the same weights on all ranks, received {everyone[0][2]} on rank 0 and {theirs} "
                    f"on rank {rank}"
                )
        source = np.asarray(self)
        sent = [overlapping(where.local_slice, box) for _, box, _, _ in everyone]
        received = [overlapping(there.local_slice, box) for box, _, _, _ in everyone]
        pieces = [
            np.ascontiguousarray(source[within(box, where.local_slice)]).reshape(-1) for box in sent if box is not None
        ]
        send = np.concatenate(pieces) if pieces else np.empty(0, self.dtype)
        arrived = np.empty(target.size, self.dtype)
        counts = [
            [0 if box is None else int(np.prod([length_of(part) for part in box])) for box in boxes]
            for boxes in (sent, received)
        ]
        nbytes = [[count * self.itemsize for count in some] for some in counts]
        comm.Alltoallv([send.view(np.uint8), nbytes[0]], [arrived.view(np.uint8), nbytes[1]])
        start = 0
        for box, count in zip(received, counts[1]):
            if box is not None:
                place = within(box, there.local_slice)
                target[place] = arrived[start : start + count].reshape(target[place].shape)
                start += count
        return target.view(type(self))._with(comm, there)

    def save(
        self,
        path: str | os.PathLike[str],
        name: str = "data",
        dims: Sequence[str] | None = None,
        coords: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Write the global array to a new HDF5 file with named axes, which xarray opens (collective).

        See `overlap.arrays.storage.save`. The file appears whole, or the old one stays.

        Parameters
        ----------
        path : path
        name : str
            The name of the array in the file.
        dims : sequence of str, optional
            Names of the axes, by default ``axis_0``, ``axis_1``, ...
        coords : dict of str to array_like, optional
            Coordinates along some of them, global; by default positions.

        Raises
        ------
        InputError, RankError
            On all ranks: bad names or coordinates; what failed while writing.
        """
        comm, where = self._known()
        storage.save(comm, np.asarray(self), where, path, name, storage.axes_of(where, name, dims, coords))

    def load(self, path: str | os.PathLike[str], name: str = "data") -> Self:
        """Fill this array with one from an HDF5 file that all ranks can read (collective).

        Parameters
        ----------
        path : path
        name : str
            The name of the array in the file; it has this array's global shape.

        Returns
        -------
        DistArray
            This array.

        Raises
        ------
        RankError
            On all ranks, when any cannot read it, or it is of another shape.
        """
        comm, where = self._known()
        storage.load(comm, self.view(np.ndarray), where, path, name)
        return self

    def to_xarray(
        self,
        dims: Sequence[str] | None = None,
        coords: Mapping[str, ArrayLike] | None = None,
        name: str = "data",
        root: int = 0,
    ) -> Any:
        """The global array as an `xarray.DataArray` on rank `root`, None on the others (collective).

        Parameters
        ----------
        dims, coords, name
            As in `save`.
        root : int
        """
        _, where = self._known()
        scales = storage.axes_of(where, name, dims, coords)
        whole = self.gather(root)
        if whole is None:
            return None
        import xarray

        return xarray.DataArray(whole, scales, tuple(scales), name)

    def _known(self) -> tuple[Any, Distribution]:
        if self._where is None or self.comm is None:
            raise InputError(
                "expected a distributed array with a communicator, received one without: a pickle keeps the "
                "distribution and leaves the communicator behind; set it on every rank, ``u.comm = comm``"
            )
        return self.comm, self._where


_LIKE = {np.copy, np.empty_like, np.full_like, np.ones_like, np.zeros_like}
# Made of indexing, transposes and element-wise arithmetic. Others (roll, sort, ...) permute the local part.
_MOVING = {
    np.angle,
    np.around,
    np.clip,
    np.flip,
    np.fliplr,
    np.flipud,
    np.imag,
    np.moveaxis,
    np.nan_to_num,
    np.real,
    np.rollaxis,
    np.rot90,
    np.round,
    np.swapaxes,
    np.transpose,
}


def _plain(result: Any) -> Any:
    """What numpy returns, with plain arrays in it."""
    if type(result) in (tuple, list):
        return type(result)(map(_plain, result))
    return np.asarray(result) if isinstance(result, DistArray) else result


def _local(name: str) -> Any:
    """A method of ndarray that gives plain arrays."""

    def method(self: DistArray, *args: Any, **kwargs: Any) -> Any:
        return _plain(getattr(super(DistArray, self), name)(*args, **kwargs))

    method.__name__, method.__doc__ = name, "As in `numpy.ndarray`: of the local part alone, and a plain ndarray."
    return method


for _name in (
    "argpartition",
    "argsort",
    "choose",
    "compress",
    "cumprod",
    "cumsum",
    "diagonal",
    "dot",
    "flatten",
    "ravel",
    "repeat",
    "squeeze",
    "take",
    "trace",
):
    setattr(DistArray, _name, _local(_name))
