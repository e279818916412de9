"""Halos and sparse solvers, measured on the ranks of a communicator: `overlap bench halo | spmv | cg | mgcg`.

The ways take turns (`rounds.seconds_of`), and the report has the medians. Beside the library are sweeps written by hand
with MPI's calls, other ways to multiply with a matrix, and PETSc if petsc4py can be imported and uses the same MPI.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from time import perf_counter, sleep
from typing import Any

import numpy as np
from mpi4py import MPI

from ...arrays import Blocks, block
from ...compiled import njit
from ...compiled.memory import FAR, prefetch
from ...errors import InputError
from ...halo import Halo
from ...sparse import Jacobi, Matrix, Multigrid, cg, diffusion, faster_cg, pipecg
from ...sparse.kernels import product_of_3
from ...sparse.rows import Rows
from ...sparse.storage import ByRows, Run
from ...timing import model
from .rounds import medians, seconds_of

SEVEN = ((0, 0, 0), (-1, 0, 0), (1, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, -1), (0, 0, 1))


class NotHidden(Matrix):
    """Wraps a matrix so that products exchange the halo before they compute. Free the matrix, not this object."""

    def __init__(self, A: Matrix) -> None:
        vars(self).update(vars(A))

    def multiply(self, extended: np.ndarray, out: np.ndarray) -> None:
        """Exchange, then compute."""
        self.halo.exchange(extended)
        self.compute(extended, out)


class LateSums(Matrix):
    """Wraps a matrix so that each sum over all ranks takes at least a given time, as on a machine with very many ranks.
    Free the matrix, not this object.
    """

    def __init__(self, A: Matrix, delay_s: float) -> None:
        vars(self).update(vars(A))
        self._original, self._delay_s = A, delay_s

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum, then sleep for the rest of the time."""
        end_s = perf_counter() + self._delay_s
        self._original.sum(values)
        _sleep_until(end_s)
        return values

    def start_sum(self, values: np.ndarray, sums: np.ndarray) -> Callable[[], None]:
        """Begin to sum; the returned function sleeps for the rest of the time."""
        end_s = perf_counter() + self._delay_s
        finish = self._original.start_sum(values, sums)

        def late() -> None:
            finish()
            _sleep_until(end_s)

        return late


def _sleep_until(end_s: float) -> None:
    sleep(max(0.0, end_s - perf_counter()))


class StoredByRows(Matrix):
    """Stores all entries of the rows, also of symmetric matrices, with the independent rows first."""

    _choose = staticmethod(ByRows)


class ByIndexLists:
    """Stores rows of 3 x 3 blocks in the user's order; two lists name the independent and the dependent rows.

    The published code of this comparison hid its halo in this way. It lost time, because every row is found indirectly.
    Attributes are those of `ByRows`.
    """

    name = "index lists"
    is_short = False

    def __init__(self, rows: Rows) -> None:
        outside = rows.external
        self.order = self.owned_at = np.arange(rows.count)
        self.needed = np.unique(rows.columns[outside])
        self.length = rows.count + len(self.needed)
        self.needed_at = np.arange(rows.count, self.length)
        columns = np.where(outside, rows.count + np.searchsorted(self.needed, rows.columns), rows.columns - rows.first)
        self._rows = rows.starts, columns.astype(np.uint32), rows.values
        dependent = np.zeros(rows.count, bool)
        dependent[rows.row_of[outside]] = True
        self._independent, self._dependent = (
            np.flatnonzero(kind).astype(np.uint32) for kind in (~dependent, dependent)
        )

    def compute(self, x: np.ndarray, y: np.ndarray, run: Run) -> None:
        """Compute all rows."""
        self.start(x, y, run)
        self.finish(x, y, run)

    def start(self, x: np.ndarray, y: np.ndarray, run: Run) -> None:
        """Compute the rows that need no other rank's entries."""
        run(lambda first, last: _listed(self._independent, *self._rows, x, y, first, last), 0, len(self._independent))

    def finish(self, x: np.ndarray, y: np.ndarray, run: Run) -> None:
        """Compute the rest."""
        run(lambda first, last: _listed(self._dependent, *self._rows, x, y, first, last), 0, len(self._dependent))


@njit
def _listed(rows: Any, starts: Any, columns: Any, values: Any, x: Any, y: Any, first: int, last: int) -> None:
    """Multiply the rows of a list, as `kernels.blocks_of_3` multiplies consecutive rows."""
    for number in range(first, last):
        row = rows[number]
        a = b = c = values.dtype.type(0)
        for entry in range(starts[row], starts[row + 1]):
            column = columns[entry]
            prefetch(values, 9 * entry + FAR)
            u, v, w = product_of_3(values, entry, x[column, 0], x[column, 1], x[column, 2])
            a, b, c = a + u, b + v, c + w
        y[row, 0] = a
        y[row, 1] = b
        y[row, 2] = c


class Listed(Matrix):
    """Stores a matrix with index lists."""

    _choose = staticmethod(ByIndexLists)


def springs(comm: MPI.Intracomm, shape: tuple[int, ...], kind: Callable[..., Matrix] = Matrix) -> Matrix:
    """Make the stiffness matrix of a lattice whose points are joined to 26 neighbours by springs; points outside are
    fixed. Collective.

    It has the pattern of elasticity by trilinear hexahedra: 27 blocks of 3 x 3 in a row. It is symmetric and positive
    definite.
    """
    planes = block(shape[0], comm.size)[comm.rank]
    grid = np.meshgrid(np.arange(planes.start, planes.stop), *map(np.arange, shape[1:]), indexing="ij")
    offsets = list(product((-1, 0, 1), repeat=3))
    stiffness = {offset: np.eye(3) + np.outer(offset, offset) for offset in offsets if any(offset)}
    entries: list[tuple[Any, Any, Any]] = []
    for offset in offsets:
        neighbour = [axis + step for axis, step in zip(grid, offset)]
        inside = np.all([(axis >= 0) & (axis < length) for axis, length in zip(neighbour, shape)], axis=0)
        value = -stiffness[offset] if any(offset) else np.sum(list(stiffness.values()), axis=0)
        entries.append(
            (
                np.ravel_multi_index([axis[inside] for axis in grid], shape),
                np.ravel_multi_index([axis[inside] for axis in neighbour], shape),
                np.broadcast_to(value, (int(inside.sum()), 3, 3)),
            )
        )
    rows, columns, values = (np.concatenate(arrays) for arrays in zip(*entries))
    return kind(comm, rows, columns, values, grid[0].size)


def products(A: Matrix) -> dict[str, Callable[[], Any]]:
    """Return the functions ``C``, ``T``, ``off`` and ``auto`` of a product. Each returns the product, except ``T``."""
    extended, x = A.vector()
    x[...] = np.random.default_rng(A.halo.comm.rank).random(x.shape)
    y = np.empty_like(x)

    def multiplied(how: Callable[[np.ndarray, np.ndarray], Any]) -> np.ndarray:
        how(extended, y)
        return y

    return {
        "C": lambda: multiplied(A.compute),
        "T": lambda: A.halo.exchange(extended),
        "off": lambda: multiplied(NotHidden(A).multiply),
        "auto": lambda: multiplied(A.multiply),
    }


_LOOKS = 8  # polls of the halo during a sweep
_FEW_LOOKS = 4  # polls if the system sends whole messages by itself: more polls cost more than they hide
_SHORT_NBYTES = 2**18

Ways = dict[str, Callable[[], Any]]


@njit
def sweep(u: Any, v: Any, first: int, last: int) -> None:
    """Set v to the sum of six neighbours minus 6 u, on planes `first` to `last` - 1; only planes have ghosts."""
    for z in range(first, last):
        for y in range(1, u.shape[1] - 1):
            low, high, centre, down, up, out = u[z, y - 1], u[z, y + 1], u[z, y], u[z - 1, y], u[z + 1, y], v[z, y]
            for x in range(1, len(out) - 1):
                out[x] = low[x] + high[x] + down[x] + up[x] + centre[x - 1] + centre[x + 1] - 6 * centre[x]


def sweeps(comm: MPI.Intracomm, shape: tuple[int, ...], planes: int) -> tuple[Ways, Callable[[], None]]:
    """Make the ways to sweep over slabs. Collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    shape : (nz, ny, nx)
        Cells of a rank.
    planes : int
        Ghost planes on each side.

    Returns
    -------
    ways : dict
        ``C``, ``T``, ``off``, ``auto``, and by hand: ``plain``, Irecv and Isend, inner planes, Waitall; ``tested``,
        persistent requests, a Testall after each chunk of inner planes; ``sendrecv``, blocking calls and nothing else.
    close : callable
        Frees what they use.
    """
    blocks = Blocks((shape[0] * comm.size, *shape[1:]), (comm.size, 1, 1), width=((planes, planes), 0, 0))
    halo = Halo(comm, blocks)
    (u,) = halo.empty()
    v = np.zeros_like(u)
    own, inner = blocks.own(comm.rank)[0], blocks.inner(comm.rank, ((1, 1), 0, 0))[0]
    u[own] = np.random.default_rng(comm.rank).random(u[own].shape)
    looks = _FEW_LOOKS if planes * u[0].nbytes <= _SHORT_NBYTES else _LOOKS
    chunk = -(-shape[0] // looks)
    chunks = [(first, min(first + chunk, inner.stop)) for first in range(inner.start, inner.stop, chunk)]
    up, down = (rank if 0 <= rank < comm.size else MPI.PROC_NULL for rank in (comm.rank + 1, comm.rank - 1))
    messages = [
        (down, u[own.start : own.start + planes], u[:planes]),
        (up, u[own.stop - planes : own.stop], u[own.stop :]),
    ]
    requests = [comm.Recv_init(receive, peer) for peer, _, receive in messages if peer != MPI.PROC_NULL]
    requests += [comm.Send_init(send, peer) for peer, send, _ in messages if peer != MPI.PROC_NULL]

    def compute() -> None:
        sweep(u, v, own.start, own.stop)

    def rest() -> None:
        sweep(u, v, own.start, inner.start)
        sweep(u, v, inner.stop, own.stop)

    def off() -> None:
        halo.exchange(u)
        compute()

    def hidden() -> None:
        pending = halo.start(u)
        first = inner.start
        while first < inner.stop and not pending.test():
            last = min(first + chunk, inner.stop)
            sweep(u, v, first, last)
            first = last
        pending.wait()
        sweep(u, v, first, own.stop)  # in one piece: nothing is left to hide
        sweep(u, v, own.start, inner.start)

    def plain() -> None:
        begun = [comm.Irecv(receive, peer) for peer, _, receive in messages]
        begun += [comm.Isend(send, peer) for peer, send, _ in messages]
        sweep(u, v, inner.start, inner.stop)
        MPI.Request.Waitall(begun)
        rest()

    def tested() -> None:
        MPI.Prequest.Startall(requests)
        for chunk in chunks:
            sweep(u, v, *chunk)
            MPI.Request.Testall(requests)
        MPI.Request.Waitall(requests)
        rest()

    def sendrecv() -> None:
        for (peer, send, _), (opposite, _, receive) in (messages, messages[::-1]):
            comm.Sendrecv(send, peer, recvbuf=receive, source=opposite)

    def close() -> None:
        for request in requests:
            request.Free()
        halo.free()

    return {
        "C": compute,
        "T": lambda: halo.exchange(u),
        "off": off,
        "auto": hidden,
        "plain": plain,
        "tested": tested,
        "sendrecv": sendrecv,
    }, close


def petsc_ways(A: Matrix, workload: str, b: np.ndarray, iterations: int, rtol: float) -> dict[str, Callable[[], Any]]:
    """Make functions that run a workload with PETSc. Collective.

    Parameters
    ----------
    A : Matrix
        Symmetric, of numbers or of blocks, on all ranks of the job.
    workload : {"spmv", "cg", "mgcg"}
        A product; CG with Jacobi for a number of iterations; CG with GAMG to a tolerance.
    b : ndarray
        This rank's right side, in the user's order.
    iterations : int
        Number of iterations of cg.
    rtol : float
        The tolerance of mgcg.

    Returns
    -------
    dict
        ``petsc`` (AIJ or BAIJ), and ``petsc_half`` (SBAIJ) of blocks, ``petsc_setup`` of mgcg. Empty if some rank has
        no petsc4py, if some ranks of the job take no part, or if GAMG does not converge.
    """
    try:
        PETSc: Any = import_module("petsc4py.PETSc")
    except ImportError:
        PETSc = None
    if A.halo.coordinator.maximum(int(PETSc is None or PETSc.COMM_WORLD.getSize() != A.halo.comm.size)):
        return {}
    matrix = _matrix(PETSc, A, half=False)
    if workload == "mgcg":
        solve, setup = _solution(PETSc, matrix, b, "gamg", rtol=rtol), lambda: _solver(PETSc, matrix, "gamg").destroy()
        return {"petsc": solve, "petsc_setup": setup} if solve() > 0 else {}
    matrices = {"petsc": matrix} if A.block == 1 else {"petsc": matrix, "petsc_half": _matrix(PETSc, A, half=True)}
    if workload == "cg":  # a tolerance of 0 is never reached: all iterations are made
        return {
            name: _solution(PETSc, operator, b, "jacobi", rtol=0.0, max_it=iterations)
            for name, operator in matrices.items()
        }
    return {name: _product(operator, b) for name, operator in matrices.items()}


def _matrix(PETSc: Any, A: Matrix, half: bool) -> Any:
    rows, size = A.local_rows, (A.count * A.block, A.shape[0])
    kept = rows.columns >= rows.first + rows.row_of if half else slice(None)
    counts = np.bincount(rows.row_of[kept], minlength=rows.count)
    csr = (
        np.concatenate([[0], np.cumsum(counts)]).astype(PETSc.IntType),
        rows.columns[kept].astype(PETSc.IntType),
        rows.values[kept].reshape(-1),
    )
    if A.block == 1:
        return PETSc.Mat().createAIJ((size, size), csr=csr, comm=PETSc.COMM_WORLD)
    make = PETSc.Mat().createSBAIJ if half else PETSc.Mat().createBAIJ
    return make((size, size), bsize=A.block, csr=csr, comm=PETSc.COMM_WORLD)


def _product(matrix: Any, b: np.ndarray) -> Callable[[], Any]:
    x, right = matrix.createVecs()
    right.setArray(b.reshape(-1))

    def multiply() -> Any:
        matrix.mult(right, x)
        return x

    return multiply


def _solver(PETSc: Any, matrix: Any, preconditioner: str) -> Any:
    solver = PETSc.KSP().create(PETSc.COMM_WORLD)
    solver.setOperators(matrix)
    solver.setType("cg")
    solver.getPC().setType(preconditioner)
    if preconditioner == "gamg":
        solver.setNormType(PETSc.KSP.NormType.UNPRECONDITIONED)
    solver.setUp()
    return solver


def _solution(PETSc: Any, matrix: Any, b: np.ndarray, preconditioner: str, **limits: float) -> Callable[[], int]:
    solver = _solver(PETSc, matrix, preconditioner)
    solver.setTolerances(atol=0.0, **limits)
    x, right = matrix.createVecs()
    right.setArray(b.reshape(-1))

    def solve() -> int:
        solver.solve(right, x)
        return int(solver.getConvergedReason())

    return solve


_ITERATIONS = 30
_RTOL = 1e-8  # tolerance of a multigrid solution
MATRICES = ("poisson", "elastic", "rock")


@dataclass(frozen=True)
class SolverJob:
    """Names what is measured, in words, and gives its default shape."""

    title: str
    detail: str
    shape: tuple[int, int, int]


SOLVERS = {
    "halo": SolverJob(
        "7-point sweep", " (--shape: cells of each rank; --slices: planes that are exchanged)", (128, 128, 128)
    ),
    "spmv": SolverJob("sparse product", " (--matrix; --shape: points of all ranks)", (64, 64, 64)),
    "cg": SolverJob("conjugate gradients with Jacobi", " (--matrix; --shape: points of all ranks)", (64, 64, 64)),
    "mgcg": SolverJob(
        "conjugate gradients with multigrid", ", to 1e-8 (--matrix; --shape: cells of all ranks)", (64, 64, 64)
    ),
}


def measure(
    comm: MPI.Intracomm,
    workload: str,
    shape: tuple[int, ...],
    planes: int = 1,
    rounds: int = 9,
    matrix: str = "poisson",
    delay_s: float = 0.0,
    workers: int = 1,
) -> dict[str, Any]:
    """Measure one workload. Collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    workload : str
        One of `SOLVERS`.
    shape : tuple of int
    planes : int
        Width of a halo.
    rounds : int
    matrix : {"poisson", "elastic", "rock"}
        7 points; 3 x 3 blocks at 27 points (spmv and cg); diffusion whose coefficient goes from 1e-5 to 1e5 (mgcg).
    delay_s : float
        Least time of a sum over all ranks in the `delayed` ways of cg, in seconds; 0 leaves these ways out.
    workers : int
        Threads of a rank that share the products of a matrix.

    Returns
    -------
    dict
        ``C_s`` and ``T_s``, computing and exchanging alone; ``off_s``, one after the other; ``auto_s``, hidden by this
        library; ``hidden`` and ``control_hidden``, the shares of min(C, T) that auto and off hide; ``seconds``, all
        times. Further

        * halo: ``plain_s``, by Irecv and Isend; ``tested_s``, by persistent requests with a Testall after each chunk;
          ``sendrecv_s``, blocking calls alone, as T_s.
        * cg: ``iteration_s``; ``plain_s``, an iteration that hides nothing; ``pipelined_s``, one of `pipecg`;
          ``delayed_s`` and ``delayed_pipelined_s``, the first and the third with delayed sums; ``chosen``, what
          `faster_cg` chooses, and ``delayed_chosen``.
        * spmv and cg, elastic: ``full_s`` with both halves of the matrix stored; ``naive_s`` moreover with rows in the
          user's order, found by lists.
        * cg and mgcg: ``iterations`` to 1e-8; for an elastic cg one number for each way.
        * mgcg: ``iteration_s``, ``setup_s``, ``solve_s``; ``switch``, the level from which coarser ones are gathered.
        * where petsc4py is installed: ``petsc_s``, a product, an iteration or a solution of PETSc (BAIJ where there are
          blocks); ``petsc_half_s``, the same with half of the blocks stored (SBAIJ); ``petsc_setup_s``, GAMG's.
    """
    facts: dict[str, Any] = {}
    if workload == "halo":
        ways, close = sweeps(comm, shape, planes)
    elif (matrix == "elastic") if workload == "mgcg" else (matrix == "rock"):
        raise InputError(f"expected another matrix with {workload}, received {matrix}")
    elif workload == "mgcg":
        ways, close, facts = _multigrid(comm, shape, matrix, workers)
    else:
        ways, close, facts = _sparse(comm, shape, workload, matrix, delay_s, workers)
    seconds = seconds_of(comm, ways, rounds)
    close()
    median = medians(seconds)
    if workload == "cg":
        median = {
            name: value if name in ("C", "T", "off", "auto") else value / _ITERATIONS for name, value in median.items()
        }
    if workload == "mgcg":
        median["iteration"] = median["solve"] / facts["iterations"]
    C, T = median["C"], median["T"]
    return (
        {f"{name}_s": value for name, value in median.items()}
        | {
            "workload": workload,
            "matrix": matrix if workload != "halo" else None,
            "shape": list(shape),
            "planes": planes if workload == "halo" else None,
            "ranks": comm.size,
            "workers": workers,
            "rounds": rounds,
            "hidden": model.hidden(C, T, median["auto"]),
            "control_hidden": model.hidden(C, T, median["off"]),
            "seconds": seconds,
        }
        | facts
    )


def _sparse(
    comm: MPI.Intracomm, shape: tuple[int, ...], workload: str, matrix: str, delay_s: float, workers: int
) -> tuple[Ways, Callable[[], None], dict[str, Any]]:
    elastic = matrix == "elastic"
    A = springs(comm, shape) if elastic else Matrix.from_stencil(comm, shape, SEVEN, [6.0] + [-1.0] * 6)
    A.workers = workers
    ways, b = products(A), np.random.default_rng(comm.rank).random(A.vector()[1].shape)
    facts: dict[str, Any] = {}
    kinds = {"full": springs(comm, shape, StoredByRows), "naive": springs(comm, shape, Listed)} if elastic else {}
    for operator in kinds.values():
        operator.workers = workers
    if workload == "spmv":
        ways |= {name: products(variant)["auto"] for name, variant in kinds.items()}
    else:
        M, operators = Jacobi(A), {"iteration": A, "plain": NotHidden(A)} | kinds
        late = {"delayed": LateSums(A, delay_s)} if delay_s else {}
        ways |= {
            name: partial(cg, variant, b, rtol=0.0, maxiter=_ITERATIONS, M=M)
            for name, variant in (operators | late).items()
        }
        for name, variant in ({"": A} | late).items():
            joined = f"{name}_" if name else ""
            ways[f"{joined}pipelined"] = partial(pipecg, variant, b, rtol=0.0, maxiter=_ITERATIONS, M=M)
            facts[f"{joined}chosen"] = faster_cg(variant, b, M=M).__name__
        if elastic:
            facts["iterations"] = {
                name: cg(variant, b, rtol=_RTOL, M=M).iterations for name, variant in operators.items()
            }
    ways |= petsc_ways(A, workload, b, _ITERATIONS, _RTOL)

    def close() -> None:
        for operator in (A, *kinds.values()):
            operator.free()

    return ways, close, facts


def _multigrid(
    comm: MPI.Intracomm, shape: tuple[int, ...], matrix: str, workers: int
) -> tuple[Ways, Callable[[], None], dict[str, Any]]:
    """Measure a diffusion problem with u = 0 on the last plane and sources of 1, on slabs.

    The coefficient of "rock" is log10(c) = 5 sin sin sin with a period of 16 cells.
    """
    blocks = Blocks(shape, (comm.size, 1, 1))
    waves = np.meshgrid(
        *(np.sin(np.pi / 8 * (np.arange(side.start, side.stop) + 0.5)) for side in blocks.part(comm.rank)),
        indexing="ij",
        sparse=True,
    )
    A = diffusion(
        comm, blocks, 1.0 if matrix == "poisson" else 10 ** (5 * waves[0] * waves[1] * waves[2]), fixed=[(0, 1)]
    )
    A.workers = workers
    M, b = Multigrid(A, blocks), np.ones(A.count)

    def setup() -> None:
        with Multigrid(A, blocks, switch=M.switch):
            pass

    def close() -> None:
        M.free()
        A.free()

    solution = cg(A, b, rtol=_RTOL, M=M)
    ways = products(A) | {"setup": setup, "solve": lambda: cg(A, b, rtol=_RTOL, M=M)}
    return (
        ways | petsc_ways(A, "mgcg", b, _ITERATIONS, _RTOL),
        close,
        {"iterations": solution.iterations, "switch": M.switch},
    )
