"""Process grids: the choice of one, and the communicators along its dimensions."""

from math import prod

import numpy as np

from ...timing.alltoall import alltoall_s
from ...timing.messages import LatencyBandwidth, fit_message_time

CLOSE = 1.5  # a slab's or a pencil's time over the other's, by a model that knows no computing


def subcomms(runtime, grid):
    """The runtime's communicators along the dimensions of a grid (collective the first time).

    Rank p + P q + ... of a P x Q x ... grid has the coordinates p, q, ...
    """
    of_runtime = runtime.cache.setdefault("communicators of grids", {})
    if grid not in of_runtime:
        comm = runtime.comm
        if comm.size in grid:
            of_runtime[grid] = (comm,) * len(grid)  # the other dimensions exchange nothing
        else:
            steps = [prod(grid[:dimension]) for dimension in range(len(grid))]
            of_runtime[grid] = tuple(
                comm.Split(comm.rank - comm.rank // step % size * step, comm.rank)
                for step, size in zip(steps, grid))
    return of_runtime[grid]


def near_grids(runtime, shape, dtype):
    """The P x Q grid with the smallest modelled time of its exchanges; with it, if there is one that
    comes close, a pencil beside a slab, or a slab beside a pencil.

    Takahashi's equations (4) and (5), of which (7) is the comparison, with latency and bandwidth as
    measured. Slabs split z. A grid that leaves ranks empty comes last.

    Returns
    -------
    list of (int, int)
        One or two, the best first; the same on all ranks.
    """
    size = runtime.comm.size
    nz, ny, nx = shape[-3:]
    link = runtime.cache.get("latency and bandwidth")
    if link is None:
        link = runtime.cache["latency and bandwidth"] = _measured(runtime.control)
    points, itemsize = nz * ny * nx, np.dtype(dtype).itemsize

    def cost(grid):
        P, Q = grid
        empty = max(P > nx, P > ny, Q > ny, Q > nz)
        return empty, alltoall_s(points, grid, link, itemsize), P

    best, *others = sorted(((P, size // P) for P in range(1, size + 1) if size % P == 0), key=cost)
    others = [grid for grid in others if (1 in grid) != (1 in best)]
    (empty, best_s, _), (also_empty, other_s, _) = cost(best), cost(others[0] if others else best)
    close = others and empty == also_empty and other_s <= CLOSE * best_s
    return [best, others[0]] if close else [best]


def _measured(control):
    """Latency and bandwidth of an all-to-all, alike on all ranks."""
    if control.size == 1:
        return LatencyBandwidth(0.0, 1.0)
    pieces = (2**10, 2**18)
    seconds = []
    for piece in pieces:
        found = [control.alltoall_s(piece) for _ in range(4)]
        seconds.append(min(found[1:]) / (control.size - 1))
    link = fit_message_time(pieces, control.maximum(np.array(seconds)))
    return LatencyBandwidth(link.latency_s, min(link.bandwidth_Bps, 1e15))
