"""What solvers do at the edges: errors of one rank, what was freed, what `info` says, types; against scipy."""

import os
import pickle
import signal
from functools import partial
from itertools import product

import numpy as np
import pytest
from everywhere import raised, raises_everywhere
from marks import exhaustive, on_ranks
from scipy import sparse
from scipy.sparse import linalg
from test_sparse import split

from overlap import Blocks, ClosedError, InputError, RankError
from overlap.sparse import (
    IC0,
    AdditiveSchwarz,
    BlockJacobi,
    Chebyshev,
    Jacobi,
    Matrix,
    Multigrid,
    bicgstab,
    cg,
    faster_cg,
    gmres,
    minres,
    pipecg,
)


@on_ranks(1, 2)
def test_one_rank(comm):
    """What is wrong, or raises, on one rank alone is the same error on all, and the next call is right."""
    last = comm.rank == comm.size - 1
    other = comm.size - 1
    n = 6 * comm.size

    def wrong(value, right):
        return value if last else right

    def raising(*_):
        if last:
            raise ZeroDivisionError("of the user's")

    class Raising:
        """A product that raises on the last rank when it is made for the third time."""

        def __init__(self):
            self.count = 0

        def __matmul__(self, x):
            self.count += 1
            if last and self.count == 3:
                raise ZeroDivisionError("of the user's")
            return 4.0 * x

    class Conversion:
        def __array__(self, *_, **__):
            raise ZeroDivisionError("of the user's")

    class Wide:
        def __matmul__(self, x):
            return wrong(1j * x, x)

    with Matrix.from_stencil(comm, (n,), [(0,), (-1,), (1,)], [4.0, -1.0, -1.0]) as A:
        b = np.random.default_rng(comm.rank).standard_normal(A.count)
        right = cg(A, b, rtol=1e-12).x

        def then(kind, text, call):
            raises_everywhere(comm, kind, text, call)
            np.testing.assert_array_equal(cg(A, b, rtol=1e-12).x, right)

        for solver in (cg, partial(cg, single_reduction=True), pipecg, bicgstab, gmres, minres):
            # What is given is checked by all solvers alike.
            for text, options in (
                ()
                if solver is not cg
                else (
                    ("expected rtol to be a number >= 0, received None", {"rtol": wrong(None, 1e-5)}),
                    ("expected rtol to be a number >= 0, received nan", {"rtol": wrong(np.nan, 1e-5)}),
                    ("expected atol to be a number >= 0, received '0'", {"atol": wrong("0", 0)}),
                    ("expected maxiter to be an integer >= 0 or None, received '10'", {"maxiter": wrong("10", 10)}),
                    ("expected maxiter to be an integer >= 0 or None, received nan", {"maxiter": np.nan}),
                    ("expected callback to be callable, received int", {"callback": wrong(1, None)}),
                    ("expected x0 of numbers, received an array of type object", {"x0": wrong(b.astype(object), b)}),
                )
            ):
                then(InputError, text, lambda: solver(A, b, **options))
            for case, options in (
                ("callback", {"callback": raising}),
                ("M", {"M": Raising()}),
                ("A", {"A": Raising(), "comm": comm}),
                ("b", {"b": wrong(Conversion(), b)}),
            ):
                # On one rank all ranks are the one that raises: nothing is changed then, as in scipy.
                kind, text = (
                    (RankError, f"failed on rank {other}: ZeroDivisionError: of")
                    if comm.size > 1
                    else (ZeroDivisionError, "of")
                )
                if case == "b":
                    kind = RankError
                arguments = {"A": A, "b": b} | options
                then(kind, f"{text}", lambda: solver(**arguments))
            then(InputError, "expected M @ r to be real for real vectors", lambda: solver(A, b, M=Wide()))

        then(InputError, "a right side of numbers", lambda: cg(A, wrong(b.astype(object), b)))
        then(InputError, "a vector of shape (6,)", lambda: cg(A, wrong(np.ones(5), b)))

        class All(Exception):
            pass

        def stop(x):
            raise All(comm.rank)

        try:
            cg(A, b, callback=stop)
        except All as error:
            assert error.args == (comm.rank,)
        if comm.size > 1:
            then(InputError, "dtype: expected the same on all ranks", lambda: cg(A, wrong(b + 0j, b)))
            then(InputError, "rtol: expected the same on all ranks", lambda: cg(A, b, rtol=wrong(1e-3, 1e-4)))
            then(InputError, "dtype: expected the same on all ranks", lambda: A @ wrong(b + 0j, b))
            then(InputError, "expected the same on all ranks", lambda: wrong(cg, bicgstab)(A, b))
        for text, make in (
            ("expected shift to be a non-negative number, received None", lambda: IC0(A, shift=wrong(None, 0.0))),
            ("expected colours to be an integer >= 1 or None, received 'a'", lambda: IC0(A, wrong("a", None))),
            ("expected ratio to be a number > 1, received None", lambda: Chebyshev(A, ratio=wrong(None, 6.0))),
            ("expected degree to be an integer >= 1, received nan", lambda: Chebyshev(A, wrong(np.nan, 2))),
            (
                "expected overlap to be an integer >= 0, received None",
                lambda: AdditiveSchwarz(A, overlap=wrong(None, 0)),
            ),
            ("expected corrections to be an integer >= 0", lambda: AdditiveSchwarz(A, corrections=wrong(-1, 1))),
            ("expected overlap to be an integer >= 0, received -1", lambda: AdditiveSchwarz(A, overlap=wrong(-1, 0))),
            ("expected degree to be an integer >= 1, received 0", lambda: Chebyshev(A, wrong(0, 2))),
            ("expected ratio to be a number > 1, received 1.0", lambda: Chebyshev(A, ratio=wrong(1.0, 6.0))),
            (
                "expected Blocks, received NoneType",
                lambda: Multigrid(A, wrong(None, Blocks((n, 1, 1), (comm.size, 1, 1)))),
            ),
            ("expected ord to be 'fro' or inf, received None", lambda: A.norm(wrong(None, "fro"))),
            ("a vector of shape (6,)", lambda: Jacobi(A) @ wrong(np.ones(5), b)),
            ("a vector of numbers", lambda: A @ wrong(b.astype(object), b)),
            ("a vector of shape (6,)", lambda: A.T @ wrong(np.ones(5), b)),
        ):
            then(InputError, text, make)
        then(RankError, f"failed on rank {other}: ZeroDivisionError", lambda: A @ wrong(Conversion(), b))
        then(RankError, "ZeroDivisionError", lambda: AdditiveSchwarz(A, lambda A: raising() or IC0(A)))
        for covered in (0, 1):  # the subdomain's own preconditioner is wrong, and who has it is named, once
            error = raised(InputError, AdditiveSchwarz, A, lambda A: IC0(A, shift=wrong(None, 0.0)), overlap=covered)
            assert str(error).startswith(f"rank {other}: expected shift to be a non-negative number"), error


@on_ranks(exhaustive(1), 2)
def test_interrupted(comm):
    """Ctrl-C on one rank in a solver ends it on all."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Matrix.from_stencil(comm, (6 * comm.size,), [(0,), (-1,), (1,)], [4.0, -1.0, -1.0]) as A:
            b = np.ones(A.count)
            count = []

            def kill(x):
                count.append(x)
                if comm.rank == 0 and len(count) == 2:
                    os.kill(os.getpid(), signal.SIGINT)

            for solver in (cg, pipecg, bicgstab, partial(gmres, restart=1), minres):
                count.clear()
                try:
                    solver(A, b, rtol=0, callback=kill)
                except KeyboardInterrupt:
                    assert comm.rank == 0
                except RankError as error:
                    assert comm.rank != 0 and error.rank == 0 and "KeyboardInterrupt" in error.summary
                else:
                    raise AssertionError("no rank may go on")
                assert cg(A, b).converged
    finally:
        signal.signal(signal.SIGINT, before)


@on_ranks(2)
def test_a_rank_that_fails_when_the_others_have_begun(comm):
    """No rank is left in the solver: the matrix can be used and freed."""

    class Odd(int):
        read = 0

        def __int__(self):
            self.read += 1
            if self.read > 1:  # after the ranks have compared it
                raise ArithmeticError("odd")
            return 5

    with Matrix.from_stencil(comm, (6 * comm.size,), [(0,), (-1,), (1,)], [4.0, -1.0, -1.0]) as A:
        for solver in (cg, pipecg, bicgstab, gmres, minres):
            with pytest.raises(RankError, match="failed on rank 1: ArithmeticError: odd"):
                solver(A, np.ones(A.count), maxiter=Odd(5) if comm.rank == 1 else 5)
        assert cg(A, np.ones(A.count)).converged


@on_ranks(1, 2)
def test_different_preconditioners(comm):
    """The ranks pass different preconditioners, of which some exchange and others do not: one error on all."""
    offsets = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
    with Matrix.from_stencil(comm, (4 * comm.size, 4), offsets, [4.0, -1.0, -1.0, -1.0, -1.0], deadline_s=20) as A:
        b = np.ones(A.count)
        made = [
            None,
            *(make(A) for make in (Jacobi, Chebyshev, Chebyshev, partial(Chebyshev, degree=2), AdditiveSchwarz)),
        ]
        for one, other in product(made, made):
            M = other if comm.rank == comm.size - 1 else one
            if comm.size > 1 and one is not other:
                for solver in (cg, gmres):
                    raises_everywhere(comm, InputError, "M: expected the same on all ranks", lambda: solver(A, b, M=M))
                if None not in (one, other):
                    raises_everywhere(comm, InputError, "call: expected the same on all ranks", lambda: M @ b)
            solution = cg(A, b, M=one, rtol=1e-10)
            np.testing.assert_allclose(A @ solution.x, b, rtol=0, atol=1e-7)


@on_ranks(1, 2)
def test_freed(comm):
    """Solvers and constructors say by name that what they are given was freed; their own methods: test_generated.py."""
    makers = Jacobi, BlockJacobi, IC0, Chebyshev, AdditiveSchwarz
    A = Matrix.from_stencil(comm, (6 * comm.size,), [(0,), (-1,), (1,)], [4.0, -1.0, -1.0])
    x = np.ones(A.count)
    for M in [make(A) for make in makers]:
        M.free()
        name = f"expected an open {type(M).__name__}, received one that was closed"
        raises_everywhere(comm, ClosedError, name, lambda: cg(A, x, M=M))
    A.free()
    for call in (
        lambda: setattr(A, "workers", 2),
        *(partial(solver, A, x) for solver in (cg, pipecg, bicgstab, gmres, minres, faster_cg)),
        *(partial(make, A) for make in makers),
    ):
        raises_everywhere(comm, ClosedError, "expected an open Matrix, received one that was closed", call)


@on_ranks(1, 2)
def test_truth(comm):
    """`info` is 0 where the true residual meets the rule, and only there; codes and special right sides as scipy's."""
    here = split(comm, 60, 1)

    def made(whole):
        return Matrix.from_scipy(comm, whole.tocsr()[here])

    neumann = sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(60, 60)).tolil()
    neumann[0, 0] = neumann[59, 59] = 1
    chance = np.random.default_rng(0)
    b = chance.standard_normal(60)
    solvers = (cg, partial(cg, single_reduction=True), pipecg, bicgstab, partial(gmres, restart=1), minres)
    with made(neumann) as A:
        for solver, shift in product(solvers, (1, 0.5, -2, 7)):  # rounding errors decide on the sign of p.Ap
            found = solver(A, b[here] + shift, rtol=1e-10, maxiter=120)
            assert found.info != 0 and not found.converged and found.true_residual > found.tolerance, found.info
    whole = sparse.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(60, 60))
    with made(whole) as A:
        zero, one = np.zeros(60)[here], b[here]
        for solver in solvers:
            found = solver(A, one, rtol=1e-8)
            assert found.info == 0 and found.converged and found.true_residual <= found.tolerance
            assert pickle.loads(pickle.dumps(found)).info == 0
            x, _ = found
            assert solver(A, one, maxiter=0).info == 1 and solver(A, one, x, maxiter=0, rtol=1e-7).info == 0
            assert solver(A, one, maxiter=3).info == 3
            # scipy: b = 0 has x = 0, whatever x0 is; rtol may be infinite; 0 is not reached, and no error.
            found = solver(A, zero, one)
            assert found.info == 0 and not found.x.any() and found.iterations == 0
            found = solver(A, one, rtol=np.inf)
            assert found.info == 0 and found.iterations == 0 and not found.x.any()
            found = solver(A, one, rtol=0)
            assert found.info > 0 and found.true_residual < 1e-11, found
            large = np.full_like(one, 1.5e308)
            raises_everywhere(comm, InputError, "a right side whose norm can be", lambda: solver(A, large))
            # A callback that multiplies disturbs nothing.
            again = solver(A, one, rtol=1e-8, callback=lambda x: A @ x)
            np.testing.assert_array_equal(again.x, x)
    # As scipy's tests: breakdowns are codes.
    turned = sparse.csr_array(np.kron(np.eye(30), [[0.0, 1.0], [-1.0, 0.0]]))
    with made(turned) as A:
        found = bicgstab(A, np.ones(60)[here])
        assert found.info == linalg.bicgstab(turned, np.ones(60))[1] == -11 and not found.converged
        assert pickle.loads(pickle.dumps(found)).info == -11
    nilpotent = sparse.csr_array(
        np.kron(np.eye(30), [[0.0, 0.0], [1.0, 0.0]]) + np.kron(np.eye(30), [[1.0, 1.0], [0, 1]])
    )
    with made(nilpotent) as A:
        bicgstab(A, b[here], maxiter=50)  # anything but an error


@pytest.mark.exhaustive
@on_ranks(1, 2)
def test_types(comm):
    """The common type counts, as in scipy; matrices in half precision and other byte orders are converted."""
    here = split(comm, 60, 2)
    whole = sparse.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(60, 60)).tocsr()
    chance = np.random.default_rng(0)
    real, imag = chance.standard_normal((2, 60))
    vectors = {kind: real.astype(kind) for kind in ("f4", "f8", "f2", ">f8", "i4", "g")}
    vectors["c16"] = real + 1j * imag
    solvers = (cg, partial(cg, single_reduction=True), pipecg, bicgstab, partial(gmres, restart=1), minres)
    for kind in ("f4", ">c16", "f2"):
        given = whole.data.astype(kind)
        rows, columns = whole.nonzero()
        mine = (rows >= here.start) & (rows < here.stop)
        with Matrix(comm, rows[mine], columns[mine], given[mine], here.stop - here.start) as A:
            assert A.dtype == np.dtype({"f2": "f4"}.get(kind, kind)).newbyteorder("=")
            preconditioners = [None, Jacobi(A), IC0(A), Chebyshev(A)] if kind == "f4" else [None, Jacobi(A)]
            for other, b in vectors.items():
                if other == "g":
                    raises_everywhere(
                        comm, InputError, "expected a vector of numbers that fit one of", lambda: A @ b[here]
                    )
                else:
                    found, right = A @ b[here], whole.astype(A.dtype) @ (b.astype("f4") if other == "f2" else b)
                    assert found.dtype == right.dtype == (A.T @ b[here]).dtype, (kind, other, found.dtype, right.dtype)
                    near = 10 * np.finfo(right.dtype).eps
                    np.testing.assert_allclose(found, right[here], rtol=near, atol=near)
                    np.testing.assert_allclose(A.T @ b[here], (whole.T.astype(A.dtype) @ b)[here], rtol=near, atol=near)
                theirs = linalg.cg(whole.astype(A.dtype), b)[0]
                for M in preconditioners:
                    for solver in solvers if M is None and other == "f8" else (cg,):
                        found = solver(A, b[here], rtol=1e-5 if theirs.dtype.char in "fF" else 1e-11, M=M)
                        assert found.x.dtype == theirs.dtype and found.converged, (kind, other, found.info)
            guess = (real + 1j * imag)[here]
            found = cg(A, vectors["f4"][here], guess, rtol=1e-5)
            assert found.x.dtype.kind == "c" and found.converged
    for text, values in (
        ("expected values of one of float32, float64, complex64, complex128, received", np.ones(1, "g")),
        ("expected values that are numbers, received object", np.ones(1, object)),
    ):
        raises_everywhere(comm, InputError, text, lambda: Matrix(comm, [comm.rank], [comm.rank], values, 1))
    with Matrix.from_scipy(comm, whole[here]) as A, A.astype("c8") as B:
        assert B.dtype == np.complex64 and B.shape == A.shape
        raises_everywhere(comm, InputError, "expected dtype to be one of float32, ", lambda: A.astype("i4"))
        raises_everywhere(comm, InputError, "complex numbers to stay complex", lambda: B.astype("f8"))
        raises_everywhere(comm, InputError, "a preconditioner of real numbers", lambda: cg(A, real[here], M=Jacobi(B)))
        # A preconditioner of another matrix, whose rows are stored in another order.
        rows = A.local_rows
        with Matrix(comm, rows.first + rows.row_of, rows.columns, rows.values, A.count) as C:
            assert cg(A, real[here], M=Jacobi(C), rtol=1e-10).converged

    class Turning:
        """Complex, and says nothing of it."""

        def __matmul__(self, x):
            return (2 + 0.5j) * x

    class Typed(Turning):
        dtype = np.dtype("c16")

    for A in (Turning(), Typed()):
        found = bicgstab(A, real[here], rtol=1e-12, comm=comm)
        assert found.converged
        np.testing.assert_allclose(found.x, real[here] / (2 + 0.5j), rtol=1e-12)
