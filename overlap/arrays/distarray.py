"""`DistArray`: this rank's part of a distributed array, an ndarray that knows its place in the global array."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from ..checks import refuse_masks
from ..errors import InputError
from ..ranks.door import collective_section, door_of
from ..ranks.interrupts import held_signals
from ..ranks.losses import detecting_loss, guard_of
from . import hdf5_storage, redistribution, reductions
from .distribution import Distribution, Placed
from .placed import PlacedArray, placed_as


class DistArray(PlacedArray):
    """The local part of an array split over the ranks along one axis or several.

    An ordinary `numpy.ndarray` of the local shape, with the attributes below. Copies, results of element-wise
    arithmetic, transposes, and views by integers and slices along whole axes are `DistArray` too, each with its own
    distribution. All other results, which depend on the local part only, are plain arrays. Arithmetic with an array
    that is distributed in another way, or over other ranks, is refused; as in numpy, arrays that all ranks hold are
    repeated along axes of global length 1. numpy writes into a `DistArray` (`out`, assignments) what is distributed
    alike, or plain arrays for the local part. Results that depend on the local part only, such as medians, can be
    written into plain arrays: ``out=np.asarray(u)``.

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
        As passed. A pickle keeps everything but the communicator, which has no meaning in another process. The
        communicator of an unpickled array is None; set it (``u.comm = comm``) before you call `gather` or another
        collective method.

    Raises
    ------
    InputError
        On this rank, when the local part is not of the shape of `local_slice`, or is a masked array.

    Examples
    --------
    >>> u = overlap.DistArray(np.ones((4, 6)), comm, (4, 6), axes=(0,), local_slice=(slice(0, 4), slice(0, 6)))
    >>> u.global_shape
    (4, 6)
    >>> type(u + 1).__name__, type(u.sum(axis=0)).__name__  # a sum over a split axis is a local result
    ('DistArray', 'ndarray')
    >>> whole = u.gather()  # on rank 0
    """

    def __new__(
        cls,
        buffer: ArrayLike,
        comm: Any,
        global_shape: Sequence[int],
        axes: Sequence[int],
        local_slice: Sequence[slice],
    ) -> Self:
        refuse_masks(buffer=buffer)
        array = np.asarray(buffer)
        where = Distribution(tuple(global_shape), tuple(axes), tuple(local_slice))
        if problem := where.problem():
            raise InputError(problem)
        if array.shape != where.shape:
            raise InputError(f"expected a local part of shape {where.shape}, received {array.shape}")
        placed = placed_as(cls, array, None, where)
        placed.comm = comm
        return placed

    def gather(self, root: int = 0, index: Sequence[int | slice] | None = None) -> np.ndarray | None:
        """Bring the global array, or a part of it, to rank `root`; the others get None (collective).

        Parameters
        ----------
        root : int
        index : sequence of int and slice, optional
            The part, one entry per axis of the global array, the same on all ranks: ``(0, slice(None), 5)``.

        Returns
        -------
        ndarray or None

        Raises
        ------
        InputError
            On all ranks, if an argument does not fit, or differs between ranks.
        """
        with self._known("gathering an array") as (comm, where):
            return redistribution.gather(comm, np.asarray(self), where, root, index)

    def redistribute(
        self,
        axes: int | Sequence[int] | Placed,
        grid: Sequence[int] | None = None,
        weights: Sequence[Any] | None = None,
        exchange: str | None = None,
        shares: Mapping[int, Sequence[int]] | None = None,
    ) -> Self:
        """Move the global array to another split (collective), by one exchange among all ranks.

        Parameters
        ----------
        axes : int, sequence of int, DistArray or ArraySpec
            The axes to split, or an array or spec whose distribution to take.
        grid : sequence of int, optional
            Ranks along each of `axes`, for more axes than one.
        weights : sequence of numbers, optional
            One per rank: shares are in proportion to the weights, see `overlap.arrays.shares`; equal by default.
        exchange : {None, "f4"}
            ``"f4"`` sends doubles as singles. All numbers are rounded, also those that stay on their rank.
        shares : dict of int to sequence of int, optional
            For some of `axes` the length of each rank's part along it, in order: ``{0: (4, 4, 1)}``. They override the
            weights.

        Returns
        -------
        DistArray
            A new one.

        Raises
        ------
        InputError
            On all ranks, if arguments do not fit the array or the number of ranks, differ between ranks, or name a
            distribution over other ranks. With ``exchange="f4"`` also if a finite number is larger than 3.4e38.
        """
        with self._known("redistributing an array") as (comm, where):
            moved = redistribution.redistribute(comm, np.asarray(self), where, axes, grid, weights, exchange, shares)
        return placed_as(type(self), *moved)

    # ---- reductions over all ranks: what numpy's own methods, `sum` and so on, give is of the local part ----------

    def global_sum(self) -> Any:
        """Sum all elements of the global array (collective).

        Returns
        -------
        scalar
            Of the type of `numpy.sum`; the same on all ranks, to the last bit. Sums of single-precision numbers are
            made in double precision. On another number of ranks it differs by rounding: the error is at most
            ``(log2(n) + ranks) * eps`` times the sum of all moduli, for n elements on a rank and eps of doubles.

        Raises
        ------
        InputError
            On all ranks: the parts that the ranks hold do not make up the global array.
        """
        with self._known("reducing an array") as (comm, where):
            return reductions.total(comm, np.asarray(self), where)

    def global_mean(self) -> Any:
        """Average all elements of the global array (collective); rounding errors are those of `global_sum`."""
        with self._known("reducing an array") as (comm, where):
            return reductions.mean(comm, np.asarray(self), where)

    def global_max(self) -> Any:
        """Find the largest element of the global array (collective); NaN if there is a NaN, as `numpy.max` does."""
        with self._known("reducing an array") as (comm, where):
            return reductions.extremum(comm, np.asarray(self), where, np.max)

    def global_min(self) -> Any:
        """Find the smallest element of the global array (collective); NaN if there is a NaN, as `numpy.min` does."""
        with self._known("reducing an array") as (comm, where):
            return reductions.extremum(comm, np.asarray(self), where, np.min)

    def global_norm(self, ord: float = 2) -> Any:
        """Compute a norm of the vector of all elements of the global array (collective).

        Parameters
        ----------
        ord : {2, 1, numpy.inf}
            The root of the sum of squared moduli, the sum of moduli, or the largest modulus.

        Raises
        ------
        InputError
            On all ranks: `ord` is none of these, or differs between ranks.
        """
        with self._known("reducing an array") as (comm, where):
            return reductions.norm(comm, np.asarray(self), where, ord)

    def global_vdot(self, other: DistArray) -> Any:
        """Compute the sum of ``conj(self) * other`` over the global array (collective), as `numpy.vdot` does.

        Parameters
        ----------
        other : DistArray
            An array with the same distribution.

        Raises
        ------
        InputError
            On all ranks: `other` is distributed in another way on some rank.
        """
        with self._known("reducing an array") as (comm, where):
            return reductions.product(comm, np.asarray(self), where, other)

    def save(
        self,
        path: str | os.PathLike[str],
        name: str = "data",
        dims: Sequence[str] | None = None,
        coords: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Write the global array to a new HDF5 file with named axes, which xarray opens (collective).

        See `overlap.arrays.hdf5_storage.save`. The file appears whole; if writing fails, an old file stays.

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
            On all ranks, if names or coordinates do not fit, or if writing fails.
        """
        with self._known("writing an array", limited=False) as (comm, where):
            hdf5_storage.save(comm, np.asarray(self), where, path, name, dims, coords)

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
            On all ranks, if any rank cannot read the file, or if the array has another shape.
        """
        with self._known("reading an array", limited=False) as (comm, where):
            hdf5_storage.load(comm, self.view(np.ndarray), where, path, name)
        return self

    def to_xarray(
        self,
        dims: Sequence[str] | None = None,
        coords: Mapping[str, ArrayLike] | None = None,
        name: str = "data",
        root: int = 0,
    ) -> Any:
        """Bring the global array to rank `root` as an `xarray.DataArray`; the others get None (collective).

        Parameters
        ----------
        dims, coords, name
            As in `save`.
        root : int

        Returns
        -------
        xarray.DataArray or None

        Raises
        ------
        InputError, RankError
            On all ranks: bad names or coordinates; xarray is not installed on `root`.
        """
        with (
            self._known("gathering an array", limited=False) as (comm, where),
            collective_section(comm, "to_xarray") as agreed,
        ):
            scales = hdf5_storage.axes_of(where.global_shape, name, dims, coords)
            agreed.update(hdf5_storage.described(name, scales))
            if comm.rank == root:
                import xarray
        whole = self.gather(root)
        if whole is None:
            return None
        import pandas

        coordinates = {axis: pandas.RangeIndex(len(at)) if isinstance(at, range) else at for axis, at in scales.items()}
        return xarray.DataArray(whole, coordinates, tuple(scales), name)

    @contextmanager
    def _known(self, what: str, limited: bool = True) -> Iterator[tuple[Any, Distribution]]:
        """Yield communicator and distribution to a ``with`` block, in which the ranks do `what` together.

        The deadline covers what is `limited`; files take any time.

        Raises
        ------
        InputError
            On this rank only: there is no communicator, or it has been freed.
        RankLost
            A rank of a runtime that survives losses is lost.
        """
        if self.comm is None:
            raise InputError(
                "expected a distributed array with a communicator, received one without: a pickle keeps the "
                "distribution and leaves the communicator behind; set it on every rank, ``u.comm = comm``"
            )
        door = door_of(self.comm)
        with (
            held_signals(),
            detecting_loss(self.comm, what),
            door.entered(what, global_shape=self.global_shape),
            door.watching(what) if limited else nullcontext(),
        ):
            yield self.comm, self._where
            if guard_of(self.comm) is not None:  # data that a rank, lost meanwhile, may not have sent must not be used
                self.comm.Barrier()


def overlaps_itself(array: np.ndarray) -> bool:
    """Return whether elements of an array share memory with each other, as in a broadcast array."""
    if array.flags.c_contiguous or array.size == 0:
        return False
    steps = sorted((abs(stride), length) for stride, length in zip(array.strides, array.shape) if length > 1)
    reach = array.itemsize  # bytes covered by the axes with smaller strides
    for stride, length in steps:
        if stride < reach:
            break
        reach += stride * (length - 1)
    else:
        return False
    # Strides that are not nested are rare, and elements need not overlap even then: compare the places of all elements.
    starts = np.zeros(array.shape, np.int64)
    for axis, (stride, length) in enumerate(zip(array.strides, array.shape)):
        starts += (stride * np.arange(length)).reshape([-1 if axis == place else 1 for place in range(array.ndim)])
    starts = np.sort(starts, axis=None)
    return bool((np.diff(starts) < array.itemsize).any())
