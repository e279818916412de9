"""Sweeps: FFTs along some axes of a box of any dimension, block by block in the cache.

A `Sweep` loads a block into scratch memory that stays in the cache, transforms it there along one axis after the other,
and stores it: into the pieces of a message, or into an array. It does not compute itself but writes the instructions
into a `CompiledProgram`.

Blocks and their FFTW plans depend on the box alone, so results have the same bits in every mode, depth and chunk, and
on every worker.
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
from .program import CompiledProgram, View
from .route import Direction

BLOCK_NBYTES = 256 * 1024
AT_ONCE = 24  # lines that are not contiguous, in scratch memory at once
SHORT_NBYTES = 64 * 1024  # bytes at least, for shorter lines
NARROWEST = 4  # least points of a block along the array's last axis, if that is not transformed


class Sweep:
    """FFTs along some axes of a box, from several views to several views.

    Parameters
    ----------
    shape : tuple of int
        Shape of the input box.
    lines : dict
        The `Axis` of every transformed axis, in the order of the FFTs; if empty, data are only moved.
    dtype : dtype
        Type of the input.
    direction : Direction
        Options, with the axis that views of the spectral side have last in memory, if not the last one.
    sources, targets : list of tuple of slice
        For every view, the part of the input or output box that it contains.
    after : int or None
        If given, the box is one block, in scratch memory that begins at this offset in bytes.
    same : bool
        The output is at the place of the input.
    natural : bool
        The only source is usually C-contiguous.
    ends : (int, list of slice), optional
        Ranges of an axis, before which there are only axes of length 1, in which blocks shall begin and end.

    Attributes
    ----------
    groups : list of slice
        The blocks of each of these ranges.
    scratch_nbytes : int
        Scratch memory that it needs, including the offset.
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
            each = [[moved(part, group.start) for part in chunks(length_of(group), size)] for group in ranges]
            cuts[axis] = [part for parts in each for part in parts]
            inner = int(np.prod([len(parts) for parts in cuts[axis + 1 :]], dtype=int))
            starts = [0, *accumulate(inner * len(parts) for parts in each)]
            self.groups = [slice(*pair) for pair in pairwise(starts)]
        block_plans = {}
        self._parts = []
        kind = BlockChain if BlockChain.suits(shape, lines, direction) else BlockInPlace
        for ranges in product(*cuts) if lines else ():
            key = tuple(map(length_of, ranges))
            if key not in block_plans:
                block_plans[key] = (
                    BlockFromArray(key, shape, lines, direction)
                    if from_array
                    else kind(key, lines, dtype, direction, after or 0)
                )
            self._parts.append((block_plans[key], ranges, lines, direction.forward))
        self.scratch_nbytes = max((group.nbytes for group in block_plans.values()), default=0)
        self._sources, self._same = sources, same
        self._set_targets(targets)

    def _set_targets(self, targets: Sequence[Box]) -> None:
        self._blocks = [_Block(*part, self._sources, targets) for part in self._parts]
        self._moves = (
            []
            if self._parts
            else [
                (i, source_part, j, target_part)
                for (i, source), (j, target) in product(enumerate(self._sources), enumerate(targets))
                for source_part, target_part in common(source, target)
            ]
        )

    @property
    def count(self) -> int:
        return len(self._blocks)

    def retargeted(self, targets: Sequence[Box]) -> Sweep:
        """Return the sweep, with the same plans, for other target views."""
        sweep = copy_of(self)
        sweep._set_targets(targets)
        return sweep

    def overlapping(self) -> Sweep:
        """Return the sweep, with the same plans, for sources that may overlap the targets block by block."""
        sweep = copy_of(self)
        sweep._same = True
        return sweep

    def write(
        self,
        program: CompiledProgram,
        sources: Sequence[View],
        targets: Sequence[View],
        scale: float = 1.0,
        blocks: slice = slice(None),
    ) -> None:
        """Write the sweep of some blocks, by default all, from the views `sources` to the views `targets`."""
        for i, source_part, j, target_part in self._moves:
            program.copy(targets[j][target_part], sources[i][source_part], scale)
        for block in self._blocks[blocks]:
            block.write(program, sources, targets, scale, same=self._same)

    def write_to(self, program: CompiledProgram, sources: Sequence[View], physical: View | None) -> None:
        """Write the only block of a backward sweep, whose result stays in scratch memory."""
        for block in self._blocks:
            block.write(program, sources, None, 1.0, physical)

    def write_from(
        self, program: CompiledProgram, physical: View | None, targets: Sequence[View], scale: float
    ) -> None:
        """Write the only block of a forward sweep of data in scratch memory, which are overwritten."""
        for block in self._blocks:
            block.write(program, None, targets, scale, physical)


def common(source: Box, target: Box) -> list[tuple[Box, Box]]:
    """Return the slices of two boxes that select their intersection, each relative to its box."""
    source_slices, target_slices = [], []
    for source_range, target_range in zip(source, target):
        start, stop = max(source_range.start, target_range.start), min(source_range.stop, target_range.stop)
        if start >= stop:
            return []
        source_slices.append(slice(start - source_range.start, stop - source_range.start))
        target_slices.append(slice(start - target_range.start, stop - target_range.start))
    return [(tuple(source_slices), tuple(target_slices))]


class _Block:
    """A part of a sweep's box, with its copies into and out of scratch memory."""

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
        """Write the load, the FFTs and the store of the block.

        Data that have the same layout in an array as they would have in scratch memory are not copied: this holds for
        all results, and for sources that the FFTs do not overwrite or that are `spare`.

        Parameters
        ----------
        sources, targets : list of View, or None
            None: the input or the output is in scratch memory.
        scale : float
            Factor, applied when the block is loaded; if it is not loaded, or if lines are long and far apart, when it
            is stored.
        physical : View, optional
            The real-space side, if it is not the block's own.
        same : bool
            See `Sweep`; if set, everything is copied.
        """
        source, target = self._transformed.ends(physical)
        in_place = source is target
        late = sources is None or self._transformed.scales_last
        before, after = (1.0, scale) if late else (scale, 1.0)
        # Whether the block's data may be in an array instead of scratch memory.
        elsewhere = not same and (not in_place or (sources is not None and targets is not None))
        read_from = result = None
        if elsewhere and targets is not None and not self._gaps and after == 1.0:
            result = self._only(targets, self._stores, target)
        if elsewhere and sources is not None and before == 1.0 and not (in_place and result):
            read_from = self._only(sources, self._loads, source)
            if read_from is not None and not (read_from.spare or (self._transformed.keeps_source and not in_place)):
                read_from = None
        if in_place:
            source = target = result or read_from or source
        else:
            source, target = read_from or source, result or target
        if sources is not None and read_from is None:
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
        """Return the part of a view that can replace a part of scratch memory, or None."""
        if len(pairs) != 1:
            return None
        ((i, where, inside),) = pairs
        part = views[i][where]
        return part if memory[inside].shape == memory.shape and part.is_like(memory) else None


def pairs_of(views: Sequence[Box], mapping: Sequence[list[tuple[slice, slice]]]) -> list[tuple[int, Box, Box]]:
    """Return triples: a view's number, slices of the view, and the corresponding slices of scratch memory."""
    triples = []
    for i, box in enumerate(views):
        axes = [intersect(part, pairs) for part, pairs in zip(box, mapping)]
        for pairs in product(*axes):
            where, inside = zip(*pairs)
            triples.append((i, where, inside))
    return triples


def cuts_of(shape: tuple[int, ...], whole: Collection[int], budget: int, narrowest: int = 1) -> list[list[slice]]:
    """Return ranges of every axis such that a block has the axes `whole` completely and about `budget` points.

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
