"""One side of a transform: the distributed arrays that go in, or come out."""

import numpy as np

from ..decomp import DistArray, length_of
from .local import empty


class Side:
    """Shape, type and distribution of one side's arrays.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    batch : tuple of int
        Leading axes.
    plane : (int, int)
        Global shape of one plane.
    axis : {-2, -1}
        Which axis of the plane is split.
    part : slice
        This rank's part of it.
    dtype : numpy.dtype
    natural : bool
        Whether a plane's axes are (y, x), and not (x, y).
    """

    def __init__(self, comm, batch, plane, axis, part, dtype, natural=True):
        self.comm = comm
        self.dtype = np.dtype(dtype)
        self.natural = natural
        self.global_shape = (*batch, *plane)
        self.slices = int(np.prod(batch, dtype=int))
        self.axis = len(batch) + 2 + axis
        where = [slice(0, length) for length in self.global_shape]
        where[self.axis] = part
        self.local_slice = tuple(where)
        self.shape = tuple(length_of(part) for part in where)

    def wrap(self, array):
        """The local `array` as a `DistArray`."""
        return DistArray(array, self.comm, self.global_shape, self.axis, self.local_slice)

    def empty(self):
        """An uninitialised, aligned `DistArray`."""
        return self.wrap(empty(self.shape, self.dtype))

    def problem(self, array, name):
        """What is wrong with a local array as this side's, or None."""
        if not isinstance(array, np.ndarray):
            return f"expected {name} to be a numpy array, received {type(array).__name__}"
        if array.shape != self.shape or array.dtype != self.dtype:
            return (f"expected {name} of local shape {self.shape} and dtype {self.dtype}, received "
                    f"{array.shape} and {array.dtype}")
        return None

    def planes(self, array):
        """The array with its batch axes joined: a view where strides allow, else a copy."""
        return np.asarray(array).reshape((self.slices, *self.shape[-2:]))
