"""`gmres` and `minres` beside scipy's on the whole system."""

import numpy as np
from everywhere import raises_everywhere
from marks import exhaustive, on_ranks
from scipy import sparse
from scipy.sparse import linalg
from test_sparse import split

from overlap import InputError, RankError
from overlap.sparse import Jacobi, Matrix, gmres, minres

ROWS = 61


def drawn(seed, dtype, hermitian=False):
    """A matrix that has an inverse, with eigenvalues on both sides of 0 if it is Hermitian, and a right side."""
    chance = np.random.default_rng(seed)
    whole = chance.standard_normal((ROWS, ROWS)) * (chance.random((ROWS, ROWS)) < 0.1)
    b = chance.standard_normal(ROWS)
    if np.dtype(dtype).kind == "c":
        whole = whole * np.exp(2j * np.pi * chance.random((ROWS, ROWS)))
        b = b + 1j * chance.standard_normal(ROWS)
    if hermitian:
        whole = whole + whole.conj().T
        np.fill_diagonal(whole, np.where(np.arange(ROWS) % 3 > 0, 9.0, -7.0) + np.arange(ROWS) / ROWS)
    else:
        whole += 4.0 * np.eye(ROWS)
    return sparse.csr_array(whole.astype(dtype)), b.astype(dtype)


class Scaling:
    """The inverse of the diagonal's moduli, positive definite."""

    def __init__(self, whole, here):
        self.inverse = (1 / np.abs(whole.diagonal()))[here].astype(whole.dtype)

    def __matmul__(self, r):
        return self.inverse * r


@on_ranks(1, exhaustive(2), 3)
def test_gmres_as_scipys(comm):
    """Restarts, steps, norms and solutions are scipy's, with and without a preconditioner and a first guess."""
    for seed, dtype in enumerate(("f8", "c16", "f4", "c8")):
        whole, b = drawn(seed, dtype)
        x0 = np.random.default_rng(9).standard_normal(ROWS).astype(dtype)
        here = split(comm, ROWS, seed)
        single = dtype in ("f4", "c8")
        rtol, near = (1e-4, 1e-3) if single else (1e-10, 1e-8)
        dense = sparse.diags_array(1 / whole.diagonal()).tocsr()
        with Matrix.from_scipy(comm, whole[here]) as A, Jacobi(A) as J:
            cases = (None, None, None, None), (7, x0, None, None), (7, None, J, dense), (200, x0, J, dense)
            for restart, guess, M, theirs in cases:
                seen, expected = [], []
                options = {"rtol": rtol, "restart": restart, "callback_type": "pr_norm"}
                start = guess if guess is None else guess[here]
                found = gmres(A, b[here], start, M=M, callback=seen.append, **options)
                x, info = linalg.gmres(whole, b, guess, M=theirs, callback=expected.append, **options)
                assert found.info == info == 0 and found.x.dtype == x.dtype
                assert abs(len(seen) - len(expected)) <= single, (len(seen), len(expected))
                count = min(len(seen), len(expected))
                np.testing.assert_allclose(seen[:count], expected[:count], rtol=0.1 if single else 1e-4)
                np.testing.assert_allclose(found.x, x[here], rtol=near, atol=near)
                assert found.true_residual <= found.tolerance
                assert np.isclose(found.tolerance, rtol * np.linalg.norm(b), rtol=1e-5)
            cycles = []
            found = gmres(A, b[here], rtol=1e-12, restart=2, maxiter=3, callback=cycles.append)
            x, info = linalg.gmres(whole, b, rtol=1e-12, restart=2, maxiter=3)
            assert found.info == info == 3 and len(cycles) == found.iterations == len(found.residuals) - 1 == 3
            np.testing.assert_allclose(found.x, x[here], rtol=near, atol=near)
            np.testing.assert_array_equal(cycles[-1], found.x)


@on_ranks(1, exhaustive(2), 3)
def test_minres_as_scipys(comm):
    """Every iterate is scipy's where scipy has one: in real numbers; the solution is numpy's in all types."""
    for seed, dtype in enumerate(("f8", "c16", "f4", "c8")):
        whole, b = drawn(seed, dtype, hermitian=True)
        x0 = np.random.default_rng(9).standard_normal(ROWS).astype(dtype)
        here = split(comm, ROWS, seed + 1)
        rtol, near = (1e-4, 1e-2) if dtype in ("f4", "c8") else (1e-11, 1e-9)
        M = Scaling(whole, here)
        theirs = linalg.aslinearoperator(sparse.diags_array(1 / np.abs(whole.diagonal())).astype(dtype).tocsr())
        with Matrix.from_scipy(comm, whole[here]) as A:
            for shift, guess, mine, other in ((0.0, None, None, None), (0.3, x0, None, None), (0.3, None, M, theirs)):
                seen, expected = [], []
                start, options = guess if guess is None else guess[here], {"shift": shift, "M": mine}
                found = minres(A, b[here], start, rtol=rtol, callback=lambda x: seen.append(x.copy()), **options)
                exact = np.linalg.solve(whole.toarray().astype("c16") - shift * np.eye(ROWS), b)
                assert found.info == 0 and found.iterations == len(seen) < 5 * ROWS and found.x.dtype == dtype
                np.testing.assert_allclose(found.x, exact[here], rtol=near, atol=near)
                rest = np.linalg.norm(
                    b - (whole.toarray() - shift * np.eye(ROWS)) @ np.concatenate(comm.allgather(found.x))
                )
                np.testing.assert_allclose(found.residuals[-1], rest, rtol=0.1)
                if dtype == "f8" and guess is None:  # scipy forgets the shift in the first residual
                    linalg.minres(
                        whole, b, rtol=1e-9, shift=shift, M=other, callback=lambda x: expected.append(x.copy())
                    )
                    for one, two in zip(seen, expected):
                        np.testing.assert_allclose(one, two[here], rtol=1e-6, atol=1e-7)


@on_ranks(1, exhaustive(2), 3)
def test_edges(comm):
    """Singular systems, bad arguments, and what fails on one rank."""
    here = split(comm, ROWS, 2)
    last = comm.rank == comm.size - 1
    singular = sparse.diags_array(np.r_[0.0, np.arange(1, ROWS) % 5 - 5.5]).tocsr()
    b = np.ones(ROWS)
    with Matrix.from_scipy(comm, singular[here]) as A:
        found = minres(A, b[here], rtol=1e-10)
        assert found.info > 0 and found.iterations < 20
        least = np.r_[0.0, 1 / singular.diagonal()[1:]]
        np.testing.assert_allclose(found.x[least[here] != 0], least[here][least[here] != 0], rtol=1e-8)
        within = np.r_[0.0, b[1:]]
        for solver in (minres, gmres):
            found = solver(A, within[here], rtol=1e-10)
            assert found.info == 0
            np.testing.assert_allclose(found.x, least[here], rtol=1e-8, atol=1e-12)
            found = solver(A, 0 * b[here], b[here])
            assert found.info == 0 and not found.x.any()
            assert solver(A, b[here], rtol=np.inf).iterations == 0
            assert solver(A, b[here], maxiter=0).info == 1
        assert gmres(A, b[here], rtol=1e-10, maxiter=20).info > 0

        class Negative:
            def __matmul__(self, r):
                return -r

        def wrong(value, right):
            return value if last else right

        def raising(_):
            if last:
                raise ZeroDivisionError("of the user's")

        raises_everywhere(comm, InputError, "a positive definite prec", lambda: minres(A, b[here], M=Negative()))
        for text, call in (
            ("expected restart to be an integer >= 1", lambda: gmres(A, b[here], restart=wrong(0, 3))),
            ("expected callback_type to be one of", lambda: gmres(A, b[here], callback_type=wrong("legacy", "x"))),
            ("expected shift to be a finite number", lambda: minres(A, b[here], shift=wrong(1j, 0.5))),
            ("expected shift to be a finite number", lambda: minres(A, b[here], shift=wrong(np.nan, 0.5))),
        ):
            raises_everywhere(comm, InputError, text, call)
        if comm.size > 1:
            for text, call in (
                ("restart: expected the same", lambda: gmres(A, b[here], restart=wrong(2, 3))),
                ("shift: expected the same", lambda: minres(A, b[here], shift=wrong(0.2, 0.3))),
            ):
                raises_everywhere(comm, InputError, text, call)
            for kind in ("x", "pr_norm"):
                raises_everywhere(
                    comm,
                    RankError,
                    "ZeroDivisionError: of",
                    gmres,
                    A,
                    within[here],
                    callback=raising,
                    callback_type=kind,
                )
            raises_everywhere(comm, RankError, "ZeroDivisionError: of", lambda: minres(A, b[here], callback=raising))
