"""`DistArray`: the local part of a distributed tensor field, an ndarray."""

import functools
import warnings
from numbers import Integral, Number

import numpy as np
from mpi4py import MPI

from ...arrays import part_of
from ...errors import InputError
from .io import FileBase, HDF5File, NCFile
from .pencil import Pencil, Subcomm


class DistArray(np.ndarray):
    """The local part of a global array, or of every component of a tensor.

    Parameters
    ----------
    global_shape : sequence of int
        The first `rank` axes are those of the tensor, and never split.
    subcomm : None, Subcomm, or sequence of int or of mpi4py.MPI.Comm
        How the others are split; integers are ranks of `MPI.COMM_WORLD` per axis, 0 for MPI to choose.
        None: all but the aligned axis may be split.
    val : Number, optional
        Fill with it, unless there is a `buffer`.
    dtype : dtype
    buffer : buffer, optional
        Memory to use.
    strides : tuple of int, optional
        The strides of an array with one axis.
    alignment : int, optional
        An axis (not counting the tensor's) that is whole; by default the last such one.
    rank : int
        0 for a scalar, 1 for a vector, 2 for a matrix.
    """

    def __new__(
        cls, global_shape, subcomm=None, val=None, dtype=float, buffer=None, strides=None, alignment=None, rank=0
    ):
        global_shape = tuple(int(length) for length in global_shape)
        shape = global_shape[rank:]
        if len(shape) < 2:
            pencil, local = None, shape
        else:
            comms = _comms(subcomm, len(shape), alignment)
            if alignment is None:
                whole = [axis for axis, comm in enumerate(comms) if comm.size == 1]
                if not whole:
                    raise InputError(
                        f"expected an axis with one rank, received {[comm.size for comm in comms]} ranks per axis"
                    )
                alignment = len(shape) - 1 if subcomm is None else whole[-1]
            pencil, strides = Pencil(comms, shape, alignment), None
            local = pencil.subshape
        array = super().__new__(cls, (*global_shape[:rank], *local), dtype, buffer, strides=strides)
        if buffer is None and isinstance(val, Number):
            array.fill(val)
        array._p0, array._rank = pencil, rank
        return array

    def __array_finalize__(self, parent):  # subclasses elsewhere know `_p0` and `_rank` by these names
        self._p0 = getattr(parent, "_p0", None)
        self._rank = getattr(parent, "_rank", None)

    def __getitem__(self, index):
        if self.ndim == 1 or not (isinstance(index, (Integral, slice, tuple))):
            return super().__getitem__(index)
        count = len(index) if isinstance(index, tuple) else 1
        if count > self.rank:
            return self.v[index]
        part = super().__getitem__(index)
        part._rank = self.rank - (self.ndim - part.ndim)
        return part

    @property
    def alignment(self):
        """The axis along which it is whole, not counting the tensor's."""
        return self._p0.axis

    @property
    def pencil(self):
        """The `Pencil` of every component."""
        return self._p0

    @property
    def rank(self):
        """Number of the tensor's indices."""
        return self._rank

    @property
    def dimensions(self):
        """Number of axes, not counting the tensor's."""
        return self.ndim - self.rank

    @property
    def global_shape(self):
        return self.shape[: self.rank] + (self.shape[self.rank :] if self._p0 is None else self._p0.shape)

    @property
    def substart(self):
        """Where the local part starts in the global array."""
        return tuple(part.start for part in self.local_slice())

    @property
    def subcomm(self):
        """The communicators along all axes."""
        return (MPI.COMM_SELF,) * self.rank + self._p0.subcomm

    @property
    def commsizes(self):
        """Ranks along all axes."""
        return [comm.Get_size() for comm in self.subcomm]

    @property
    def v(self):
        """The local part as a plain ndarray, a view."""
        return self.view(np.ndarray)

    def local_slice(self):
        """Where the local part lies in the global array, a tuple of slices."""
        own = () if self._p0 is None else self._p0.local_slice
        return tuple(slice(0, length) for length in self.shape[: self.ndim - len(own)]) + own

    def get(self, gslice):
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
        comm = (self._p0 and self._p0.subcomm.parent) or MPI.COMM_WORLD
        if len(gslice) != self.ndim:
            raise InputError(f"expected {self.ndim} indices, received {gslice!r}")
        shape, here, there = part_of(gslice, self.global_shape, self.local_slice())
        values = self.v[np.ix_(*here)]
        pieces = comm.gather((there, values) if values.size else None)
        if pieces is None:
            return None
        whole = np.empty(shape, self.dtype)
        for where, piece in filter(None, pieces):
            whole[np.ix_(*where)] = piece.reshape([len(one) for one in where])
        return whole

    def get_pencil_and_transfer(self, axis):
        """Return the `Pencil` aligned along `axis`, and the `Transfer` to it."""
        pencil = self._p0.pencil(axis)
        return pencil, self._p0.transfer(pencil, self.dtype)

    def redistribute(self, axis=None, out=None):
        """Align the global array along another axis (collective).

        Parameters
        ----------
        axis : int, optional
        out : DistArray, optional
            Where to put it; its alignment is taken.

        Returns
        -------
        DistArray
            `out`, if given. This array itself, where it is whole along `axis` already. Otherwise a new one.
        """
        if out is None and axis is None:
            raise InputError("expected axis or out, received neither")
        if out is not None and (
            not isinstance(out, DistArray)
            or out.global_shape != self.global_shape
            or (axis is not None and axis % self.dimensions != out.alignment)
        ):
            raise InputError(
                f"expected out to be a DistArray of global shape {self.global_shape}"
                f"{'' if axis is None else f', aligned along {axis}'}, received {out!r}"
            )
        pencil = self._p0
        if out is None:
            axis %= self.dimensions
            if pencil.subcomm[axis].size == 1:
                if axis != pencil.axis:
                    self._p0 = Pencil(pencil.subcomm, pencil.shape, axis)
                return self
            there = pencil.pencil(axis)
            out = DistArray(self.global_shape, subcomm=there.subcomm, dtype=self.dtype, alignment=axis, rank=self.rank)
        if out._p0.local_slice == pencil.local_slice and out.commsizes == self.commsizes:
            out[...] = self
            return out
        transfer = pencil.transfer(out._p0, self.dtype)
        for component in np.ndindex(self.shape[: self.rank]):
            transfer.forward(self.v[component], out.v[component])
        return out

    def write(self, filename, name="darray", step=0, global_slice=None, domain=None, as_scalar=False):
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
            Write this part only, one entry per axis not counting the tensor's.
        domain : sequence, optional
            For every axis a pair of origin and length, or an array of coordinates.
        as_scalar : bool
            Write the components of a tensor as arrays of their own.
        """
        entry = self if global_slice is None else (self, global_slice)
        _file(filename, domain=domain, mode="a").write(step, {name: [entry]}, as_scalar=as_scalar)

    def read(self, filename, name="darray", step=0):
        """Fill it from a snapshot of a whole array in a file (collective over all ranks).

        Parameters
        ----------
        filename : str or FileBase
        name : str
            Name of the array in the file.
        step : int
            Number of the snapshot.
        """
        _file(filename, mode="r").read(self, name, step=step)


def _file(filename, **options):
    if isinstance(filename, FileBase):
        return filename
    return (HDF5File if filename.endswith(".h5") else NCFile)(filename, **options)


def newDistArray(pfft, forward_output=True, val=0, rank=0, view=False):
    """Make a `DistArray` for one side of a plan.

    Parameters
    ----------
    pfft : PFFT
    forward_output : bool
        For the result of `forward`, or its input.
    val : Number
        To fill it with.
    rank : int
        The rank of a tensor.
    view : bool
        Return the plain ndarray.
    """
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


def Function(*args, tensor=None, **kwargs):
    """Return the old name of `newDistArray`; ``tensor`` stands for ``rank=1``."""
    warnings.warn("Function is an old name: expected newDistArray", FutureWarning, stacklevel=2)
    if tensor is not None:
        kwargs["rank"] = 1
    return newDistArray(*args, **kwargs)


def _comms(subcomm, count, alignment):
    """Return the communicators along `count` axes."""
    if subcomm is None:
        dims = [0] * count
        dims[-1 if alignment is None else alignment] = 1
        return _of_world(tuple(dims))
    if not isinstance(subcomm, (tuple, list)) or (len(subcomm) != count and not isinstance(subcomm, Subcomm)):
        raise InputError(
            f"expected subcomm to be None, a Subcomm, or {count} integers or communicators, received {subcomm!r}"
        )
    if all(isinstance(comm, MPI.Comm) for comm in subcomm):
        return subcomm
    return _of_world(tuple(int(size) for size in subcomm))


@functools.cache
def _of_world(dims):
    """One set of communicators per grid: MPI libraries run out of them at about two thousand."""
    return Subcomm(MPI.COMM_WORLD, dims)
