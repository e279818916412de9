"""Sweeps: FFTs along some axes of a box of any dimension, block by block where it is hot.

A `Sweep` loads a block into scratch memory that stays in the cache, transforms it there along one axis
after the other, and stores it where it goes: into the pieces of a message, or an array. A `SweepInPlace`
gathers what it is given in an array and transforms it there. Both are recipes: they write what is to be
done into a `Program`.

Blocks and their FFTW plans depend on the box alone: its result has the same bits in every mode, depth
and chunk, and on every worker.
"""

from copy import copy as copy_of
from itertools import product

import numpy as np

from ...arrays import block, box_shape, chunks, complement, intersect, length_of
from .fftw import (
    ALIGNMENT,
    COLUMNS,
    REQUIRED_ALIGNMENT,
    barely_aligned,
    complex_of,
    empty,
)
from .lines import LineTransform
from .program import SCRATCH, View, strides_of

BLOCK_NBYTES = 256 * 1024
HOT_NBYTES = 128 * 1024  # of a block that is transformed where it is
AT_ONCE = 16  # lines that are not contiguous, through scratch memory
NEAR_NBYTES = 2**22  # of an array that a cache of all cores holds
NARROWEST = 4  # points of a block along the array's last axis, if that is not transformed


class Sweep:
    """FFTs along some axes of a box, from several views to several views.

    Parameters
    ----------
    shape : tuple of int
        Shape of the box that goes in.
    lines : dict
        The `Axis` of every axis that is transformed, in this order; none: data are moved only.
    dtype : dtype
        Type of what goes in.
    direction : Direction
        With the axis that the views of the spectral side have last in memory, if not the last one.
    sources, targets : list of tuple of slice
        Which part of the box goes in, or comes out, where: a box for every view.
    after : int or None
        All of it is one block, in scratch memory that begins after so many bytes.

    Attributes
    ----------
    scratch_nbytes : int
        Scratch memory that it needs, with what comes before.
    count : int
        Number of blocks.
    """

    def __init__(self, shape, lines, dtype, direction, sources, targets, after=None):
        itemsize = complex_of(dtype).itemsize
        budget = max(1, BLOCK_NBYTES // (itemsize * max(1, int(np.prod(
            [line.fine for line in lines.values()], dtype=int)))))
        if len(lines) == 1 and int(np.prod(shape[next(iter(lines)) + 1:], dtype=int)) > 1:
            budget = min(budget, AT_ONCE)
        cuts = cuts_of(shape, lines if after is None else range(len(shape)), budget, NARROWEST)
        made = {}
        self._parts = []
        for ranges in product(*cuts) if lines else ():
            key = tuple(map(length_of, ranges))
            if key not in made:
                made[key] = _Transformed(key, lines, dtype, direction, after or 0)
            self._parts.append((made[key], ranges, lines, direction.forward))
        self.scratch_nbytes = max((one.nbytes for one in made.values()), default=0)
        self._sources = sources
        self._set_targets(targets)

    def _set_targets(self, targets):
        self._blocks = [_Block(*part, self._sources, targets) for part in self._parts]
        self._moves = [] if self._parts else [
            (i, here, j, there)
            for (i, source), (j, target) in product(enumerate(self._sources), enumerate(targets))
            for here, there in _common(source, target)]

    @property
    def count(self):
        return len(self._blocks)

    def retargeted(self, targets):
        """The same sweep, with the same plans, to other views."""
        other = copy_of(self)
        other._set_targets(targets)
        return other

    def write(self, program, sources, targets, scale=1.0, blocks=slice(None)):
        """Write what it does from the views `sources` to the views `targets`, by default all blocks."""
        for i, here, j, there in self._moves:
            program.copy(targets[j][there], sources[i][here], scale)
        for one in self._blocks[blocks]:
            one.load(program, sources, scale)
            one.transform(program)
            one.store(program, targets)

    def write_to(self, program, sources, physical):
        """Write its only block backward, with a result that stays in scratch memory."""
        for one in self._blocks:
            one.load(program, sources, 1.0, physical)
            one.transform(program, physical)

    def write_from(self, program, physical, targets, scale):
        """Write its only block forward, of what is in scratch memory; that is lost."""
        for one in self._blocks:
            one.transform(program, physical)
            one.store(program, targets, scale, physical)


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
    """A part of a sweep's box: what it copies into scratch memory, and out of it."""

    def __init__(self, transformed, ranges, lines, forward, sources, targets):
        self._transformed = transformed
        whole = [[(part, slice(0, length_of(part)))] for part in ranges]
        modes = list(whole)
        for axis, line in lines.items():
            modes[axis] = line.segments
            whole[axis] = [(slice(0, line.fine), slice(0, line.fine))]
        into, out = (whole, modes) if forward else (modes, whole)
        self._loads = pairs_of(sources, into)
        self._stores = pairs_of(targets, out)
        self._gaps = []
        for axis, line in lines.items() if forward else ():
            for gap in complement([pair[0] for pair in line.segments], line.length(True)):
                beyond = list(modes)
                beyond[axis] = [(gap, gap)]
                for other, other_line in lines.items():
                    if other != axis:
                        full = slice(0, other_line.length(True))
                        beyond[other] = [(full, full)]
                self._gaps += [(i, where) for i, where, _ in pairs_of(targets, beyond)]

    def load(self, program, sources, scale, physical=None):
        source, _ = self._transformed.ends(physical)
        for i, where, inside in self._loads:
            program.copy(source[inside], sources[i][where], scale)

    def transform(self, program, physical=None):
        self._transformed.write(program, *self._transformed.ends(physical))

    def store(self, program, targets, scale=1.0, physical=None):
        _, target = self._transformed.ends(physical)
        for i, where, inside in self._stores:
            program.copy(targets[i][where], target[inside], scale)
        for i, where in self._gaps:
            program.zero(targets[i][where])


def pairs_of(views, mapping):
    """Which slices of which view are which slices of the scratch memory."""
    found = []
    for i, box in enumerate(views):
        axes = [intersect(part, pairs) for part, pairs in zip(box, mapping)]
        found += [(i, *map(tuple, zip(*pairs))) for pairs in product(*axes)]
    return found


class _Transformed:
    """A block in scratch memory, and its transform.

    Modes that a finer grid has and the resolved one has not are neither transformed along the other
    axes nor, going backward, ever anything but zero.
    """

    def __init__(self, shape, lines, dtype, direction, after):
        forward, turned = direction.forward, direction.turned
        spectral = list(shape)
        fine = list(shape)
        for axis, line in lines.items():
            spectral[axis], fine[axis] = line.fine_modes, line.fine
        dtype = complex_of(dtype)
        itemsize = dtype.itemsize
        real_axis = next((axis for axis, line in lines.items() if line.real), None)
        apart = real_axis  # the axis whose FFT is out of place
        modes = View(SCRATCH, tuple(spectral), strides_of(spectral, itemsize), dtype, after)
        physical = modes
        beyond = after + -(-modes.size * itemsize // ALIGNMENT) * ALIGNMENT
        if list(lines) == [turned] and real_axis is None and spectral == fine:
            # FFTW turns a block that is hot far faster than it could be copied with strides.
            apart = turned
            order = [*fine[:apart], *fine[apart + 1:], fine[apart]]
            modes = View(SCRATCH, tuple(order), strides_of(order, itemsize), dtype, beyond
                         ).moved_axis(-1, apart)
        elif apart is not None:
            real = np.dtype(f"f{itemsize // 2}")
            physical = View(SCRATCH, tuple(fine), strides_of(fine, real.itemsize), real, beyond)
        self._modes, self._physical, self._apart = modes, physical, apart
        self.nbytes = beyond + (0 if apart is None else physical.size * physical.dtype.itemsize)
        self._plans, self._gaps = [], []
        self._folds = [(line.fold if forward else line.unfold, axis)
                       for axis, line in lines.items() if line.nyquist == "split"]
        self._forward = forward
        if 0 in spectral:
            return
        memory = empty(self.nbytes, np.uint8)
        axes = list(lines)
        for position, axis in enumerate(axes):
            bounds = [[slice(None)]] * len(shape)
            # Going forward those that are transformed already, backward those that are not yet.
            for other in axes[:position] if forward else axes[position + 1:]:
                bounds[other] = [pair[1] for pair in lines[other].segments]
            for where in product(*bounds):
                source, target = (end[where].array(memory) for end in self._ends_of(
                    axis == apart, modes, physical))
                plan = LineTransform(source, target, axis, forward, direction.effort)
                self._plans.append((plan, axis == apart, where))
        for axis, line in () if forward else lines.items():
            for gap in complement([pair[1] for pair in line.segments], line.fine_modes):
                where = [slice(None)] * len(shape)
                where[axis] = gap
                self._gaps.append(tuple(where))

    def _ends_of(self, apart, modes, physical):
        """What an FFT reads and writes: out of place, or in place."""
        if not apart:
            return modes, modes
        return (physical, modes) if self._forward else (modes, physical)

    def ends(self, physical=None):
        """Where what goes in lies, and what comes out; `physical`: the real-space side, if elsewhere."""
        modes = self._modes
        if physical is None:
            physical = self._physical
        elif self._apart is None:
            modes = physical
        return (physical, modes) if self._forward else (modes, physical)

    def write(self, program, source, target):
        modes, physical = (target, source) if self._forward else (source, target)
        for where in self._gaps:
            program.zero(modes[where])
        if not self._forward:
            self._write_folds(program, modes)
        for plan, apart, where in self._plans:
            source, target = self._ends_of(apart, modes, physical)
            program.transform(plan, target[where], source[where])
        if self._forward:
            self._write_folds(program, modes)

    def _write_folds(self, program, modes):
        for fold, axis in self._folds:
            fold(program, modes.moved_axis(axis, 0))


class SweepInPlace:
    """FFTs along one axis of a contiguous, aligned complex array, where what goes in is gathered first.

    Contiguous lines are gathered and transformed some at a time, while they are hot. So are others where all that
    lie side by side stay in the cache. Else they go through scratch memory, `AT_ONCE` at a time: their FFT is made out
    of place, into contiguous lines, and copied back. It takes less time than in place, where points so far apart
    compete for the same places in the cache, as long as the scratch memory stays there; longer ones are
    transformed in place. FFTs of what comes from memory are made in the scratch memory: a copy waits less for it.

    Parameters
    ----------
    shape : tuple of int
    axis : int
    dtype, direction
        As of `Sweep`.
    sources : list of tuple of slice, optional
        Which part of the array is taken from where: a box for every view; by default all is there.
    cuts : list of slice, optional
        Ranges of the axes after `axis`, taken as one, in which blocks shall begin and end.

    Attributes
    ----------
    groups : list of slice
        The blocks of each of `cuts`.
    scratch_nbytes : int
        Scratch memory that it needs.
    count : int
        Number of blocks.
    """

    def __init__(self, shape, axis, dtype, direction, sources=(), cuts=None):
        inner = int(np.prod(shape[axis + 1:], dtype=int))
        outer = int(np.prod(shape[:axis], dtype=int))
        length, itemsize = shape[axis], np.dtype(dtype).itemsize
        lines = max(1, HOT_NBYTES // (max(1, length) * itemsize))  # in a block
        self.groups, self._sources, self._blocks = [], sources, []
        self._contiguous = inner == 1
        self._apart = inner > 1 and lines >= AT_ONCE and length * inner * itemsize > BLOCK_NBYTES  # through scratch
        self._far = length * inner * itemsize > NEAR_NBYTES
        self._shape = shape if self._contiguous else (outer, length, inner)
        self.scratch_nbytes = 0
        wheres = list(product(*cuts_of(shape, {axis}, lines))) if self._contiguous else []
        at_once = AT_ONCE if self._apart else COLUMNS
        for cut in (cuts or [slice(0, inner)]) if inner > 1 else ():
            first = len(wheres)
            wheres += [(slice(i, i + 1), slice(0, length), columns) for i in range(outer)
                       for columns in _even_runs(cut, at_once)]
            self.groups.append(slice(first, len(wheres)))
        if 0 in shape:
            return
        made = {}
        for where in wheres:
            block_shape = box_shape(where)
            if block_shape not in made:
                made[block_shape] = self._plan(where, length, direction, np.dtype(dtype))
            self._blocks.append((made[block_shape], where))

    def _plan(self, where, length, direction, dtype):
        """The FFT of a block, and of those like it."""
        forward, effort = direction.forward, direction.effort
        if self._contiguous:
            part = barely_aligned(box_shape(where), dtype).reshape(-1, length)
            return LineTransform(part, part, 1, forward, effort)
        part = barely_aligned(self._shape[1:], dtype)[where[1:]]
        if not self._apart:
            return LineTransform(part, part, 0, forward, effort)
        hot = self._hot(part.shape, 0, dtype)
        self.scratch_nbytes = max(self.scratch_nbytes, hot.nbytes)
        there = hot.array(empty((hot.nbytes,), np.uint8))
        return LineTransform(there if self._far else part, there, 0, forward, effort, streamed=not self._far)

    def _hot(self, shape, axis, dtype):
        """Where lines lie in scratch memory: as in the array but close together, or contiguous."""
        if self._far:
            return View.contiguous(SCRATCH, shape, dtype)
        return View.of_lines(SCRATCH, shape, axis, dtype)

    @staticmethod
    def suits(shape, axis, dtype, cuts=()):
        """Whether all blocks begin as aligned as FFTW requires, if the array does."""
        itemsize = np.dtype(dtype).itemsize
        outer = int(np.prod(shape[:axis], dtype=int))
        inner = int(np.prod(shape[axis:], dtype=int))
        return (outer == 1 or inner * itemsize % REQUIRED_ALIGNMENT == 0) and all(
            cut.start * itemsize % REQUIRED_ALIGNMENT == 0 for cut in cuts)

    @property
    def count(self):
        return len(self._blocks)

    def write(self, program, sources, targets, scale=1.0, blocks=slice(None)):
        """Write what it does from the views `sources` to the view of its array, ``targets[0]``."""
        target, = targets
        gathered = [(box, source) for box, source in zip(self._sources, sources)
                    if source is not None]  # else it is there
        if not self._contiguous:
            for box, source in gathered:
                program.copy(target[box], source, scale)
        if 0 in target.shape:
            return
        array = target if self._contiguous else target.reshaped(self._shape)
        for plan, where in self._blocks[blocks]:
            part = array[where]
            for box, source in gathered if self._contiguous else ():
                for here, inside in _common(box, where):
                    program.copy(part[inside], source[here], scale)
            hot = self._hot(part.shape, 1, part.dtype) if self._apart else part
            if self._apart and self._far:
                program.copy(hot, part)
            program.transform(plan, hot, hot if self._far else part)
            if self._apart:
                program.copy(part, hot)


def cuts_of(shape, whole, budget, narrowest=1):
    """Ranges of every axis: a block has all of the axes `whole`, and about `budget` points of the others.

    It has at least `narrowest` points of the last axis.
    """
    cuts = [[slice(0, length)] for length in shape]
    for axis in reversed(range(len(shape))):
        if axis not in whole:
            least = narrowest if axis == len(shape) - 1 else 1
            size = max(1, min(shape[axis], max(budget, least)))
            cuts[axis] = chunks(shape[axis], size)
            budget //= size
    return cuts


def _even_runs(part, size):
    """Runs of about `size`, alike in length, each at an even distance from the start; none of an empty part."""
    length = length_of(part)
    if not length:
        return []
    return [slice(part.start + 2 * pairs.start, min(part.start + 2 * pairs.stop, part.stop))
            for pairs in block(-(-length // 2), max(1, round(length / size)))]
