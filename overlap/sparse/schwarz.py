"""`AdditiveSchwarz`: every rank solves on its own subdomain, with overlapping subdomains or with corrections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from ..checks import integer_problem
from ..halo import Halo
from ..halo.traffic import Entries, Traffic, of_indices
from ..ranks.holding import DropWarning
from ..ranks.resource import marked_call
from ..ranks.standalone_coordinator import StandaloneCoordinator
from .incomplete import IC0
from .matrix import Matrix
from .preconditioners import Preconditioner

Local = Callable[[Matrix], Preconditioner]


class AdditiveSchwarz(Preconditioner):
    """Solve on a subdomain of each rank, add up, and correct by the residual (collective to make; `close` it).

    A subdomain is a rank's own rows and, with `overlap`, those of other ranks that are at most `overlap` steps away in
    the graph of A. Let R_i restrict to the rows of subdomain i, and B_i be the preconditioner that `local` makes of its
    matrix. Then B is the sum of W R_i^T B_i R_i W over the ranks, symmetric if all B_i are; W divides each row by the
    root of the number of subdomains that it is in. The result is z = B r and then, `corrections` times, z += B (r - A
    z).

    Without overlap one correction couples the ranks (additive Schwarz domain decomposition); for a matrix without
    positive entries beside the diagonal and B_i = IC(0) it is positive definite. With overlap several ranks add to the
    same rows, and a correction may make the result indefinite.

    Parameters
    ----------
    A : Matrix
        Its pattern must be symmetric if subdomains overlap.
    local : callable
        Makes the preconditioner of a subdomain of a `Matrix`: `IC0` by default. Without overlap it receives A, and must
        use only the rows and columns of its rank. With overlap it receives the matrix of the subdomain, which is on one
        rank.
    corrections : int, optional
        1 without overlap and 0 with it by default.
    overlap : int

    Raises
    ------
    InputError
        On all ranks: negative numbers, or what `local` raises.

    Examples
    --------
    >>> from overlap.sparse import AdditiveSchwarz, cg, diffusion
    >>> blocks = overlap.Blocks((8 * comm.size, 8, 8), grid=(comm.size, 1, 1))
    >>> with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A, AdditiveSchwarz(A) as M:
    ...     b = np.ones(512)
    ...     x, info = cg(A, b, rtol=1e-8, M=M)
    >>> info
    0
    """

    def __init__(self, A: Matrix, local: Local = IC0, corrections: int | None = None, overlap: int = 0) -> None:
        super().__init__(A)
        self._subdomain: _Subdomain | None = None
        self._solver: Preconditioner | None = None
        problem = integer_problem("overlap", overlap, 0) or integer_problem("corrections", corrections, 0, none=True)
        with self._made(problem, overlap=overlap, corrections=corrections):
            if overlap and A.halo.coordinator.size > 1:
                self._subdomain = _Subdomain(A, overlap, self._dropping)
                if self._subdomain.matrix is not None:
                    self._solver = local(self._subdomain.matrix)
                    self._subdomain.solve = self._solver.apply
                self._local = self._subdomain.apply
            else:
                self._solver = local(A)
                self._local = self._solver.apply
            self._corrections = int(not overlap) if corrections is None else corrections
            self._extended, self._own = A.vector(fresh=True)
            self._rest, self._change = np.zeros_like(self._own), np.zeros_like(self._own)

    @marked_call
    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """Compute z = M r, in the order of storage (collective)."""
        self.check_open()
        own, rest = self._own, self._rest
        self._local(r, own)
        for _ in range(self._corrections):
            self._matrix.multiply(self._extended, rest)
            np.subtract(r, rest, out=rest)
            self._local(rest, self._change)
            np.add(own, self._change, out=own)
        z[...] = own

    def _silence(self) -> None:
        super()._silence()
        if self._solver is not None:
            self._solver._silence()

    def _free_parts(self) -> None:
        if self._solver is not None:
            self._solver.free()
            self._solver = None
        if self._subdomain is not None:
            self._subdomain.free()
            self._subdomain = None


class _Subdomain:
    """Makes a matrix of a rank's rows and of other ranks' rows near them. Collective.

    Two halos join the subdomains. The first brings the residual of other ranks' rows; the second sends back
    contributions to their rows. The array of the second one has the subdomain's entries, followed by the contributions
    that other ranks send.
    """

    def __init__(self, A: Matrix, overlap: int, dropping: DropWarning) -> None:
        coordinator = A.halo.coordinator

        def part_of(comm: MPI.Intracomm) -> StandaloneCoordinator:
            return StandaloneCoordinator(comm, coordinator.deadline_s, dropping)

        own_rows = np.arange(A.rows.start, A.rows.stop)
        rows = A.local_rows
        numbers, columns, values = [rows.first + rows.row_of], [rows.columns], [rows.values]
        others = np.zeros(0, np.int64)
        limits = np.cumsum(coordinator.allgather(A.count))
        for _ in range(overlap):
            new = np.setdiff1d(np.concatenate(columns), np.concatenate([own_rows, others]))
            for collected, part in zip((numbers, columns, values), _rows_of(coordinator, A, new, limits)):
                collected.append(part)
            others = np.concatenate([others, new])
        everything = np.concatenate([own_rows, others])
        order = np.argsort(everything)
        i, j, v = (np.concatenate(pieces) for pieces in (numbers, columns, values))
        inside = np.isin(j, everything)
        i, j = (order[np.searchsorted(everything[order], indices[inside])] for indices in (i, j))
        length = len(everything)
        place = np.arange(length)
        self.matrix = Matrix(part_of(MPI.COMM_SELF), i, j, v[inside], length) if length else None
        if self.matrix is not None:
            place[self.matrix.order] = np.arange(length)
        self._own = place[: A.count][A.order]
        entries = of_indices(coordinator, own_rows[A.order], others, (self._own, place[A.count :], length))
        back, self._added = _reversed(coordinator, entries)
        kind = (A.dtype, (A.block,)) if A.block > 1 else A.dtype
        self._there = Halo(part_of(coordinator.comm), entries, kind)
        self._back = Halo(part_of(coordinator.comm), back, kind)
        (self._r,) = self._there.empty()
        (self._z,) = self._back.empty()
        self._weights = np.ones(1)
        self.solve: Callable[[np.ndarray, np.ndarray], object] = lambda r, z: np.copyto(z, r)
        ones, many = np.ones_like(self._z[self._own]), np.empty_like(self._z[self._own])
        self.apply(ones, many)  # counts the subdomains that contain each row
        self._weights = 1 / np.sqrt(many)

    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """Compute z, the sum of W R_i^T B_i R_i W r over the ranks, in the order of storage."""
        self._r[self._own] = self._weights * r
        self._there.exchange(self._r)
        self.solve(self._r, self._z[: len(self._r)])
        self._back.exchange(self._z)
        for own, sent in self._added:  # in the order of ranks
            self._z[own] += self._z[sent]
        np.multiply(self._weights, self._z[self._own], out=z)

    def free(self) -> None:
        """Free the halos and the matrix. Collective."""
        self._there.free()
        self._back.free()
        if self.matrix is not None:
            self.matrix.free()


def _rows_of(
    coordinator: StandaloneCoordinator, A: Matrix, numbers: np.ndarray, limits: np.ndarray
) -> list[np.ndarray]:
    """Return rows of other ranks: row numbers, columns and values of their entries."""
    owners = np.searchsorted(limits, numbers, side="right")
    asked = coordinator.alltoall([numbers[owners == rank] for rank in range(coordinator.size)])
    rows, answers = A.local_rows, []
    for wanted in asked:
        entries, counts = rows.entries_of(wanted - rows.first)
        answers.append((np.repeat(wanted, counts), rows.columns[entries], rows.values[entries]))
    return [np.concatenate(pieces) for pieces in zip(*coordinator.alltoall(answers))]


def _reversed(coordinator: StandaloneCoordinator, entries: Entries) -> tuple[Entries, list[Any]]:
    """Make messages that bring other ranks' contributions to own entries to places behind the array; pairs of own entry
    and place."""
    (length,) = entries.local_shape
    buffer_slices: list[Any] = [None] * coordinator.size
    pairs = []
    for neighbour in entries.traffic:
        for region in neighbour.sends:
            count = len(np.arange(length)[region])
            buffer_slices[neighbour.rank] = slice(length, length + count)
            pairs.append((region, buffer_slices[neighbour.rank]))
            length += count
    fills = coordinator.alltoall(buffer_slices)
    lengths = coordinator.allgather(length)
    return Entries(
        (length,),
        [
            Traffic(
                neighbour.rank,
                neighbour.receives,
                [(fills[neighbour.rank],)] if neighbour.receives else [],
                [(buffer_slices[neighbour.rank],)] if neighbour.sends else [],
                (lengths[neighbour.rank],),
            )
            for neighbour in entries.traffic
        ],
    ), pairs
