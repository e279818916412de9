"""`TrailingAxes`: the FFTs of a staged transform that wait for all units of its last stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...arrays import StageAxes, block
from .axis import Axis
from .fftw import REQUIRED_ALIGNMENT
from .message import points
from .program import CompiledProgram, View
from .route import Direction
from .stage import UNIT_NBYTES, Stage, transformed
from .sweep import Sweep
from .sweep_in_place import SweepInPlace

PARTS = 8  # at most, for each of several workers,
PART_NBYTES = 4 * UNIT_NBYTES  # and of at least this many bytes


class TrailingAxes:
    """The sweep along the trailing axes, in parts for several workers.

    Parameters
    ----------
    stage : Stage
        The last stage, which has stored the input.
    axes : tuple of int
    way : overlap.arrays.StageAxes
        The axes of that stage.
    lines : dict
        The `Axis` of every transformed axis.
    direction : Direction
    kind : (bool, bool, bool)
        Whether the target holds incomplete results, whether all fields are taken as one, and whether there is only one.
    workers : int

    Attributes
    ----------
    sweep : Sweep or SweepInPlace
    parts : list of slice
        Blocks of the sweep.
    late_units : int
        Number of units along the axis that the last exchange splits, if its messages can be late; else 0.
    """

    def __init__(
        self,
        stage: Stage,
        axes: tuple[int, ...],
        way: StageAxes,
        lines: dict[int, Axis],
        direction: Direction,
        kind: tuple[bool, bool, bool],
        workers: int,
    ) -> None:
        able, whole, alone = kind
        shape, dtype, local = stage.shape, stage.target_dtype, stage.target_shape
        cuts, before, self.late_units, ends = None, False, 0, None
        if not whole and way.transpose is not None and way.along in axes:
            # Units along this rank's part of the split axis.
            split, axis = way.transpose.split, way.along
            # Equal on all ranks; rows or points of odd length are less aligned than FFTW requires.
            row = 1 if split == len(shape) - 1 else shape[-1]
            beside = split == axis + 1 or split == 1 == axis - 1  # only a batch of length 1 precedes the two
            if not able and split == 1 and stage.dtype == dtype:
                self.late_units, ends = len(stage.late_parts), (split, stage.late_parts)
            elif (
                able
                and len(axes) == 1
                and axis == way.transpose.joined
                and not way.then
                and beside
                and ((dtype.itemsize * row) % REQUIRED_ALIGNMENT == 0)
            ):
                self.late_units = len(stage.late_parts)
                inner = points(local[split + 1 : axis] if split < axis else local[split + 1 :])
                cuts = [slice(part.start * inner, part.stop * inner) for part in stage.late_parts]
                before = split < axis
        alone = alone or points(local) * dtype.itemsize % REQUIRED_ALIGNMENT == 0
        if (
            able
            and len(axes) == 1
            and alone
            and SweepInPlace.suits(local, axes[0], dtype, () if before else cuts or ())
        ):
            self.sweep: SweepInPlace | Sweep = SweepInPlace(
                local, axes[0], lines[axes[0]], dtype, direction, cuts=cuts, before=before
            )
        else:
            transformed_shape = transformed(local, axes, lines, direction.forward)
            own = direction if direction.forward else replace(direction, turned=None)
            self.sweep = Sweep(
                local,
                {axis: lines[axis] for axis in axes},
                dtype,
                own,
                [_whole(local)],
                [_whole(transformed_shape)],
                same=able,
                ends=ends,
            )
        few = points(local) * dtype.itemsize // PART_NBYTES
        self.parts = block(
            self.sweep.count,
            1 if workers == 1 else max(1, min(self.sweep.count, max(workers, min(few, PARTS * workers)))),
        )

    def write(self, program: CompiledProgram, source: View, target: View, scale: float, blocks: slice) -> None:
        """Write some blocks of the sweep, from the view `source` to `target`."""
        self.sweep.write(program, [source], [target], scale, blocks)


def _whole(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(0, length) for length in shape)
