"""The FFTs of a block in scratch memory: their sources and targets, their plans, and their instructions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from ...arrays import complement
from ...compiled.copy_table import strides_of
from .axis import Axis, modes_dtype
from .fftw import ALIGNMENT, barely_aligned, empty
from .lines import LineTransform
from .program import GAP_NBYTES, SCRATCH, CompiledProgram, View
from .route import Direction

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
                plan = LineTransform(
                    source,
                    target,
                    axis,
                    forward,
                    direction.effort,
                    keep=self.keeps_source and axis == out_of_place,
                    real_kind=lines[axis].real_kind(forward),
                )
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
            self._plans.append(
                (
                    LineTransform(
                        source_array if first else between,
                        result if last else between,
                        axis,
                        direction.forward,
                        direction.effort,
                        keep=first,
                        real_kind=lines[axis].real_kind(direction.forward),
                    ),
                    lines[axis],
                    axis,
                    first,
                    last,
                )
            )

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
            self._plan = LineTransform(
                source_array,
                result,
                axis,
                direction.forward,
                direction.effort,
                keep=True,
                streamed=True,
                real_kind=self._line.real_kind(direction.forward),
            )

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
