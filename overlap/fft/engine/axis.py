"""`Axis`: a transformed axis, on grids that may be finer than the resolved one; kinds and directions of transforms.

A cosine or sine transform (DCT, DST) is real-to-real; of complex data the real and the imaginary parts are transformed
separately. Types and scales are those of `scipy.fft.dct` and `scipy.fft.dst`, which are FFTW's. The data of type 2 are
values at the middles of n cells between two walls: cosines for a field whose slope is 0 at the walls, sines for one
that is itself 0 there. Those of type 1 are values at the boundaries of the cells, including the walls (cosines) or
without them (sines).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import DTypeLike

from ...arrays import mode_segments
from .fftw import complex_of
from .lines import LineTransform
from .program import CompiledProgram, View

FOURIER = ("c2c", "r2c")


@dataclass(frozen=True)
class RealKind:
    """A cosine or sine transform."""

    number: int  # FFTW's number of the transform
    inverse: str  # the kind of its inverse, except for a scale
    # Transform and inverse, both unscaled, multiply by ``2 * (n + beyond)``; n + beyond is also how many spacings of
    # the grid lie between the walls.
    beyond: int
    first_mode: float  # half waves between the walls in mode 0; they grow by 1 from mode to mode
    first_point: float  # spacings from the wall to point 0; they grow by 1 from point to point
    # The ends, 0 or -1, that are multiplied by sqrt(2) before the transform, and those that are divided by it
    # afterwards, to make it orthogonal: scipy's `orthogonalize`.
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def period(self, points: int) -> int:
        """Return the factor by which the transform of `points` points and its inverse, both unscaled, multiply."""
        return 2 * (points + self.beyond)


REAL_KINDS = {
    "dct1": RealKind(3, "dct1", -1, 0.0, 0.0, (0, -1), (0, -1)),
    "dct2": RealKind(5, "dct3", 0, 0.0, 0.5, (), (0,)),
    "dct3": RealKind(4, "dct2", 0, 0.5, 0.0, (0,), ()),
    "dct4": RealKind(6, "dct4", 0, 0.5, 0.5),
    "dst1": RealKind(7, "dst1", 1, 1.0, 1.0),
    "dst2": RealKind(9, "dst3", 0, 1.0, 0.5, (), (-1,)),
    "dst3": RealKind(8, "dst2", 0, 0.5, 1.0, (-1,), ()),
    "dst4": RealKind(10, "dst4", 0, 0.5, 0.5),
}
KINDS = (*FOURIER, *REAL_KINDS)


def period_of(kind: str, points: int) -> int:
    """Return the factor by which a transform of `points` points and its inverse, both unscaled, multiply."""
    return REAL_KINDS[kind].period(points) if kind in REAL_KINDS else points


@dataclass(frozen=True)
class Axis:
    """One transformed axis."""

    points: int  # of the resolved grid
    fine: int  # points of the grid in real space, `points` or more
    # "c2c"; "r2c" (data are real before the forward transform, and half the modes are kept); or one of `REAL_KINDS`,
    # which have no finer grid.
    kind: str = "c2c"
    # What becomes of mode ``points // 2`` on a finer grid: "drop", "keep" or "split", when it is halved between itself
    # and its negative counterpart; sweeps of such a line transform no other axis.
    nyquist: str = "drop"
    # The ends of a cosine or sine transform are scaled such that it is orthogonal, except for a factor.
    orthogonal: bool = False
    # Points of arrays in real space, if not `fine`: missing points are zeros, surplus points are cut off.
    given: int | None = None

    @property
    def real(self) -> bool:
        """Return whether data are real before the forward transform, and complex after it."""
        return self.kind == "r2c"

    def planned(
        self,
        source: np.ndarray,
        target: np.ndarray,
        axis: int,
        direction: Direction,
        keep: bool = False,
        streamed: bool = False,
    ) -> LineTransform:
        """Make FFTW's plan for transforms along an axis of arrays; see `LineTransform`."""
        forward, kind, number = direction.forward, REAL_KINDS.get(self.kind), None
        if kind is not None:
            number = kind.number if forward else REAL_KINDS[kind.inverse].number
        return LineTransform(source, target, axis, forward, direction.effort, keep, streamed, number)

    def scaled_ends(self, forward: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ends that are multiplied by sqrt(2) before the transform, and those divided by it afterwards."""
        if not self.orthogonal or self.kind not in REAL_KINDS:
            return (), ()
        kind = REAL_KINDS[self.kind]
        kind = kind if forward else REAL_KINDS[kind.inverse]
        return kind.before, kind.after

    def transform(
        self, program: CompiledProgram, plan: LineTransform, target: View, source: View, axis: int, forward: bool
    ) -> None:
        """Write the transform along an axis of two views, with the scaling of its ends.

        If ends of the source are scaled before (see `scaled_ends`), the source is overwritten.
        """
        before, after = self.scaled_ends(forward)
        for end in before:
            self._scale_end(program, source.moved_axis(axis, 0), end, sqrt(2.0))
        program.transform(plan, target, source)
        for end in after:
            self._scale_end(program, target.moved_axis(axis, 0), end, sqrt(0.5))

    def _scale_end(self, program: CompiledProgram, view: View, end: int, factor: float) -> None:
        end_view = _one(view, end % self.points)
        program.copy(end_view, end_view, factor)

    def length(self, spectral: bool) -> int:
        """Return the length of the axis in an array."""
        if not spectral:
            return self.fine if self.given is None else self.given
        return self.points // 2 + 1 if self.real else self.points

    @property
    def alike(self) -> bool:
        """Return whether arrays have equally many elements along the axis before and after the FFT, or half of them."""
        return self.fine == self.points and self.given in (None, self.fine)

    @property
    def filled(self) -> slice:
        """Return the range of points that are neither zero nor cut off, in an array and in the FFT of the fine grid."""
        return slice(0, min(self.length(False), self.fine))

    @property
    def segments(self) -> list[tuple[slice, slice]]:
        """Return pairs of ranges with the same modes: in an array, and after the FFT of the fine grid."""
        pairs = mode_segments(self.points, self.fine, half=self.real)
        if self.nyquist != "drop":
            kept = slice(0, self.points // 2 + 1)
            pairs[0] = kept, kept
        return pairs

    def fold(self, program: CompiledProgram, modes: View) -> None:
        """Add the negative counterpart of mode ``points // 2`` to that mode, in modes of the fine grid along axis 0."""
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


def modes_dtype(dtype: DTypeLike, lines: Mapping[int, Axis]) -> np.dtype:
    """Return the type of modes: that of the data, or complex if real data become complex along one of the axes."""
    return complex_of(dtype) if any(line.real for line in lines.values()) else np.dtype(dtype)


def dtype_after(dtype: np.dtype, lines: Mapping[int, Axis], axes: Iterable[int], forward: bool) -> np.dtype:
    """Return the type that data of `dtype` have after some axes have been transformed."""
    if not any(lines[axis].real for axis in axes):
        return dtype
    return complex_of(dtype) if forward else np.dtype(f"f{dtype.itemsize // 2}")


def axes_of(
    axes: Sequence[int], points: Sequence[int], fine: Sequence[int], kinds: Sequence[str], norm: str | None = None
) -> dict[int, Axis]:
    """Return the `Axis` of every transformed axis, for values in the order of `axes`; `norm` is one of `numpy.fft`."""
    return {axis: Axis(n, m, kind, orthogonal=norm == "ortho") for axis, n, m, kind in zip(axes, points, fine, kinds)}


@dataclass(frozen=True)
class Direction:
    """The common options of all stages of a transform."""

    forward: bool
    effort: str | None  # of FFTW's planning
    # The axis that the first source (backward) or the last target (forward) has last in memory, if not the last one.
    turned: int | None = None
    by_index: bool = False  # a unit is one index of the axis that is cut
