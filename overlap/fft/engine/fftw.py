"""FFTW's memory and wisdom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from mmap import mmap

import numpy as np
from numpy.typing import DTypeLike

from ...lowlevel.memory import address_of
from .library import Precision, precision
from .wisdom import without

ALIGNMENT = 64  # of what we allocate
HUGE_PAGE_NBYTES = 2**21
REQUIRED_ALIGNMENT = 16  # of what an in-place plan accepts: FFTW's own requirement
COLUMNS = 64  # of a strided transform at once: FFTW finds as good a plan for them as for all
RARE_PRIMES = (11, 13)  # FFTW is fast at lengths of smaller ones, and one of these at most

_texts: dict[Precision, tuple[int, str]] = {}  # wisdom, and `searched` when it was written


def aligned(shape: int | Sequence[int], dtype: DTypeLike, alignment: int | None = None) -> np.ndarray:
    """Make an uninitialised array whose address is a multiple of `alignment`; by default as `empty` says."""
    dtype = np.dtype(dtype)
    # Not `numpy.prod`, which takes as long as a small transform.
    nbytes = (int(shape) if isinstance(shape, (int, np.integer)) else prod(map(int, shape))) * dtype.itemsize
    if alignment is None:
        alignment = HUGE_PAGE_NBYTES if nbytes >= HUGE_PAGE_NBYTES else ALIGNMENT
    raw = np.empty(nbytes + alignment, np.uint8)
    return np.ndarray(shape, dtype, raw, -address_of(raw) % alignment)


def empty(shape: int | Sequence[int], dtype: DTypeLike) -> np.ndarray:
    """Make an uninitialised array, aligned for FFTW.

    A large one lies on huge pages where the system grants them (numpy asks for them from 4 MiB on, which
    the room for its alignment makes of every one): the elements of a column are up to a page apart,
    and with small pages a sweep along y would miss the TLB at every one.
    """
    return aligned(shape, dtype)


def zeros(shape: int | Sequence[int], dtype: DTypeLike) -> np.ndarray:
    """Make an array of zeros, aligned for FFTW; its memory is there, not only promised."""
    array = empty(shape, dtype)
    array[...] = 0
    return array


def barely_aligned(shape: Sequence[int], dtype: DTypeLike) -> np.ndarray:
    """Make an array to plan on, aligned to `REQUIRED_ALIGNMENT` and no more.

    A plan made on it accepts all arrays aligned as well. The pages of a large one are small: a plan for a few
    columns needs little of it, only that is there, and no time of a search goes into the rest. A small one is
    malloc's: UCX, below MPI, notes every mapping that is given back, and may keep the note for ever.
    """
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    if nbytes < HUGE_PAGE_NBYTES:
        raw = aligned((nbytes + REQUIRED_ALIGNMENT,), np.uint8, ALIGNMENT)
    else:
        raw = np.frombuffer(mmap(-1, nbytes + REQUIRED_ALIGNMENT), np.uint8)
    return raw[REQUIRED_ALIGNMENT:].view(dtype).reshape(shape)


def fast_length(length: int) -> int:
    """Find the next length that FFTW is fast at: small prime factors only."""
    while not _is_fast(length):
        length += 1
    return length


def _is_fast(length: int) -> bool:
    for prime in (2, 3, 5, 7):
        while length % prime == 0:
            length //= prime
    return length in (1, *RARE_PRIMES)


def complex_of(dtype: DTypeLike) -> np.dtype:
    """Return the complex dtype of the same precision."""
    return np.result_type(dtype, np.complex64)


def wisdom(dtype: DTypeLike) -> str:
    """FFTW's wisdom of this process, for the precision of `dtype`, as text; what others have taught it since our last
    search may miss.
    """
    fftw = fftw_of(dtype)
    searched, text = _texts.get(fftw, (-1, ""))
    if searched != fftw.searched:  # FFTW takes a millisecond to write what it knows
        searched, text = _texts[fftw] = fftw.searched, fftw.wisdom().decode("ascii")
    return text


def absorb(dtype: DTypeLike, text: str) -> None:
    """Know this wisdom too; what is known already goes before it."""
    if new := without(text, wisdom(dtype)):
        _take_wisdom(dtype, new)


@contextmanager
def only_wisdom(dtype: DTypeLike, text: str) -> Iterator[bool]:
    """Meanwhile FFTW knows this wisdom and no other; yields whether it accepts that."""
    before = learned()
    try:
        forget()
        yield _take_wisdom(dtype, text)
    finally:
        relearn(before)


def learned() -> list[bytes]:
    """All that FFTW has learned in this process in the precisions of plans, for `relearn`."""
    return [one.wisdom() for one in _of_plans()]


def relearn(wisdom: Sequence[bytes]) -> None:
    """Know again what `learned` returned, and nothing else."""
    for one, text in zip(_of_plans(), wisdom):
        one.forget_wisdom()
        one.take_wisdom(text)


def forget() -> None:
    """Forget all wisdom."""
    for one in _of_plans():
        one.forget_wisdom()


def fftw_version() -> str:
    """Version of FFTW, as text."""
    return fftw_of("D").version()


def fftw_described() -> str:
    """Version, instruction sets and file of FFTW, as text."""
    return fftw_of("D").described()


def fftw_of(dtype: DTypeLike) -> Precision:
    """FFTW in the precision of `dtype`."""
    found = precision(complex_of(dtype).char)
    if found is None:
        raise ImportError(f"expected an FFTW that transforms {np.dtype(dtype)}, received one without that precision")
    return found


def _of_plans() -> list[Precision]:
    return [fftw_of(char) for char in "FD"]


def _take_wisdom(dtype: DTypeLike, text: str) -> bool:
    return fftw_of(dtype).take_wisdom(text.encode("ascii", "replace"))
