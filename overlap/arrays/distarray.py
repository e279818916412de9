"""`DistArray`: this rank's part of a distributed array, an ndarray that knows where it belongs."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike


class DistArray(np.ndarray):
    """The local part of an array split over the ranks along one axis or several.

    An ordinary `numpy.ndarray` of the local shape, with the attributes below; results of arithmetic
    of the local shape keep them, anything of another shape is a plain ndarray with all of them None.

    Attributes
    ----------
    comm : mpi4py.MPI.Comm
        The communicator over which it is distributed.
    global_shape : tuple of int
    axes : tuple of int
        The axes that are split.
    local_slice : tuple of slice
        Where the local part lies in the global array.
    """

    comm: Any
    global_shape: tuple[int, ...]
    axes: tuple[int, ...]
    local_slice: tuple[slice, ...]

    def __new__(cls, buffer: ArrayLike, comm: Any, global_shape: tuple[int, ...],
                axes: tuple[int, ...], local_slice: tuple[slice, ...]) -> Self:
        array = np.asarray(buffer).view(cls)
        array.comm, array.global_shape = comm, global_shape
        array.axes, array.local_slice = axes, local_slice
        return array

    def __array_finalize__(self, parent: Any) -> None:
        same = parent is not None and self.shape == getattr(parent, "shape", None)
        for name in ("comm", "global_shape", "axes", "local_slice"):
            setattr(self, name, getattr(parent, name, None) if same else None)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else super().__array_wrap__(array, context)

    def gather(self, root: int = 0) -> np.ndarray | None:
        """The global array on rank `root`, None on the others (collective; for tests and output)."""
        parts = self.comm.gather((self.local_slice, np.asarray(self)), root)
        if parts is None:
            return None
        whole = np.empty(self.global_shape, self.dtype)
        for where, part in parts:
            whole[where] = part
        return whole
