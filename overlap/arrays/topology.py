"""Process grids: the coordinates of ranks, and the communicators along a grid's dimensions."""

from __future__ import annotations

from math import prod
from typing import Any

from mpi4py import MPI


def is_communicator(value: Any) -> bool:
    """Tell whether something is one of mpi4py's communicators."""
    return isinstance(value, MPI.Comm)


def is_freed(comm: MPI.Comm) -> bool:
    """Tell whether a communicator has been freed."""
    return comm == MPI.COMM_NULL


def same_ranks(one: Any, other: Any) -> bool:
    """Tell whether two communicators have the same ranks, in the same order (local).

    Nothing else than a communicator has the ranks of one, nor has one that was freed.
    """
    if one is other:
        return True
    if not isinstance(one, MPI.Comm) or not isinstance(other, MPI.Comm) or MPI.COMM_NULL in (one, other):
        return False
    return MPI.Comm.Compare(one, other) in (MPI.IDENT, MPI.CONGRUENT)


def coordinates(rank: int, grid: tuple[int, ...]) -> tuple[int, ...]:
    """Return the coordinates p, q, ... of rank p + P q + ... in a P x Q x ... grid."""
    found = []
    for size in grid:
        rank, coordinate = divmod(rank, size)
        found.append(coordinate)
    return tuple(found)


def subcomms(runtime: Any, grid: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the runtime's communicators along the dimensions of a grid (collective the first time).

    Along a dimension, a communicator joins the ranks that differ in this coordinate alone; see
    `coordinates`.

    Parameters
    ----------
    runtime : Runtime
        It keeps the communicators and frees them when it closes.
    grid : tuple of int
        The product is the number of ranks.

    Returns
    -------
    tuple of AsyncComm
        One per dimension. Where one dimension has all ranks, its communicator stands for the others
        as well: nothing is exchanged along them.
    """
    known = runtime.cache.setdefault("subcomms", {})
    if grid not in known:
        comm = runtime.comm
        if comm.size in grid:
            known[grid] = (comm,) * len(grid)
        else:
            here = coordinates(comm.rank, grid)
            steps = [prod(grid[:dimension]) for dimension in range(len(grid))]
            known[grid] = tuple(
                comm.Split(comm.rank - coordinate * step, comm.rank) for coordinate, step in zip(here, steps)
            )
    return known[grid]
