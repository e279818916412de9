"""Sparse matrices and solvers on 1 to 4 ranks."""

import os
import signal
from contextlib import contextmanager
from functools import partial

import jobs
import numpy as np
import pytest
from everywhere import raises_everywhere
from marks import exhaustive, on_ranks
from scipy import sparse
from scipy.sparse import linalg

from overlap import InputError, RankError, Runtime
from overlap.sparse import IC0, AdditiveSchwarz, BlockJacobi, Jacobi, Matrix, Preconditioner, bicgstab, cg, pipecg
from overlap.sparse.block_diagonals import BlockDiagonals
from overlap.sparse.system import System

SEVEN = [(0, 0, 0), (-1, 0, 0), (1, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, -1), (0, 0, 1)]
SOLVERS = {"cg": cg, "single": partial(cg, single_reduction=True), "pipecg": pipecg, "bicgstab": bicgstab}


def split(comm, length, seed):
    """Rows of each rank, any numbers, none of the last or of the first where the seed is odd; the slice of this one."""
    chance = np.random.default_rng(seed)
    cuts = np.sort(chance.permutation(np.arange(1, length))[: comm.size - 1])
    if seed % 4 == 1:
        cuts[-1:] = length
    elif seed % 4 == 3:
        cuts[:1] = 0
    limits = [0, *cuts.tolist(), length]
    return slice(limits[comm.rank], limits[comm.rank + 1])


def drawn(seed, rows, block, dtype, symmetric=False):
    """A sparse matrix with entries anywhere, some of them twice, in any order: i, j, v and the whole."""
    chance = np.random.default_rng(seed)
    count = 4 * rows
    i, j = chance.integers(0, rows, (2, count))
    shape = (count,) if block == 1 else (count, block, block)
    v = chance.standard_normal(shape).astype(dtype)
    if np.dtype(dtype).kind == "c":
        v += 1j * chance.standard_normal(shape)
    if symmetric:
        mirrored = v.conj() if block == 1 else v.conj().transpose(0, 2, 1)
        i, j, v = np.concatenate([i, j]), np.concatenate([j, i]), np.concatenate([v, mirrored])
    heavy = np.eye(block) * 60.0 * block
    i, j = np.concatenate([i, np.arange(rows)]), np.concatenate([j, np.arange(rows)])
    v = np.concatenate([v, np.broadcast_to(heavy if block > 1 else heavy[0, 0], (rows, *shape[1:])).astype(dtype)])
    order = chance.permutation(len(i))
    return i[order], j[order], v[order]


def whole(i, j, v, rows):
    block = 1 if v.ndim == 1 else v.shape[1]
    dense = np.zeros((rows, rows, block, block), v.dtype)
    np.add.at(dense, (i, j), v.reshape(-1, block, block))
    return dense.transpose(0, 2, 1, 3).reshape(rows * block, rows * block)


@contextmanager
def multiplied(comm, i, j, v, here, size):
    """A matrix of 3 x 3 blocks, by rows, and a vector: products are those of scipy, the same bits for any workers."""
    rows = i[-1] + 1
    right = sparse.bsr_array((v.astype("f8"), j, np.searchsorted(i, np.arange(rows + 1))), shape=(3 * rows, 3 * rows))
    x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(v.dtype)
    expected = (right @ x.reshape(-1).astype("f8")).reshape(rows, 3)[here]
    rounding = 1e-13 if v.dtype == "f8" else 1e-4
    near = {"rtol": rounding, "atol": size * rounding}
    mine = (here.start <= i) & (i < here.stop)
    with Matrix(comm, i[mine], j[mine], v[mine], here.stop - here.start) as A:
        found = []
        for A.workers in (1, 2, 3):
            found.append(A @ x[here])
            np.testing.assert_allclose(found[-1], expected, **near)
            np.testing.assert_array_equal(found[-1], found[0])
        np.testing.assert_allclose(A.T @ x[here], expected, **near)
        yield A, x[here]


@on_ranks(1, 2, exhaustive(4))
def test_symmetric_blocks(comm):
    """Half of a symmetric matrix of 3 x 3 blocks is stored; products are right, the same bits for any workers."""
    for rows, dtype in (
        (5, "f8"),
        (40, "f4"),
        (4500, "f8"),
    ):  # the last one is cut into several parts on each of two ranks
        i, j, v = drawn(rows, rows, 3, dtype, symmetric=True)
        order = np.argsort(i * rows + j, kind="stable")
        i, j, v = i[order], j[order], v[order]
        same = np.concatenate([[0], np.cumsum((np.diff(i) != 0) | (np.diff(j) != 0))])
        total = np.zeros((same[-1] + 1, 3, 3), dtype)
        np.add.at(total, same, v)
        first = np.searchsorted(same, np.arange(len(total)))
        i, j = i[first], j[first]
        mirror = np.argsort(j * rows + i)
        v = total + total[mirror].transpose(0, 2, 1)  # symmetric bit for bit
        here = split(comm, rows, 3)
        mine = (here.start <= i) & (i < here.stop)
        with multiplied(comm, i, j, v, here, 1e3) as (A, _):
            assert A.storage == "symmetric blocks"
            words = "expected workers to be an integer from 1 to 4096, received 0"
            raises_everywhere(comm, InputError, words, setattr, A, "workers", 0)
        if rows < 100:
            with Matrix(comm, i[mine], j[mine], v[mine] * np.triu(np.ones((3, 3), dtype)), here.stop - here.start) as A:
                assert A.storage == "rows" or A.count < 3


@on_ranks(1, 2, exhaustive(4))
def test_block_diagonals(comm):
    """Symmetric blocks on few diagonals: the same bits for any number of workers, nothing read from elsewhere."""
    # Rows that are no multiple of eight, fewer than the diagonals are apart, and several parts on each of two ranks.
    for rows, offsets, dtype in (
        (90, (0, 1, 2, 7), "f8"),
        (5000, (0, 1, 30, 31, 700), "f8"),
        (900, (0, 3, 8, 11), "f4"),
    ):
        chance = np.random.default_rng(rows)
        blocks = {}
        for offset in offsets:
            values = chance.standard_normal((rows - offset, 3, 3)).astype(dtype)
            blocks[offset] = values if offset else values + values.transpose(0, 2, 1)
            blocks[-offset] = blocks[offset].transpose(0, 2, 1) if offset else blocks[offset]
        i = np.concatenate([np.arange(rows - abs(offset)) + max(0, -offset) for offset in blocks])
        j = np.concatenate([np.arange(rows - abs(offset)) + max(0, offset) for offset in blocks])
        v = np.concatenate(list(blocks.values()))
        order = np.lexsort((j, i))
        i, j, v = i[order], j[order], v[order]
        limits = rows * np.arange(comm.size + 1) // comm.size
        with multiplied(comm, i, j, v, slice(*limits[comm.rank : comm.rank + 2]), 1e2) as (A, x):
            assert isinstance(A._storage._own_columns, BlockDiagonals)
            extended, own = A.vector()
            own[...] = x
            extended[A._storage.needed_at] = np.nan  # not here yet: no own row may be spoilt
            product = np.empty_like(own)
            A._storage.start(extended, product, A.team.run)
            assert np.isfinite(product).all()


@on_ranks(1, 2, exhaustive(4))
def test_diagonals(comm):
    """A stencil is stored by diagonals, half of them where it is symmetric, and is the same matrix."""
    for symmetric in (True, False):
        shape = (3 * comm.size, 4, 5)
        values = np.array([6.0, -1, -1, -1, -1, -1, -1]) if symmetric else np.arange(7.0) - 10
        with Matrix.from_stencil(comm, shape, SEVEN, values) as A:
            assert A.storage == "diagonals"
            everything = A.to_scipy()
            x = np.random.default_rng(1).standard_normal(everything.shape[0])
            for A._storage.is_short in (True, False):
                np.testing.assert_allclose(A @ x[A.rows], (everything @ x)[A.rows], rtol=1e-13, atol=1e-13)
            np.testing.assert_allclose(A.T @ x[A.rows], (everything.T @ x)[A.rows], rtol=1e-13, atol=1e-13)
            cells = np.pad(x.reshape(shape), 1)
            right = sum(
                value * np.roll(cells, [-one for one in offset], (0, 1, 2)) for value, offset in zip(values, SEVEN)
            )
            np.testing.assert_allclose(everything @ x, right[1:-1, 1:-1, 1:-1].reshape(-1), rtol=1e-13, atol=1e-13)


def solvers(comm, seeds):
    """Every solver with every preconditioner: the solution, scipy's stopping rule and number of iterations."""
    for seed in seeds:
        rows, block, dtype = 40, (1, 3)[seed % 2], ("f8", "c16")[seed // 2 % 2]
        i, j, v = drawn(seed, rows, block, dtype, symmetric=True)
        right = whole(i, j, v, rows)
        here = split(comm, rows, seed)
        mine = (here.start <= i) & (i < here.stop)
        chance = np.random.default_rng(seed + 100)
        b, x0 = chance.standard_normal((2, rows * block)).astype(dtype)
        part = [vector.reshape(rows, block)[here] if block > 1 else vector[here] for vector in (b, x0)]
        with Matrix(comm, i[mine], j[mine], v[mine], here.stop - here.start) as A:
            inverse = np.diag(1 / np.diag(right))
            blocks = right.reshape(rows, block, rows, block)[np.arange(rows), :, np.arange(rows)]
            for M, dense in (
                (None, None),
                (Jacobi(A), inverse),
                (BlockJacobi(A), sparse.block_diag(list(map(sparse.csr_array, np.linalg.inv(blocks)))).toarray()),
            ):
                for name, solver in SOLVERS.items():
                    seen = []
                    found = solver(A, part[0], part[1], rtol=1e-10, M=M, callback=lambda x: seen.append(x.copy()))
                    theirs = []
                    expected, _ = getattr(linalg, name if name == "bicgstab" else "cg")(
                        right, b, x0, rtol=1e-10, M=dense, callback=lambda x: theirs.append(1)
                    )
                    x, info = found
                    assert info == 0 and found.iterations == len(seen) and abs(len(theirs) - len(seen)) <= 1, (
                        name,
                        len(theirs),
                        len(seen),
                    )
                    np.testing.assert_allclose(
                        x.reshape(-1, block), expected.reshape(rows, block)[here], rtol=1e-7, atol=1e-9
                    )
                    np.testing.assert_array_equal(seen[-1], x)
                    assert found.residuals[-1] <= 1e-10 * np.linalg.norm(b) < found.residuals[-2]
                    assert found.true_residual <= 1e-9 * np.linalg.norm(b)
                    assert np.isnan(found.hidden) or (comm.size > 1 and 0 <= found.hidden <= 1), found.hidden
                    assert len(set(comm.allgather(found.residuals.tobytes()))) == 1
            assert cg(A, part[0], rtol=1e-10, maxiter=1).info == 1


@on_ranks
@pytest.mark.parametrize("comm, seeds", [(1, 4), (3, 1), exhaustive(3, 4)])
def test_solvers(comm, seeds):
    solvers(comm, seeds=list(range(seeds)))


@on_ranks(1, 2, exhaustive(4))
def test_incomplete_factors(comm):
    """The product of the factors is A wherever A has entries of this rank alone: what IC(0) is, in any order."""
    for seed in range(5):
        rows, block, dtype = 30, (1, 2, 3)[seed % 3], ("f8", "c16")[seed % 2]
        i, j, v = drawn(seed, rows, block, dtype, symmetric=True)
        here = split(comm, rows, seed)
        mine = np.arange(len(i)) % comm.size == comm.rank
        inside = slice(here.start * block, here.stop * block)
        right = whole(i, j, v, rows)[inside, inside]
        shape = (here.stop - here.start, block) if block > 1 else (here.stop - here.start,)
        with Matrix(comm, i[mine], j[mine], v[mine], shape[0]) as A:
            for colours in (None, 3):
                M = IC0(A, colours)
                dense = np.array(
                    [(M.apply_to(unit.reshape(shape))).reshape(-1) for unit in np.eye(len(right), dtype=dtype)]
                )
                product = np.linalg.inv(dense.reshape(right.shape).T)
                np.testing.assert_allclose(product[right != 0], right[right != 0], rtol=1e-10, atol=1e-10)
                np.testing.assert_allclose(product, product.conj().T, rtol=1e-10, atol=1e-10)
                assert min(1, len(right)) <= M.colours <= len(right)
    shape = (4 * comm.size, 5, 6)
    with Matrix.from_stencil(comm, shape, SEVEN, [6.0] + [-1.0] * 6) as A:
        b = np.ones(A.count)
        assert IC0(A).colours == 2 and IC0(A, 4).colours == 4 and IC0(A, 1000).colours == 13
        assert cg(A, b, rtol=1e-10, M=IC0(A, 4)).iterations < cg(A, b, rtol=1e-10, M=Jacobi(A)).iterations
        raises_everywhere(comm, InputError, "expected colours to be an integer >= 1 or None, received 0", IC0, A, 0)
    last = comm.rank == comm.size - 1
    with Matrix.from_stencil(comm, shape, SEVEN[:1], [np.full((4, 5, 6), -1.0 if last else 1.0)]) as A:
        raises_everywhere(comm, InputError, "expected a matrix whose incomplete Cholesky factors exist", lambda: IC0(A))


@on_ranks(1, 2, exhaustive(4))
def test_factors_by_workers(comm):
    """Factors with large colours, of numbers, 3 x 3 and other blocks: the same bits for any number of workers."""
    shape = (16 * comm.size, 16, 16)
    with Matrix.from_stencil(comm, shape, SEVEN, [6.0] + [-1.0] * 6) as A:
        entries = A.local_rows
        rows, columns = entries.first + entries.row_of, entries.columns
        scalars = entries.values
    for block in (1, 2, 3):
        coupled = np.eye(block) + 0.2 * (1 - np.eye(block))
        values = scalars if block == 1 else scalars[:, None, None] * coupled
        with Matrix(comm, rows, columns, values, entries.count) as A:
            M = IC0(A)
            r = np.random.default_rng(comm.rank).standard_normal(A.vector()[1].shape)
            found = []
            for A.workers in (1, 2, 3):
                found.append(M @ r)
                np.testing.assert_array_equal(found[-1], found[0])
            assert abs(found[0]).max() > 0


@on_ranks(1, 2, exhaustive(4))
def test_operators(comm):
    """Anything with a product takes the place of a matrix, and of a preconditioner."""
    here = split(comm, 20, 3)
    diagonal = np.arange(1.0, 21.0)[here]

    class Diagonal:
        def __matmul__(self, x):
            return diagonal * x

    class Inverse:
        def __matmul__(self, x):
            return x / diagonal

    b = np.ones(here.stop - here.start)
    x, info = cg(Diagonal(), b, rtol=1e-12, M=Inverse(), comm=comm)
    assert info == 0
    np.testing.assert_allclose(x, 1 / diagonal, rtol=1e-11)
    with Runtime(comm, workers=1, deadline_s=77.0) as rt:
        np.testing.assert_allclose(cg(Diagonal(), b, rtol=1e-12, M=Inverse(), comm=rt.comm).x, 1 / diagonal, rtol=1e-11)
        options = dict(rtol=0, atol=0, maxiter=None, callback=None)
        with System("cg", Diagonal(), b, None, None, rt.comm, **options) as system:
            assert system.coordinator.deadline_s == 77.0
    with Matrix.from_scipy(comm, sparse.diags_array(np.arange(1.0, 21.0)).tocsr()[here]) as A:
        np.testing.assert_allclose(bicgstab(A, b, rtol=1e-12, M=Inverse()).x, 1 / diagonal, rtol=1e-11)


def stopped(comm, where):
    """The last rank is stopped while the others make a matrix, or wait for the sums of a step."""
    n = 2 * comm.size
    rows = np.arange(n)[2 * comm.rank :][:2]
    with Matrix(comm, rows, rows, np.ones(2), 2, deadline_s=1) as A:
        comm.Barrier()
        if comm.rank == comm.size - 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        if where == "made":
            Matrix(comm, rows, rows, np.ones(2), 2, deadline_s=1)
        coordinator = A.halo.coordinator
        coordinator.end_sum(coordinator.start_sum(np.ones(1), np.ones(1)))


@on_ranks(1, 2, exhaustive(4))
def test_errors(comm):
    """What makes no sense is refused by all ranks with the same words."""
    last = comm.rank == comm.size - 1
    n, one = 2 * comm.size, np.ones(1)
    falling = sparse.eye_array(2, n, format="csr")
    falling.indptr[1:] = 2, 1
    for text, make in (
        (f"expected columns to be integers from 0 to {n - 1}", lambda: Matrix(comm, [0], [n if last else 0], one, 2)),
        ("expected a number of rows, received count=-1", lambda: Matrix(comm, [0], [0], one, -1 if last else 2)),
        ("a matrix of at least one row, received none", lambda: Matrix(comm, [], [], np.ones(0), 0)),
        ("expected values that are numbers, received <U1", lambda: Matrix(comm, [0], [0], np.array(["1"]), 2)),
        (
            "expected values to be an array without a mask",
            lambda: Matrix(comm, [0], [0], np.ma.array(one) if last else one, 2),
        ),
        (
            f"expected the rows of this rank with {n} columns, as many as all ranks have rows, received shape (2, "
            f"{n + 1})",
            lambda: Matrix.from_scipy(comm, sparse.eye_array(2, n + last, format="csr")),
        ),
        (
            "expected a sparse array or matrix of scipy with two axes, received ndarray",
            lambda: Matrix.from_scipy(comm, np.ones((2, n)) if last else sparse.eye_array(2, n, format="csr")),
        ),
        (
            "expected rows with >= 0 values each, received indptr with -1 for row 1",
            lambda: Matrix.from_scipy(comm, falling if last else sparse.eye_array(2, n, format="csr")),
        ),
        ("expected finite values", lambda: Matrix(comm, [0], [0], one * (np.nan if last else 1), 2)),
        ("expected a row and a column for each of 2 values", lambda: Matrix(comm, [0], [0], np.ones(2), 2)),
        (
            "expected the same on all ranks",
            lambda: (
                Matrix(comm, [0], [0], one.astype("f4" if last else "f8"), 2)
                if comm.size > 1
                else Matrix(comm, [0], [0], "expected the same on all ranks", 2)
            ),
        ),
    ):
        if comm.size == 1 and "same on all" in text:
            continue
        raises_everywhere(comm, InputError, text, make)
    raises_everywhere(
        comm,
        RankError,
        "could not be broadcast",
        Matrix.from_stencil,
        comm,
        (2 * comm.size, 3),
        [(0, 0)],
        [np.ones(7) if last else 1.0],
    )
    rows = np.arange(n)[2 * comm.rank :][:2]
    i, j = np.tile(rows, 3), np.concatenate([rows, (rows + 2) % n, (rows - 2) % n])
    with Matrix(comm, i, j, np.repeat([-10, 0.1, 0.1], 2), 2) as A:
        for text, call in (
            ("positive definite matrix, received one with p.Ap = -", lambda: cg(A, np.ones(2))),
            ("positive definite matrix, received one with p.Ap = -", lambda: pipecg(A, np.ones(2))),
            ("positive definite matrix, received one with p.Ap = -", lambda: cg(A, np.ones(2), single_reduction=True)),
            ("expected a right side of finite numbers", lambda: cg(A, np.array([1, np.nan if last else 1]))),
            ("expected a vector of shape (2,)", lambda: cg(A, np.ones(3 if last else 2))),
            ("expected b to be an array without a mask", lambda: cg(A, np.ma.ones(2) if last else np.ones(2))),
            ("expected x0 to be an array without a mask", lambda: cg(A, np.ones(2), np.ma.ones(2))),
            ("expected x0 to have shape (2,)", lambda: cg(A, np.ones(2), np.ones(3 if last else 2))),
            ("expected rtol to be a number >= 0, received -1.0", lambda: cg(A, np.ones(2), rtol=-1.0)),
            ("expected ord to be 'fro' or inf", lambda: A.norm(1)),
        ):
            raises_everywhere(comm, InputError, text, call)
        raises_everywhere(
            comm,
            InputError,
            "expected x to be an array without a mask",
            lambda: A @ (np.ma.ones(2) if last else np.ones(2)),
        )
        np.testing.assert_allclose(A @ np.ones(2), -9.8)  # and the next call is right


class Inverse(Preconditioner):
    """The inverse of the matrix of one rank."""

    def __init__(self, A):
        super().__init__(A)
        self.inverse = np.linalg.inv(A.to_scipy().toarray())

    def apply(self, r, z):
        z[...] = self._matrix.inward((self.inverse @ self._matrix.outward(r).reshape(-1)).reshape(r.shape))


@on_ranks(1, 2, exhaustive(4))
def test_overlapping(comm):
    """Additive Schwarz with overlap is a weighted sum of inverses of subdomains with the rows so many steps away."""
    for seed, overlap, block, dtype in ((1, 1, 1, "f8"), (2, 2, 3, "f8"), (3, 1, 2, "c16"), (4, 3, 1, "f8")):
        rows = 40
        i, j, v = drawn(seed, rows, block, dtype, symmetric=True)
        kept = abs(i - j) <= 4  # or every row is near every other one
        i, j, v = i[kept], j[kept], v[kept]
        right = whole(i, j, v, rows)
        steps = np.zeros((rows, rows), bool)
        steps[i, j] = True
        here = split(comm, rows, seed)
        mine = (here.start <= i) & (i < here.stop)
        expected, many = np.zeros_like(right), np.zeros(rows * block)
        for part in comm.allgather(here):
            near = np.isin(np.arange(rows), np.arange(rows)[part])
            for _ in range(overlap if comm.size > 1 else 0):
                near = near | steps[near].any(axis=0)
            numbers = np.flatnonzero(np.repeat(near, block))
            expected[np.ix_(numbers, numbers)] += np.linalg.inv(right[np.ix_(numbers, numbers)])
            many[numbers] += 1
        expected /= np.sqrt(np.outer(many, many))
        with Matrix(comm, i[mine], j[mine], v[mine], here.stop - here.start) as A:
            shape = A.vector()[1].shape
            inside = slice(here.start * block, here.stop * block)
            with AdditiveSchwarz(A, Inverse, overlap=overlap) as M:
                if comm.size > 1:
                    found = np.array(
                        [(M @ unit[inside].reshape(shape)).reshape(-1) for unit in np.eye(len(right), dtype=dtype)]
                    ).T
                    np.testing.assert_allclose(found, expected[inside], rtol=1e-10, atol=1e-12)
            b = np.ones(shape, dtype)
            with AdditiveSchwarz(A, overlap=overlap) as M, AdditiveSchwarz(A, corrections=0) as N:
                found = cg(A, b, rtol=1e-10, M=M)
                assert found.info == 0 and found.iterations <= cg(A, b, rtol=1e-10, M=N).iterations
    shape = (8 * comm.size, 6, 6)
    with Matrix.from_stencil(comm, shape, SEVEN, [6.0] + [-1.0] * 6) as A:
        b, counts = np.ones(A.count), []
        for overlap in (0, 1, 2):
            with AdditiveSchwarz(A, corrections=0, overlap=overlap) as M:
                counts.append(cg(A, b, rtol=1e-10, M=M).iterations)
        assert comm.size == 1 or counts[2] <= counts[0], counts
    last = comm.rank == comm.size - 1
    with Matrix.from_stencil(comm, shape, SEVEN[:1], [np.full((8, 6, 6), -1.0 if last else 1.0)]) as A:
        raises_everywhere(
            comm, InputError, "expected a matrix whose incomplete Cholesky factors exist", AdditiveSchwarz, A, overlap=1
        )


@pytest.mark.parametrize("where", ["made", exhaustive("summed")])
def test_a_rank_that_is_stopped_ends_the_job_with_stacks(where):
    result = jobs.run_job("test_sparse:stopped", 2, args={"where": where}, expect_failure=True)
    assert "has not completed in 1." in result.err and "in stopped" in result.err, result
