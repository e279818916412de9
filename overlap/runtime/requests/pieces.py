"""The pieces of a ``Gatherv`` or ``Scatterv``: whether the ranks' own are as long as the root says.

Asked where a request is made that is kept, which has time for it. MPI need not tell.
"""

from __future__ import annotations

from operator import index
from typing import Any

from .signatures import arguments, is_in_place, layout, shown

_PIECES = {"Gatherv": ("sendbuf", "recvbuf"), "Scatterv": ("recvbuf", "sendbuf")}  # a rank's own, and all on the root


def pieces(operation: Any) -> tuple[Any, Any] | None:
    """Return data type and count of this rank's piece of a ``Gatherv`` or ``Scatterv``, on the root of all pieces too.

    None where there are none, or that is not certain.
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
    """Return which rank's piece, of all ranks' `pieces`, is not as long as the root says, as text, or None."""
    found = [each for each in everyone if each is not None]
    whole = next((whole for _, whole in found if whole is not None), None)
    if whole is None or not whole[1] or not isinstance(whole[1], tuple):
        return None
    kind, counts = whole
    if isinstance(counts[0], tuple):  # with displacements
        counts = counts[0]
    for rank, ((own, _), expected) in enumerate(zip(found, counts)):
        if own is None or isinstance(own[1], tuple):
            continue
        if own[1] != expected if own[0] == kind else bool(own[1]) != bool(expected):
            return f"expected a piece of {expected} items of {kind} on rank {rank}, received {shown(own)}"
    return None
