"""Kinds of transforms along an axis: Fourier, cosine and sine transforms, in scipy's definitions.

A cosine or sine transform (DCT, DST) is real-to-real; of complex data the real and the imaginary parts are transformed
separately. Types and scales are those of `scipy.fft.dct` and `scipy.fft.dst`, which are FFTW's. The data of type 2 are
values at the middles of n cells between two walls: cosines for a field whose slope is 0 at the walls, sines for one
that is itself 0 there. Those of type 1 are values at the boundaries of the cells, including the walls (cosines) or
without them (sines).
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
        FFTW's number of the transform.
    inverse : str
        The kind of its inverse, except for a scale.
    beyond : int
        Transform and inverse, both unscaled, multiply by ``2 * (n + beyond)``; n + beyond is also how many spacings
        of the grid lie between the walls.
    first_mode, first_point : float
        Half waves between the walls in mode 0, and spacings from the wall to point 0; both grow by 1 from mode to mode
        and from point to point.
    before, after : tuple of int
        The ends, 0 or -1, that are multiplied by sqrt(2) before the transform or divided by sqrt(2) after it to make it
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
