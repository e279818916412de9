"""The speed-up of computing by a rank's threads: less than their number for small planes or if memory limits them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError


@dataclass(frozen=True)
class ThreadScaling:
    """Measured speed-ups of several threads of one rank over one of them.

    Attributes
    ----------
    speedups : tuple of (int, tuple of (int, float))
        For planes of so many points along each axis, and for so many threads, how many times faster than one they are.
        Empty: nothing was measured, and N threads count as N times faster.
    """

    speedups: tuple[tuple[int, tuple[tuple[int, float], ...]], ...] = ()

    @classmethod
    def of_table(cls, table: Any) -> ThreadScaling:
        """Make it from ``{points along an axis: {threads: speed-up}}``, whose keys may be text.

        Raises
        ------
        InputError
            That is none.
        """
        try:
            rows = {
                int(n): {int(threads): float(speedup) for threads, speedup in row.items()} for n, row in table.items()
            }
            good = all(
                n > 0 and row and all(threads > 1 and 0 < speedup < math.inf for threads, speedup in row.items())
                for n, row in rows.items()
            )
        except (AttributeError, TypeError, ValueError):
            good = False
        if not good:
            raise InputError(
                "threads: expected tables of speed-ups > 0 by numbers of threads > 1, one for each length of a "
                f"plane's axes, received {table!r}"
            )
        return cls(tuple((n, tuple(sorted(row.items()))) for n, row in sorted(rows.items())))

    def table(self) -> Mapping[int, Mapping[int, float]]:
        """As `of_table` takes it."""
        return {n: dict(row) for n, row in self.speedups}

    def speedup(self, threads: int, points: float) -> float:
        """Return how many times faster than one so many threads are, on planes of so many points.

        Between the measured planes it is interpolated linearly over the logarithm of their points, beyond them it is
        that of the nearest. Between the measured numbers of threads, and beyond them, the part that does not get
        faster (Amdahl's) is taken as of the nearest one.
        """
        if threads == 1 or not self.speedups:
            return float(threads)
        measured = [(2 * math.log2(n), _of_threads(row, threads)) for n, row in self.speedups]
        place = math.log2(max(points, 1))
        (low, least), *longer = measured
        if place <= low:
            return least
        for high, value in longer:
            if place <= high:
                return least + (value - least) * (place - low) / (high - low)
            low, least = high, value
        return least


def _of_threads(row: Sequence[tuple[int, float]], threads: int) -> float:
    """Return the speed-up of so many threads, with the serial share of the nearest number that was measured."""
    nearest, speedup = min(row, key=lambda entry: (abs(entry[0] - threads), entry[0]))
    serial = max(0.0, (1 / speedup - 1 / nearest) / (1 - 1 / nearest))
    return 1 / (serial + (1 - serial) / threads)
