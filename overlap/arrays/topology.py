"""Process grids: the coordinates of ranks, and the communicators along a grid's dimensions."""

from __future__ import annotations

from math import prod


def coordinates(rank: int, grid: tuple[int, ...]) -> tuple[int, ...]:
    """The coordinates p, q, ... of rank p + P q + ... in a P x Q x ... grid."""
    found = []
    for size in grid:
        rank, coordinate = divmod(rank, size)
        found.append(coordinate)
    return tuple(found)


def subcomms(runtime, grid: tuple[int, ...]) -> tuple:
    """The runtime's communicators along the dimensions of a grid (collective the first time).

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
