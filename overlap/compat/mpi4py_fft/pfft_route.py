"""The route of a `PFFT` through its exchanges, and the process grid that it runs on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
from mpi4py import MPI

from ...arrays import AxisSwap, Layout
from ...errors import InputError
from ...fft.engine.route import Route
from ...runtime import Runtime
from .pencil import Subcomm


def dimensions_of(
    runtime: Runtime, comms: Sequence[MPI.Comm]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the dimensions of the ranks' grid (collective, except for a `Subcomm`, whose ranks have a known order).

    Returns
    -------
    axes, grid, coordinates : tuple of int
        Axis and size of every dimension with more than one rank, and this rank's coordinate; that of the first
        dimension varies fastest with the rank.
    """
    split = [axis for axis, comm in enumerate(comms) if comm.size > 1]
    sizes = [comm.size for comm in comms]
    all_coordinates = (
        list(np.ndindex(*sizes))
        if isinstance(comms, Subcomm)
        else runtime.coordinator.allgather([comm.rank for comm in comms])
    )
    for order in permutations(split):
        grid = tuple(sizes[axis] for axis in order)
        if all(
            rank == sum(where[axis] * int(np.prod(grid[:dimension], dtype=int)) for dimension, axis in enumerate(order))
            for rank, where in enumerate(all_coordinates)
        ):
            coordinates = all_coordinates[runtime.comm.rank]
            return order, grid, tuple(coordinates[axis] for axis in order)
    raise InputError(
        f"expected communicators of a Cartesian grid of {runtime.comm.size} ranks, received {sizes} ranks per axis"
    )


def route_of(groups: Sequence[Sequence[int]], layout: Layout, padded: set[int]) -> tuple[Route, Layout]:
    """Return the forward route, in the form of `arrays.stages`, and the layout at its end.

    A padded axis is alone in its group. None separates groups without an exchange.
    """
    route: Route = [()]
    aligned = groups[-1][-1] + 1
    for group in reversed(groups):
        axis = group[-1] + 1
        if layout.splits[axis] is not None:
            transpose = AxisSwap(axis, aligned)
            layout = layout.transposed(transpose)
            route += [transpose, ()]
        aligned = axis
        for axis in (axis + 1 for axis in reversed(group)):
            if route[-1] and padded & {axis, *route[-1]}:
                route += [None, ()]
            route[-1] += (axis,)
    return route, layout
