"""Partitions of index ranges over ranks, by pure integer arithmetic, without arrays or MPI."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from .weights import Weights, shares

Segments = list[tuple[slice, slice]]


def block(length: int, parts: int, weights: Weights = None) -> list[slice]:
    """Split ``range(length)`` into `parts` contiguous slices, evenly or in proportion to weights.

    Weights are those of `shares`. Without them the first slices get one index more, as in mpi4py-fft.
    Slices may be empty.
    """
    if weights is None:
        each, more = divmod(length, parts)
        starts = [index * each + min(index, more) for index in range(parts + 1)]
    else:
        starts = [0, *accumulate(shares(length, weights))]
    return [slice(start, stop) for start, stop in pairwise(starts)]


def chunks(length: int, size: int) -> list[slice]:
    """Split ``range(length)`` into runs of at most `size`, whose sizes differ by at most one."""
    return block(length, -(-length // size)) if length else []


def length_of(part: slice) -> int:
    """Return the number of indices in a slice with a start and a stop."""
    return part.stop - part.start


def mode_segments(resolved: int, padded: int, half: bool = False) -> Segments:
    """Return the places of a grid's Fourier modes on a finer (or the same) grid.

    The grids have so many points in real space; with `half` the axis holds only modes ``0 .. n // 2``, as after a
    real-to-complex transform. The result is pairs of index ranges, resolved and padded, that hold the same modes, in
    ascending order. On a finer grid the Nyquist mode of an even `resolved` is left out: it has no partner, so it cannot
    represent a real field's pair of modes.
    """
    if padded == resolved:
        stop = resolved // 2 + 1 if half else resolved
        return [(slice(0, stop), slice(0, stop))]
    positive = (resolved + 1) // 2
    segments = [(slice(0, positive), slice(0, positive))]
    negative = (resolved - 1) // 2
    if negative and not half:
        segments.append((slice(resolved - negative, resolved), slice(padded - negative, padded)))
    return segments


def complement(segments: Sequence[slice], length: int) -> list[slice]:
    """Return the index ranges of ``range(length)`` that the ascending `segments` leave out."""
    gaps = []
    position = 0
    for segment in segments:
        if segment.start > position:
            gaps.append(slice(position, segment.start))
        position = segment.stop
    if position < length:
        gaps.append(slice(position, length))
    return gaps


def intersect(part: slice, segments: Segments) -> Segments:
    """Restrict pairs of ranges, as from `mode_segments`, to `part` of the first range, relative to its start."""
    pairs = []
    for resolved, padded in segments:
        start, stop = max(part.start, resolved.start), min(part.stop, resolved.stop)
        if start < stop:
            shift = padded.start - resolved.start
            pairs.append((slice(start - part.start, stop - part.start), slice(start + shift, stop + shift)))
    return pairs
