"""Sweeps: FFTs along some axes of a box of any dimension, block by block where it is hot.

A `Sweep` loads a block into scratch memory that stays in the cache, transforms it there along one
axis after the other, and stores it where it goes: into the pieces of a message, or an array. An
`InPlaceSweep` transforms a whole contiguous array along one axis where it is.

Blocks and their FFTW plans depend on the box alone: its result has the same bits in every mode,
depth and chunk. Sweeps belong to one worker.
"""

from copy import copy as copy_of
from dataclasses import dataclass
from itertools import product

import numpy as np

from ...arrays import block, chunks, complement, intersect, length_of, mode_segments
from .fftw import (
    REQUIRED_ALIGNMENT,
    barely_aligned,
    complex_of,
    empty,
    plan,
    strided_effort,
)
from .kernels import copy

BLOCK_NBYTES = 256 * 1024
NARROWEST = 4  # points of a block along the array's last axis, if that is not transformed
COLUMNS = 128


@dataclass(frozen=True)
class Axis:
    """One transformed axis.

    Attributes
    ----------
    points : int
        Points of the resolved grid.
    fine : int
        Points of the grid in real space, `points` or more.
    real : bool
        Data are real before the forward transform: half the modes.
    nyquist : {"drop", "keep", "split"}
        What becomes of mode ``points // 2`` on a finer grid. "split": there it stands for itself and
        its negative twin, half of it for each; sweeps of such a line transform no other axis.
    """

    points: int
    fine: int
    real: bool = False
    nyquist: str = "drop"

    def length(self, spectral):
        """Length of the axis in an array."""
        if not spectral:
            return self.fine
        return self.points // 2 + 1 if self.real else self.points

    @property
    def segments(self):
        """Pairs of ranges with the same modes: in an array, and after the FFT of the fine grid."""
        found = mode_segments(self.points, self.fine, half=self.real)
        if self.nyquist != "drop":
            kept = slice(0, self.points // 2 + 1)
            found[0] = kept, kept
        return found

    def fold(self, modes):
        """Add the twin of mode ``points // 2`` to it, in modes of the fine grid along axis 0."""
        nyquist = modes[self.points // 2]
        if self.real:
            nyquist.imag = 0
            nyquist *= 2
        else:
            nyquist += modes[self.fine - self.points // 2]

    def unfold(self, modes):
        """The transpose of `fold`, halved."""
        nyquist = modes[self.points // 2]
        nyquist *= 0.5
        if self.real:
            nyquist.imag = 0
        else:
            modes[self.fine - self.points // 2] = nyquist

    @property
    def fine_modes(self):
        return self.fine // 2 + 1 if self.real else self.fine


class Sweep:
    """FFTs along some axes of a box, from several views to several views.

    Parameters
    ----------
    shape : tuple of int
        Shape of the box that goes in.
    axes : tuple of int
        To be transformed, in this order; none: data are moved only.
    lines : dict
        The `Axis` of every axis.
    dtype : dtype
        Type of what goes in.
    forward : bool
    sources, targets : list of tuple of slice
        Which part of the box goes in, or comes out, where: a box for every view.
    effort : str
        FFTW planning effort.
    turned : int or None
        The axis that the views of the spectral side have last in memory, if not the last one.
    """

    def __init__(self, shape, axes, lines, dtype, forward, sources, targets, effort,
                 turned=None):
        used = {axis: lines[axis] for axis in axes}
        itemsize = complex_of(dtype).itemsize
        budget = max(1, BLOCK_NBYTES // (itemsize * max(1, int(np.prod(
            [line.fine for line in used.values()], dtype=int)))))
        cuts = [None] * len(shape)
        for axis in reversed(range(len(shape))):
            if axis in used:
                cuts[axis] = [slice(0, shape[axis])]
                continue
            least = NARROWEST if axis == len(shape) - 1 else 1
            size = max(1, min(shape[axis], max(budget, least)))
            cuts[axis] = chunks(shape[axis], size)
            budget //= size
        made = {}
        self._parts = []
        for ranges in product(*cuts) if axes else ():
            key = tuple(map(length_of, ranges))
            if key not in made:
                made[key] = _Transformed(key, used, dtype, forward, effort, turned)
            self._parts.append((made[key], ranges, used, forward))
        self._sources = sources
        self._set_targets(targets)

    def _set_targets(self, targets):
        self.blocks = [_Block(*part, self._sources, targets) for part in self._parts]
        self._moves = [] if self._parts else [
            (i, here, j, there)
            for (i, source), (j, target) in product(enumerate(self._sources), enumerate(targets))
            for here, there in _common(source, target)]

    def retargeted(self, targets):
        """The same sweep, with the same scratch memory and plans, to other views."""
        other = copy_of(self)
        other._set_targets(targets)
        return other

    @staticmethod
    def views(array):
        """What the blocks are called with, for one array."""
        return [array]

    def __call__(self, sources, targets, scale=1.0):
        """Transform from the views `sources` to the views `targets`."""
        for i, here, j, there in self._moves:
            copy(targets[j][there], sources[i][here], scale)
        for one in self.blocks:
            one(sources, targets, scale)


def _common(source, target):
    """Slices of two boxes that select what they have in common, each relative to its box."""
    here, there = [], []
    for one, other in zip(source, target):
        start, stop = max(one.start, other.start), min(one.stop, other.stop)
        if start >= stop:
            return []
        here.append(slice(start - one.start, stop - one.start))
        there.append(slice(start - other.start, stop - other.start))
    return [(tuple(here), tuple(there))]


class _Block:
    """A part of a sweep's box: what it copies into its scratch memory, and out of it."""

    def __init__(self, transformed, ranges, lines, forward, sources, targets):
        self._transformed = transformed
        whole = [[(part, slice(0, length_of(part)))] for part in ranges]
        modes = list(whole)
        for axis, line in lines.items():
            modes[axis] = line.segments
            whole[axis] = [(slice(0, line.fine), slice(0, line.fine))]
        into, out = (whole, modes) if forward else (modes, whole)
        self._loads = _pairs(sources, into)
        self._stores = _pairs(targets, out)
        self._gaps = []
        for axis, line in lines.items() if forward else ():
            for gap in complement([pair[0] for pair in line.segments], line.length(True)):
                beyond = list(modes)
                beyond[axis] = [(gap, gap)]
                for other, other_line in lines.items():
                    if other != axis:
                        full = slice(0, other_line.length(True))
                        beyond[other] = [(full, full)]
                self._gaps += [(i, where) for i, where, _ in _pairs(targets, beyond)]

    def __call__(self, sources, targets, scale):
        transformed = self._transformed
        for i, where, inside in self._loads:
            copy(transformed.source[inside], sources[i][where], scale)
        transformed.execute()
        for i, where, inside in self._stores:
            np.copyto(targets[i][where], transformed.target[inside])
        for i, where in self._gaps:
            targets[i][where] = 0


def _pairs(views, mapping):
    """Which slices of which view are which slices of the scratch memory."""
    found = []
    for i, box in enumerate(views):
        axes = [intersect(part, pairs) for part, pairs in zip(box, mapping)]
        found += [(i, *map(tuple, zip(*pairs))) for pairs in product(*axes)]
    return found


class _Transformed:
    """Scratch memory of one block, and its transform.

    Modes that a finer grid has and the resolved one has not are neither transformed along the other
    axes nor, going backward, ever anything but zero.
    """

    def __init__(self, shape, lines, dtype, forward, effort, turned):
        spectral = list(shape)
        fine = list(shape)
        for axis, line in lines.items():
            spectral[axis], fine[axis] = line.fine_modes, line.fine
        dtype = complex_of(dtype)
        modes = empty(spectral, dtype)
        real_axis = next((axis for axis, line in lines.items() if line.real), None)
        apart = real_axis  # the axis whose FFT is out of place
        if list(lines) == [turned] and real_axis is None and spectral == fine:
            # FFTW turns a block that is hot far faster than numpy copies it with strides.
            apart = turned
            modes = np.moveaxis(empty([*fine[:apart], *fine[apart + 1:], fine[apart]], dtype), -1,
                                apart)
        physical = modes if apart is None else empty(
            fine, dtype if real_axis is None else modes.real.dtype)
        self.source, self.target = (physical, modes) if forward else (modes, physical)
        self._plans, self._gaps = [], []
        self._folds = [(line.fold if forward else line.unfold, np.moveaxis(modes, axis, 0))
                       for axis, line in lines.items() if line.nyquist == "split"]
        self._forward = forward
        if 0 in spectral:
            return
        axes = list(lines)
        for position, axis in enumerate(axes):
            bounds = [[slice(None)]] * len(shape)
            # Going forward those that are transformed already, backward those that are not yet.
            for other in axes[:position] if forward else axes[position + 1:]:
                bounds[other] = [pair[1] for pair in lines[other].segments]
            strided = axis != len(shape) - 1
            pains = strided_effort(effort, modes.size) if strided else effort
            for where in product(*bounds):
                ends = [physical[where], modes[where]] if axis == apart else [modes[where]] * 2
                self._plans.append(plan(*(ends if forward else ends[::-1]), axis, forward, pains))
        for axis, line in () if forward else lines.items():
            for gap in complement([pair[1] for pair in line.segments], line.fine_modes):
                where = [slice(None)] * len(shape)
                where[axis] = gap
                self._gaps.append(tuple(where))
        modes[...] = 0
        physical[...] = 0

    def execute(self):
        for where in self._gaps:
            self.source[where] = 0
        if not self._forward:
            self._fold()
        for one in self._plans:
            one.execute()
        if self._forward:
            self._fold()

    def _fold(self):
        for fold, modes in self._folds:
            fold(modes)


class InPlaceSweep:
    """FFTs along one axis of a contiguous, aligned complex array, where it is.

    Parameters
    ----------
    shape : tuple of int
    axis : int
    dtype, forward, effort
        As of `Sweep`.
    cuts : list of slice, optional
        Ranges of the axes after `axis`, taken as one, in which blocks shall begin and end.

    Attributes
    ----------
    blocks : list of callable
    groups : list of slice
        The blocks of each of `cuts`.
    aligned : bool
        Whether FFTW's plans fit all blocks; if not, the sweep can't be used.
    """

    def __init__(self, shape, axis, dtype, forward, effort, cuts=None):
        inner = int(np.prod(shape[axis + 1:], dtype=int))
        outer = int(np.prod(shape[:axis], dtype=int))
        self.groups = []
        length, itemsize = shape[axis], np.dtype(dtype).itemsize
        if inner == 1:
            self._shape = (1, outer, length)
            size = 2 * max(1, BLOCK_NBYTES // (2 * length * itemsize))
            wheres = [(0, rows) for rows in _runs(slice(0, outer), size)]
        else:
            self._shape = (outer, length, inner)
            wheres = []
            for cut in cuts or [slice(0, inner)]:
                first = len(wheres)
                wheres += [(i, slice(None), columns) for i in range(outer)
                           for columns in _even_runs(cut, COLUMNS)]
                self.groups.append(slice(first, len(wheres)))
        self.aligned = (outer == 1 or length * inner * itemsize % REQUIRED_ALIGNMENT == 0) and all(
            cut.start * itemsize % REQUIRED_ALIGNMENT == 0 for cut in cuts or ())
        memory = barely_aligned(self._shape[1:], dtype) if self.aligned and 0 not in shape else None
        made = {}
        self.blocks = []
        for where in wheres if memory is not None else ():
            block = memory[where[1:]]
            if block.shape not in made:
                pains = effort if inner == 1 else strided_effort(effort, length * inner)
                made[block.shape] = plan(block, block, int(inner == 1), forward, pains)
            self.blocks.append(_InPlaceBlock(made[block.shape], where))

    def views(self, array):
        """What the blocks are called with, for one array."""
        return [array.reshape(self._shape)]


class _InPlaceBlock:
    def __init__(self, plan, where):
        self._plan = plan
        self._where = where

    def __call__(self, sources, targets, scale):
        block = targets[0][self._where]
        self._plan.update_arrays(block, block)
        self._plan.execute()


def _even_runs(part, size):
    """Runs of about `size`, alike in length, each at an even distance from the start."""
    length = length_of(part)
    return [slice(part.start + 2 * pairs.start, min(part.start + 2 * pairs.stop, part.stop))
            for pairs in block(-(-length // 2), max(1, round(length / size)))]


def _runs(part, size):
    return [slice(start, min(start + size, part.stop))
            for start in range(part.start, part.stop, size)]
