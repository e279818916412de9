"""Process grids: the choice of one, and the communicators along its dimensions."""

import weakref
from math import prod
from time import perf_counter

import numpy as np
from mpi4py import MPI

from ...timing.model import alltoall_1d_s, alltoall_2d_s, fit_message_time

_known = weakref.WeakKeyDictionary()  # communicators of every runtime: freed when it closes
_links = weakref.WeakKeyDictionary()  # latency and bandwidth of every runtime's all-to-all
CLOSE = 1.5  # a slab's or a pencil's time over the other's, by a model that knows no computing


def subcomms(runtime, grid):
    """The runtime's communicators along the dimensions of a grid (collective the first time).

    Rank p + P q + ... of a P x Q x ... grid has the coordinates p, q, ...
    """
    of_runtime = _known.setdefault(runtime, {})
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
    if runtime not in _links:
        _links[runtime] = _measured(runtime.comm)
    link = _links[runtime]
    points, itemsize = nz * ny * nx, np.dtype(dtype).itemsize

    def cost(grid):
        P, Q = grid
        empty = max(P > nx, P > ny, Q > ny, Q > nz)
        model = alltoall_1d_s if 1 in grid else alltoall_2d_s
        return empty, model(points, P, Q, *link, itemsize=itemsize), P

    best, *others = sorted(((P, size // P) for P in range(1, size + 1) if size % P == 0), key=cost)
    others = [grid for grid in others if (1 in grid) != (1 in best)]
    (empty, best_s, _), (also_empty, other_s, _) = cost(best), cost(others[0] if others else best)
    close = others and empty == also_empty and other_s <= CLOSE * best_s
    return [best, others[0]] if close else [best]


def _measured(comm):
    """Latency and bandwidth of an all-to-all, alike on all ranks."""
    if comm.size == 1:
        return 0.0, 1.0
    pieces = (2**10, 2**18)
    seconds = []
    for piece in pieces:
        send, receive = np.zeros((2, comm.size * piece), np.uint8)
        found = []
        for _ in range(4):
            comm.handle.Barrier()
            started = perf_counter()
            comm.handle.Alltoall(send, receive)
            found.append(perf_counter() - started)
        seconds.append(min(found[1:]) / (comm.size - 1))
    seconds = np.array(seconds)
    comm.handle.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    link = fit_message_time(pieces, seconds)
    return link.latency_s, min(link.bandwidth_Bps, 1e15)
