"""`DistArray`: the local part of a distributed tensor field, an ndarray."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral, Number
from operator import index as as_integer
from typing import Any, Literal, Protocol, Self, overload

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike

from ...arrays import Distribution, collective_section, gather
from ...errors import InputError, repr_of
from ...ranks.interrupts import holding_signals
from ...ranks.resource import closed_error
from .io import FileBase, HDF5File, NCFile
from .io.file_base import Domain
from .pencil import Pencil, Subcomm, Transfer


class DistArray(np.ndarray):
    """The local part of a global array, or of every component of a tensor.

    Making an array of two or more axes is collective over `MPI.COMM_WORLD`, unless communicators are given.

    Parameters
    ----------
    global_shape : sequence of int
        The first `rank` axes are those of the tensor, and never split.
    subcomm : None, Subcomm, or sequence of int or of mpi4py.MPI.Comm
        The distribution of the other axes; integers are ranks of `MPI.COMM_WORLD` per axis, 0 if MPI shall choose.
        None: all but the aligned axis may be split.
    val : Number, optional
        Value of all elements, unless there is a `buffer`.
    dtype : dtype
    buffer : buffer, optional
        Memory to use.
    strides : tuple of int, optional
        The strides of an array with one axis.
    alignment : int, optional
        An axis (not counting those of the tensor) that is whole; by default the last such axis.
    rank : int
        0 for a scalar, 1 for a vector, 2 for a matrix.

    Examples
    --------
    >>> from overlap.compat.mpi4py_fft import DistArray
    >>> u = DistArray((8, 8, 8), val=1.0)
    >>> v = u.redistribute(axis=0)  # the first axis becomes whole on every rank
    >>> v.alignment
    0
    """

    _p0: Pencil | None  # None: one axis, not counting those of the tensor, which is not split
    _rank: int

    def __new__(
        cls,
        global_shape: Sequence[int],
        subcomm: Subcomm | Sequence[int] | Sequence[MPI.Intracomm] | None = None,
        val: complex | None = None,
        dtype: DTypeLike = float,
        buffer: Any = None,
        strides: tuple[int, ...] | None = None,
        alignment: int | None = None,
        rank: int = 0,
    ) -> Self:
        alone = _is_alone(global_shape, subcomm, rank)
        comms: Any = subcomm
        with _collective(alone) as agreed:
            shape, rank = _checked_shape(global_shape, rank)
            if not alone:
                agreed["dims"] = dims = _dims(subcomm, len(shape) - rank, alignment)
        if not alone:
            comms = _of_world(dims)
        with _collective(alone):
            pencil, local = None, shape[rank:]
            if len(local) > 1:
                if subcomm is alignment is None:
                    alignment = len(local) - 1
                pencil, strides = _pencil(comms, local, alignment), None
                local = pencil.subshape
            array = super().__new__(cls, (*shape[:rank], *local), dtype, buffer, strides=strides)
            if buffer is None and isinstance(val, Number):
                array.fill(val)
            array._p0, array._rank = pencil, rank
        return array

    def __array_finalize__(self, parent: Any) -> None:  # subclasses in other libraries use the names `_p0` and `_rank`
        self._p0 = getattr(parent, "_p0", None)
        self._rank = getattr(parent, "_rank", 0)

    def __getitem__(self, index: Any) -> Any:
        if self.ndim == 1 or not (isinstance(index, (Integral, slice, tuple))):
            return super().__getitem__(index)
        count = len(index) if isinstance(index, tuple) else 1
        if count > self.rank:
            return self.v[index]
        part: Any = super().__getitem__(index)
        part._rank = self.rank - (self.ndim - part.ndim)
        return part

    @property
    def alignment(self) -> int:
        """Return the axis along which the array is whole, not counting those of the tensor."""
        return self._split().axis

    @property
    def pencil(self) -> Pencil | None:
        """Return the `Pencil` of every component; None if a component has one axis."""
        return self._p0

    @property
    def rank(self) -> int:
        """Return the number of the tensor's indices."""
        return self._rank

    @property
    def dimensions(self) -> int:
        """Return the number of axes, not counting those of the tensor."""
        return self.ndim - self.rank

    @property
    def global_shape(self) -> tuple[int, ...]:
        return self.shape[: self.rank] + (self.shape[self.rank :] if self._p0 is None else self._p0.shape)

    @property
    def substart(self) -> tuple[int, ...]:
        """Return where the local part starts in the global array."""
        return tuple(part.start for part in self.local_slice())

    @property
    def subcomm(self) -> tuple[MPI.Intracomm, ...]:
        """Return the communicators along all axes."""
        return (MPI.COMM_SELF,) * self.rank + self._split().subcomm

    @property
    def commsizes(self) -> list[int]:
        """Return the numbers of ranks along all axes."""
        return [comm.Get_size() for comm in self.subcomm]

    @property
    def v(self) -> np.ndarray:
        """Return the local part as a plain ndarray, a view."""
        return self.view(np.ndarray)

    def _split(self) -> Pencil:
        if self._p0 is None:
            raise InputError(f"expected an array of two or more axes, received one of global shape {self.global_shape}")
        return self._p0

    def local_slice(self) -> tuple[slice, ...]:
        """Return where the local part lies in the global array, a tuple of slices."""
        own = () if self._p0 is None else self._p0.local_slice
        return tuple(slice(0, length) for length in self.shape[: self.ndim - len(own)]) + own

    @holding_signals
    def get(self, gslice: Sequence[int | slice]) -> np.ndarray | None:
        """Return a part of the global array (collective).

        Parameters
        ----------
        gslice : sequence of int and slice
            One per axis of the global array.

        Returns
        -------
        ndarray or None
            On rank 0 of all ranks; None elsewhere.
        """
        comm = (self._p0 is not None and self._p0.subcomm.parent) or MPI.COMM_WORLD
        where = Distribution(self.global_shape, tuple(range(self.ndim)), self.local_slice())
        return gather(comm, self.v, where, 0, gslice)

    def get_pencil_and_transfer(self, axis: int) -> tuple[Pencil, Transfer]:
        """Return the `Pencil` aligned along `axis`, and the `Transfer` to it."""
        present = self._split()
        aligned = present.pencil(axis)
        return aligned, present.transfer(aligned, self.dtype)

    @holding_signals
    def redistribute(self, axis: int | None = None, out: DistArray | None = None) -> DistArray:
        """Align the global array along another axis (collective).

        Parameters
        ----------
        axis : int, optional
        out : DistArray, optional
            An array for the result, whose alignment is used.

        Returns
        -------
        DistArray
            `out`, if given. This array itself, if it is whole along `axis` already. Otherwise a new array.
        """
        pencil = self._split()
        with pencil.subcomm.collective_section("redistributing an array") as agreed:
            target, aligned = self._checked_target(axis, out)
            agreed.update(global_shape=self.global_shape, dtype=self.dtype.str, alignment=pencil.axis)
            agreed.update(axis=target, out=out is not None)
            if out is None and pencil.subcomm[target].size > 1:
                out = DistArray(
                    self.global_shape, subcomm=aligned.subcomm, dtype=self.dtype, alignment=target, rank=self.rank
                )
            transfer = None
            if out is not None and (aligned.local_slice != pencil.local_slice or out.commsizes != self.commsizes):
                transfer = pencil.transfer(aligned, self.dtype)
                if out.dtype != self.dtype:
                    raise InputError(f"expected out of dtype {self.dtype}, received {out.dtype}")
        if out is None:
            self._p0 = aligned
            return self
        if transfer is None:
            out[...] = self
            return out
        for component in np.ndindex(self.shape[: self.rank]):
            transfer.forward(self.v[component], out.v[component])
        return out

    def _checked_target(self, axis: int | None, out: DistArray | None) -> tuple[int, Pencil]:
        """Return the new aligned axis, and the pencil for it."""
        pencil = self._split()
        if out is None and axis is None:
            raise InputError("expected axis or out, received neither")
        if axis is not None:
            axis = _checked_axis("axis", axis, self.dimensions)
        if out is None:
            assert axis is not None
            if pencil.subcomm[axis].size > 1:
                return axis, pencil.pencil(axis)
            return axis, pencil if axis == pencil.axis else Pencil(pencil.subcomm, pencil.shape, axis)
        if not isinstance(out, DistArray) or out.global_shape != self.global_shape or axis not in (None, out.alignment):
            raise InputError(
                f"expected out to be a DistArray of global shape {self.global_shape}"
                f"{'' if axis is None else f', aligned along {axis}'}, received {repr_of(out):.200}"
            )
        return out.alignment, out._split()

    @holding_signals
    def write(
        self,
        filename: str | FileBase,
        name: str = "darray",
        step: int = 0,
        global_slice: Sequence[int | slice] | None = None,
        domain: Domain | None = None,
        as_scalar: bool = False,
    ) -> None:
        """Write to a file as one snapshot (collective over all ranks).

        Parameters
        ----------
        filename : str or FileBase
            A name that ends in ``.h5``, or an open file.
        name : str
            Name of the array in the file.
        step : int
            Number of the snapshot.
        global_slice : sequence of int and slice, optional
            Write this part only; one entry per axis, not counting those of the tensor.
        domain : sequence, optional
            For every axis a pair of origin and length, or an array of coordinates.
        as_scalar : bool
            Write the components of a tensor as separate arrays.
        """
        entry = self if global_slice is None else (self, global_slice)
        _file(filename, domain=domain, mode="a").write(step, {name: [entry]}, as_scalar=as_scalar)

    @holding_signals
    def read(self, filename: str | FileBase, name: str = "darray", step: int = 0) -> None:
        """Fill the array from a snapshot of a whole array in a file (collective over all ranks).

        Parameters
        ----------
        filename : str or FileBase
        name : str
            Name of the array in the file.
        step : int
            Number of the snapshot.
        """
        _file(filename, mode="r").read(self, name, step=step)


def _file(filename: str | FileBase, **options: Any) -> FileBase:
    with collective_section(MPI.COMM_WORLD, "naming a file") as agreed:
        if not isinstance(filename, FileBase | str):
            raise InputError(f"expected a file's name or an open file, received {repr_of(filename):.200}")
        agreed["filename"] = filename if isinstance(filename, str) else filename.filename
    if isinstance(filename, FileBase):
        return filename
    return (HDF5File if filename.endswith(".h5") else NCFile)(filename, **options)


class Sided(Protocol):
    """What `newDistArray` needs from a `PFFT`: shapes, types and pencils of its two sides."""

    pencil: list[Pencil]

    def global_shape(self, forward_output: bool = False) -> tuple[int, ...]:
        """Return the global shape of the input, or of the result."""

    def dtype(self, forward_output: bool = False) -> np.dtype:
        """Return the data type of the input, or of the result."""


@overload
def newDistArray(
    pfft: Sided, forward_output: bool = True, val: complex = 0, rank: int = 0, view: Literal[False] = False
) -> DistArray: ...


@overload
def newDistArray(
    pfft: Sided, forward_output: bool = True, val: complex = 0, rank: int = 0, *, view: bool
) -> np.ndarray: ...


def newDistArray(
    pfft: Sided, forward_output: bool = True, val: complex = 0, rank: int = 0, view: bool = False
) -> np.ndarray:
    """Make a `DistArray` for one side of a plan.

    Parameters
    ----------
    pfft : PFFT
    forward_output : bool
        True: for the result of `forward`; False: for its input.
    val : Number
        Value of all elements.
    rank : int
        The rank of a tensor.
    view : bool
        Return the plain ndarray.

    Returns
    -------
    DistArray
        An ndarray, with `view`.

    Examples
    --------
    >>> from overlap.compat.mpi4py_fft import PFFT, newDistArray
    >>> fft = PFFT(comm, (8, 8, 8), dtype=float)
    >>> newDistArray(fft).global_shape
    (8, 8, 5)
    >>> fft.destroy()
    """
    if not all(hasattr(pfft, name) for name in ("global_shape", "pencil", "dtype")):
        raise InputError(f"expected a PFFT, received {repr_of(pfft):.200}")
    ours: Any = pfft if hasattr(pfft, "_calls") else None
    with nullcontext() if ours is None else ours._calls.marked():
        if ours is not None and ours._has_ended():
            raise closed_error("PFFT", "destroyed")
        shape = pfft.global_shape(forward_output)
        pencil = pfft.pencil[bool(forward_output)]
        array = DistArray(
            (len(shape),) * rank + shape,
            subcomm=pencil.subcomm,
            val=val,
            dtype=pfft.dtype(forward_output),
            alignment=pencil.axis,
            rank=rank,
        )
    return array.v if view else array


def Function(*args: Any, tensor: object = None, **kwargs: Any) -> np.ndarray:
    """Return the old name of `newDistArray`; ``tensor`` stands for ``rank=1``."""
    warnings.warn("Function is an old name: expected newDistArray", FutureWarning, stacklevel=2)
    if tensor is not None:
        kwargs["rank"] = 1
    return newDistArray(*args, **kwargs)


def _is_alone(global_shape: Any, subcomm: Any, rank: Any) -> bool:
    """Return whether this rank makes the array alone, without communicators of the world."""
    if subcomm is not None and (
        not isinstance(subcomm, tuple | list) or any(isinstance(comm, MPI.Comm) for comm in subcomm)
    ):
        return True
    try:
        return 0 <= len(global_shape) - as_integer(rank) < 2
    except Exception:  # a user's object can raise anything; the collective path then reports it on all ranks
        return False


def _collective(alone: bool) -> AbstractContextManager[dict[str, Any]]:
    """Return a ``with`` block that fails on all ranks of the world if it fails on one, unless the rank is `alone`."""
    return nullcontext({}) if alone else collective_section(MPI.COMM_WORLD, "making an array")


def _checked_shape(global_shape: Any, rank: Any) -> tuple[tuple[int, ...], int]:
    """Return a global shape and the rank of a tensor as Python's integers."""
    try:
        shape, count = tuple(int(length) for length in global_shape), as_integer(rank)
    except Exception:  # a user's object can raise anything
        shape, count = (), -1
    if not 0 <= count <= len(shape) or min(shape, default=0) < 0:
        raise InputError(
            "expected a global shape of lengths, and a rank that counts its axes of tensor components, received "
            f"{repr_of(global_shape):.200} and {repr_of(rank):.200}"
        )
    return shape, count


def _checked_axis(name: str, axis: Any, count: int) -> int:
    """Return an axis among `count` as a number >= 0."""
    try:
        return range(count)[as_integer(axis)]
    except Exception:  # a user's object can raise anything
        raise InputError(f"expected {name} from {-count} to {count - 1}, received {repr_of(axis):.200}") from None


def _dims(subcomm: Any, count: int, alignment: Any) -> tuple[int, ...]:
    """Return the ranks of the world along `count` axes, 0 if MPI shall choose."""
    if subcomm is None:
        whole = count - 1 if alignment is None else _checked_axis("alignment", alignment, count)
        return tuple(int(axis == whole) for axis in range(count))
    try:
        dims = tuple(int(size) for size in subcomm)
    except Exception:  # a user's object can raise anything
        dims = ()
    if len(dims) != count:
        raise _bad_subcomm(subcomm, count)
    return dims


def _pencil(comms: Any, shape: tuple[int, ...], alignment: Any) -> Pencil:
    """Return the pencil of a shape over communicators, by default aligned along the last whole axis."""
    count = len(shape)
    if (
        not isinstance(comms, tuple | list)
        or not all(isinstance(comm, MPI.Comm) for comm in comms)
        or (len(comms) != count and not isinstance(comms, Subcomm))
    ):
        raise _bad_subcomm(comms, count)
    if alignment is None:
        whole = [axis for axis, comm in enumerate(comms) if comm.size == 1]
        if not whole:
            raise InputError(f"expected an axis with one rank, received {[comm.size for comm in comms]} ranks per axis")
        alignment = whole[-1]
    return Pencil(comms, shape, _checked_axis("alignment", alignment, count))


def _bad_subcomm(subcomm: object, count: int) -> InputError:
    return InputError(
        f"expected subcomm to be None, a Subcomm, or {count} integers or communicators, received "
        f"{repr_of(subcomm):.200}"
    )


@functools.cache
def _of_world(dims: tuple[int, ...]) -> Subcomm:
    """Return the communicators of a grid, one set per grid, because MPI libraries have only about two thousand."""
    return Subcomm(MPI.COMM_WORLD, dims)
