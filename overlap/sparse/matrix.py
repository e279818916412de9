"""`Matrix`: a sparse matrix whose rows are distributed over ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from operator import index
from typing import Any, Self

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike

from ..arrays.partition import block, length_of
from ..arrays.reductions import exponent_of, float_times_power, times_power
from ..checks import count_problem, mask_problem
from ..collectives import Collectives
from ..collectives.collectives import NodeCollectives
from ..errors import InputError, repr_of
from ..halo import Halo, PendingHalo
from ..halo.agreed import agreed_weights
from ..halo.traffic import of_indices
from ..ranks.header import Header
from ..ranks.holding import DropWarning
from ..ranks.interrupts import holding_signals
from ..ranks.objects import Described
from ..ranks.resource import Calls, CollectiveContext, Telling, marked_call
from ..ranks.standalone_coordinator import StandaloneCoordinator
from .kernels import ThreadPool
from .rows import TYPES, Rows, assembled, entries_problem, supported
from .storage import Run, stored

_FREEING = "freeing a matrix"

PIECES = 8  # independent rows are computed in so many pieces, with a poll of the messages after each
FEW_PIECES, SHORT_NBYTES = 4, 2**18  # for short messages, which the system sends by itself
MATRIX = "a Matrix"  # in the warning that it was dropped


class Matrix(CollectiveContext):
    """A square sparse matrix of numbers or of small square blocks; every rank holds a run of rows.

    Rank 0 has the first rows, rank 1 the next ones, and so on. Vectors are NumPy arrays of a rank's own entries,
    (rows,), or (rows, b) for blocks of b x b. ``A @ x`` is collective. A product starts the exchange of the entries
    that ranks need of each other, computes the rows that need none of these, then the other rows. Rows are stored in an
    order in which both kinds are contiguous, or as diagonals if these are well filled. A symmetric matrix is stored by
    one half if it is stored by diagonals or has real 3 x 3 blocks.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The communicator is duplicated. Making and freeing a matrix is collective over this communicator.
    rows, columns : array of int
        Global numbers (of blocks) of entries, in any order and on any rank; values of the same entry are added.
    values : array, (entries,) or (entries, b, b)
        Real or complex floating-point numbers of 4 or 8 bytes each part; half precision becomes ``f4``, integers
        become ``f8``.
    count : int
        Rows (of blocks) of this rank, any number.
    transport, deadline_s
        See `Halo`.

    Attributes
    ----------
    shape : (int, int)
        Global, in numbers.
    rows : slice
        The global numbers of this rank's rows (of blocks).
    block : int
        Size b of the blocks; 1 without.
    dtype : numpy.dtype
    halo : Halo
    order : ndarray
        This rank's rows in the order of storage.
    storage : {"diagonals", "rows", "symmetric blocks"}
        How this rank stores its rows.
    workers : int
        Threads that share the products of this rank, one at first; may be set. The results are the same bits for any
        number.

    Raises
    ------
    InputError
        On all ranks: entries outside of the matrix, values that are not finite or differ in type, a matrix without
        rows.

    Examples
    --------
    >>> from overlap.sparse import Matrix
    >>> offsets = [(0,), (-1,), (1,)]
    >>> with Matrix.from_stencil(comm, (4 * comm.size,), offsets, [2.0, -1.0, -1.0]) as A:
    ...     product = A @ np.ones(4)
    ...     A.shape == (4 * comm.size,) * 2
    True
    """

    _choose: Callable[[Rows], Any] = staticmethod(stored)  # how the rows of a rank are stored

    @holding_signals
    def __init__(
        self,
        comm: MPI.Intracomm | StandaloneCoordinator,
        rows: Any,
        columns: Any,
        values: Any,
        count: int,
        *,
        transport: str = "auto",
        deadline_s: float | None = 60.0,
    ) -> None:
        coordinator = StandaloneCoordinator.of(comm, deadline_s, MATRIX)
        with coordinator.collective_section("making a matrix", coordinator.close):
            coordinator.check("the entries of a matrix", mask_problem(rows=rows, columns=columns, values=values))
            self._make(
                coordinator, np.asarray(rows), np.asarray(columns), supported(np.asarray(values)), count, transport
            )

    def _make(
        self,
        coordinator: StandaloneCoordinator,
        rows: np.ndarray,
        columns: np.ndarray,
        values: np.ndarray,
        count: Any,
        transport: str,
    ) -> None:
        """Check the entries, and bring them to the ranks that have their rows."""
        counts: list[int] = coordinator.allgather(count)
        total = sum(counts) if all(isinstance(number, (int, np.integer)) for number in counts) else 0
        problem = entries_problem(rows, columns, values, count, total)
        coordinator.check("the entries of a matrix", problem, dtype=values.dtype.str, block=values.shape[1:])
        assembled_rows = assembled(coordinator, rows.astype(np.int64), columns.astype(np.int64), values, counts)
        self._store(coordinator, assembled_rows, total, transport)

    def _store(self, coordinator: StandaloneCoordinator, rows: Rows, total: int, transport: str) -> None:
        """Choose how the rows are stored, and make the halo of a product."""
        super().__init__()  # here, as `astype` makes a matrix without the constructor
        values = rows.values
        self.rows = slice(rows.first, rows.first + rows.count)
        self.block = values.shape[1] if values.ndim == 3 else 1
        self.shape = (total * self.block,) * 2
        self.dtype = values.dtype
        self.count = int(rows.count)
        self._vector_shape = (self.count,) if values.ndim == 1 else (self.count, self.block)
        self._rows, self._transport = rows, transport
        self._storage = storage = self._choose(rows)
        self.storage = storage.name
        self.team = ThreadPool(1)
        self.order = storage.order
        self._moved = not np.array_equal(storage.order, np.arange(self.count))
        before = int(storage.owned_at[0]) if self.count else 0
        self._own = slice(before, before + self.count)
        entries = of_indices(
            coordinator,
            rows.first + storage.order,
            storage.needed,
            (storage.owned_at, storage.needed_at, storage.length),
        )
        kind: Any = (self.dtype, self._vector_shape[1:]) if self._vector_shape[1:] else self.dtype
        self.halo = Halo(coordinator, entries, kind, transport=transport)
        self._sends = "messages" in self.halo.transports.values()
        short = len(storage.needed) * self.block * self.dtype.itemsize <= SHORT_NBYTES
        self._pieces = FEW_PIECES if short else PIECES
        self._entries = entries
        self._extended: np.ndarray | None = None
        self._spare: list[tuple[np.ndarray, np.ndarray]] = []  # vectors that solvers have given back
        self._others: dict[np.dtype, Self] = {}  # the same matrix in other types
        self._collectives = NodeCollectives.of(coordinator)

    @classmethod
    @holding_signals
    def from_scipy(cls, comm: MPI.Intracomm, local: Any, **options: Any) -> Self:
        """Make a matrix of the rows of each rank, a scipy sparse array with global columns.

        Parameters
        ----------
        comm : mpi4py.MPI.Intracomm
        local : scipy.sparse array or matrix, (rows of this rank, global columns)
            The rank's rows. From a BSR array of square blocks a matrix of blocks is made.
        **options
            Of `Matrix`.

        Returns
        -------
        Matrix

        Raises
        ------
        InputError
            On all ranks, if `local` is not a sparse array of scipy on some rank, or if its number of columns is not the
            number of all ranks' rows.
        """
        coordinator = StandaloneCoordinator(comm, options.pop("deadline_s", 60.0), DropWarning(MATRIX))
        with coordinator.collective_section("making a matrix", coordinator.close):
            counts: list[tuple[int, ...]] = coordinator.allgather(getattr(local, "shape", ()))
            total, problem = sum(shape[0] for shape in counts if len(shape) == 2), None
            if not hasattr(local, "tocsr") or len(local.shape) != 2:
                problem = f"expected a sparse array or matrix of scipy with two axes, received {type(local).__name__}"
            elif local.shape[1] != total:
                problem = (
                    f"expected the rows of this rank with {total} columns, as many as all ranks have rows, received "
                    f"shape {local.shape}"
                )
            coordinator.check("the shape of a matrix", problem)
            size = local.blocksize[0] if local.format == "bsr" and local.blocksize[0] == local.blocksize[1] else 1
            if size == 1:
                local = local.tocsr()
            values = local.data if size > 1 else local.data.reshape(-1)
            count = local.shape[0] // size
            first = sum(shape[0] for shape in counts[: coordinator.rank]) // size
            lengths = np.diff(local.indptr)
            if (lengths < 0).any():
                row = int(np.argmax(lengths < 0))
                raise InputError(
                    f"expected rows with >= 0 values each, received indptr with {lengths[row]} for row {row}"
                )
            rows = first + np.repeat(np.arange(count), lengths)
            return cls(coordinator, rows, local.indices, values, count, **options)

    @classmethod
    @holding_signals
    def from_stencil(
        cls,
        comm: MPI.Intracomm,
        shape: Sequence[int],
        offsets: Sequence[Sequence[int]],
        coefficients: Sequence[Any],
        *,
        weights: Sequence[Any] | str | None = None,
        **options: Any,
    ) -> Self:
        """Make a matrix of a stencil on a grid; entries outside of the grid are left out.

        Every rank has a run of planes, and numbers its points in C order.

        Parameters
        ----------
        comm : mpi4py.MPI.Intracomm
        shape : sequence of int
            The global grid.
        offsets : sequence of sequences of int
            Positions of the stencil's points, relative to its centre.
        coefficients : sequence
            One for each point: a number, or an array over the rank's planes.
        weights : sequence of numbers or "measure", optional
            One per rank: numbers of planes are in proportion to the weights (`overlap.arrays.shares`); "measure" as for
            `agreed_blocks`. By default the first ranks have one more.
        **options
            Of `Matrix`.

        Returns
        -------
        Matrix

        Raises
        ------
        InputError
            On all ranks, if an argument makes no sense or differs between ranks.
        """
        coordinator = StandaloneCoordinator(comm, options.pop("deadline_s", 60.0), DropWarning(MATRIX))
        problem = _stencil_problem(shape, offsets, coefficients)
        with coordinator.collective_section("making a matrix", coordinator.close, problem):
            parts = block(shape[0], comm.size, agreed_weights(coordinator, weights))
            own_planes = parts[comm.rank]
            grid = np.meshgrid(np.arange(own_planes.start, own_planes.stop), *map(np.arange, shape[1:]), indexing="ij")
            own_numbers = np.ravel_multi_index(grid, shape)
            rows, columns, values = [], [], []
            for offset, coefficient in zip(offsets, coefficients, strict=True):
                neighbour = [axis + step for axis, step in zip(grid, offset)]
                inside = np.all([(axis >= 0) & (axis < length) for axis, length in zip(neighbour, shape)], axis=0)
                rows.append(own_numbers[inside])
                columns.append(np.ravel_multi_index([axis[inside] for axis in neighbour], shape))
                values.append(np.broadcast_to(np.asarray(coefficient) * 1.0, own_numbers.shape)[inside])
            return cls(
                coordinator,
                np.concatenate(rows),
                np.concatenate(columns),
                np.concatenate(values),
                length_of(own_planes) * int(np.prod(shape[1:])),
                **options,
            )

    @holding_signals
    @marked_call
    def astype(self, dtype: DTypeLike) -> Self:
        """Make the same matrix with numbers of another type (collective); free it separately.

        Parameters
        ----------
        dtype : data type
            ``f4``, ``f8``, ``c8`` or ``c16``, the same on all ranks; complex numbers stay complex.

        Returns
        -------
        Matrix

        Raises
        ------
        InputError
            On all ranks, for any other type.
        """
        self.check_open()
        coordinator = StandaloneCoordinator(self.halo.comm, self.halo.coordinator.deadline_s, DropWarning(MATRIX))
        with coordinator.collective_section("making a matrix of another type", coordinator.close):
            kind = np.dtype(dtype)
            problem = None
            if kind not in TYPES:
                problem = f"expected dtype to be one of {', '.join(map(str, TYPES))}, received {kind}"
            elif not np.can_cast(self.dtype, kind, "same_kind"):
                problem = f"expected complex numbers to stay complex, received {kind} for a matrix of {self.dtype}"
            coordinator.check("the type of a matrix", problem, dtype=kind.str)
            rows = replace(self._rows, values=self._rows.values.astype(kind))
            converted = type(self).__new__(type(self))
            converted._store(coordinator, rows, self.shape[0] // self.block, self._transport)
            return converted

    def _in_type(self, dtype: np.dtype) -> Self:
        """Return this matrix or a copy in another type, which is kept for products with vectors of this type.
        Collective."""
        if dtype == self.dtype:
            return self
        if dtype not in self._others:
            converted = self._others[dtype] = self.astype(dtype)
            converted.halo.coordinator.holding.warning = None  # a part of this one
        converted = self._others[dtype]
        if converted.workers != self.workers:
            converted.workers = self.workers
        return converted

    def _title(self) -> str:
        blocks = f", {self.block} x {self.block} blocks" if self.block > 1 else ""
        size = self.halo.coordinator.size
        return f"Matrix {self.shape} {self.dtype}{blocks}, stored by {self.storage}, over {size} rank(s)"

    # ---- products ----------------------------------------------------------------------------

    @holding_signals
    @marked_call
    def __matmul__(self, x: np.ndarray) -> np.ndarray:
        """Compute the own entries of A x (collective), in the common type of both, as scipy does.

        Parameters
        ----------
        x : ndarray
            This rank's entries, (rows,) or (rows, b).

        Returns
        -------
        ndarray
            Of the shape of `x`.

        Raises
        ------
        InputError
            On all ranks: the vector of one does not fit, or types differ between ranks.
        """
        x = self._agreed(x, "a product")
        A = self._in_type(x.dtype)
        extended, own = A.vector()
        own[...] = x[A.order] if A._moved else x
        product = np.empty_like(own)
        A.multiply(extended, product)
        return A.outward(product) if A._moved else product

    def _agreed(self, x: Any, call: str) -> np.ndarray:
        """Convert a vector of the user to the common type of vector and matrix. Collective.

        Raises
        ------
        InputError
            On all ranks: the vector of one does not fit, or types differ between ranks.
        """
        self.check_open()
        vector, dtype = x, self.dtype
        error: BaseException | None = None
        try:
            problem, vector = mask_problem(x=x), np.asarray(x)
            if problem := problem or self.vector_problem(vector):
                error = InputError(problem)
            elif vector.dtype != dtype:
                dtype = np.result_type(dtype, vector.dtype)
                vector = vector.astype(dtype, copy=False)
        except Exception as failed:
            error = failed
        self.halo.coordinator.synchronize_for(_header(call, dtype.str), error)
        return vector

    matvec = dot = __matmul__

    @marked_call
    def multiply(self, extended: np.ndarray, out: np.ndarray) -> None:
        """Compute a product in the order of storage (collective); solvers call this in every step.

        Parameters
        ----------
        extended : ndarray
            A vector from `vector`; this method fills its places for other ranks' entries.
        out : ndarray
            The own entries of the product.
        """
        self.check_open()
        if self._storage.is_short:
            self.halo.exchange(extended)
            self._storage.compute(extended, out, self.team.run)
            return
        pending = self.halo.start(extended)
        self._storage.start(extended, out, self._run_and_test(pending) if self._sends else self.team.run)
        pending.wait()
        self._storage.finish(extended, out, self.team.run)

    def _run_and_test(self, pending: PendingHalo) -> Run:
        """Do as `ThreadPool.run` in pieces, with a poll of the messages after each, because MPI moves messages only
        when it is called."""

        def run(function: Callable[[int, int], object], first: int, last: int, least: int = 2) -> None:
            if first == last:
                return
            cuts = np.linspace(first, last, max(1, min(self._pieces, last - first)) + 1, dtype=int).tolist()
            for piece in pairwise(cuts):
                self.team.run(function, *piece, least)
                pending.test()

        return run

    @marked_call
    def compute(self, extended: np.ndarray, out: np.ndarray) -> None:
        """Do as `multiply` without an exchange: other ranks' entries are those in the vector."""
        self.check_open()
        self._storage.compute(extended, out, self.team.run)

    @property
    def workers(self) -> int:
        """Return or set the number of threads that share the products of this rank."""
        return self.team.workers

    @workers.setter
    def workers(self, count: int) -> None:
        self.check_open()
        if problem := count_problem("workers", count):
            raise InputError(problem)
        self.team.close()
        self.team = ThreadPool(int(count))

    @property
    def T(self) -> Transposed:
        """Return the transposed matrix, for products."""
        self.check_open()
        return Transposed(self)

    @holding_signals
    @marked_call
    def multiply_transposed(self, x: np.ndarray) -> np.ndarray:
        """Compute the own entries of A^T x (collective); x and the result in the user's order.

        Types and errors are those of ``A @ x``.
        """
        x = self._agreed(x, "a transposed product")
        A = self._in_type(x.dtype)
        extended = np.zeros((A._storage.length, *A._vector_shape[1:]), A.dtype)
        A._storage.transposed(np.ascontiguousarray(A.inward(x)), extended)
        back: list[Any] = [None] * A.halo.comm.size
        for neighbour in A._entries.traffic:
            back[neighbour.rank] = [extended[region] for region in neighbour.receives]
        received = A.halo.coordinator.alltoall(back)
        for neighbour in A._entries.traffic:  # in the order of ranks
            for region, values in zip(neighbour.sends, received[neighbour.rank] or ()):
                extended[region] += values
        return A.outward(extended[A._own])

    # ---- vectors -----------------------------------------------------------------------------

    @marked_call
    def vector(self, fresh: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return a vector with places for other ranks' entries, and its own part, in the order of storage.

        With `fresh` a new vector is made, which is collective; otherwise it is the vector that ``A @ x`` uses.
        """
        self.check_open()
        if fresh or self._extended is None:
            (extended,) = self.halo.empty()
            if fresh:
                return extended, extended[self._own]
            self._extended = extended
        return self._extended, self._extended[self._own]

    def _lend_vector(self) -> tuple[np.ndarray, np.ndarray]:
        """Lend a vector as from `vector`, until it is given back (collective).

        A solver must not compute in the vector of ``A @ x``, because a callback or a preconditioner of the user may use
        that one.
        """
        self.check_open()
        return self._spare.pop() if self._spare else self.vector(fresh=True)

    def _take_back(self, extended: np.ndarray, own: np.ndarray) -> None:
        """Take a vector that was lent."""
        self._spare.append((extended, own))

    def inward(self, x: Any) -> np.ndarray:
        """Return a vector of the user in the order of storage; raise an `InputError` on this rank if it does not
        fit."""
        self.check_open()
        masked, x = mask_problem(x=x), np.asarray(x)
        if problem := masked or self.vector_problem(x):
            raise InputError(problem)
        return x[self.order] if self._moved else x

    def outward(self, x: np.ndarray) -> np.ndarray:
        """Return a vector in the order of storage as a new one in the user's."""
        self.check_open()
        if not self._moved:
            return x.copy()
        reordered = np.empty_like(x)
        reordered[self.order] = x
        return reordered

    @marked_call
    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum numbers over all ranks, in place (collective): the same bits on all of them."""
        self.check_open()
        if self._collectives is not None:
            self._collectives.call(Collectives.Allreduce, values, values)
        else:
            self.halo.coordinator.sum(values)
        return values

    @marked_call
    def start_sum(self, values: np.ndarray, sums: np.ndarray) -> Callable[[], None]:
        """Begin to sum numbers over all ranks (collective); the returned function waits for the sums."""
        self.check_open()
        return partial(self._end_sum, self.halo.coordinator.start_sum(values, sums))

    @marked_call
    def _end_sum(self, request: MPI.Request) -> None:
        self.halo.coordinator.end_sum(request)

    # ---- what it is --------------------------------------------------------------------------

    def diagonal(self) -> np.ndarray:
        """Return the diagonal's entries of this rank, (rows,), or its blocks, (rows, b, b).

        Returns
        -------
        ndarray
        """
        self.check_open()
        return self._rows.diagonal()

    @property
    def needed(self) -> np.ndarray:
        """Return the global numbers, ascending, of the other ranks' entries that this rank's rows need."""
        return self._storage.needed

    @property
    def local_rows(self) -> Rows:
        """Return this rank's rows with global columns, in the user's numbering."""
        return self._rows

    @holding_signals
    @marked_call
    def norm(self, ord: str | float = "fro") -> float:
        """Compute the Frobenius norm ("fro") or the largest sum of a row's magnitudes (`numpy.inf`). Collective.

        Parameters
        ----------
        ord : {"fro", numpy.inf}

        Returns
        -------
        float

        Raises
        ------
        InputError
            On all ranks: `ord` is neither, or differs between ranks.
        """
        self.check_open()
        coordinator = self.halo.coordinator
        problem = None
        if not (isinstance(ord, (str, float)) and ord in ("fro", np.inf)):
            problem = f"expected ord to be 'fro' or inf, received {repr_of(ord)}"
        coordinator.check("a norm", problem, ord=ord if problem is None else None)
        if ord == "fro":
            exponent = coordinator.maximum(exponent_of(self._rows.values))
            scale = 0 if exponent == -np.inf else int(exponent)
            square = (np.abs(times_power(self._rows.values, -scale)) ** 2).sum()
            return float_times_power(float(np.sqrt(coordinator.sum(np.array([square], np.float64))[0])), scale)
        return coordinator.maximum(float(self._rows.sums().max(initial=0.0)))

    @marked_call
    def to_scipy(self) -> Any:
        """Gather the whole matrix on every rank, as a scipy CSR (or BSR) array (collective): for small ones.

        Returns
        -------
        scipy.sparse.csr_array or scipy.sparse.bsr_array
        """
        self.check_open()
        from scipy import sparse

        parts = self.halo.coordinator.allgather((np.diff(self._rows.starts), self._rows.columns, self._rows.values))
        counts, columns, values = (np.concatenate(arrays) for arrays in zip(*parts))
        starts = np.concatenate([[0], np.cumsum(counts)])
        kind: Any = sparse.csr_array if values.ndim == 1 else sparse.bsr_array
        return kind((values, columns, starts), shape=self.shape)

    def _shape_problem(self, x: Any) -> str | None:
        """Return what is wrong with the shape of a vector; None if nothing is."""
        if isinstance(x, np.ndarray) and x.shape == self._vector_shape:
            return None
        received = x.shape if isinstance(x, np.ndarray) else type(x).__name__
        return (
            f"expected a vector of shape {self._vector_shape}, the rows of rank {self.halo.comm.rank}, "
            f"received {received}"
        )

    def vector_problem(self, x: Any) -> str | None:
        """Return what is wrong with a vector for a product; None if nothing is."""
        self.check_open()
        if problem := self._shape_problem(x):
            return problem
        if x.dtype == self.dtype:
            return None
        if x.dtype.kind not in "biufc" or np.result_type(x.dtype, self.dtype) not in TYPES:
            return f"expected a vector of numbers that fit one of {', '.join(map(str, TYPES))}, received {x.dtype}"
        return None

    def close(self) -> None:
        """Free communicators and windows (collective), and end the workers. Later calls raise `ClosedError`.

        Raises
        ------
        BusyError
            A call of the matrix is under way: a product, a solver, a preconditioner; nothing is freed.
        """
        if self.closed:
            return
        with self.halo.coordinator.closing(_FREEING):
            self.closed = True
            self.team.close()
            try:
                self.halo.free()  # first, because here the ranks see whether one has left and will not free the rest
            finally:
                left = self.halo.coordinator.left is not None
                for converted in self._others.values():  # in the order in which all ranks have made them
                    converted._abandon() if left else converted.free()
                if self._collectives is not None and not left:
                    self._collectives.free()

    @property
    def _calls(self) -> Calls:
        return self.halo.coordinator._calls

    def _ending_calls(self) -> AbstractContextManager[bool]:
        return self.halo.coordinator.ending_calls()

    def _abandon(self) -> None:
        """End this rank's part without the others: one of the ranks has left."""
        self.closed = True
        self.team.close()
        self.halo.abandon()

    def _fail(self, error: BaseException) -> Telling | None:
        if self.closed:
            return None
        with self.halo.coordinator.closing(_FREEING):
            self.closed = True
            self.team.close()
            for converted in self._others.values():  # in which ranks wait only within calls of this one
                converted._abandon()
            if self._collectives is not None:
                self._collectives.fail(error)
            return self.halo._fail(error)


def _stencil_problem(shape: Any, offsets: Any, coefficients: Any) -> str | None:
    """Return what is wrong with a stencil, or None."""
    try:
        axes = len([index(length) for length in shape])
        steps = [len([index(step) for step in offset]) for offset in offsets]
        if axes and steps == [axes] * len(coefficients):
            return None
    except Exception:  # a user's object can raise anything
        pass
    return (
        "expected a shape of integers and, for each coefficient, an offset with one integer for each axis, received "
        f"shape={repr_of(shape):.80}, offsets={repr_of(offsets):.200} and coefficients={repr_of(coefficients):.80}"
    )


@lru_cache(64)
def _header(call: str, dtype: str) -> Header:
    """Return the header with which ranks compare their calls at the beginning of a product."""
    return Header(call, {"dtype": dtype})


class Transposed(Described):
    """Wraps a matrix for products with its transpose."""

    def __init__(self, matrix: Matrix) -> None:
        self.T = matrix
        self.shape, self.dtype = matrix.shape, matrix.dtype

    def _title(self) -> str:
        return f"transpose of a {self.T._title()}"

    def _has_ended(self) -> bool:
        return self.T.closed

    def __matmul__(self, x: np.ndarray) -> np.ndarray:
        """Compute the own entries of A^T x (collective)."""
        return self.T.multiply_transposed(x)
