"""Distributions, `Subcomm` and `Pencil`, and the exchange between two pencils, `Transfer`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from operator import index as as_integer
from typing import Any, Self

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike

from ...arrays import AxisSwap, Layout, TransposeBlocks, Weights, block, collective_section, length_of
from ...arrays.crossing import Crossing
from ...errors import InputError, repr_of
from ...ranks.holding import Holding, free_dropped
from ...ranks.interrupts import holding_signals
from ...ranks.objects import Described


def grid_sizes(size: int, dims: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks along every axis: given numbers are kept, others (0 or less) are chosen by MPI.

    Raises
    ------
    InputError
        If `size` ranks do not fit.
    """
    try:
        dims = [max(0, int(count)) for count in dims]
        rest, known = divmod(size, int(np.prod([count for count in dims if count], dtype=int)))
    except Exception:  # a user's object can raise anything
        raise InputError(f"expected a sequence of integers as grid, received {repr_of(dims)}") from None
    if known or (0 not in dims and rest != 1):
        raise InputError(f"expected a grid that holds {size} rank(s), received {dims}")
    return tuple(MPI.Compute_dims(size, dims))


class Subcomm(tuple[MPI.Intracomm, ...]):
    """Communicators along every axis of a Cartesian grid of ranks.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        If it has a Cartesian topology, `dims` must not be given.
    dims : None, int or sequence of int
        Ranks along every axis, 0 if MPI shall choose. An int is the number of axes; None: one axis.
    reorder : bool
        Without effect: the coordinate of the last axis always varies fastest with the rank.

    Attributes
    ----------
    parent : mpi4py.MPI.Intracomm
        `comm`.
    holding : Holding
        The communicators, to be freed when nothing on any rank refers to them.

    Examples
    --------
    >>> from overlap.compat.mpi4py_fft import Subcomm
    >>> grid = Subcomm(comm, (0, 1))
    >>> [axis.size for axis in grid] == [comm.size, 1]
    True
    >>> grid.destroy()
    """

    parent: MPI.Intracomm
    holding: Holding

    @holding_signals
    def __new__(cls, comm: MPI.Intracomm, dims: int | Sequence[int] | None = None, reorder: bool = True) -> Self:
        if not isinstance(comm, MPI.Intracomm):
            raise InputError(f"expected an mpi4py.MPI.Intracomm, received {repr_of(comm)}")
        given = comm.Get_topology() == MPI.CART
        with collective_section(comm, "making a Subcomm") as agreed:
            if given and dims is not None:
                raise InputError(f"expected no dims with a Cartesian communicator, received {repr_of(dims)}")
            agreed["dims"] = sizes = None if given else _sizes(comm.size, dims)
        grid = MPI.Cartcomm(comm) if sizes is None else comm.Create_cart(sizes, reorder=False)
        count = grid.Get_dim()
        found = super().__new__(cls, (grid.Sub([axis == other for other in range(count)]) for axis in range(count)))
        if not given:
            grid.Free()
        found.parent = comm
        found.holding = holding = Holding(comm.size, None)  # no warning, as mpi4py-fft gives none
        for part in found:
            holding.add(_freeing(part), 1)
        free_dropped(comm.allgather, holding)
        holding.drop_with(*found)  # pencils and arrays use the communicators beyond the Subcomm
        return found

    def destroy(self) -> None:
        """Free the communicators (collective)."""
        for comm in self:
            if comm:
                comm.Free()
        self.holding.free()


class _Token:
    """An attribute of a communicator, deleted when somebody frees the communicator."""


def _freeing(comm: MPI.Intracomm) -> Callable[[], None]:
    """Return a function that frees a communicator, if nobody has done so before, and does not refer to `comm`."""
    handle, token = comm.handle, _Token()
    comm.Set_attr(_token_key(), token)
    reference = weakref.ref(token)

    def free() -> None:
        if reference() is not None:
            MPI.Comm.fromhandle(handle).Free()

    return free


@cache
def _token_key() -> int:
    return MPI.Comm.Create_keyval()


def _sizes(size: int, dims: Any) -> tuple[int, ...]:
    """Return the ranks along every axis of a grid; if `dims` is a number, it is that of the axes."""
    try:
        ranks = [0] if dims is None else list(dims) if np.ndim(dims) else [0] * as_integer(dims)
    except Exception:  # a user's object can raise anything
        ranks = []
    if not ranks:
        raise InputError(f"expected dims to be None, a number of axes or ranks along each, received {repr_of(dims)}")
    return grid_sizes(size, ranks)


class Comms(tuple[MPI.Intracomm, ...]):
    """Communicators along every axis of a pencil, with their common `parent`, if known, and `weights`.

    The weights are a tuple for each axis, to which the shares of its communicator's ranks are proportional, or None:
    even shares.
    """

    parent: MPI.Intracomm | None
    weights: tuple[Weights, ...]

    def __new__(
        cls, comms: Iterable[MPI.Intracomm], parent: MPI.Intracomm | None, weights: Iterable[Weights] | None = None
    ) -> Self:
        found = super().__new__(cls, comms)
        found.parent = parent
        found.weights = (None,) * len(found) if weights is None else tuple(weights)
        return found

    @contextmanager
    def collective_section(self, call: str) -> Iterator[dict[str, Any]]:
        """Return a ``with`` block that fails on all ranks of the grid or on none, see `collective_section`."""
        agreed: dict[str, Any] = {}
        with ExitStack() as sections:  # what fails on a rank fails along the last axis, and from there along the others
            along = [sections.enter_context(collective_section(comm, call)) for comm in self]
            yield agreed
            for each in along:
                each.update(agreed)


def ranks_of(comms: Sequence[MPI.Comm]) -> str:
    """Return the numbers of ranks of a grid's communicators, as text."""
    if not all(comms):
        return "ranks whose communicators were freed"
    return f"{' x '.join(str(comm.size) for comm in comms)} ranks"


class Pencil(Described):
    """The distribution of a global array, whole along one axis at least.

    Parameters
    ----------
    subcomm : Subcomm or sequence of mpi4py.MPI.Comm
        The communicators along every axis; missing ones are `MPI.COMM_SELF`.
    shape : tuple of int
        Global shape.
    axis : int
        The axis along which pencils are aligned.

    Attributes
    ----------
    subcomm : Comms
    subshape, substart : tuple of int
        Shape and start of the local part.
    """

    def __init__(self, subcomm: Sequence[MPI.Intracomm], shape: Sequence[int], axis: int = -1) -> None:
        shape = tuple(int(length) for length in shape)
        count = len(shape)
        if count < 2 or min(shape) < 1 or not -count <= axis < count or not (1 <= len(subcomm) <= count):
            raise InputError(
                "expected a shape of two or more axes, one of them as axis, and at "
                f"most one communicator per axis, received shape {shape}, axis "
                f"{axis} and {len(subcomm)} communicators"
            )
        axis %= count
        comms = list(subcomm)
        if len(comms) < count:
            comms += [MPI.COMM_SELF] * (count - 1 - len(comms))
            comms.insert(axis, MPI.COMM_SELF)
        if comms[axis].size != 1:
            raise InputError(f"expected one rank along axis {axis}, received {comms[axis].size}")
        self.shape, self.axis = shape, int(axis)
        self.subcomm = Comms(
            comms, getattr(subcomm, "parent", None), subcomm.weights if isinstance(subcomm, Comms) else None
        )
        parts = [
            block(length, comm.size, weights)[comm.rank]
            for length, comm, weights in zip(shape, comms, self.subcomm.weights)
        ]
        self.subshape = tuple(map(length_of, parts))
        self.substart = tuple(part.start for part in parts)

    def _title(self) -> str:
        return (
            f"Pencil of {self.shape}, whole along axis {self.axis}, over {ranks_of(self.subcomm)}; "
            f"here {self.subshape} from {self.substart}"
        )

    @property
    def local_slice(self) -> tuple[slice, ...]:
        return tuple(slice(start, start + length) for start, length in zip(self.substart, self.subshape))

    def pencil(self, axis: int) -> Pencil:
        """Return the pencil aligned along `axis`: the ranks of that axis and of the present one are exchanged."""
        axis = axis + len(self.shape) if axis < 0 else axis
        comms, weights = list(self.subcomm), list(self.subcomm.weights)
        comms[axis], comms[self.axis] = comms[self.axis], comms[axis]
        weights[axis], weights[self.axis] = weights[self.axis], weights[axis]
        return Pencil(Comms(comms, self.subcomm.parent, weights), self.shape, axis)

    def transfer(self, pencil: Pencil, dtype: DTypeLike) -> Transfer:
        """Return the `Transfer` of arrays of `dtype` from this pencil to another of the same array."""
        aligned = self.pencil(pencil.axis)
        if self.axis == pencil.axis or (aligned.shape, aligned.subshape, aligned.substart) != (
            pencil.shape,
            pencil.subshape,
            pencil.substart,
        ):
            raise InputError(
                f"expected a pencil of global shape {self.shape} and local part "
                f"{aligned.local_slice}, received {pencil.shape} and {pencil.local_slice}"
            )
        shape = list(self.subshape)
        shape[pencil.axis] = self.shape[pencil.axis]
        return Transfer(
            self.subcomm[pencil.axis],
            shape,
            dtype,
            self.subshape,
            self.axis,
            pencil.subshape,
            pencil.axis,
            weights=self.subcomm.weights[pencil.axis],
        )


class Transfer(Described):
    """An exchange between two pencils over one communicator.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    shape : sequence of int
        Shape of the array that the ranks of `comm` hold together.
    dtype : dtype
    subshapeA, subshapeB : tuple of int
        Local shapes before and after.
    axisA, axisB : int
        The axis that is whole before and after.
    weights : tuple of numbers, optional
        The shares of the ranks of `comm` are proportional to them. Not an argument of mpi4py-fft.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        shape: Sequence[int],
        dtype: DTypeLike,
        subshapeA: Sequence[int],
        axisA: int,
        subshapeB: Sequence[int],
        axisB: int,
        *,
        weights: Weights = None,
    ) -> None:
        splits: list[int | None] = [None] * len(shape)
        splits[axisB] = 0
        blocks = TransposeBlocks(
            Layout(tuple(splits), (comm.size,), weights), AxisSwap(axisB, axisA), tuple(shape), (comm.rank,), axisB, 1
        )
        self.comm, self.shape, self.dtype = comm, tuple(shape), np.dtype(dtype)
        self.subshapeA, self.axisA = tuple(subshapeA), axisA
        self.subshapeB, self.axisB = tuple(subshapeB), axisB
        message = blocks.message(slice(0, 1))
        crossing = Crossing([[box] for box in message.sent], [[box] for box in message.received], comm.rank)
        self._there, self._back = crossing, crossing.reversed()

    def _title(self) -> str:
        return (
            f"Transfer of {self.shape} {self.dtype} over {self.comm.size} rank(s); here from {self.subshapeA} to "
            f"{self.subshapeB}"
        )

    def forward(self, arrayA: np.ndarray, arrayB: np.ndarray) -> None:
        """Exchange from `arrayA` to `arrayB` (collective)."""
        self._exchange((self.subshapeA, arrayA), (self.subshapeB, arrayB), self._there)

    def backward(self, arrayB: np.ndarray, arrayA: np.ndarray) -> None:
        """Exchange from `arrayB` to `arrayA` (collective)."""
        self._exchange((self.subshapeB, arrayB), (self.subshapeA, arrayA), self._back)

    def destroy(self) -> None:
        """Do nothing: a transfer holds no MPI resources."""

    @holding_signals
    def _exchange(
        self, source: tuple[tuple[int, ...], np.ndarray], target: tuple[tuple[int, ...], np.ndarray], crossing: Crossing
    ) -> None:
        with collective_section(self.comm, "a call of a Transfer") as agreed:
            agreed.update(
                shape=self.shape, dtype=self.dtype.str, axes=(self.axisA, self.axisB), back=crossing is self._back
            )
            for shape, array in (source, target):
                if not isinstance(array, np.ndarray):
                    raise InputError(f"expected a local array of shape {shape}, received {type(array).__name__}")
                if array.shape != shape or array.dtype != self.dtype:
                    raise InputError(
                        f"expected a local array of shape {shape} and dtype {self.dtype}, "
                        f"received {array.shape} and {array.dtype}"
                    )
        crossing.exchange(self.comm, np.asarray(source[1]), np.asarray(target[1]), self.dtype)
