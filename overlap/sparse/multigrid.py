"""`Multigrid`: a V-cycle on grids of cells, 8 to 1, whose coarse levels are gathered to fewer ranks."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arrays.blocks import Blocks
from ..checks import integer_problem
from ..collectives import Collectives
from ..collectives.collectives import NodeCollectives
from ..compiled import njit
from ..errors import InputError
from ..ranks.holding import DropWarning
from ..ranks.losses import guarded
from ..ranks.resource import marked_call
from ..ranks.standalone_coordinator import StandaloneCoordinator
from .cells import coordinates_of, equal_block, numbers_of
from .levels import Costs, best_switch, levels_of, merged_rank
from .matrix import Matrix
from .preconditioners import Chebyshev, Preconditioner


class GridTransfer:
    """Sums over children on the way to the coarser level and copies on the way back, in place and without allocating.

    Collective to make and to use, over the ranks of the finer level, whose matrix is A.
    """

    coarse_coordinator: StandaloneCoordinator | None  # of the ranks of the coarser level and its matrix; None on others

    def __init__(self, A: Matrix, fine: Blocks, coarse: Blocks, dropping: DropWarning) -> None:
        self._A, self._fine, self._coarse = A, fine, coarse
        self._cells = np.array(equal_block(fine))
        self._parent_of = _parents(self._cells)  # in C order of the block; `_parents` is in the order of storage
        self._parents = self._parent_of[A.order]
        self._own = np.zeros(A.count // 8, A.dtype)
        self._coordinator: StandaloneCoordinator | None = None
        self._everything = np.zeros(0, A.dtype)
        coordinator = A.halo.coordinator
        self.coarse_coordinator = None
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


_MEASURED = 3  # cycles that are timed on each level


class Multigrid(Preconditioner):
    """One V-cycle of geometric multigrid (collective to make): ``cg(A, b, M=Multigrid(A, blocks))`` is MGCG.

    Eight cells form one cell of the next level. Restriction sums over the eight, prolongation copies to them, and the
    matrix is that of finite volumes on the coarser grid (half of the sum of the fluxes through the fine faces). Each
    level is smoothed once before and once after by the same symmetric preconditioner, so that the cycle is symmetric.
    Levels after the switching level are gathered to fewer ranks (coarse-grid aggregation): this saves small messages,
    and smoothers see more of the grid, but few ranks compute a larger problem. The last level is solved directly. A
    cycle allocates nothing.

    Parameters
    ----------
    A : Matrix
        Symmetric and positive definite, of numbers; rows are the cells of the blocks, in C order, rank after rank: one
        of `diffusion`, or a `Matrix.from_stencil` with ``Blocks(shape, (ranks, 1, 1))``.
    blocks : Blocks
        The cells of the ranks: three axes, blocks of equal sizes, which are even on all levels that all ranks compute.
    smoother : callable
        Makes the preconditioner of a level from its matrix: `Chebyshev` by default, `IC0`, `AdditiveSchwarz`, or a
        function that calls one of them.
    switch : int, optional
        The last level that all ranks compute, from 1 on. By default the level with the shortest cycle, computed from
        measured times of cells and messages; it may differ between runs.
    gather_to : int
        Number of ranks that compute the coarser levels. If it is larger than one, a single rank continues when their
        blocks cannot be halved any more.

    Attributes
    ----------
    levels : list of Blocks
        The distribution of cells over ranks on each level.
    switch : int

    Raises
    ------
    InputError
        On all ranks: blocks that do not fit the matrix or cannot be halved, a switching level that does not exist, a
        matrix that is not positive definite.

    Examples
    --------
    >>> from overlap.sparse import Multigrid, cg, diffusion
    >>> blocks = overlap.Blocks((8 * comm.size, 8, 8), grid=(comm.size, 1, 1))
    >>> with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A, Multigrid(A, blocks) as M:
    ...     b = np.ones(512)
    ...     x, info = cg(A, b, rtol=1e-8, M=M)
    >>> info
    0
    """

    def __init__(
        self,
        A: Matrix,
        blocks: Blocks,
        *,
        smoother: Callable[[Matrix], Preconditioner] = Chebyshev,
        switch: int | None = None,
        gather_to: int = 1,
    ) -> None:
        super().__init__(A)
        self._steps: list[_Level] = []
        problem = (
            integer_problem("switch", switch, 1, none=True)
            or integer_problem("gather_to", gather_to, 1)
            or (None if isinstance(blocks, Blocks) else f"expected Blocks, received {type(blocks).__name__}")
            or (None if callable(smoother) else f"expected smoother to be callable, received {type(smoother).__name__}")
        )
        agreed = {} if problem else {"shape": blocks.shape, "grid": blocks.grid}
        with self._made(problem, switch=switch, gather_to=gather_to, **agreed):
            A.halo.coordinator.check("the blocks of a multigrid", _problem(A, blocks))
            first = _Level(A, smoother(A))
            self._steps.append(first)
            if switch is None:
                levels_of(blocks, 1, gather_to)  # raises an error if something is wrong
                switch = best_switch(blocks, gather_to, first.costs())
            self.switch, self.levels = switch, levels_of(blocks, switch, gather_to)
            for fine, coarse in zip(self.levels, self.levels[1:]):
                if not self._add(fine, coarse, smoother):
                    break
            else:
                self._steps[-1].invert()

    def _add(self, fine: Blocks, coarse: Blocks, smoother: Callable[[Matrix], Preconditioner]) -> bool:
        """Add a level; return False on a rank that has no part of it."""
        above = self._steps[-1]
        above.transfer = GridTransfer(above.matrix, fine, coarse, self._dropping)
        A = above.transfer.coarse_matrix()
        if A is None:
            return False
        self._steps.append(_Level(A, smoother(A) if coarse is not self.levels[-1] else None))
        return True

    @marked_call
    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """Compute z = M r, in the order of storage (collective)."""
        self.check_open()
        self._solve(0, r)
        z[...] = self._steps[0].x

    def _solve(self, number: int, r: np.ndarray) -> None:
        level = self._steps[number]
        if level.transfer is None:
            _multiply(level.inverse, r, level.x)
            return
        level.smoother.apply(r, level.x)
        level.matrix.multiply(level.extended, level.rest)
        below = self._steps[number + 1] if number + 1 < len(self._steps) else None
        level.transfer.restrict(r, level.rest, below.r if below else level.rest)
        if below is not None:
            self._solve(number + 1, below.r)
        level.transfer.prolong(below.x if below else level.rest, level.x)
        level.matrix.multiply(level.extended, level.rest)
        np.subtract(r, level.rest, out=level.rest)
        level.smoother.apply(level.rest, level.change)
        np.add(level.x, level.change, out=level.x)

    def _silence(self) -> None:
        super()._silence()
        for level in self._steps:
            if level.smoother is not None:
                level.smoother._silence()

    def _free_parts(self) -> None:
        for number in range(len(self._steps) - 1, -1, -1):
            if (smoother := self._steps[number].smoother) is not None:
                smoother.free()
            if number:
                self._steps[number].matrix.free()
            if (transfer := self._steps[number].transfer) is not None:
                transfer.free()
        self._steps.clear()


class _Level:
    """Holds the matrix of a level, its smoother, the vectors of a cycle (`r` is a coarser level's right side) and the
    transfer to the next level."""

    def __init__(self, A: Matrix, smoother: Preconditioner | None) -> None:
        self.matrix = A
        self.smoother: Preconditioner = smoother  # type: ignore[assignment]  # None where `transfer` is None
        self.extended, self.x = A.vector(fresh=True)
        self.r, self.rest, self.change = (np.zeros_like(self.x) for _ in range(3))
        self.transfer: GridTransfer | None = None
        self.inverse = np.zeros((0, 0), A.dtype)

    def invert(self) -> None:
        """Compute the inverse of the whole matrix, which one rank holds."""
        rows = self.matrix.local_rows
        dense = np.zeros(self.matrix.shape, self.matrix.dtype)
        dense[rows.row_of, rows.columns] = rows.values
        try:
            half = np.linalg.inv(np.linalg.cholesky(dense))
        except np.linalg.LinAlgError:
            raise InputError("expected a positive definite matrix, received one whose coarsest level is not") from None
        self.inverse = half.T @ half

    def costs(self) -> Costs:
        """Measure the costs (collective); all ranks get the same numbers."""
        A, coordinator = self.matrix, self.matrix.halo.coordinator
        small, large = np.zeros(1), np.zeros(8192)

        def cycle() -> None:
            for _ in range(2):
                self.smoother.apply(self.r, self.x)
                A.multiply(self.extended, self.rest)

        times = []
        for operation in (cycle, lambda: A.sum(small), lambda: A.sum(large)):
            operation()
            started = perf_counter()
            for _ in range(_MEASURED):
                operation()
            times.append((perf_counter() - started) / _MEASURED)
        cycle_s, latency_s, large_s = coordinator.maximum(np.array(times))
        return Costs(cycle_s / max(1, A.count), latency_s, max(0.0, large_s - latency_s) / large.nbytes)


def _problem(A: Matrix, blocks: Blocks) -> str | None:
    """Return what is wrong with a matrix and its blocks, or None."""
    comm = A.halo.comm
    if A.block != 1 or A.dtype.kind != "f":
        return f"expected a matrix of real numbers, received {A.dtype} in blocks of {A.block}"
    if blocks.size != comm.size:
        return f"expected blocks of {comm.size} ranks, received a grid of {blocks.grid}"
    cells = int(np.prod([side.stop - side.start for side in blocks.part(comm.rank)]))
    if cells != A.count:
        return f"expected blocks with {A.count} cells on this rank, as many as the matrix has rows, received {cells}"
    return None


@njit(fastmath={"reassoc", "contract"})
def _multiply(matrix: Any, x: Any, y: Any) -> None:
    for row in range(len(y)):
        total = y.dtype.type(0)
        for column in range(len(x)):
            total += matrix[row, column] * x[column]
        y[row] = total
