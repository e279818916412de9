"""Grids of cells, the numbering of cells over ranks, and the diffusion operator on such grids."""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arrays.blocks import Blocks
from ..arrays.partition import length_of
from ..arrays.topology import coordinates
from ..checks import mask_problem
from ..errors import InputError
from ..halo import Halo
from ..ranks.holding import DropWarning
from ..ranks.interrupts import holding_signals
from ..ranks.standalone_coordinator import StandaloneCoordinator
from .matrix import MATRIX, Matrix

Sides = Collection[tuple[int, int]]


@holding_signals
def diffusion(comm: MPI.Intracomm, blocks: Blocks, coefficient: Any, fixed: Sides = (), **options: Any) -> Matrix:
    """Make the matrix of -div(coefficient grad u) by finite volumes on cubes of edge 1. Collective.

    Every rank has a block of cells, numbered in C order, after those of the ranks before it. The flux between
    neighbouring cells i and j is (u_i - u_j) / (0.5 / c_i + 0.5 / c_j); through a fixed side, where u = 0, it is 2 c_i
    u_i; through the other sides nothing flows, unless the axis is periodic.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    blocks : Blocks
        The distribution of cells over ranks; its ghost cells are ignored.
    coefficient : array or number
        Positive, of this rank's cells.
    fixed : collection of (axis, side)
        Sides of the grid with u = 0: side 0 is the low one, 1 the high one.
    **options
        Of `Matrix`.

    Returns
    -------
    Matrix
        Symmetric; positive definite if a side is fixed.

    Raises
    ------
    InputError
        On all ranks: a coefficient of the wrong shape or not positive, a side that does not exist.

    Examples
    --------
    >>> from overlap.sparse import diffusion
    >>> blocks = overlap.Blocks((8 * comm.size, 8, 8), grid=(comm.size, 1, 1))
    >>> with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A:
    ...     b = np.ones(512)
    ...     flow = A @ b
    >>> flow.shape
    (512,)
    """
    coordinator = StandaloneCoordinator(comm, options.pop("deadline_s", 60.0), DropWarning(MATRIX))
    with coordinator.collective_section("making a diffusion matrix", coordinator.close):
        around = Blocks(
            blocks.shape,
            blocks.grid,
            width=1,
            periodic=blocks.periodic,
            corners=False,
            weights=blocks.weights,
            shares=blocks.shares,
        )
        own = around.own(comm.rank)
        inside = tuple(length_of(side) for side in own)
        problem, given = mask_problem(coefficient=coefficient), np.asarray(coefficient, np.float64)
        if problem is None and (given.shape not in ((), inside) or not (np.isfinite(given) & (given > 0)).all()):
            problem = f"expected a positive coefficient of shape {inside}, received shape {given.shape}" + (
                f" from {given.min():g} on" if given.size else ""
            )
        elif not set(fixed) <= {(axis, side) for axis in range(len(inside)) for side in (0, 1)}:
            problem = f"expected fixed sides (axis, 0 or 1) of {len(inside)} axes, received {sorted(fixed)}"
        coordinator.check("the coefficient", problem, shape=blocks.shape, grid=blocks.grid, fixed=sorted(fixed))
        first = sum(prod(map(length_of, blocks.part(rank))) for rank in range(comm.rank))
        with Halo(coordinator.comm, around, [np.float64, np.int64], deadline_s=coordinator.deadline_s) as halo:
            cells, numbers = (np.zeros(halo.local_shape, dtype) for dtype in (np.float64, np.int64))
            numbers -= 1
            cells[own] = given
            numbers[own] = first + np.arange(prod(inside)).reshape(inside)
            halo.exchange(cells, numbers)
        own_numbers = numbers[own]
        diagonal: Any = np.zeros(inside)
        entries: list[tuple[Any, Any, Any]] = [(own_numbers, own_numbers, diagonal)]
        for axis in range(len(inside)):
            for side in (0, 1):
                neighbour_box = list(own)
                neighbour_box[axis] = slice(own[axis].start + 2 * side - 1, own[axis].stop + 2 * side - 1)
                neighbour_numbers = numbers[tuple(neighbour_box)]
                known = neighbour_numbers >= 0
                flux = 1 / (0.5 / cells[own][known] + 0.5 / cells[tuple(neighbour_box)][known])
                diagonal[known] += flux
                entries.append((own_numbers[known], neighbour_numbers[known], -flux))
                if (axis, side) in fixed:
                    diagonal[~known] += 2 * cells[own][~known]
        rows, columns, values = (np.concatenate([np.ravel(array) for array in part]) for part in zip(*entries))
        return Matrix(coordinator, rows, columns, values, prod(inside), **options)


def equal_block(blocks: Blocks) -> tuple[int, ...]:
    """Return the number of cells of a block along each axis; raise an `InputError` if blocks are not alike."""
    if blocks.weights is None and not blocks.shares:  # a shortcut that does not depend on the number of ranks
        shapes = {tuple(length // parts for length, parts in zip(blocks.shape, blocks.grid))}
        alike = all(length % parts == 0 for length, parts in zip(blocks.shape, blocks.grid))
    else:
        shapes = {tuple(map(length_of, blocks.part(rank))) for rank in range(blocks.size)}
        alike = len(shapes) == 1
    if not alike:
        raise InputError(
            f"expected blocks of equal size, received a grid of {blocks.grid} ranks for {blocks.shape} cells"
        )
    return shapes.pop()


def coordinates_of(numbers: np.ndarray, blocks: Blocks) -> np.ndarray:
    """Convert cell numbers, which count equal blocks one after the other, to coordinates in the grid, (axes, cells)."""
    block = equal_block(blocks)
    owner, local = np.divmod(numbers, prod(block))
    where = np.array([coordinates(rank, blocks.grid) for rank in range(blocks.size)])
    return where[owner].T * np.array(block)[:, None] + np.array(np.unravel_index(local, block))


def numbers_of(places: np.ndarray, blocks: Blocks) -> np.ndarray:
    """Convert coordinates in the grid, (axes, cells), to cell numbers, which count block after block."""
    block = equal_block(blocks)
    steps = np.array([prod(blocks.grid[:axis]) for axis in range(len(block))])
    owner, local = np.divmod(places, np.array(block)[:, None])
    return steps @ owner * prod(block) + np.ravel_multi_index(tuple(local), block)
