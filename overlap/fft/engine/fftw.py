"""FFTW's memory and wisdom.

Wisdom is text: a line that names the version and its tables of codelets, a line for each entry, and ``)``. An entry
ends with the effort with which it was found (three words of flags) and the problem (four words of a digest). `joined`
and `without` work on the text alone; FFTW itself would have to forget and learn again all its wisdom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from mmap import mmap

import numpy as np
from numpy.typing import DTypeLike

from ...compiled.memory import address_of
from .library import Precision, precision

ALIGNMENT = 64  # alignment of memory that the library allocates
HUGE_PAGE_NBYTES = 2**21
OWN_PAGE_NBYTES = 2**17  # smallest work memory that gets a huge page of its own
REQUIRED_ALIGNMENT = 16  # alignment of arrays that a plan accepts: FFTW's own requirement
COLUMNS = 64  # columns of a strided transform for which FFTW plans: its plan is as good as one for all columns
RARE_PRIMES = (11, 13)  # fast lengths are products of smaller primes and at most one of these

_texts: dict[Precision, tuple[int, str]] = {}  # wisdom as text, and the count `searched` at that time


def nbytes_of(shape: int | Sequence[int], dtype: np.dtype) -> int:
    """Return the bytes of an array."""
    # Not `numpy.prod`, which takes as long as a small transform.
    return (int(shape) if isinstance(shape, (int, np.integer)) else prod(map(int, shape))) * dtype.itemsize


def empty(shape: int | Sequence[int], dtype: DTypeLike, alignment: int | None = None) -> np.ndarray:
    """Make an uninitialised array whose address is a multiple of `alignment`, by default aligned for FFTW.

    A large array is on huge pages if the system grants them; numpy asks for them from 4 MiB on, which every large array
    has together with the padding for its alignment. Elements of a column may be a page apart, and with small pages a
    sweep along y would miss the TLB at every element.
    """
    dtype = np.dtype(dtype)
    nbytes = nbytes_of(shape, dtype)
    if alignment is None:
        alignment = HUGE_PAGE_NBYTES if nbytes >= HUGE_PAGE_NBYTES else ALIGNMENT
    raw = np.empty(nbytes + alignment, np.uint8)
    return np.ndarray(shape, dtype, raw, -address_of(raw) % alignment)


def zeros(shape: int | Sequence[int], dtype: DTypeLike) -> np.ndarray:
    """Make an array of zeros for intermediate results, aligned for FFTW, whose memory has been written.

    From `OWN_PAGE_NBYTES` on it is on huge pages if the system grants them. For transforms of 32^3 to 96^3 points whose
    messages and scratch memory are on small pages, computing takes 10 to 15 % longer (AMD EPYC).
    """
    dtype = np.dtype(dtype)
    nbytes = nbytes_of(shape, dtype)
    block_nbytes = nbytes if nbytes < OWN_PAGE_NBYTES else max(nbytes, HUGE_PAGE_NBYTES)
    array = empty(block_nbytes, np.uint8)[:nbytes].view(dtype).reshape(shape)
    array[...] = 0
    return array


def barely_aligned(shape: Sequence[int], dtype: DTypeLike) -> np.ndarray:
    """Make an array for planning, aligned to `REQUIRED_ALIGNMENT` and no more.

    A plan made on it accepts all arrays that are aligned at least as well. A large array is on small pages: a plan for
    a few columns touches little of it, and the time of a search is not spent on the rest. A small array comes from
    malloc, because UCX, below MPI, keeps a record, perhaps for ever, of every mapping that is released.
    """
    dtype = np.dtype(dtype)
    nbytes = nbytes_of(shape, dtype)
    if nbytes < HUGE_PAGE_NBYTES:
        raw = empty((nbytes + REQUIRED_ALIGNMENT,), np.uint8, ALIGNMENT)
    else:
        raw = np.frombuffer(mmap(-1, nbytes + REQUIRED_ALIGNMENT), np.uint8)
    return raw[REQUIRED_ALIGNMENT:].view(dtype).reshape(shape)


def fast_length(length: int) -> int:
    """Return the next length for which FFTW is fast: with small prime factors only."""
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
    """Return FFTW's wisdom of this process for a precision, as text; it may lack what other code has added recently."""
    fftw = fftw_of(dtype)
    searched, text = _texts.get(fftw, (-1, ""))
    if searched != fftw.searched:  # FFTW takes a millisecond to write its wisdom
        searched, text = _texts[fftw] = fftw.searched, fftw.wisdom().decode("ascii")
    return text


def absorb(dtype: DTypeLike, text: str) -> None:
    """Add wisdom; entries that FFTW has already take precedence."""
    if new := without(text, wisdom(dtype)):
        _take_wisdom(dtype, new)


@contextmanager
def only_wisdom(dtype: DTypeLike, text: str) -> Iterator[bool]:
    """Return a ``with`` block in which FFTW has this wisdom and no other; it gives whether FFTW accepts the text."""
    before = learned()
    try:
        forget()
        yield _take_wisdom(dtype, text)
    finally:
        relearn(before)


def learned() -> list[bytes]:
    """Return all wisdom of this process, in the precisions of plans, for `relearn`."""
    return [fftw.wisdom() for fftw in _of_plans()]


def relearn(wisdom: Sequence[bytes]) -> None:
    """Replace FFTW's wisdom by that which `learned` has returned."""
    for one, text in zip(_of_plans(), wisdom):
        one.forget_wisdom()
        one.take_wisdom(text)


def forget() -> None:
    """Forget all wisdom."""
    for one in _of_plans():
        one.forget_wisdom()


def fftw_version() -> str:
    """Return the version of FFTW as text."""
    return fftw_of("D").version()


def fftw_described() -> str:
    """Return version, instruction sets and file of FFTW as text."""
    return fftw_of("D").described()


def fftw_of(dtype: DTypeLike) -> Precision:
    """Return FFTW in the precision of `dtype`."""
    found = precision(complex_of(dtype).char)
    if found is None:
        raise ImportError(f"expected an FFTW that transforms {np.dtype(dtype)}, received one without that precision")
    return found


def _of_plans() -> list[Precision]:
    return [fftw_of(char) for char in "FD"]


def _take_wisdom(dtype: DTypeLike, text: str) -> bool:
    return fftw_of(dtype).take_wisdom(text.encode("ascii", "replace"))


_KEY_WORDS = 7


def joined(texts: Iterable[str]) -> str:
    """Join the wisdom of several processes; if entries differ, the first one is kept.

    Text of another version of FFTW than the first one's is left out.
    """
    header = ""
    entries: dict[tuple[str, ...], str] = {}
    for text in texts:
        head, *lines = text.splitlines() or [""]
        header = header or head
        if head == header:
            entries = {_key(line): line for line in lines[:-1]} | entries
    return _text(header, entries.values()) if header else ""


def without(text: str, other: str) -> str:
    """Return the entries of `text` for which `other` has none, as wisdom; "" if there are none."""
    if text == other:
        return ""
    known = {_key(line) for line in other.splitlines()}
    header, *lines = text.splitlines() or [""]
    new = [line for line in lines[:-1] if _key(line) not in known]
    return _text(header, new) if new else ""


def _key(line: str) -> tuple[str, ...]:
    return tuple(line.split()[-_KEY_WORDS:])


def _text(header: str, lines: Iterable[str]) -> str:
    return "\n".join([header, *lines, ")\n"])
