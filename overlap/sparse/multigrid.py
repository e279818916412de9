"""`Multigrid`: a V-cycle on grids of cells, 8 to 1, whose coarse levels are gathered to fewer ranks."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from ..arrays.blocks import Blocks
from ..checks import integer_problem
from ..compiled import njit
from ..errors import InputError
from ..ranks.resource import marked_call
from .levels import Costs, best_switch, levels_of
from .matrix import Matrix
from .polynomial import Chebyshev
from .preconditioners import Preconditioner
from .transfer import GridTransfer

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
