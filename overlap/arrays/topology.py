"""Communicators along the dimensions of a grid of ranks."""

from __future__ import annotations

from math import prod


def subcomms(runtime, grid: tuple[int, ...]) -> tuple:
    """The runtime's communicators along the dimensions of a grid (collective the first time).

    The rank with the coordinates (p, q, ...) in a P x Q x ... grid is p + P q + ... Its communicator
    along a dimension joins the ranks that differ from it in this coordinate alone.

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
            steps = [prod(grid[:dimension]) for dimension in range(len(grid))]
            known[grid] = tuple(
                comm.Split(comm.rank - comm.rank // step % size * step, comm.rank)
                for step, size in zip(steps, grid))
    return known[grid]
