"""`SweepInPlace`: FFTs along one axis of an array, in which the input is gathered first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from ...arrays import block, box_shape, length_of
from ...arrays.layout import Box
from ...runtime.loop.words import SCRATCH
from .axis import Axis, Direction
from .fftw import COLUMNS, REQUIRED_ALIGNMENT, barely_aligned, empty
from .lines import LineTransform
from .program import CompiledProgram, View
from .sweep import AT_ONCE, common, cuts_of

HOT_NBYTES = 128 * 1024  # bytes of a block that is transformed in the array
FEWEST_AT_ONCE = 16  # lines that go through scratch memory
# In scratch memory, lines of at most `SHORT` points are transformed in place if this number is a power of two.
# Other lines of at most `COMPACT` points, in double precision, are transformed to adjacent lines, longer ones to
# contiguous lines.
SHORT, COMPACT = 128, 200
# FFTW transforms these lengths in one step. That is fastest in place, unless the distance of points is a multiple of a
# page: all points then compete for one place in the cache.
CODELETS, PAGE_NBYTES = (16, 32, 64), 4096
THOROUGH = ("patient", "exhaustive")  # efforts with which FFTW finds a better way for an array in a near cache,
MANY_COLUMNS = 128  # number of lines that are then transformed together
NEAR_NBYTES = 2**22  # bytes of an array that fits into a cache that all cores share


class SweepInPlace:
    """FFTs along one axis of a contiguous, aligned array, in which the input is gathered first.

    Contiguous lines are gathered and transformed some at a time, while they are in the cache. So are other lines if all
    that are side by side stay in the cache. Otherwise they go through scratch memory, `AT_ONCE` at a time, and are
    copied back, because their distant points would compete for the same places in the cache. The fastest way through
    scratch memory depends on length and precision, see the constants. Data that come from memory are copied first,
    because a copy waits less for them than an FFT. Lines that do not fit into scratch memory are transformed in place.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        axis: int,
        line: Axis,  # is `alike`, and not "r2c"
        dtype: np.dtype,
        direction: Direction,
        # For every view, the part of the array that it contains; by default all data are in the array already.
        sources: Sequence[Box] = (),
        # Ranges in which blocks shall begin and end, of the axes after `axis` taken as one, or of those before it.
        cuts: Sequence[slice] | None = None,
        before: bool = False,
    ) -> None:
        inner = int(np.prod(shape[axis + 1 :], dtype=int))
        outer = int(np.prod(shape[:axis], dtype=int))
        length, itemsize = shape[axis], np.dtype(dtype).itemsize
        lines = max(1, HOT_NBYTES // (max(1, length) * itemsize))  # lines in a block
        self.groups, self._sources, self._blocks = [], sources, []
        self._line, self._forward = line, direction.forward
        self._contiguous = inner == 1 and not cuts
        self._axis = axis if self._contiguous else 1
        double, power_of_two = np.dtype(dtype) == np.complex128, length & (length - 1) == 0
        far = length * inner * itemsize > NEAR_NBYTES
        searched = direction.effort in THOROUGH and double and power_of_two and length > SHORT and not far
        self._through_scratch = (
            not self._contiguous
            and lines >= FEWEST_AT_ONCE
            and length * inner * itemsize > HOT_NBYTES  # through scratch memory
            and not (length in CODELETS and inner * itemsize % PAGE_NBYTES)
            and not searched
        )
        self._inside = (
            (power_of_two and length <= SHORT)  # source and target of the FFT are in scratch memory
            or (far and (power_of_two or length > COMPACT or not double))
        )
        # Scratch memory keeps the order of the array's axes, without gaps.
        self._compact = self._inside or (double and length <= COMPACT)
        self._shape = shape if self._contiguous else (outer, length, inner)
        self.scratch_nbytes = 0
        wheres = list(product(*cuts_of(shape, {axis}, lines))) if self._contiguous else []
        at_once = min(AT_ONCE, lines) if self._through_scratch else MANY_COLUMNS if searched else COLUMNS
        whole = slice(0, outer), slice(0, inner)
        ranges = [(cut, whole[1]) if before else (whole[0], cut) for cut in cuts] if cuts else [whole]
        for planes, cut in () if self._contiguous else ranges:
            first = len(wheres)
            wheres += [
                (slice(i, i + 1), slice(0, length), columns)
                for i in range(planes.start, planes.stop)
                for columns in _even_runs(cut, at_once, max(2, REQUIRED_ALIGNMENT // itemsize))
            ]
            self.groups.append(slice(first, len(wheres)))
        if 0 in shape:
            return
        plans = {}
        for where in wheres:
            block_shape = box_shape(where)
            if block_shape not in plans:
                plans[block_shape] = self._plan(where, length, direction, np.dtype(dtype))
            self._blocks.append((plans[block_shape], where))

    def _plan(self, where: Box, length: int, direction: Direction, dtype: np.dtype) -> LineTransform:
        """Return the FFT plan for a block and for similar blocks."""
        if self._contiguous:
            part = barely_aligned(box_shape(where), dtype).reshape(-1, length)
            return self._line.planned(part, part, 1, direction)
        part = barely_aligned(self._shape[1:], dtype)[where[1:]]
        if not self._through_scratch:
            return self._line.planned(part, part, 0, direction)
        hot = self._hot(part.shape, 0, dtype)
        self.scratch_nbytes = max(self.scratch_nbytes, hot.nbytes)
        fft_target = hot.array(empty((hot.nbytes,), np.uint8))
        fft_source = fft_target if self._inside else part
        return self._line.planned(fft_source, fft_target, 0, direction, streamed=not self._inside)

    def _hot(self, shape: tuple[int, ...], axis: int, dtype: np.dtype) -> View:
        """Return the view of lines in scratch memory."""
        if self._compact:
            return View.contiguous(SCRATCH, shape, dtype)
        return View.of_lines(SCRATCH, shape, axis, dtype)

    @staticmethod
    def suits(shape: tuple[int, ...], axis: int, dtype: np.dtype, cuts: Sequence[slice] = ()) -> bool:
        """Return whether all blocks are aligned as FFTW requires if the array is."""
        itemsize = np.dtype(dtype).itemsize
        outer = int(np.prod(shape[:axis], dtype=int))
        inner = int(np.prod(shape[axis:], dtype=int))
        return (outer == 1 or inner * itemsize % REQUIRED_ALIGNMENT == 0) and all(
            cut.start * itemsize % REQUIRED_ALIGNMENT == 0 for cut in cuts
        )

    @property
    def count(self) -> int:
        return len(self._blocks)

    def write(
        self,
        program: CompiledProgram,
        sources: Sequence[View],
        targets: Sequence[View],
        scale: float = 1.0,
        blocks: slice = slice(None),
    ) -> None:
        """Write the sweep from the views `sources` to the view of its array, ``targets[0]``."""
        (target,) = targets
        gathered = list(zip(self._sources, sources))
        if not self._contiguous:
            for box, source in gathered:
                program.copy(target[box], source, scale)
        if 0 in target.shape:
            return
        array = target if self._contiguous else target.reshaped(self._shape)
        for plan, where in self._blocks[blocks]:
            part = array[where]
            for box, source in gathered if self._contiguous else ():
                for source_part, inside in common(box, where):
                    program.copy(part[inside], source[source_part], scale)
            hot = self._hot(part.shape, 1, part.dtype) if self._through_scratch else part
            if self._through_scratch and self._inside:
                program.copy(hot, part)
            fft_source = hot if self._inside else part
            self._line.transform(program, plan, hot, fft_source, self._axis, self._forward)
            if self._through_scratch:
                program.copy(part, hot)


def _even_runs(part: slice, size: int, step: int) -> list[slice]:
    """Cut a part into runs of about `size`, similar in length and at multiples of `step`; none of an empty part."""
    length = length_of(part)
    if not length:
        return []
    return [
        slice(part.start + step * run.start, min(part.start + step * run.stop, part.stop))
        for run in block(-(-length // step), max(1, round(length / size)))
    ]
