"""Kinds of transforms along an axis: Fourier, cosine and sine transforms, in scipy's definitions.

A cosine or sine transform (DCT, DST) is real-to-real. Of complex data it takes the real and the imaginary parts,
each by itself. Types and scales are those of `scipy.fft.dct` and `scipy.fft.dst`, and FFTW's are the same. Type 2
takes values at the middles of n cells between two walls: cosines for a field whose slope is 0 at the walls, sines
for one that is 0 there. Type 1 takes the points between, with the walls themselves (cosines) or without (sines).
"""

from __future__ import annotations

from dataclasses import dataclass

FOURIER = ("c2c", "r2c")


@dataclass(frozen=True)
class RealKind:
    """A cosine or sine transform.

    Attributes
    ----------
    number : int
        FFTW's number of it.
    inverse : str
        The kind of its inverse, but for a scale.
    beyond : int
        Transform and inverse, both unscaled, multiply by ``2 * (n + beyond)``; n + beyond is also how many spacings
        of the grid lie between the walls.
    first_mode, first_point : float
        Half waves between the walls in mode 0, and spacings from the wall to point 0. Those of others follow one by
        one.
    before, after : tuple of int
        The ends, 0 or -1, that are multiplied by sqrt(2) before it, or divided by sqrt(2) after it, to make it
        orthogonal: scipy's `orthogonalize`.
    """

    number: int
    inverse: str
    beyond: int
    first_mode: float
    first_point: float
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def period(self, points: int) -> int:
        """Return by what the transform of so many points and its inverse, both unscaled, multiply."""
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
    """Return by what a transform of some kind and its inverse, both unscaled, multiply so many points."""
    return REAL_KINDS[kind].period(points) if kind in REAL_KINDS else points
