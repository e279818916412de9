"""A sweep along lines that are not contiguous, straight from where they lie."""

from itertools import product

import numpy as np

from ...arrays import box_shape, length_of
from .fftw import REQUIRED_ALIGNMENT, barely_aligned, complex_of, empty
from .lines import LineTransform
from .program import SCRATCH, View, strides_of
from .sweep import AT_ONCE, BLOCK_NBYTES, HOT_NBYTES, Sweep, cuts_of, pairs_of


class StridedSweep(Sweep):
    """FFTs along one axis of a box of one array, to several views; for boxes larger than the cache.

    Where the array is C-contiguous and aligned, `AT_ONCE` lines at a time are transformed out of place, from
    the array into contiguous lines in scratch memory, and stored from there: one copy less than a `Sweep` makes.
    Other arrays are swept as a `Sweep` does it.

    Parameters
    ----------
    shape, lines, dtype, direction, targets
        As of `Sweep`; one axis of complex numbers, all of whose modes are resolved.
    array_shape : tuple of int
        Shape of the array of which the box is a part.
    """

    def __init__(self, shape, lines, dtype, direction, array_shape, targets):
        self._box, (self._axis,) = shape, lines
        self._wheres = list(product(*cuts_of(shape, lines, AT_ONCE)))
        self._array_strides = strides_of(array_shape, np.dtype(dtype).itemsize)
        self._array_shape = array_shape
        self._plans, self._lines_nbytes = {}, 0
        for block_shape in dict.fromkeys(map(box_shape, self._wheres)) if 0 not in shape else ():
            part = barely_aligned(array_shape, dtype)[tuple(slice(0, count) for count in block_shape)]
            inside = View.of_lines(SCRATCH, block_shape, self._axis, np.dtype(dtype))
            self._lines_nbytes = max(self._lines_nbytes, inside.nbytes)
            memory = empty((inside.nbytes,), np.uint8)
            self._plans[block_shape] = LineTransform(
                part, inside.array(memory), self._axis, direction.forward, direction.effort, streamed=True)
        whole = tuple(slice(0, count) for count in shape)
        super().__init__(shape, lines, dtype, direction, [whole], targets)
        self.scratch_nbytes = max(self.scratch_nbytes, self._lines_nbytes)

    @staticmethod
    def suits(shape, lines, dtype):
        """Whether so many lines fit into the cache and the box does not, and lines lie side by side."""
        if len(lines) != 1 or np.dtype(dtype) != complex_of(dtype):
            return False
        (axis, line), = lines.items()
        return (not line.real and line.fine == line.points and line.nyquist != "split"
                and np.prod(shape[axis + 1:], dtype=int) > 1
                and AT_ONCE * shape[axis] * np.dtype(dtype).itemsize <= HOT_NBYTES
                and np.prod(shape, dtype=int) * np.dtype(dtype).itemsize > BLOCK_NBYTES)

    def _set_targets(self, targets):
        super()._set_targets(targets)
        self._stores = [pairs_of(targets, [[(part, slice(0, length_of(part)))] for part in where])
                        for where in self._wheres]

    def write(self, program, sources, targets, scale=1.0, blocks=slice(None)):
        source, = sources
        if blocks != slice(None) or not self._is_natural(source):
            super().write(program, sources, targets, scale, blocks)
            return
        for where, stores in zip(self._wheres, self._stores) if self._plans else ():
            inside = View.of_lines(SCRATCH, box_shape(where), self._axis, source.dtype)
            program.transform(self._plans[box_shape(where)], inside, source[where])
            for number, there, here in stores:
                program.copy(targets[number][there], inside[here], scale)

    def _is_natural(self, source):
        """Whether the plans may read from a view."""
        return source.aligned and source.step % REQUIRED_ALIGNMENT == 0 and all(
            count == 1 or here == there for count, here, there in zip(
                source.shape, source.strides, self._array_strides)) and all(
            source[where].offset % REQUIRED_ALIGNMENT == 0 for where in self._wheres)
