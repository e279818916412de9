"""Process grids: the coordinates of ranks, and the communicators along a grid's dimensions."""

from __future__ import annotations

from math import prod
from typing import Any

from mpi4py import MPI


def is_communicator(value: Any) -> bool:
    """Return whether something is one of mpi4py's communicators."""
    return isinstance(value, MPI.Comm)


def is_freed(comm: MPI.Comm) -> bool:
    """Return whether a communicator has been freed."""
    return comm == MPI.COMM_NULL


def same_ranks(first: Any, second: Any) -> bool:
    """Return whether two communicators have the same ranks, in the same order (local).

    False also if one of them is no communicator or has been freed.
    """
    if first is second:
        return True
    if not isinstance(first, MPI.Comm) or not isinstance(second, MPI.Comm) or MPI.COMM_NULL in (first, second):
        return False
    return MPI.Comm.Compare(first, second) in (MPI.IDENT, MPI.CONGRUENT)


def coordinates(rank: int, grid: tuple[int, ...]) -> tuple[int, ...]:
    """Return the coordinates p, q, ... of rank p + P q + ... in a P x Q x ... grid."""
    place = []
    for size in grid:
        rank, coordinate = divmod(rank, size)
        place.append(coordinate)
    return tuple(place)


def subcomms(runtime: Any, grid: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the runtime's communicators along the dimensions of a grid (collective the first time).

    The communicator along a dimension joins the ranks whose other coordinates are equal; see `coordinates`. Where one
    dimension has all ranks, its communicator stands for the others as well: nothing is exchanged along them. The
    runtime keeps the communicators, and frees them when it closes.
    """
    known = runtime.cache.setdefault("subcomms", {})
    if grid not in known:
        comm = runtime.comm
        if comm.size in grid:
            known[grid] = (comm,) * len(grid)
        else:
            place = coordinates(comm.rank, grid)
            steps = [prod(grid[:dimension]) for dimension in range(len(grid))]
            known[grid] = tuple(
                comm.Split(comm.rank - coordinate * step, comm.rank) for coordinate, step in zip(place, steps)
            )
    return known[grid]
