"""Solvers, reductions and energies up to the limits of their types.

A power of two changes no digit, so a scaled system has the digits of the unscaled one, which numpy solves.
"""

from functools import partial

import numpy as np
import pytest
from everywhere import raises_everywhere
from marks import exhaustive, on_ranks
from test_sparse import split

from overlap import FFT2, FFT3, Blocks, Bracket, InputError
from overlap.arrays import DistArray
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
    diffusion,
    gmres,
    minres,
    pipecg,
)

SOLVERS = {
    "cg": cg,
    "single": partial(cg, single_reduction=True),
    "pipecg": pipecg,
    "bicgstab": bicgstab,
    "gmres": partial(gmres, restart=8),
    "minres": minres,
}
FARTHEST = {"f4": 119, "c8": 119, "f8": 996, "c16": 996}  # 2**119 is 6.6e35, 2**996 is 6.7e299
ROWS = 24
OF_ROWS = {"jacobi": Jacobi, "blocks": BlockJacobi, "ic0": IC0, "chebyshev": Chebyshev, "schwarz": AdditiveSchwarz}


class Operator:
    """A product with a matrix, or with the inverse of one, as another library would have it."""

    def __init__(self, comm, whole, here):
        self._comm, self._rows, self.dtype = comm, whole[here], whole.dtype

    def __matmul__(self, x):
        return self._rows @ np.concatenate(self._comm.allgather(x))


def scaled(values, exponent):
    """Values times 2**exponent, exactly."""
    half = exponent // 2
    return values * values.real.dtype.type(2.0**half) * values.real.dtype.type(2.0 ** (exponent - half))


def whole_matrix(dtype):
    """Hermitian and positive definite, with entries of different sizes."""
    chance = np.random.default_rng(5)
    off = chance.uniform(-1, 1, ROWS - 1)
    whole = np.diag(chance.uniform(2.5, 4, ROWS)) + np.diag(off, 1) + np.diag(off, -1)
    if dtype[0] == "c":
        whole = whole + 1j * (np.diag(off / 2, 1) - np.diag(off / 2, -1))
    return whole.astype(dtype)


def exponents(dtype):
    """Yield exponents of the matrix and of the right side, near the limits and in between, whose solution fits."""
    far = FARTHEST[dtype]
    for of_A in (-far, -far // 3, -far // 8, 0, far // 8, far // 3, far):
        for of_b in (-far, 0, far):
            if abs(of_b - of_A) <= far:
                yield of_A, of_b


def solvers(comm, dtype, solver_names=tuple(SOLVERS), preconditioners=("none", "jacobi")):
    """A scaled system has the solution, the iterations and the residuals of the unscaled one, scaled."""
    here = split(comm, ROWS, 1)
    whole = whole_matrix(dtype)
    chance = np.random.default_rng(6)
    b, guess = (chance.uniform(-1, 1, ROWS).astype(dtype) for _ in range(2))
    exact = np.linalg.solve(whole.astype("c16"), b)
    single = dtype in ("f4", "c8")
    rtol, close = (1e-5, 1e-4) if single else (1e-11, 1e-9)
    rows, columns = np.nonzero(whole)
    mine = (rows >= here.start) & (rows < here.stop)
    expected = {}
    for of_A, of_b in ((0, 0), *exponents(dtype)):
        values = scaled(whole[rows, columns], of_A)
        with Matrix(comm, rows[mine], columns[mine], values[mine], here.stop - here.start) as A:
            for kind in preconditioners:
                M = {"none": lambda A: None, **OF_ROWS}[kind](A)
                for name in solver_names:
                    for guessed in (False, True):
                        x0 = scaled(guess, of_b - of_A)[here] if guessed else None
                        seen = []
                        with np.errstate(all="raise", under="ignore"):
                            found = SOLVERS[name](
                                A, scaled(b, of_b)[here], x0, rtol=rtol, M=M, callback=lambda x: seen.append(x.copy())
                            )
                        case = name, kind, guessed, of_A, of_b
                        assert found.info == 0, (case, found.info, found.residuals)
                        x = scaled(found.x, of_A - of_b)
                        np.testing.assert_allclose(x, exact[here], rtol=0, atol=close, err_msg=str(case))
                        np.testing.assert_allclose(
                            scaled(seen[-1], of_A - of_b), exact[here], rtol=0, atol=close, err_msg=str(case)
                        )
                        residuals = np.ldexp(found.residuals, -of_b)
                        first = expected.setdefault((name, kind, guessed), residuals)
                        assert abs(len(residuals) - len(first)) <= 1, (case, len(residuals), len(first))
                        short = min(len(residuals), len(first))
                        np.testing.assert_allclose(residuals[:short], first[:short], rtol=0.5, atol=rtol)
                        assert np.ldexp(found.true_residual, -of_b) <= rtol * np.linalg.norm(b) * (1 + 1e-6)
                if M is not None:
                    M.free()


@pytest.mark.exhaustive
@on_ranks(1, 2, 3, "openmpi-1", "openmpi-2", "openmpi-3", deadline_s=1200)
@pytest.mark.parametrize("dtype", list(FARTHEST))
def test_all_solvers_and_preconditioners(comm, dtype):
    solvers(comm, dtype=dtype, solver_names=list(SOLVERS), preconditioners=["none", *OF_ROWS])


def operators(comm, dtype):
    """The same for products and preconditioners of another library, which are scaled each on its own."""
    here = split(comm, ROWS, 1)
    whole = whole_matrix(dtype)
    b = np.random.default_rng(6).uniform(-1, 1, ROWS).astype(dtype)
    exact = np.linalg.solve(whole.astype("c16"), b)
    inverse = np.diag(1 / np.diag(whole))
    rtol, close = (1e-5, 1e-4) if dtype in ("f4", "c8") else (1e-11, 1e-9)
    far = FARTHEST[dtype]
    for of_A, of_M, of_b in ((far, -far, far), (-far, far, 0), (-far, 0, -far), (0, -far, 0), (0, far, -far)):
        A = Operator(comm, scaled(whole, of_A), here)
        M = Operator(comm, scaled(inverse, of_M), here)
        for name, solver in SOLVERS.items():
            if abs(of_b - of_A) > far:
                continue
            with np.errstate(all="raise", under="ignore"):
                found = solver(A, scaled(b, of_b)[here], rtol=rtol, M=M, comm=comm)
            case = name, of_A, of_M, of_b
            assert found.info == 0, (case, found.residuals)
            np.testing.assert_allclose(scaled(found.x, of_A - of_b), exact[here], rtol=0, atol=close, err_msg=str(case))


@on_ranks(1)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_system_at_any_scale_has_its_solution(comm, dtype):
    solvers(comm, dtype=dtype)
    operators(comm, dtype=dtype)


@on_ranks(2, exhaustive(1), exhaustive(3), exhaustive("openmpi-1"), exhaustive("openmpi-2"), exhaustive("openmpi-3"))
@pytest.mark.parametrize("dtype, sign", [("f4", 1), ("f8", -1), exhaustive("f4", -1), exhaustive("f8", 1)])
def test_what_does_not_fit(comm, dtype, sign):
    """A solution beyond the type's range, and a matrix that is not definite, are errors at every scale."""
    here = split(comm, ROWS, 1)
    b, far = np.ones(ROWS)[here].astype(dtype), FARTHEST[dtype]
    whole = whole_matrix(dtype)
    rows, columns = np.nonzero(whole)
    mine = (rows >= here.start) & (rows < here.stop)
    values = scaled(whole[rows, columns], sign * far)
    right = scaled(b, -sign * far)
    with Matrix(comm, rows[mine], columns[mine], values[mine], here.stop - here.start) as A:
        for solver in SOLVERS.values():
            raises_everywhere(comm, InputError, "expected a solution in the range of", lambda: solver(A, right))
    values[rows == columns] *= -1
    with Matrix(comm, rows[mine], columns[mine], values[mine], here.stop - here.start) as A:
        for name in ("cg", "single", "pipecg"):
            raises_everywhere(comm, InputError, "expected a positive definite", lambda: SOLVERS[name](A, b))


@on_ranks(2, exhaustive(1), exhaustive(3), exhaustive("openmpi-1"), exhaustive("openmpi-2"), exhaustive("openmpi-3"))
def test_grids(comm, dtype="f8"):
    """A cycle of multigrid, and shifts of `minres`, at all scales."""
    blocks = Blocks((8 * comm.size, 8, 8), (comm.size, 1, 1))
    b = np.random.default_rng(comm.rank).uniform(-1, 1, 512)
    solutions = {}
    for exponent in (0, -FARTHEST["f8"], FARTHEST["f8"]):
        with diffusion(comm, blocks, 2.0**exponent, fixed=[(0, 0)]) as A, Multigrid(A, blocks, switch=1) as M:
            for name, found in (
                ("multigrid", cg(A, b, rtol=1e-10, M=M)),
                ("shift", minres(A, b, rtol=1e-10, shift=0.5 * 2.0**exponent)),
                ("large shift", minres(A, b, rtol=1e-10, shift=-1.0)),
            ):
                assert found.info == 0, (name, exponent, found.residuals)
                if name == "large shift":
                    product = A @ found.x + found.x
                    assert np.abs(product - b).max() < 1e-8
                    continue
                x = scaled(found.x, exponent)
                np.testing.assert_allclose(x, solutions.setdefault(name, x), rtol=0, atol=1e-9 * np.abs(x).max())
            frobenius, largest = (np.ldexp(A.norm(kind), -exponent) for kind in ("fro", np.inf))
            norms = solutions.setdefault("norms", (frobenius, largest))
            assert (frobenius, largest) == norms


@on_ranks(2, 3, exhaustive(1), exhaustive("openmpi-1"), exhaustive("openmpi-2"), exhaustive("openmpi-3"))
def test_reductions(comm):
    """Reductions of an array whose parts have different sizes, the largest one at either end of the range."""
    rows = 3 * comm.size
    here = slice(3 * comm.rank, 3 * comm.rank + 3)
    for dtype, far in FARTHEST.items():
        chance = np.random.default_rng(2)
        whole = chance.standard_normal((rows, 5))
        if dtype[0] == "c":
            whole = whole + 1j * chance.standard_normal((rows, 5))
        whole = whole.astype(dtype)
        whole[: rows // 2] *= whole.real.dtype.type(2.0**-4)
        other = whole[::-1].copy()
        wide = whole.astype("c16" if dtype[0] == "c" else "f8")
        close = {"rtol": 1e-5 if dtype in ("f4", "c8") else 1e-12}
        for exponent in (-far, -far // 2, 0, far // 2, far):
            u, v = (
                DistArray(scaled(one[here], sign * exponent), comm, (rows, 5), (0,), (here, slice(0, 5)))
                for one, sign in ((whole, 1), (other, -1))
            )
            with np.errstate(all="raise", under="ignore"):
                for found, expected in (
                    (u.global_norm(), np.linalg.norm(wide)),
                    (u.global_norm(1), np.abs(wide).sum()),
                    (u.global_norm(np.inf), np.abs(wide).max()),
                    (u.global_mean(), wide.mean()),
                    (u.global_sum(), wide.sum()),
                    (u.global_max(), whole.max()),
                    (u.global_min(), whole.min()),
                ):
                    np.testing.assert_allclose(scaled(np.asarray(found), -exponent), expected, **close)
                products = np.conj(wide) * wide[::-1]
                error = np.abs(u.global_vdot(v) - products.sum())
                assert error <= close["rtol"] * np.abs(products).sum()
        limit = np.finfo(dtype).max
        full = DistArray(np.full((3, 5), limit, dtype), comm, (rows, 5), (0,), (here, slice(0, 5)))
        np.testing.assert_allclose(full.global_mean(), limit, **close)


@on_ranks(2, exhaustive(1), exhaustive(3), exhaustive("openmpi-1"), exhaustive("openmpi-2"), exhaustive("openmpi-3"))
def test_energies(comm):
    """Energies that fit, of spectra whose squares do not."""
    for kind, norm in ((FFT2, "backward"), (FFT2, "ortho"), (FFT3, "forward"), (FFT3, "backward")):
        for dtype in ("f4", "f8"):
            with kind(comm, (4, 6, 8), dtype, norm=norm, settings={"effort": "estimate"}) as plan:
                count = plan.real.dimensions
                axes = tuple(range(-count, 0))
                whole = np.random.default_rng(2).standard_normal((4, 6, 8)).astype(dtype)
                half = np.mean(whole.astype("f8") ** 2, axis=axes) / 2
                hat, ops = plan.forward(plan.real.wrap(whole[plan.real.local_slice].copy())), plan.operators()
                _, spectrum = ops.energy_spectrum(hat)
                for exponent in (-500, -100, 0, 100, 508) if dtype == "f8" else (-110, 110):
                    large = plan.spectrum.wrap(scaled(np.asarray(hat), exponent))
                    with np.errstate(all="raise", under="ignore"):
                        found = ops.energy(large)
                        _, sums = ops.energy_spectrum(large)
                    np.testing.assert_allclose(np.ldexp(found, -2 * exponent), half, rtol=1e-5)
                    np.testing.assert_allclose(np.ldexp(sums, -2 * exponent), spectrum, rtol=1e-12)


@on_ranks(2, exhaustive(1), exhaustive(3), exhaustive("openmpi-1"), exhaustive("openmpi-2"), exhaustive("openmpi-3"))
def test_boxes(comm):
    """Lengths of which the squares of wavenumbers leave the fields' range are refused; derivatives of others scale."""
    for dtype, far in (("f4", 50), ("f8", 500)):
        with FFT2(comm, (1, 4, 6), dtype, settings={"effort": "estimate"}) as plan:
            whole = np.random.default_rng(2).standard_normal((1, 4, 6)).astype(dtype)
            hat = plan.forward(plan.real.wrap(whole[plan.real.local_slice].copy()))
            usual = np.asarray(plan.operators(1.0).laplacian(hat))
            solved = np.asarray(plan.operators(1.0).inverse_laplacian(hat))
            for sign in (-far, far):
                ops = plan.operators(2.0**sign)
                with np.errstate(all="raise", under="ignore", divide="ignore"):
                    found, inverse = ops.laplacian(hat), ops.inverse_laplacian(hat)
                np.testing.assert_allclose(scaled(np.asarray(found), 2 * sign), usual, rtol=1e-6)
                np.testing.assert_allclose(scaled(np.asarray(inverse), -2 * sign), solved, rtol=1e-6)
                raises_everywhere(
                    comm, InputError, "expected lengths whose wavenumbers", lambda: plan.operators(2.0 ** (1.4 * sign))
                )


@on_ranks(2)
def test_solvers_on_several_ranks(comm):
    solvers(comm, dtype="f4", solver_names=["cg", "gmres"])


@pytest.mark.exhaustive
@on_ranks(1, 2, 3, "openmpi-1", "openmpi-2", "openmpi-3")
@pytest.mark.parametrize("dtype", list(FARTHEST))
def test_all_operators(comm, dtype):
    operators(comm, dtype=dtype)


@on_ranks(2, exhaustive(1), exhaustive(3), exhaustive("openmpi-1"), exhaustive("openmpi-2"), exhaustive("openmpi-3"))
def test_speeds(comm):
    """The speed of a bracket's advecting field is the largest gradient of a in real space, at all scales."""
    with Bracket(comm, (1, comm.size, 3, 5), points=(8, 8), settings={"effort": "estimate"}) as bracket:
        a = bracket.advecting.empty()
        for exponent in (-996, -600, 0, 600, 996):
            a[...] = 0
            if bracket.rows.start == 0:  # a = 2 cos x, whose gradient is at most 2
                a[:, 0, 1] = a[:, 0, 3] = 2.0**exponent
            bracket.advect(a)
            fastest = max(comm.allgather(bracket.speed))  # of all ranks' planes
            np.testing.assert_allclose(np.ldexp(fastest, -exponent), 2, rtol=1e-12)
