"""The choice of a process grid for a volumetric FFT.

The grids P x Q of a number of ranks are compared by a model of their exchanges: Takahashi's equations (4), of one
all-to-all among all ranks (slabs, where P or Q is 1), and (5), of two among fewer (pencils). Latency and bandwidth are
measured once per runtime. The model ignores computing. If its best slab and its best pencil are close to each other, it
returns both, and the plan measures them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from ..runtime import Runtime
from ..timing.alltoall import alltoall_s
from .planning.candidates import link_of

CLOSE = 1.5  # largest ratio of the modelled times of slab and pencil that counts as close


def near_grids(runtime: Runtime, shape: tuple[int, ...], dtype: DTypeLike) -> list[tuple[int, int]]:
    """Find the grids with the smallest modelled times of their exchanges (collective).

    Parameters
    ----------
    runtime : Runtime
    shape : tuple of int
        Global shape, ``(..., nz, ny, nx)``. Slabs split z.
    dtype : dtype
        Type of the elements in messages.

    Returns
    -------
    list of (int, int)
        The best P x Q grid, the same on all ranks. If it is a slab and a pencil is close, or vice versa, the best of
        those is second. Grids that leave ranks empty are the last choice.
    """
    size = runtime.coordinator.size
    nz, ny, nx = shape[-3:]
    link = link_of(runtime)
    points, itemsize = nz * ny * nx, np.dtype(dtype).itemsize

    def cost(grid: tuple[int, int]) -> tuple[bool, float, int]:
        P, Q = grid
        empty = max(nx < P, ny < P, ny < Q, nz < Q)
        return empty, alltoall_s(points, grid, link, itemsize), P

    best, *others = sorted(((P, size // P) for P in range(1, size + 1) if size % P == 0), key=cost)
    others = [grid for grid in others if (1 in grid) != (1 in best)]
    (empty, best_s, _), (also_empty, other_s, _) = cost(best), cost(others[0] if others else best)
    close = others and empty == also_empty and other_s <= CLOSE * best_s
    return [best, others[0]] if close else [best]
