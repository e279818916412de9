"""`Axis`: what is known of a transformed axis, on grids that may be finer than the resolved one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from ...arrays import mode_segments
from .program import CompiledProgram, View


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

    def length(self, spectral: bool) -> int:
        """Length of the axis in an array."""
        if not spectral:
            return self.fine
        return self.points // 2 + 1 if self.real else self.points

    @property
    def segments(self) -> list[tuple[slice, slice]]:
        """Pairs of ranges with the same modes: in an array, and after the FFT of the fine grid."""
        found = mode_segments(self.points, self.fine, half=self.real)
        if self.nyquist != "drop":
            kept = slice(0, self.points // 2 + 1)
            found[0] = kept, kept
        return found

    def fold(self, program: CompiledProgram, modes: View) -> None:
        """Add the twin of mode ``points // 2`` to it, in modes of the fine grid along axis 0."""
        nyquist = _one(modes, self.points // 2)
        if self.real:
            program.zero(nyquist.imag)
            program.copy(nyquist, nyquist, 2.0)
        else:
            program.add(nyquist, _one(modes, self.fine - self.points // 2))

    def unfold(self, program: CompiledProgram, modes: View) -> None:
        """Compute the transpose of `fold`, halved."""
        nyquist = _one(modes, self.points // 2)
        program.copy(nyquist, nyquist, 0.5)
        if self.real:
            program.zero(nyquist.imag)
        else:
            program.copy(_one(modes, self.fine - self.points // 2), nyquist)

    @property
    def fine_modes(self) -> int:
        return self.fine // 2 + 1 if self.real else self.fine


def _one(modes: View, index: int) -> View:
    return modes[index : index + 1]


def axes_of(axes: Sequence[int], points: Sequence[int], fine: Sequence[int], dtype: DTypeLike) -> dict[int, Axis]:
    """Return the `Axis` of every transformed axis, the last of which is real if the data are.

    Parameters
    ----------
    axes, points, fine : sequence of int
    dtype : dtype
        Type in real space.
    """
    return {
        axis: Axis(n, m, axis == axes[-1] and np.dtype(dtype).kind == "f") for axis, n, m in zip(axes, points, fine)
    }
