"""Multigrid and polynomial preconditioners on 1 to 8 ranks."""

import os
import signal
import tracemalloc

import jobs
import numpy as np
from everywhere import raises_everywhere
from marks import exhaustive, on_ranks

from overlap import Blocks, InputError
from overlap.collectives.collectives import NodeCollectives
from overlap.sparse import IC0, AdditiveSchwarz, Chebyshev, Jacobi, Matrix, Multigrid, cg, diffusion
from overlap.sparse.cells import numbers_of

GRIDS = {1: (1, 1, 1), 2: (2, 1, 1), 4: (2, 1, 2), 8: (2, 2, 2)}
TOP = [(0, 1)]  # u = 0 on the high side of the first axis


def field(shape, contrast=3.0):
    """A coefficient with large jumps, the same on all ranks."""
    return 10 ** np.random.default_rng(1).uniform(-contrast, contrast, shape)


def dense(coefficient):
    """The matrix in C order of the whole grid, face by face."""
    shape = coefficient.shape
    cells = np.arange(coefficient.size).reshape(shape)
    found = np.zeros((coefficient.size,) * 2)
    for place in np.ndindex(shape):
        for axis in range(3):
            beside = list(place)
            beside[axis] += 1
            i = cells[place]
            if beside[axis] < shape[axis]:
                j = cells[tuple(beside)]
                flux = 2 / (1 / coefficient[place] + 1 / coefficient[tuple(beside)])
                found[[i, j], [i, j]] += flux
                found[[i, j], [j, i]] -= flux
            elif axis == 0:
                found[i, i] += 2 * coefficient[place]
    return found


def renumbered(matrix, blocks):
    """A dense matrix in C order, with the numbers that cells of blocks have."""
    places = np.array(np.unravel_index(np.arange(len(matrix)), blocks.shape))
    order = np.argsort(numbers_of(places, blocks))
    return matrix[np.ix_(order, order)]


def whole(M, A):
    """A preconditioner as a dense matrix, on all ranks."""
    count = A.shape[0]
    columns = [M @ unit[A.rows] for unit in np.eye(count)]
    return np.concatenate(A.halo.comm.allgather(np.array(columns).T))


@on_ranks(1, 2, exhaustive(4), exhaustive(8))
def test_matrices(comm):
    """The diffusion matrix face by face, and for a constant coefficient that of the next level."""
    for grid in {GRIDS[comm.size], (comm.size, 1, 1)}:
        blocks = Blocks([max(4, 2 * parts) for parts in grid], grid)
        everywhere = field(blocks.shape)
        with diffusion(comm, blocks, everywhere[blocks.part(comm.rank)], TOP) as A:
            np.testing.assert_allclose(A.to_scipy().toarray(), renumbered(dense(everywhere), blocks), rtol=1e-13)
        with diffusion(comm, blocks, 1.0, TOP) as A, Multigrid(A, blocks, switch=1) as M:
            if comm.size > 1 and len(M._steps) > 1:
                coarse = M._steps[1].matrix.to_scipy().toarray()
                right = 2 * dense(np.ones([length // 2 for length in blocks.shape]))  # faces of area 4, 2 apart
                np.testing.assert_allclose(coarse, renumbered(right, M.levels[1]), rtol=1e-13)
    everywhere = field((10, 3, 4))
    for weights in (
        (3, 2, 1, 1, 1, 1, 1, 1),
        (1, 1e-9, 1, 1, 1, 1, 1, 1),
    ):  # slabs are numbered in C order, even or not
        blocks = Blocks(everywhere.shape, (comm.size, 1, 1), weights=weights[: comm.size])
        with diffusion(comm, blocks, everywhere[blocks.part(comm.rank)], TOP) as A:
            np.testing.assert_allclose(A.to_scipy().toarray(), dense(everywhere), rtol=1e-13)
            if comm.size > 1:
                raises_everywhere(comm, InputError, "expected blocks of equal size", lambda: Multigrid(A, blocks))
    blocks = Blocks((8, 8, 8), (comm.size, 1, 1))
    for text, coefficient, fixed in (
        ("expected a positive coefficient of shape", -1.0, TOP),
        ("expected a positive coefficient of shape", np.ones(3), TOP),
        ("expected coefficient to be an array without a mask", np.ma.ones(3), TOP),
        ("expected fixed sides (axis, 0 or 1) of 3 axes", 1.0, [(3, 0)]),
    ):
        raises_everywhere(comm, InputError, text, lambda: diffusion(comm, blocks, coefficient, fixed))


@on_ranks(1, 2, exhaustive(4))
def test_polynomials(comm):
    """Chebyshev's polynomial by its definition; the correction of additive Schwarz by matrices."""
    blocks = Blocks((4 * comm.size, 3, 2), (comm.size, 1, 1))
    everywhere = field(blocks.shape, 0.5)
    with diffusion(comm, blocks, everywhere[blocks.part(comm.rank)], TOP) as A:
        matrix = A.to_scipy().toarray()
        root = np.sqrt(np.diag(matrix))
        values, vectors = np.linalg.eigh(matrix / np.outer(root, root))
        for degree, ratio in ((1, 4.0), (2, 6.0), (5, 20.0)):
            M = Chebyshev(A, degree, ratio)
            assert values.max() <= M.largest <= 2 + 1e-12
            b, a = M.largest, M.largest / ratio

            def residual(x):
                return np.polynomial.chebyshev.Chebyshev.basis(degree)((b + a - 2 * x) / (b - a))

            factors = (1 - residual(values) / residual(0)) / values
            right = vectors * factors @ vectors.T / np.outer(root, root)
            np.testing.assert_allclose(whole(M, A), right, rtol=1e-9, atol=1e-12 * abs(right).max())
        local = whole(IC0(A), A)
        once = local + local @ (np.eye(len(matrix)) - matrix @ local)
        np.testing.assert_allclose(whole(AdditiveSchwarz(A), A), once, rtol=1e-9, atol=1e-12 * abs(once).max())
        twice = once + local @ (np.eye(len(matrix)) - matrix @ once)
        np.testing.assert_allclose(
            whole(AdditiveSchwarz(A, corrections=2), A), twice, rtol=1e-9, atol=1e-12 * abs(twice).max()
        )


@on_ranks(1, 2, exhaustive(4))
def test_cycles(comm):
    """A cycle is linear and symmetric, whatever smooths and whoever has the levels, and allocates nothing."""
    grid = GRIDS[comm.size]
    blocks = Blocks([8 * parts for parts in grid], grid)
    shape = [8] * 3
    chance = np.random.default_rng(comm.rank)
    u, v = chance.standard_normal((2, 512))
    with diffusion(comm, blocks, field(blocks.shape)[blocks.part(comm.rank)].reshape(shape), TOP) as A:

        def product(a, b):
            return A.halo.coordinator.sum(np.array([a @ b]))[0]

        for smoother, switch, few in (
            (Chebyshev, 1, 1),
            (IC0, 2 if comm.size > 1 else 1, max(1, comm.size // 2)),
            (AdditiveSchwarz, 1, max(1, comm.size // 2)),
            (Jacobi, None, 1),
        ):
            with Multigrid(A, blocks, smoother=smoother, switch=switch, gather_to=few) as M:
                assert M.levels[0] is blocks and M.levels[-1].size == 1
                one, other = M @ u, M @ v
                scale = np.sqrt(product(one, one) * product(v, v))
                assert abs(product(u, other) - product(one, v)) <= 1e-12 * scale
                np.testing.assert_allclose(M @ (2 * u + v), 2 * one + other, rtol=1e-9, atol=1e-11 * abs(one).max())
                assert product(u, one) > 0
                r, z = np.ascontiguousarray(A.inward(u)), np.zeros(512)
                M.apply(r, z)
                tracemalloc.start()
                M.apply(r, z)
                assert tracemalloc.get_traced_memory()[1] < 2000 * 8
                tracemalloc.stop()


@on_ranks(1, 2, exhaustive(4), exhaustive(8))
def test_solutions(comm):
    """The exact solution for a constant coefficient, in few iterations; every switching level, gathered by MPI too."""
    grid = GRIDS[comm.size]
    n = 16
    blocks = Blocks((n, n, n), grid)
    k = np.arange(n)[blocks.part(comm.rank)[0]]
    shape = [side.stop - side.start for side in blocks.part(comm.rank)]
    exact = np.broadcast_to((-n * n / 2 + k * (k + 1) / 2)[:, None, None], shape).reshape(-1)
    counts = []
    with diffusion(comm, blocks, 1.0, TOP) as A:
        for number, switch in enumerate((1, 2, None)):
            before = NodeCollectives.of
            if number == 1:
                NodeCollectives.of = lambda coordinator: None
            try:
                with Multigrid(A, blocks, switch=switch) as M:
                    found = cg(A, -np.ones(A.count), rtol=1e-12, M=M)
            finally:
                NodeCollectives.of = before
            assert found.info == 0
            np.testing.assert_allclose(found.x, exact, rtol=1e-9)
            assert found.true_residual <= 1e-10 * n**1.5
            counts.append(found.iterations)
    assert max(counts) <= 16 and max(counts) - min(counts) <= (0 if comm.size == 1 else 1), counts


@on_ranks(1, 2, exhaustive(4))
def test_slabs(comm):
    """A matrix of a stencil; blocks that are not cubes."""
    shape = (4 * comm.size, 8, 12)
    seven = [(0, 0, 0), (-1, 0, 0), (1, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, -1), (0, 0, 1)]
    with Matrix.from_stencil(comm, shape, seven, [6.5] + [-1.0] * 6) as A:
        b = np.random.default_rng(comm.rank).standard_normal(A.count)
        with Multigrid(A, Blocks(shape, (comm.size, 1, 1)), smoother=IC0) as M:
            found = cg(A, b, rtol=1e-10, M=M)
        assert found.info == 0 and found.iterations < cg(A, b, rtol=1e-10, M=Jacobi(A)).iterations


def stopped(comm):
    """The last rank is stopped while the others go through cycles."""
    blocks = Blocks((8 * comm.size, 8, 8), (comm.size, 1, 1))
    with diffusion(comm, blocks, 1.0, TOP, deadline_s=1) as A, Multigrid(A, blocks, smoother=Jacobi, switch=1) as M:
        comm.Barrier()
        if comm.rank == comm.size - 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        M @ np.ones(A.count)


@on_ranks(2, exhaustive(4))
def test_refused(comm):
    """One error on all ranks; nothing is left behind."""
    even = Blocks((4 * comm.size, 4, 4), (comm.size, 1, 1))
    odd = Blocks((3 * comm.size, 4, 4), (comm.size, 1, 1))
    last = comm.rank == comm.size - 1
    with (
        diffusion(comm, even, 1.0, TOP) as A,
        diffusion(comm, odd, 1.0, TOP) as B,
        diffusion(comm, even, 1.0) as singular,
    ):
        for text, make in (
            ("expected switch to be a level from 1 to ", lambda: Multigrid(A, even, switch=9)),
            ("switch: expected the same on all ranks", lambda: Multigrid(A, even, switch=9 if last else 1)),
            (
                "expected blocks of an even number of cells along each axis, received (3, 4, 4)",
                lambda: Multigrid(B, odd),
            ),
            (f"expected blocks with {A.count} cells on this rank", lambda: Multigrid(A, odd)),
            ("expected gather_to to be a number of ranks", lambda: Multigrid(A, even, gather_to=comm.size + 1)),
            ("received one whose coarsest level is not", lambda: Multigrid(singular, even)),
        ):
            raises_everywhere(comm, InputError, text, make)


def test_a_rank_that_is_stopped_in_a_cycle_ends_the_job_with_stacks():
    result = jobs.run_job("test_multigrid:stopped", 2, expect_failure=True)
    assert "has not completed in 1." in result.err and "in stopped" in result.err, result
