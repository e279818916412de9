"""FFTW's memory, wisdom and bare speed: the only module that knows pyfftw."""

from contextlib import contextmanager
from time import perf_counter

import numpy as np
import pyfftw

ALIGNMENT = 64  # of what we allocate
HUGE_PAGE_NBYTES = 2**21
REQUIRED_ALIGNMENT = 16  # of what an in-place plan accepts: FFTW's own requirement

COLUMNS = 64  # of a strided transform at once: FFTW finds as good a plan for them as for all


def empty(shape, dtype):
    """An uninitialised array, aligned for FFTW.

    A large one lies on huge pages where the system grants them (numpy asks for them from 4 MiB on, which
    the room for its alignment makes of every one): the elements of a column are up to a page apart,
    and with small pages a sweep along y would miss the TLB at every one.
    """
    nbytes = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
    return pyfftw.empty_aligned(
        shape, dtype, n=HUGE_PAGE_NBYTES if nbytes >= HUGE_PAGE_NBYTES else ALIGNMENT)


def zeros(shape, dtype):
    """An array of zeros, aligned for FFTW; its memory is there, not only promised."""
    array = empty(shape, dtype)
    array[...] = 0
    return array


def barely_aligned(shape, dtype):
    """An array aligned to `REQUIRED_ALIGNMENT` and no more.

    A plan made on it accepts all arrays aligned as well; pyfftw would otherwise demand the larger
    alignment it happens to find.
    """
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = pyfftw.empty_aligned(nbytes + REQUIRED_ALIGNMENT, np.uint8, n=ALIGNMENT)
    return raw[REQUIRED_ALIGNMENT:].view(dtype).reshape(shape)


def _flags(effort):
    return f"FFTW_{effort.upper()}", "FFTW_DESTROY_INPUT"


def fast_length(length):
    """The next length that FFTW is fast at: small prime factors only."""
    return pyfftw.next_fast_len(length)


def complex_of(dtype):
    """The complex dtype of the same precision."""
    return np.result_type(dtype, np.complex64)


def bare_fft_seconds(lines, length, dtype, rounds=5):
    """Median time of nothing but contiguous, in-place (r2c: out-of-place) 1-D FFTs.

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
    plan = pyfftw.FFTW(source, target, axes=(1,), flags=_flags("measure"))
    source[...] = 0
    return _median_seconds(plan.execute, rounds)


def sweep_seconds(shape, axes, dtype, rounds=5):
    """Median time of nothing but the FFTs along some axes of an array, at their fastest.

    The fastest of FFTW's own plan for the whole array, and of plans for blocks that stay in the
    cache: planes of the other axes, or columns of a strided axis. In place; r2c in padded place.

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
    source = spectrum if dtype.kind == "c" else (
        spectrum.view(dtype)[..., :shape[-1]])

    def planned(*where):
        effort = "measure" if axes[-1] == len(shape) - 1 else "patient"
        return pyfftw.FFTW(source[where], spectrum[where], axes=tuple(
            axis - (source.ndim - source[where].ndim) for axis in axes), flags=_flags(effort))

    if 0 in axes:
        wheres = [(Ellipsis, slice(start, min(start + COLUMNS, width)))
                  for start in range(0, width, COLUMNS)]
    else:
        wheres = [(index,) for index in range(shape[0])]
    ways = [planned(Ellipsis)], [planned(*where) for where in wheres]
    spectrum[...] = 0

    def run(plans):
        for plan in plans:
            plan.execute()

    return min(_median_seconds(lambda: run(plans), rounds) for plans in ways)


def _median_seconds(function, rounds):
    seconds = []
    for _ in range(rounds + 1):
        started = perf_counter()
        function()
        seconds.append(perf_counter() - started)
    return sorted(seconds[1:])[rounds // 2]


def wisdom(dtype):
    """FFTW's wisdom of this process, for the precision of `dtype`, as text."""
    return pyfftw.export_wisdom()[_precision(dtype)].decode("ascii")


def joined_wisdom(dtype, texts):
    """Wisdom of several processes in one; the first one's goes before the others'."""
    before = learned()
    try:
        pyfftw.forget_wisdom()
        for text in reversed(texts):
            _take_wisdom(dtype, text)
        return wisdom(dtype)
    finally:
        relearn(before)


def absorb(dtype, text):
    """Know this wisdom too; what is known already goes before it."""
    before = learned()
    _take_wisdom(dtype, text)
    pyfftw.import_wisdom(before)


@contextmanager
def only_wisdom(dtype, text):
    """Meanwhile FFTW knows this wisdom and no other; yields whether it accepts that."""
    before = learned()
    try:
        pyfftw.forget_wisdom()
        yield _take_wisdom(dtype, text)
    finally:
        relearn(before)


def learned():
    """All that FFTW has learned in this process, for `relearn`."""
    return pyfftw.export_wisdom()


def relearn(wisdom):
    """Know again what `learned` returned, and nothing else."""
    pyfftw.forget_wisdom()
    pyfftw.import_wisdom(wisdom)


def _take_wisdom(dtype, text):
    given = [b"", b"", b""]
    given[_precision(dtype)] = text.encode("ascii", "replace")
    return pyfftw.import_wisdom(tuple(given))[_precision(dtype)]


def _precision(dtype):
    return 0 if complex_of(dtype).itemsize == 16 else 1


def fftw_version():
    """Version of FFTW, as text."""
    return pyfftw.fftw_version
