"""Check that the pieces of all ranks in a ``Gatherv`` or ``Scatterv`` are as long as the root expects.

The check is made for persistent requests only, because it costs a collective. MPI itself need not detect such an error.
"""

from __future__ import annotations

from operator import index
from typing import Any

from .signatures import arguments, is_in_place, layout, shown

# The argument with a rank's own piece, and the one with all pieces, on the root.
_PIECES = {"Gatherv": ("sendbuf", "recvbuf"), "Scatterv": ("recvbuf", "sendbuf")}


def pieces(operation: Any) -> tuple[Any, Any] | None:
    """Return type and count of this rank's piece of a ``Gatherv`` or ``Scatterv``, and on the root those of all pieces.

    An entry is None if there is no such piece, or if its length is not certain. Returns None for other operations.
    """
    if operation.name not in _PIECES:
        return None
    given = arguments(operation)
    own, whole = (given[name] for name in _PIECES[operation.name])
    is_root = index(given["root"]) == operation.comm.rank
    if is_root and is_in_place(own):
        return None, layout(whole)
    return (None, 0) if own is None else layout(own), layout(whole) if is_root else None


def problem(everyone: list[tuple[Any, Any] | None]) -> str | None:
    """Return a text that names the first rank whose piece is not as long as the root expects, or None."""
    known = [each for each in everyone if each is not None]
    whole = next((whole for _, whole in known if whole is not None), None)
    if whole is None or not whole[1] or not isinstance(whole[1], tuple) or whole[1][0] is None:
        return None
    kind, counts = whole
    if isinstance(counts[0], tuple):  # displacements are given, too
        counts = counts[0] * len(known) if len(counts[0]) == 1 else counts[0]
    for rank, ((own, _), expected) in enumerate(zip(known, counts)):
        if own is None or isinstance(own[1], tuple):
            continue
        if own[1] != expected if own[0] == kind else bool(own[1]) != bool(expected):
            return f"expected a piece of {expected} items of {kind} on rank {rank}, received {shown(own)}"
    return None
