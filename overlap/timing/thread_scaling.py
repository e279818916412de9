"""The speed-up by a rank's threads, less than their number if planes are small or if memory limits the speed."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError


@dataclass(frozen=True)
class ThreadScaling:
    """Measured speed-ups of several threads of one rank over one thread.

    Attributes
    ----------
    speedups : tuple of (int, tuple of (int, float))
        For each length of a plane's axes, the pairs (threads, speed-up over one thread). Empty: nothing was measured,
        and N threads count as N times faster.
    """

    speedups: tuple[tuple[int, tuple[tuple[int, float], ...]], ...] = ()

    @classmethod
    def of_table(cls, table: Any) -> ThreadScaling:
        """Make an instance from ``{points along an axis: {threads: speed-up}}``, whose keys may be text.

        Raises
        ------
        InputError
            `table` is not of that form.
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
        """Return the table from which `of_table` makes the instance."""
        return {n: dict(row) for n, row in self.speedups}

    def speedup(self, threads: int, points: float) -> float:
        """Return the speed-up of `threads` threads over one, on planes of `points` points.

        Between the measured planes the speed-up is interpolated linearly over the logarithm of their points; beyond
        them it is that of the nearest one. For numbers of threads that were not measured, the serial share (Amdahl) is
        that of the nearest measured number.
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
    """Return the speed-up of `threads` threads, with the serial share of the nearest measured number."""
    nearest, speedup = min(row, key=lambda entry: (abs(entry[0] - threads), entry[0]))
    serial = max(0.0, (1 / speedup - 1 / nearest) / (1 - 1 / nearest))
    return 1 / (serial + (1 - serial) / threads)


def cpu_model() -> str:
    """Return the processor's name according to the system."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
