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
from dataclasses import replace
from itertools import accumulate, pairwise, product

import numpy as np

from ...arrays import chunks, complement, intersect, length_of, moved
from ...arrays.layout import Box
from ...compiled.copy_table import strides_of
from ...runtime.loop.words import SCRATCH
from .axis import Axis, Direction, modes_dtype
from .fftw import ALIGNMENT, barely_aligned, empty
from .program import GAP_NBYTES, CompiledProgram, View

SHORT = 128  # points of a line
COMPETING_NBYTES = 2048  # distance of the points of a line from which on they compete in the cache
LONG = 256
ARRAY_NBYTES = 2**22  # extent in the array of the lines of a block: it fits into a cache that all cores share
HOT_NBYTES, FEWEST = 192 * 1024, 16  # bytes of lines in scratch memory, and their least number


class BlockInPlace:
    """A block in scratch memory whose FFTs are in place.

    Modes of a finer grid that are not resolved are not transformed along the other axes; in the backward direction they
    are always zero.
    """

    scales_last = False

    def __init__(
        self, shape: tuple[int, ...], lines: dict[int, Axis], dtype: np.dtype, direction: Direction, after: int
    ) -> None:
        forward, turned = direction.forward, direction.turned
        spectral = list(shape)
        fine = list(shape)
        for axis, line in lines.items():
            spectral[axis], fine[axis] = line.fine_modes, line.fine
        dtype = modes_dtype(dtype, lines)
        itemsize = dtype.itemsize
        real_axis = next((axis for axis, line in lines.items() if line.real), None)
        out_of_place = real_axis  # the axis whose FFT is out of place
        modes = _in_scratch(spectral, lines, dtype, after)
        physical = last = modes
        beyond = after + -(-modes.nbytes // ALIGNMENT) * ALIGNMENT
        if turned is not None and list(lines) == [turned] and real_axis is None and spectral == fine:
            # FFTW transposes a block in the cache far faster than it could be copied with strides.
            out_of_place = turned
            order = [*fine[:turned], *fine[turned + 1 :], fine[turned]]
            modes = last = _in_scratch(order, lines, dtype, beyond).moved_axis(-1, turned)
        elif out_of_place is not None:
            real = np.dtype(f"f{itemsize // 2}")
            physical = last = _in_scratch(fine, lines, real, beyond)
        self._modes, self._physical, self._out_of_place = modes, physical, out_of_place
        axes = list(lines)
        # Cosine and sine transforms of data that are still, or again, real.
        at = len(axes) if real_axis is None else axes.index(real_axis)
        self._on_real = () if real_axis is None else tuple(axes[:at] if forward else axes[at + 1 :])
        # No FFT overwrites its source.
        self.keeps_source = forward and real_axis is not None and real_axis == next(iter(lines))
        self.nbytes = last.offset + last.nbytes
        self._plans, self._gaps = [], []
        self._folds = [
            (line.fold if forward else line.unfold, axis) for axis, line in lines.items() if line.nyquist == "split"
        ]
        self._forward = forward
        if 0 in spectral:
            return
        memory = empty(self.nbytes, np.uint8)
        for position, axis in enumerate(axes):
            bounds = [[slice(None)]] * len(shape)
            # Forward: axes that have been transformed; backward: axes that are still to be transformed.
            for other_axis in axes[:position] if forward else axes[position + 1 :]:
                bounds[other_axis] = [pair[1] for pair in lines[other_axis].segments]
            for where in product(*bounds):
                source, target = (end[where].array(memory) for end in self._ends_of(axis, modes, physical))
                keep = self.keeps_source and axis == out_of_place
                plan = lines[axis].planned(source, target, axis, direction, keep)
                self._plans.append((plan, lines[axis], axis, where))
        for axis, line in lines.items():
            kept, length = ([line.filled], line.fine) if forward else ([x for _, x in line.segments], line.fine_modes)
            for gap in complement(kept, length):
                box = [slice(None)] * len(shape)
                box[axis] = gap
                self._gaps.append(tuple(box))

    def _ends_of(self, axis: int, modes: View, physical: View) -> tuple[View, View]:
        """Return the source and the target of an FFT, which are the same if it is in place."""
        if axis in self._on_real:
            return physical, physical
        if axis != self._out_of_place:
            return modes, modes
        return (physical, modes) if self._forward else (modes, physical)

    def ends(self, physical: View | None = None) -> tuple[View, View]:
        """Return the block's input and output; `physical`: the real-space side, if it is not the block's own."""
        modes = self._modes
        if physical is None:
            physical = self._physical
        elif self._out_of_place is None:
            modes = physical
        return (physical, modes) if self._forward else (modes, physical)

    def write(self, program: CompiledProgram, source: View, target: View) -> None:
        modes, physical = (target, source) if self._forward else (source, target)
        for where in self._gaps:
            program.zero(source[where])
        if not self._forward:
            self._write_folds(program, modes)
        for plan, line, axis, where in self._plans:
            source, target = self._ends_of(axis, modes, physical)
            line.transform(program, plan, target[where], source[where], axis, self._forward)
        if self._forward:
            self._write_folds(program, modes)

    def _write_folds(self, program: CompiledProgram, modes: View) -> None:
        for fold, axis in self._folds:
            fold(program, modes.moved_axis(axis, 0))


class BlockChain:
    """A block whose first and last FFTs, or whose only FFT, are out of place, with scratch memory in between.

    This is faster than `BlockInPlace` if the points of a line are not adjacent and their number is no power of two (in
    place FFTW would copy them) or more than `SHORT`.
    """

    keeps_source, scales_last = True, False

    def __init__(
        self, shape: tuple[int, ...], lines: dict[int, Axis], dtype: np.dtype, direction: Direction, after: int
    ) -> None:
        spectral, fine, dtype = list(shape), list(shape), modes_dtype(dtype, lines)
        for axis, line in lines.items():
            spectral[axis], fine[axis] = line.fine_modes, line.fine
        real = any(line.real for line in lines.values())
        kinds = [(fine, np.dtype(f"f{dtype.itemsize // 2}") if real else dtype), (spectral, dtype), (spectral, dtype)]
        self.nbytes, self._ends = after, []
        kinds = kinds if direction.forward else kinds[::-1]
        for shape_there, kind in kinds[:1] + kinds[-min(2, len(lines)) :]:
            view = _in_scratch(shape_there, lines, kind, self.nbytes)
            self._ends.append(view)
            self.nbytes += -(-view.nbytes // ALIGNMENT) * ALIGNMENT
        self._plans, self._forward = [], direction.forward
        if 0 in spectral:
            return
        memory = empty(self.nbytes, np.uint8)
        source_array, between, result = (view.array(memory) for view in (*self._ends[:2], self._ends[-1]))
        for number, axis in enumerate(lines):
            first, last = number == 0, number == len(lines) - 1
            ends = source_array if first else between, result if last else between
            plan = lines[axis].planned(*ends, axis, direction, keep=first)
            self._plans.append((plan, lines[axis], axis, first, last))

    @staticmethod
    def suits(shape: tuple[int, ...], lines: dict[int, Axis], direction: Direction) -> bool:
        """Return whether this way is used for some FFTs of a box."""
        axes, inner = list(lines), len(shape) - 1
        return (
            direction.turned not in axes
            and all(line.alike and line.nyquist != "split" for line in lines.values())
            and not any(lines[axis].real for axis in axes[1 if direction.forward else 0 :][: len(axes) - 1])
            and _leaves_source(lines, direction)
            and any(
                axis != inner
                and (lines[axis].fine & (lines[axis].fine - 1) or (len(axes) == 1 and lines[axis].fine > SHORT))
                for axis in axes
            )
        )

    def ends(self, physical: View | None = None) -> tuple[View, View]:
        """Return the block's input and output."""
        return self._ends[0], self._ends[-1]

    def write(self, program: CompiledProgram, source: View, target: View) -> None:
        for plan, line, axis, first, last in self._plans:
            fft_target, fft_source = target if last else self._ends[1], source if first else self._ends[1]
            line.transform(program, plan, fft_target, fft_source, axis, self._forward)


class BlockFromArray:
    """Some long lines of an array with distant points, transformed to contiguous lines in scratch memory.

    If an array is not contiguous, or not aligned as FFTW requires, the lines are first copied to memory with the same
    strides, so that the same plan serves all arrays.
    """

    keeps_source = scales_last = True

    def __init__(
        self, shape: tuple[int, ...], whole: tuple[int, ...], lines: dict[int, Axis], direction: Direction
    ) -> None:
        ((axis, self._line),) = lines.items()
        self._axis, self._forward = axis, direction.forward
        dtype = np.dtype(complex)
        source = View(SCRATCH, tuple(shape), strides_of(whole, dtype.itemsize), dtype)
        room = -(-source.nbytes // ALIGNMENT) * ALIGNMENT
        target = replace(View.of_lines(SCRATCH, tuple(shape), axis, dtype), offset=room)
        self._ends = source, target
        self.nbytes = room + target.nbytes
        self._plan = None
        if 0 not in shape:
            source_array = barely_aligned(whole, dtype)[tuple(slice(0, length) for length in shape)]
            result = target.array(empty(self.nbytes, np.uint8))
            self._plan = self._line.planned(source_array, result, axis, direction, keep=True, streamed=True)

    @staticmethod
    def suits(shape: tuple[int, ...], lines: dict[int, Axis], dtype: np.dtype, direction: Direction) -> bool:
        """Return whether this way is used for the FFTs of a box."""
        if len(lines) != 1 or dtype != np.dtype(complex):
            return False
        ((axis, line),) = lines.items()
        inner = int(np.prod(shape[axis + 1 :], dtype=int))
        return (
            axis < len(shape) - 1
            and direction.turned is None
            and line.alike
            and line.points > LONG
            and line.nyquist != "split"
            and _leaves_source(lines, direction)
            and line.points * inner * dtype.itemsize <= ARRAY_NBYTES
        )

    @staticmethod
    def at_once(shape: tuple[int, ...], lines: dict[int, Axis]) -> int:
        """Return the number of lines of a block."""
        ((_, line),) = lines.items()
        return max(FEWEST, HOT_NBYTES // (16 * line.points))

    def ends(self, physical: View | None = None) -> tuple[View, View]:
        """Return the block's input and output."""
        return self._ends

    def write(self, program: CompiledProgram, source: View, target: View) -> None:
        if self._plan is not None:
            self._line.transform(program, self._plan, target, source, self._axis, self._forward)


def _in_scratch(shape: Sequence[int], lines: Collection[int], dtype: np.dtype, offset: int) -> View:
    """Place a block in scratch memory in C order, with gaps if points of its lines would compete in the cache.

    Addresses that are equal modulo 4 KiB share the same few places in a first-level cache. Lines along the last axis
    need no gaps.
    """
    strides, last = [dtype.itemsize], len(shape) - 1
    for axis in range(last, 0, -1):
        stride = strides[-1] * shape[axis]
        competes = stride % COMPETING_NBYTES == 0 and any(line < last for line in lines)
        strides.append(stride + (GAP_NBYTES if competes else 0))
    return View(SCRATCH, tuple(shape), tuple(reversed(strides)), dtype, offset)


def _leaves_source(lines: dict[int, Axis], direction: Direction) -> bool:
    """Return whether the first transform, if it is out of place, does not overwrite its source."""
    return not any(line.scaled_ends(direction.forward)[0] for line in list(lines.values())[:1])


BlockFFTs = BlockInPlace | BlockChain | BlockFromArray
"""The FFTs of a block, in one of the three ways."""


BLOCK_NBYTES = 256 * 1024
AT_ONCE = 24  # lines that are not contiguous, in scratch memory at once
SHORT_NBYTES = 64 * 1024  # bytes at least, for shorter lines
NARROWEST = 4  # least points of a block along the array's last axis, if that is not transformed


class Sweep:
    """FFTs along some axes of a box, from several views to several views."""

    def __init__(
        self,
        shape: tuple[int, ...],  # of the input box
        # The `Axis` of every transformed axis, in the order of the FFTs; if empty, data are only moved.
        lines: dict[int, Axis],
        dtype: np.dtype,  # of the input
        direction: Direction,  # with the axis that views of the spectral side have last in memory, if not the last one
        sources: Sequence[Box],  # for every view, the part of the input box that it contains
        targets: Sequence[Box],  # the same of the output box
        # If given, the box is one block, in scratch memory that begins at this offset in bytes.
        after: int | None = None,
        same: bool = False,  # the output is at the place of the input
        natural: bool = False,  # the only source is usually C-contiguous
        # Ranges of an axis, before which there are only axes of length 1, in which blocks shall begin and end.
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
        self.groups = []  # the blocks of each range of `ends`
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

    def write_block(
        self,
        program: CompiledProgram,
        sources: Sequence[View] | None,
        targets: Sequence[View] | None,
        physical: View,
        scale: float = 1.0,
    ) -> None:
        """Write the only block, whose input or output (None) is in scratch memory and is overwritten; see `_Block`."""
        for block in self._blocks:
            block.write(program, sources, targets, scale, physical)


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
        sources: Sequence[View] | None,  # None: the input is in scratch memory
        targets: Sequence[View] | None,  # None: the output is in scratch memory
        # Factor, applied when the block is loaded; if it is not loaded, or if lines are long and far apart, when it is
        # stored.
        scale: float,
        physical: View | None = None,  # the real-space side, if it is not the block's own
        same: bool = False,  # see `Sweep`; if set, everything is copied
    ) -> None:
        """Write the load, the FFTs and the store of the block.

        Data that have the same layout in an array as they would have in scratch memory are not copied: this holds for
        all results, and for sources that the FFTs do not overwrite or that are `spare`.
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
