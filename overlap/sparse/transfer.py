"""Transfers between two levels of a multigrid, 8 cells to 1, on the same ranks or gathered to fewer ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from ..arrays.blocks import Blocks
from ..collectives import Collectives
from ..compiled import njit
from ..ranks.holding import DropWarning
from ..ranks.losses import guarded
from ..ranks.standalone_coordinator import StandaloneCoordinator
from .cells import coordinates_of, equal_block, numbers_of
from .levels import merged_rank
from .matrix import Matrix
from .node_collectives import NodeCollectives


class GridTransfer:
    """Sums over children on the way to the coarser level and copies on the way back, in place and without allocating.

    Collective to make and to use, over the ranks of the finer level.

    Parameters
    ----------
    A : Matrix
        The finer level's.
    fine, coarse : Blocks
    dropping : DropWarning
        Given when the multigrid is dropped.

    Attributes
    ----------
    coarse_coordinator : StandaloneCoordinator or None
        Coordinator of the ranks of the coarser level and of its matrix; None on other ranks.
    """

    def __init__(self, A: Matrix, fine: Blocks, coarse: Blocks, dropping: DropWarning) -> None:
        self._A, self._fine, self._coarse = A, fine, coarse
        self._cells = np.array(equal_block(fine))
        self._parent_of = _parents(self._cells)  # in C order of the block; `_parents` is in the order of storage
        self._parents = self._parent_of[A.order]
        self._own = np.zeros(A.count // 8, A.dtype)
        self._coordinator: StandaloneCoordinator | None = None
        self._everything = np.zeros(0, A.dtype)
        coordinator = A.halo.coordinator
        self.coarse_coordinator: StandaloneCoordinator | None = None
        if fine.size > coarse.size:
            coarse_rank = merged_rank(coordinator.rank, fine.grid, coarse.grid)
            with coordinator.watching("making groups of ranks that gather") as comm:
                group = guarded(comm.Split(coarse_rank, comm.rank), comm)
            self._coordinator = _owned(group, coordinator, dropping)
            self._collectives = NodeCollectives.of(self._coordinator)
            leads = self._coordinator.rank == 0
            with coordinator.watching("making the ranks of a coarser level") as comm:
                leaders = guarded(comm.Split(0 if leads else MPI.UNDEFINED, coarse_rank), comm)
            if leads:
                self.coarse_coordinator = _owned(leaders, coordinator, dropping)
                self._everything = np.zeros(self._coordinator.size * len(self._own), A.dtype)
        else:
            self.coarse_coordinator = StandaloneCoordinator(coordinator.comm, coordinator.deadline_s, dropping)

    def coarse_matrix(self) -> Matrix | None:
        """Make the matrix of the coarser level; None on a rank that has no part of it.

        The flux between two coarse cells is half of the flux through their common fine faces, because the cells are
        twice as far apart. For a constant coefficient this is the finite-volume matrix of the coarse grid, also at the
        boundary. In short, it is (1/2) P^T A P, where P copies a coarse cell's value to its 8 cells.
        """
        entries = self._coarse_rows()
        if self._coordinator is not None:
            every = self._coordinator.gather(entries)
            rows, columns, values = (np.concatenate(arrays) for arrays in zip(*every)) if every is not None else entries
        else:
            rows, columns, values = entries
        if self.coarse_coordinator is None:
            return None
        coarse = Matrix(self.coarse_coordinator, rows, columns, values, int(np.prod(equal_block(self._coarse))))
        place = np.empty(coarse.count, np.uint32)
        place[coarse.order] = np.arange(coarse.count)
        if self._coordinator is None:
            self._parents = place[self._parents]
            self._own = np.zeros(coarse.count, coarse.dtype)
        else:
            between = Blocks(self._coarse.shape, self._fine.grid, width=0)
            merged_ranks = [
                rank
                for rank in range(between.size)
                if merged_rank(rank, between.grid, self._coarse.grid) == coarse.halo.comm.rank
            ]
            count = len(self._own)
            numbers = np.concatenate([rank * count + np.arange(count) for rank in merged_ranks])
            self._place = place[numbers_of(coordinates_of(numbers, between), self._coarse) - coarse.rows.start]
        return coarse

    def _coarse_rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return global numbers of the coarse cells that this rank's cells form, columns, and values."""
        A, rows = self._A, self._A.local_rows
        between = Blocks(self._coarse.shape, self._fine.grid, width=0)
        parents = numbers_of(coordinates_of(A.needed, self._fine) // 2, between)
        first = rows.first // 8
        starts, columns, values = _halved(
            rows.starts, rows.columns, rows.values, rows.first, self._cells, self._parent_of, A.needed, parents, first
        )
        numbers = first + np.repeat(np.arange(len(self._own)), np.diff(starts))
        if between.grid != self._coarse.grid:
            numbers, columns = (
                numbers_of(coordinates_of(array, between), self._coarse) for array in (numbers, columns)
            )
        return numbers, columns, values

    def restrict(self, r: np.ndarray, product: np.ndarray, out: np.ndarray) -> None:
        """Sum r - product over the children of each coarse cell, in the coarse matrix's order of storage."""
        if self._coordinator is None:
            _restrict(self._parents, r, product, out)
            return
        _restrict(self._parents, r, product, self._own)
        if self._collectives is not None:
            self._collectives.call(Collectives.Gather, self._own, self._everything)
        else:
            with self._coordinator.watching("gathering a coarse level") as comm:
                comm.Gather(self._own, self._everything)
        if self.coarse_coordinator is not None:
            _spread(self._place, self._everything, out)

    def prolong(self, coarse: np.ndarray, x: np.ndarray) -> None:
        """Add to each cell the value of its parent."""
        if self._coordinator is None:
            _prolong(self._parents, coarse, x)
            return
        if self.coarse_coordinator is not None:
            _collect(self._place, coarse, self._everything)
        if self._collectives is not None:
            self._collectives.call(Collectives.Scatter, self._everything, self._own)
        else:
            with self._coordinator.watching("scattering a coarse level") as comm:
                comm.Scatter(self._everything, self._own)
        _prolong(self._parents, self._own, x)

    def free(self) -> None:
        """Free the groups (collective); the owner of the coarse matrix frees it."""
        if self._coordinator is not None:
            if self._collectives is not None:
                self._collectives.free()
            self._coordinator.close()


def _owned(comm: Any, coordinator: StandaloneCoordinator, dropping: DropWarning) -> StandaloneCoordinator:
    """Make a coordinator, with the same deadline, of a communicator that belongs to this object."""
    owned = StandaloneCoordinator(comm, coordinator.deadline_s, dropping)
    with owned.watching("freeing a communicator"):
        comm.Free()
    return owned


@njit
def _parents(cells: Any) -> Any:
    """Return the number of each cell's parent in the block, both in C order."""
    nz, ny, nx = cells
    parents, place = np.empty(nz * ny * nx, np.uint32), 0
    for z in range(nz):
        for y in range(ny):
            row = (z // 2 * (ny // 2) + y // 2) * (nx // 2)
            for x in range(nx):
                parents[place] = row + x // 2
                place += 1
    return parents


@njit
def _halved(
    starts: Any,
    columns: Any,
    values: Any,
    first: Any,
    cells: Any,
    parent_of: Any,
    needed: Any,
    parents: Any,
    coarse_first: Any,
) -> Any:
    """Compute (1/2) P^T A P: starts, columns in ascending order, values; cells of the block in C order."""
    nz, ny, nx = cells
    mz, my, mx = nz // 2, ny // 2, nx // 2
    count = nz * ny * nx
    coarse_starts = np.zeros(mz * my * mx + 1, np.int64)
    out_columns, out_values = np.empty(len(columns), np.int64), np.empty(len(columns), values.dtype)
    end = 0
    for row in range(mz * my * mx):
        Z, rest = row // (my * mx), row % (my * mx)
        Y, X = rest // mx, rest % mx
        begin = end
        for child in range(8):
            fine = ((2 * Z + child // 4) * ny + 2 * Y + child // 2 % 2) * nx + 2 * X + child % 2
            for entry in range(starts[fine], starts[fine + 1]):
                local = columns[entry] - first
                if 0 <= local < count:
                    column = coarse_first + np.int64(parent_of[local])
                else:
                    column = parents[np.searchsorted(needed, columns[entry])]
                at = end  # insertion sort of a few columns
                while at > begin and out_columns[at - 1] > column:
                    at -= 1
                if at > begin and out_columns[at - 1] == column:
                    out_values[at - 1] += 0.5 * values[entry]
                    continue
                for place in range(end, at, -1):
                    out_columns[place] = out_columns[place - 1]
                    out_values[place] = out_values[place - 1]
                out_columns[at] = column
                out_values[at] = 0.5 * values[entry]
                end += 1
        coarse_starts[row + 1] = end
    return coarse_starts, out_columns[:end].copy(), out_values[:end].copy()


@njit
def _restrict(parents: Any, r: Any, product: Any, out: Any) -> None:
    out[:] = 0
    for place in range(len(parents)):
        out[parents[place]] += r[place] - product[place]


@njit
def _prolong(parents: Any, coarse: Any, x: Any) -> None:
    for place in range(len(parents)):
        x[place] += coarse[parents[place]]


@njit
def _spread(place: Any, packed: Any, out: Any) -> None:
    for number in range(len(place)):
        out[place[number]] = packed[number]


@njit
def _collect(place: Any, values: Any, packed: Any) -> None:
    for number in range(len(place)):
        packed[number] = values[place[number]]
