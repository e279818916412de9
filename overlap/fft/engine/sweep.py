"""Sweeps: FFTs along some axes of a box of any dimension, block by block where it is hot.

A `Sweep` loads a block into scratch memory that stays in the cache, transforms it there along one axis after the other,
and stores it where it goes: into the pieces of a message, or an array. It is a recipe: it writes what is to be done
into a `CompiledProgram`.

Blocks and their FFTW plans depend on the box alone: its result has the same bits in every mode, depth
and chunk, and on every worker.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy as copy_of
from itertools import accumulate, pairwise, product

import numpy as np

from ...arrays import chunks, complement, intersect, length_of, moved
from ...arrays.layout import Box
from .axis import Axis, modes_dtype
from .block_ffts import BlockChain, BlockFFTs, BlockFromArray, BlockInPlace
from .direction import Direction
from .program import CompiledProgram, View

BLOCK_NBYTES = 256 * 1024
AT_ONCE = 24  # lines that are not contiguous, through scratch memory
SHORT_NBYTES = 64 * 1024  # of shorter ones
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
    same : bool
        What comes out lies where that goes in.
    natural : bool
        The only source is C-contiguous, as a rule.
    ends : (int, list of slice), optional
        Ranges of an axis, with none but a single index before it, in which blocks shall begin and end.

    Attributes
    ----------
    groups : list of slice
        The blocks of each of these ranges.
    scratch_nbytes : int
        Scratch memory that it needs, with what comes before.
    count : int
        Number of blocks.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        lines: dict[int, Axis],
        dtype: np.dtype,
        direction: Direction,
        sources: Sequence[Box],
        targets: Sequence[Box],
        after: int | None = None,
        same: bool = False,
        natural: bool = False,
        ends: tuple[int, Sequence[slice]] | None = None,
    ) -> None:
        itemsize = modes_dtype(dtype, lines).itemsize
        budget = max(
            1, BLOCK_NBYTES // (itemsize * max(1, int(np.prod([line.fine for line in lines.values()], dtype=int))))
        )
        if len(lines) == 1 and int(np.prod(shape[next(iter(lines)) + 1 :], dtype=int)) > 1:
            budget = min(budget, max(AT_ONCE, SHORT_NBYTES * budget // BLOCK_NBYTES))
        from_array = natural and after is None and BlockFromArray.suits(shape, lines, dtype, direction)
        if from_array:
            budget = BlockFromArray.at_once(shape, lines)
        cuts = cuts_of(shape, lines if after is None else range(len(shape)), budget, NARROWEST)
        self.groups = []
        if ends is not None:
            axis, ranges = ends
            size = max(map(length_of, cuts[axis]), default=1)
            each = [[moved(part, one.start) for part in chunks(length_of(one), size)] for one in ranges]
            cuts[axis] = [part for parts in each for part in parts]
            inner = int(np.prod([len(parts) for parts in cuts[axis + 1 :]], dtype=int))
            starts = [0, *accumulate(inner * len(parts) for parts in each)]
            self.groups = [slice(*pair) for pair in pairwise(starts)]
        made = {}
        self._parts = []
        kind = BlockChain if BlockChain.suits(shape, lines, direction) else BlockInPlace
        for ranges in product(*cuts) if lines else ():
            key = tuple(map(length_of, ranges))
            if key not in made:
                made[key] = (
                    BlockFromArray(key, shape, lines, direction)
                    if from_array
                    else kind(key, lines, dtype, direction, after or 0)
                )
            self._parts.append((made[key], ranges, lines, direction.forward))
        self.scratch_nbytes = max((one.nbytes for one in made.values()), default=0)
        self._sources, self._same = sources, same
        self._set_targets(targets)

    def _set_targets(self, targets: Sequence[Box]) -> None:
        self._blocks = [_Block(*part, self._sources, targets) for part in self._parts]
        self._moves = (
            []
            if self._parts
            else [
                (i, here, j, there)
                for (i, source), (j, target) in product(enumerate(self._sources), enumerate(targets))
                for here, there in common(source, target)
            ]
        )

    @property
    def count(self) -> int:
        return len(self._blocks)

    def retargeted(self, targets: Sequence[Box]) -> Sweep:
        """Return the same sweep, with the same plans, to other views."""
        other = copy_of(self)
        other._set_targets(targets)
        return other

    def overlapping(self) -> Sweep:
        """Return the same sweep, with the same plans, where a block's source may lie where its target is."""
        other = copy_of(self)
        other._same = True
        return other

    def write(
        self,
        program: CompiledProgram,
        sources: Sequence[View],
        targets: Sequence[View],
        scale: float = 1.0,
        blocks: slice = slice(None),
    ) -> None:
        """Write what it does from the views `sources` to the views `targets`, by default all blocks."""
        for i, here, j, there in self._moves:
            program.copy(targets[j][there], sources[i][here], scale)
        for one in self._blocks[blocks]:
            one.write(program, sources, targets, scale, same=self._same)

    def write_to(self, program: CompiledProgram, sources: Sequence[View], physical: View | None) -> None:
        """Write its only block backward, with a result that stays in scratch memory."""
        for one in self._blocks:
            one.write(program, sources, None, 1.0, physical)

    def write_from(
        self, program: CompiledProgram, physical: View | None, targets: Sequence[View], scale: float
    ) -> None:
        """Write its only block forward, of what is in scratch memory; that is lost."""
        for one in self._blocks:
            one.write(program, None, targets, scale, physical)


def common(source: Box, target: Box) -> list[tuple[Box, Box]]:
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

    def __init__(
        self,
        transformed: BlockFFTs,
        ranges: Sequence[slice],
        lines: dict[int, Axis],
        forward: bool,
        sources: Sequence[Box],
        targets: Sequence[Box],
    ) -> None:
        self._transformed = transformed
        whole = [[(part, slice(0, length_of(part)))] for part in ranges]
        modes = list(whole)
        for axis, line in lines.items():
            modes[axis] = line.segments
            whole[axis] = [(line.filled, line.filled)]
        into, out = (whole, modes) if forward else (modes, whole)
        self._loads = pairs_of(sources, into)
        self._stores = pairs_of(targets, out)
        self._gaps = []
        for axis, line in lines.items():
            for gap in complement([pair[0] for pair in out[axis]], line.length(forward)):
                beyond = list(out)
                beyond[axis] = [(gap, gap)]
                for other, other_line in lines.items():
                    if other != axis:
                        full = slice(0, other_line.length(forward))
                        beyond[other] = [(full, full)]
                self._gaps += [(i, where) for i, where, _ in pairs_of(targets, beyond)]

    def write(
        self,
        program: CompiledProgram,
        sources: Sequence[View] | None,
        targets: Sequence[View] | None,
        scale: float,
        physical: View | None = None,
        same: bool = False,
    ) -> None:
        """Write its load, its FFTs and its store.

        What lies in an array as it would in scratch memory is not copied: a result always, a source that FFTs leave as
        it is, or that is spare.

        Parameters
        ----------
        sources, targets : list of View, or None
            None: what goes in, or comes out, is in scratch memory.
        scale : float
            Multiplied when it is loaded, or else, and where lines are long and far apart, when it is stored.
        physical : View, optional
            The real-space side, where it is not the block's own.
        same : bool
            As of `Sweep`: then all is copied.
        """
        source, target = self._transformed.ends(physical)
        in_place = source is target
        late = sources is None or self._transformed.scales_last
        before, after = (1.0, scale) if late else (scale, 1.0)
        # Whether it may lie elsewhere than in scratch memory.
        elsewhere = not same and (not in_place or (sources is not None and targets is not None))
        given = result = None
        if elsewhere and targets is not None and not self._gaps and after == 1.0:
            result = self._only(targets, self._stores, target)
        if elsewhere and sources is not None and before == 1.0 and not (in_place and result):
            given = self._only(sources, self._loads, source)
            if given is not None and not (given.spare or (self._transformed.keeps_source and not in_place)):
                given = None
        if in_place:
            source = target = result or given or source
        else:
            source, target = given or source, result or target
        if sources is not None and given is None:
            for i, where, inside in self._loads:
                program.copy(source[inside], sources[i][where], before)
        self._transformed.write(program, source, target)
        if targets is None:
            return
        for i, where, inside in self._stores if result is None else ():
            program.copy(targets[i][where], target[inside], after)
        for i, where in self._gaps:
            program.zero(targets[i][where])

    @staticmethod
    def _only(views: Sequence[View], pairs: Sequence[tuple[int, Box, Box]], memory: View) -> View | None:
        """Return the part of a view that takes the place of some scratch memory, or None."""
        if len(pairs) != 1:
            return None
        ((i, where, inside),) = pairs
        part = views[i][where]
        return part if memory[inside].shape == memory.shape and part.is_like(memory) else None


def pairs_of(views: Sequence[Box], mapping: Sequence[list[tuple[slice, slice]]]) -> list[tuple[int, Box, Box]]:
    """Which slices of which view are which slices of the scratch memory."""
    found = []
    for i, box in enumerate(views):
        axes = [intersect(part, pairs) for part, pairs in zip(box, mapping)]
        for pairs in product(*axes):
            where, inside = zip(*pairs)
            found.append((i, where, inside))
    return found


def cuts_of(shape: tuple[int, ...], whole: Collection[int], budget: int, narrowest: int = 1) -> list[list[slice]]:
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
