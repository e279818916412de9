"""Exceptions on one rank in what a solver calls, and in a halo's round."""

import time

import jobs
import numpy as np
from mpi4py import MPI
from truth import same_bits

import overlap
from overlap import sparse

from .draw import Drawn
from .faults import KINDS, origins_of
from .harness import Part

FAULTS = 30  # of a seed


def run(seed):
    """Some faults in one job."""
    drawn = Drawn(seed)
    jobs.run_job(
        "campaign.solver_faults:faults",
        drawn.ranks(2),
        mpi=drawn.library(),
        fresh=True,
        args={"seed": seed, "count": FAULTS},
    )


def defect():
    """A rank that leaves a halo's block without its error is found."""
    jobs.run_job("campaign.solver_faults:faults", 2, fresh=True, args={"seed": 0, "count": 10, "mute": True})


ROWS = 12  # of a rank
LONGEST_S = 5.0  # from a call until it has raised, on every rank
SOLVERS = (sparse.cg, sparse.pipecg, sparse.bicgstab, sparse.gmres, sparse.minres)
PLACES = ("operator", "preconditioner", "callback", "halo")


class Failing:
    """A function that fails at one of its calls, once."""

    def __init__(self, function):
        self._function, self._left, self._make, self.failed = function, -1, None, False

    def fail(self, make, after):
        self._make, self._left, self.failed = make, after, False

    def __call__(self, x):
        self._left -= 1
        if self._left == -1 and self._make is not None:
            self.failed = True
            raise self._make()
        return self._function(x)

    def __matmul__(self, x):
        return self(x)


def faults(comm, seed, count, mute=False):
    """Draw kind, place, solver and ranks, the same on all: one error everywhere, in time; then all is right again."""
    drawn = np.random.default_rng(seed)
    with sparse.Matrix.from_stencil(comm, (ROWS * comm.size,), ((0,), (1,), (-1,)), (2.5, -1.0, -1.0)) as A:
        whole = np.random.default_rng(1).standard_normal(ROWS * comm.size)
        dense = np.array(A.to_scipy().todense())
        b, own = whole[A.rows], dense[A.rows, A.rows]
        # An operator that fails alone may not be one in which others wait: it is this rank's block of the matrix.
        matrices = {"operator": Failing(lambda x: own @ x)}
        truths = {"operator": np.linalg.solve(own, b)}
        truth = np.linalg.solve(dense, whole)[A.rows]
        preconditioner, callback = Failing(lambda r: r / 2.5), Failing(lambda x: None)
        blocks = overlap.agreed_blocks(comm, (4 * comm.size, 4), grid=(comm.size, 1), width=1, corners=False)
        halo = overlap.Halo(comm, blocks)
        try:
            for _ in range(count):
                name = list(KINDS)[drawn.integers(len(KINDS))]
                place, solver = PLACES[drawn.integers(len(PLACES))], SOLVERS[drawn.integers(len(SOLVERS))]
                origin = origins_of(drawn, comm.size)
                after, mine = int(drawn.integers(3)), comm.rank in origin
                label = f"{name}, {place}, {solver.__name__}, call {after}, ranks {sorted(origin)}"

                matrix, of = (matrices[place], comm) if place in matrices else (A, None)

                def solve(solver=solver, matrix=matrix, of=of):
                    x, info = solver(matrix, b, rtol=1e-12, M=preconditioner, callback=callback, comm=of)
                    assert info == 0, label
                    return x

                before = solve()
                np.testing.assert_allclose(before, truths.get(place, truth), rtol=0, atol=1e-9, err_msg=label)
                start, error = time.monotonic(), None
                if place == "halo":
                    halo, error = _halo_fails(comm, halo, blocks, KINDS[name] if mine and not mute else None)
                else:
                    failing = {"operator": matrix, "preconditioner": preconditioner, "callback": callback}[place]
                    if mine:
                        failing.fail(KINDS[name], after)
                    try:
                        solve()
                    except BaseException as raised:
                        error = raised
                    reached = comm.allreduce(failing.failed, MPI.LOR)  # before the solution
                    failing.fail(None, -1)
                took_s = time.monotonic() - start
                told = comm.allgather(
                    (type(error).__name__, str(error) if isinstance(error, overlap.OverlapError) else "")
                )
                assert (place != "halo" and not reached) or all(kind != "NoneType" for kind, _ in told), (label, told)
                # What a block with a halo raises is its own on the ranks that fail; the others hear of one of them.
                own_errors = origin if place == "halo" or len(origin) == comm.size else ()
                texts = {text for rank, (_, text) in enumerate(told) if rank not in own_errors and text}
                assert len(texts) <= 1 or len(origin) > 1, (label, told)
                assert comm.allreduce(took_s, MPI.MAX) < LONGEST_S, f"{label}: raised after {took_s:.1f} s"
                assert same_bits(solve(), before), label
        finally:
            halo.free()
    print(f"rank {comm.rank}: {count} errors")


def _halo_fails(comm, halo, blocks, make):
    """An exception leaves a halo's ``with`` block between the ends of a round: the others raise in their next."""
    error = None
    try:
        with halo:
            array = np.zeros(halo.local_shape)
            pending = halo.start(array)
            if make is not None:
                raise make()
            pending.wait()
            for _ in range(2):
                halo.exchange(array)
    except BaseException as raised:
        error = raised
    halo = overlap.Halo(comm, blocks)
    _check(comm, halo, blocks)
    return halo, error


def _check(comm, halo, blocks):
    """A round brings the numbers of the neighbours along the first axis, which has an end on both sides."""
    own = blocks.own(comm.rank)
    array = np.full(halo.local_shape, -1.0)
    array[own] = comm.rank
    halo.exchange(array)
    before, after = array[: own[0].start, own[1]], array[own[0].stop :, own[1]]
    assert (before == comm.rank - 1).all()
    assert (after == (comm.rank + 1 if comm.rank < comm.size - 1 else -1)).all()


PART = Part(
    "solvers",
    "one of 22 kinds of exceptions on one rank of 2 to 4, or several, in the operator, the preconditioner or the "
    "callback of one of five solvers, or in a halo's round: all ranks raise within 5 s, those that have not failed the "
    "same; the next solution is the same to the last bit, the next halo right",
    3000,
    run,
    defect,
    "('NoneType', '')",
    FAULTS,
)
