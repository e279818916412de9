"""The speed of FFTW's transforms alone, called one by one from Python, with which the engine is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ...timing.turns import in_turns, seconds_of
from .fftw import COLUMNS, complex_of, empty


def _plan(source: np.ndarray, target: np.ndarray, axes: tuple[int, ...], effort: str) -> Any:
    import pyfftw  # takes a third of a second, which other commands need not spend

    return pyfftw.FFTW(source, target, axes=axes, flags=(f"FFTW_{effort.upper()}", "FFTW_DESTROY_INPUT"))


def bare_fft_seconds(lines: int, length: int, dtype: DTypeLike, rounds: int = 5) -> float:
    """Measure the median time of contiguous 1-D FFTs alone, in place (r2c: out of place).

    Parameters
    ----------
    lines, length : int
        `lines` transforms of `length` points each, one FFTW call for all.
    dtype : dtype
        Type of the input.
    rounds : int
    """
    dtype = np.dtype(dtype)
    source = empty((lines, length), dtype)
    target = source if dtype.kind == "c" else empty((lines, length // 2 + 1), complex_of(dtype))
    plan = _plan(source, target, (1,), "measure")
    source[...] = 0
    return _fastest_seconds([plan.execute], rounds)


def sweep_seconds(shape: tuple[int, ...], axes: tuple[int, ...], dtype: DTypeLike, rounds: int = 5) -> float:
    """Measure the median time of the FFTs along some axes of an array alone, in the fastest way.

    The ways are FFTW's own plan for the whole array, and plans for blocks that stay in the cache: planes of the other
    axes, or columns of a strided axis. All are in place; r2c in padded arrays.

    Parameters
    ----------
    shape : tuple of int
    axes : tuple of int
    dtype : dtype
        Type of the input; if real, the last axis is among `axes`.
    rounds : int
    """
    dtype = np.dtype(dtype)
    if 0 in shape:
        return 0.0
    width = shape[-1] if dtype.kind == "c" else shape[-1] // 2 + 1
    spectrum = empty((*shape[:-1], width), complex_of(dtype))
    source = spectrum if dtype.kind == "c" else (spectrum.view(dtype)[..., : shape[-1]])

    def planned(*where: Any) -> Any:
        effort = "measure" if axes[-1] == len(shape) - 1 else "patient"
        return _plan(
            source[where], spectrum[where], tuple(axis - (source.ndim - source[where].ndim) for axis in axes), effort
        )

    wheres: list[Any]
    if 0 in axes:
        wheres = [(Ellipsis, slice(start, min(start + COLUMNS, width))) for start in range(0, width, COLUMNS)]
    else:
        wheres = [(index,) for index in range(shape[0])]
    ways = [planned(Ellipsis)], [planned(*where) for where in wheres]
    spectrum[...] = 0

    def run(plans: Sequence[Any]) -> None:
        for plan in plans:
            plan.execute()

    return _fastest_seconds([partial(run, plans) for plans in ways], rounds)


def _fastest_seconds(ways: Sequence[Callable[[], object]], rounds: int) -> float:
    """Return the median time of the fastest way, after a first round that touches new memory."""
    times_s = in_turns([partial(seconds_of, way) for way in ways], range(rounds + 1))
    return float(np.min(np.median(times_s[:, 1:], axis=1)))
