"""Reductions, filling, spectral operators and time steppers."""

import numpy as np
import pytest
from everywhere import raises_everywhere
from marks import exhaustive, on_ranks
from truth import random

import overlap
from overlap import FFT2, FFT3, InputError, RankError, TimeStepper
from overlap.arrays import DistArray


def drawn(spec, seed=0):
    """A global array, the same on all ranks, and this rank's part of it."""
    whole = random(seed, spec.global_shape, spec.dtype)
    return whole, spec.wrap(whole[spec.local_slice].copy())


@on_ranks(1, exhaustive(2), 3, "openmpi-2")
def test_reductions(comm):
    for dtype in ("f4", "f8", "c8", "c16"):
        with FFT2(comm, (3, 2 * comm.size + 1, 7), dtype=dtype, settings={"effort": "estimate"}) as plan:
            whole, u = drawn(plan.real)
            _, v = drawn(plan.real, 1)
            wide = whole.astype("c16" if dtype[0] == "c" else "f8")
            close = dict(rtol=1e-6 if u.dtype.itemsize <= 8 and dtype != "f8" else 1e-13, atol=0)
            checked = {
                "sum": (u.global_sum(), wide.sum()),
                "mean": (u.global_mean(), wide.mean()),
                "norm": (u.global_norm(), np.linalg.norm(wide.ravel())),
                "norm 1": (u.global_norm(ord=1), np.abs(wide).sum()),
                "norm inf": (u.global_norm(ord=np.inf), np.abs(wide).max()),
                "vdot": (u.global_vdot(v), np.vdot(wide, drawn(plan.real, 1)[0])),
            }
            for name, (found, expected) in checked.items():
                np.testing.assert_allclose(found, expected, err_msg=name, **close)
                assert len(set(comm.allgather(complex(found)))) == 1, name  # to the last bit
            assert u.global_sum().dtype == np.sum(whole).dtype and u.global_norm().dtype == np.abs(whole).dtype
            assert u.global_max() == whole.max() and u.global_min() == whole.min()
            assert u[0].global_sum() == u[0:1].global_sum()
            if comm.rank == comm.size - 1:
                u[0, 0, 0] = np.nan
            assert np.isnan(u.global_max()) and np.isnan(u.global_sum())


@on_ranks(1, exhaustive(2), 3)
def test_reductions_of_all_kinds(comm):
    size = comm.size
    whole = np.arange(5 * size * 2).reshape(5 * size, 2)
    mine = slice(5 * comm.rank, 5 * comm.rank + 5)
    numbers = DistArray(whole[mine], comm, whole.shape, (0,), (mine, slice(0, 2)))
    assert numbers.global_sum() == whole.sum() and numbers.global_sum().dtype == whole.dtype
    assert numbers.global_mean() == whole.mean() and numbers.global_max() == whole.max()
    assert (numbers > 3).global_sum() == (whole > 3).sum()
    for dtype, value in (("i8", 2**62), ("i1", -128), ("u1", 200), ("?", True)):  # at the ends of their ranges
        full = np.full(whole.shape, value, dtype)
        part = DistArray(full[mine], comm, whole.shape, (0,), (mine, slice(0, 2)))
        for found, expected in (
            (part.global_sum(), full.sum()),
            (part.global_mean(), full.mean()),
            (part.global_max(), full.max()),
            (part.global_norm(), np.linalg.norm(full.ravel())),
            (part.global_norm(1), np.linalg.norm(full.ravel().astype(float), 1)),
            (part.global_norm(np.inf), np.linalg.norm(full.ravel().astype(float), np.inf)),
            (part.global_vdot(part), np.vdot(full, full)),
        ):
            assert np.isclose(found, expected, rtol=1e-14) and found.dtype == expected.dtype, (dtype, found, expected)
    pairs = DistArray(np.zeros((5, 2), "i4,f8"), comm, whole.shape, (0,), (mine, slice(0, 2)))
    for reduce in (pairs.global_mean, pairs.global_norm, pairs.global_sum):
        raises_everywhere(comm, InputError, "expected an array of numbers, received", reduce)
    point = DistArray(np.array(3), comm, (), (), ())
    assert point.global_mean() == 3.0 and point.global_norm() == 3.0 and point.global_vdot(point) == 9
    spans = DistArray(np.full((5, 2), 7, "m8[s]"), comm, whole.shape, (0,), (mine, slice(0, 2)))
    assert spans.global_sum() == np.timedelta64(70 * size, "s") and spans.global_max() == np.timedelta64(7, "s")
    for reduce in (spans.global_mean, spans.global_norm, lambda: spans.global_vdot(spans)):
        raises_everywhere(comm, InputError, "expected an array of numbers, received timedelta64", reduce)
    alike = DistArray(whole, comm, whole.shape, (), (slice(0, 5 * size), slice(0, 2)))
    assert alike.global_sum() == whole.sum(), "what every rank has counts once"
    one = np.ones((1, 3)) if comm.rank == 0 else np.ones((0, 3))
    few = DistArray(one, comm, (1, 3), (0,), (slice(0, len(one)) if comm.rank == 0 else slice(1, 1), slice(0, 3)))
    assert few.global_sum() == 3 and few.global_max() == 1
    none = DistArray(np.ones((0, 3)), comm, (0, 3), (0,), (slice(0, 0), slice(0, 3)))
    assert none.global_sum() == 0 and none.global_norm() == 0
    assert none.global_norm(1) == 0 and few.global_norm(np.inf) == 1
    for reduce in (none.global_max, none.global_min, none.global_mean, lambda: none.global_norm(np.inf)):
        raises_everywhere(comm, InputError, "expected an array with elements", reduce)
    last = comm.rank == size - 1
    raises_everywhere(comm, InputError, "expected ord to be", lambda: numbers.global_norm("2" if last else 2))
    raises_everywhere(comm, InputError, "expected a DistArray", lambda: numbers.global_vdot(whole if last else numbers))
    if size > 1:
        raises_everywhere(comm, InputError, "expected a DistArray of", lambda: numbers.global_vdot(alike))
        holes = DistArray(whole[:5], comm, whole.shape, (0,), (slice(0, 5), slice(0, 2)))
        raises_everywhere(comm, InputError, "that make up the global array", holes.global_sum)
    assert numbers.global_sum() == whole.sum()


@on_ranks(1, exhaustive(2), 3, exhaustive("openmpi-2"))
def test_filling(comm):
    with FFT3(comm, (2, 4, 6, 5), dtype="f4", settings={"effort": "estimate"}) as plan:
        z, y, x = (np.arange(n) * length / n for n, length in zip((4, 6, 5), (1.0, 2.0, 3.0)))
        expected = np.broadcast_to((z[:, None, None] - y[:, None] * x).astype("f4"), (2, 4, 6, 5))
        u = plan.real.from_function(lambda z, y, x: z - y * x, lengths=(1, 2, 3))
        np.testing.assert_array_equal(u, expected[u.local_slice])
        whole = np.random.default_rng(3).standard_normal((2, 4, 6, 5))
        for root in (0, comm.size - 1):
            v = plan.real.scatter(whole if comm.rank == root else None, root)
            np.testing.assert_array_equal(v, whole.astype("f4")[v.local_slice])
        spectral = np.fft.fftn(whole, axes=(1, 2, 3))[..., :3].astype("c8")
        np.testing.assert_array_equal(plan.spectrum.scatter(spectral), spectral[plan.spectrum.local_slice])
        last = comm.rank == comm.size - 1
        for kind, text, call in (
            (InputError, "expected an array of shape", lambda: plan.real.scatter(whole[0])),
            (InputError, "can be cast to float32", lambda: plan.real.scatter(whole + 1j)),
            (InputError, "expected root to be one of", lambda: plan.real.scatter(whole, 99 if last else 0)),
            (InputError, "that broadcast to the local", lambda: plan.real.from_function(lambda z, y, x: np.ones(9))),
            (InputError, "that can be cast to", lambda: plan.real.from_function(lambda z, y, x: "1" if last else 1)),
            (RankError, "ZeroDivisionError", lambda: plan.real.from_function(lambda z, y, x: 1 / (0 if last else 1))),
            (InputError, "expected a positive length", lambda: plan.real.from_function(np.add, (1, -1, 1))),
            (InputError, "expected arrays of real space", lambda: plan.spectrum.from_function(np.add)),
        ):
            raises_everywhere(comm, kind, text, call)
        np.testing.assert_array_equal(plan.real.scatter(whole), whole.astype("f4")[plan.real.local_slice])


@on_ranks(1, exhaustive(2), 3)
@pytest.mark.parametrize("order, dtype", [("natural", "f8"), ("transposed", "c16")])
def test_operators_in_2d(comm, order, dtype):
    ny, nx, lengths = 12, 15, (3.0, 2.0)
    layout = {"order": order}
    with FFT2(comm, (2, ny, nx), dtype=dtype, norm="ortho", layout=layout, settings={"effort": "estimate"}) as plan:
        ops = plan.operators(lengths=lengths)
        a, b = 2 * np.pi * 2 / 3.0, 2 * np.pi * 3 / 2.0
        f = plan.real.from_function(lambda y, x: np.sin(a * y) * np.cos(b * x), lengths)
        hat = plan.forward(f)
        close = dict(atol=1e-11)

        def field(function):
            return plan.real.from_function(function, lengths)

        def back(spectrum):
            return np.asarray(plan.backward(spectrum.copy()))

        dy, dx = ops.gradient(hat)
        np.testing.assert_allclose(back(dy), field(lambda y, x: a * np.cos(a * y) * np.cos(b * x)), **close)
        np.testing.assert_allclose(back(dx), field(lambda y, x: -b * np.sin(a * y) * np.sin(b * x)), **close)
        np.testing.assert_allclose(back(ops.derivative(hat, -1, 2)), -(b**2) * np.asarray(f), atol=1e-9)
        np.testing.assert_allclose(back(ops.laplacian(hat)), -(a**2 + b**2) * np.asarray(f), atol=1e-9)
        np.testing.assert_allclose(back(ops.inverse_laplacian(ops.laplacian(hat))), f, **close)
        np.testing.assert_allclose(np.asarray(ops.divergence((dy, dx))), np.asarray(ops.laplacian(hat)), atol=1e-9)
        assert np.abs(ops.curl((dy, dx))).max(initial=0) < 1e-9
        np.testing.assert_allclose(ops.energy(hat), [0.125, 0.125])  # half the mean of sin^2 cos^2
        k, energies = ops.energy_spectrum(hat)
        np.testing.assert_allclose(energies.sum(), ops.energy(hat).sum())
        at = int(np.rint(np.hypot(a, b) / (2 * np.pi / 3.0)))
        np.testing.assert_allclose(energies[at], 0.25)
        assert k[1] == 2 * np.pi / 3.0
        whole, noise = drawn(plan.real)
        spectrum = plan.forward(noise)
        np.testing.assert_allclose(ops.energy(spectrum), 0.5 * np.mean(np.abs(whole) ** 2, axis=(1, 2)))
        np.testing.assert_allclose(
            ops.energy_spectrum(spectrum)[1].sum(), 0.5 * np.mean(np.abs(whole) ** 2, (1, 2)).sum()
        )
        ops_aliased = plan.operators(lengths=lengths, dealias=None)
        np.testing.assert_allclose(back(ops_aliased.product(hat, spectrum)), np.asarray(f) * np.asarray(noise), **close)
        product = back(ops.product(hat, hat))
        expected = field(lambda y, x: (np.sin(a * y) * np.cos(b * x)) ** 2)
        np.testing.assert_allclose(product, expected, **close)  # resolved: mode 6 of 15 along x, 4 of 12 along y


@on_ranks(1, exhaustive(2), 3, exhaustive("openmpi-2"))
def test_operators_in_3d(comm):
    n, lengths = (4, 6, 8), (1.0, 2 * np.pi, 3.0)
    with FFT3(comm, n, dtype="f8", settings={"effort": "estimate"}) as plan:
        ops = plan.operators(lengths)
        whole = [drawn(plan.real, seed)[0] for seed in range(3)]
        vector = [plan.forward(drawn(plan.real, seed)[1]) for seed in range(3)]
        modes = (2 * np.pi * np.fft.fftfreq(m, 1 / m) / length for m, length in zip(n, lengths))
        k = list(np.meshgrid(*modes, indexing="ij"))
        for axis, m in enumerate(n):  # the Nyquist mode of an odd derivative
            k[axis] = np.where(np.abs(k[axis]) == 2 * np.pi * (m // 2) / lengths[axis], 0, k[axis])
        hats = [np.fft.fftn(one) for one in whole]

        def d(part, axis):
            return np.fft.ifftn(1j * k[axis] * hats[part]).real

        expected = d(1, 2) - d(2, 1), d(2, 0) - d(0, 2), d(0, 1) - d(1, 0)
        for found, one in zip(ops.curl(vector), expected):
            np.testing.assert_allclose(plan.backward(found), one[plan.real.local_slice], atol=1e-11)
        np.testing.assert_allclose(
            plan.backward(ops.divergence(vector)), sum(d(i, i) for i in range(3))[plan.real.local_slice], atol=1e-11
        )
        divergence = ops.divergence(ops.curl(vector))
        assert np.abs(divergence).max(initial=0) < 1e-9
        np.testing.assert_allclose(ops.energy(*vector), 0.5 * sum(np.mean(one**2) for one in whole))
        last = comm.rank == comm.size - 1
        raises_everywhere(comm, InputError, "field", lambda: ops.energy(vector[0], None if last else vector[1]))
        raises_everywhere(comm, InputError, "a positive length", lambda: plan.operators("long"))
        raises_everywhere(comm, InputError, "expected dealias", lambda: plan.operators(dealias="2/3" if last else None))
        for call in (
            lambda: ops.derivative(vector[0], 0),
            lambda: ops.curl(vector[0]),
            lambda: ops.laplacian(whole[0][0]),
        ):
            with pytest.raises(InputError, match="expected"):  # on this rank
                call()
        # shares may change while the operators are in use
        plan._reshare((1.0,) + (2.0,) * (comm.size - 1), plan._alive())
        again = plan.forward(drawn(plan.real, 0)[1])
        np.testing.assert_allclose(ops.energy(again), 0.5 * np.mean(whole[0] ** 2))


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive(5))
def test_some_rank_holds_nothing(comm):
    """More ranks than modes along the split axes: energies, and their spectra shell by shell."""
    slabs = (1, comm.size)
    for kind, shape, grid in (("FFT2", (2, 3, 4), None), ("FFT2", (0, 3, 4), None), ("FFT3", (3, 2, 2), slabs)):
        for dtype, order in (("f8", "natural"), ("c16", "transposed")):
            layout = {"order": order} | ({"grid": grid} if grid else {})
            with getattr(overlap, kind)(comm, shape, dtype, layout=layout, settings={"effort": "estimate"}) as plan:
                if comm.size > 4:
                    assert not all(comm.allgather(int(np.prod(plan.spectrum.shape))))
                whole, u = drawn(plan.real)
                count = plan.real.dimensions
                axes, points = tuple(range(-count, 0)), whole.shape[-count:]
                ops, hat = plan.operators(), plan.forward(u)
                np.testing.assert_allclose(ops.energy(hat), 0.5 * np.mean(np.abs(whole) ** 2, axis=axes))
                modes = np.meshgrid(*(np.fft.fftfreq(n, 1 / n) for n in points), indexing="ij")
                shells = np.rint(np.sqrt(sum(mode**2 for mode in modes))).astype(int)
                squares = np.abs(np.fft.fftn(whole, axes=axes)) ** 2 / np.prod(points) ** 2
                k, found = ops.energy_spectrum(hat)
                expected = np.bincount(shells.ravel(), 0.5 * squares.reshape(-1, *points).sum(0).ravel(), len(k))
                np.testing.assert_allclose(found, expected, atol=1e-15)
                if not plan.real.slices:  # no rank has work, so shares stay
                    assert not plan.balance().changed


@on_ranks(1, 2)
def test_time_steppers(comm):
    """Fourth order, and the exact solution of Burgers' equation (Cole and Hopf)."""
    viscosity, n = 0.1, 32
    with FFT2(comm, (2 * comm.size, n), dtype="f8", settings={"effort": "estimate"}) as plan:
        ops = plan.operators()
        square = plan.pointwise(lambda u: 0.5 * u * u, dealias="3/2")
        _, k = ops.wavenumbers()

        def exact(t):
            """-2 nu phi_x / phi for phi = 2 + exp(-nu t) cos(x), which solves the heat equation."""
            decay = np.exp(-viscosity * t)
            return plan.real.from_function(lambda y, x: 2 * viscosity * decay * np.sin(x) / (2 + decay * np.cos(x)))

        expected = plan.forward(exact(1.0))
        for scheme in ("etdrk4", "ifrk4", "rk4"):
            errors = []
            for steps in (4, 8):
                stepper = TimeStepper(
                    -viscosity * k**2, lambda t, u: -ops.derivative(square(u), -1), 1.0 / steps, scheme
                )
                u, t = stepper.run(plan.forward(exact(0.0)), steps)
                assert abs(t - 1) < 1e-12
                errors.append(float((u - expected).global_norm() / expected.global_norm()))
            assert errors[1] < 1e-6 and errors[0] / errors[1] > (10 if scheme != "rk4" else 8), (scheme, errors)
    # several fields, a complex L, and what depends on time: y' = i y + exp(i t), z' = -z + t
    for scheme in ("etdrk4", "ifrk4", "rk4"):
        stepper = TimeStepper(
            (np.array([1j]), np.array([-1.0])), lambda t, state: (np.exp([1j * t]), np.array([t])), 0.05, scheme
        )
        seen = []
        (y, z), t = stepper.run((np.array([1 + 0j]), np.array([2.0])), 20, each=lambda t, state: seen.append(t))
        assert len(seen) == 20 and abs(t - 1) < 1e-12
        np.testing.assert_allclose(y, (1 + t) * np.exp(1j * t), rtol=1e-6)
        np.testing.assert_allclose(z, t - 1 + 3 * np.exp(-t), rtol=1e-6)
    single = TimeStepper(np.array([-1.0]), lambda t, y: 0 * y, 0.1)
    assert single.step(0.0, np.ones(1, "f4")).dtype == np.float32
    for arguments, text in (
        ((1.0, None, 0.1), "nonlinear to be a function"),
        ((1.0, abs, 0.0), "dt to be a positive number"),
        ((1.0, abs, "x"), "dt to be a positive number"),
        (("x", abs, 0.1), "linear to be numbers"),
        ((1.0, abs, 0.1, "euler"), "scheme to be one of"),
    ):
        raises_everywhere(comm, InputError, text, lambda: TimeStepper(*arguments))
    raises_everywhere(comm, InputError, "the state to be one field", lambda: single.step(0.0, (np.ones(1),)))
    assert overlap.TimeStepper is TimeStepper


@on_ranks(1, 2)
def test_time_steppers_of_any_use(comm):
    """Terms in one buffer, a new dt, precisions that change: against y' = -y + y^2, y = 1 / (1 + (1 / y0 - 1) e^t)."""
    start = np.array([0.3, 0.5, 0.6])

    def exact(t):
        return 1 / (1 + (1 / start - 1) * np.exp(t))

    for scheme in ("etdrk4", "ifrk4", "rk4"):
        buffer, times = np.empty(3), []
        stepper = TimeStepper(-1.0, lambda t, y: np.multiply(y, y, out=buffer), 0.1, scheme)
        y, t = stepper.run(start, 10)
        np.testing.assert_allclose(y, exact(1.0), rtol=1e-5)
        assert stepper.dt == 0.1 and stepper.scheme == scheme

        def halve(t, y):
            times.append(t)
            stepper.dt = 0.05

        y, t = stepper.run(y, 5, 1.0, each=halve)
        np.testing.assert_allclose(y, exact(1.3), rtol=1e-5)
        np.testing.assert_allclose([*times, t], [1.1, 1.15, 1.2, 1.25, 1.3, 1.3], rtol=1e-14)
        for dt in (0.0, True, "0.1", np.array([0.1]), 10**400, None):
            raises_everywhere(comm, InputError, "dt to be a positive number", lambda: setattr(stepper, "dt", dt))
        y = stepper.step(t, y)
        np.testing.assert_allclose(y, exact(1.35), rtol=1e-5)
        # factors have the precision of each field, whatever that of L and of earlier states
        third = np.float32(-1 / 3)
        stepper = TimeStepper((third, -1.0), lambda t, y: (0 * y[0], 0 * y[1]), 0.01, scheme)
        for first, other in (("f8", "f8"), ("f4", "f8"), ("f8", "f4"), ("c8", "c16"), ("f8", "f8")):
            (y, z), _ = stepper.run((np.ones(2, first), np.ones(2, other)), 2)
            assert (y.dtype, z.dtype) == (first, other)
            for one, linear in ((y, float(third)), (z, -1.0)):
                np.testing.assert_allclose(
                    one, np.exp(linear * 0.02), rtol=1e-11 if one.dtype in ("f8", "c16") else 1e-6
                )
        with FFT2(comm, (1, 4, 2 * comm.size), dtype="c16", settings={"effort": "estimate"}) as plan:
            square, out = plan.pointwise(lambda u: u * u), plan.spectrum.empty()
            stepper = TimeStepper(-np.ones(plan.spectrum.shape), lambda t, w: square(w, out=out), 0.1, scheme)
            w, _ = stepper.run(plan.forward(plan.real.from_function(lambda y, x: 0.3 + 0 * x)), 10)
            np.testing.assert_allclose(plan.backward(w), exact(1.0)[0], rtol=1e-5)
    for returned in (np.ones(1), np.ones((2, 3)), np.ones(2), 1.0):
        stepper = TimeStepper(-1.0, lambda t, y: returned, 0.1)
        raises_everywhere(comm, InputError, "nonlinear to return", lambda: stepper.step(0.0, start))
    for linear in (np.ones((2, 3)), np.ones(2)):
        stepper = TimeStepper(linear, lambda t, y: y, 0.1)
        raises_everywhere(comm, InputError, "linear of a shape that broadcasts to", lambda: stepper.step(0.0, start))
    for linear in ([], [[1.0], [1.0, [2.0]]], -np.inf, (1.0, [np.nan]), None, True, np.ones(2, "m8[s]")):
        raises_everywhere(comm, InputError, "linear to be", lambda: TimeStepper(linear, abs, 0.1))
    for scheme in ("etdrk4", "ifrk4"):
        raises_everywhere(comm, InputError, "exp(L dt)", lambda: TimeStepper([-1.0, 8000.0], abs, 0.1, scheme))
        stepper = TimeStepper(100.0, abs, 0.1, scheme)
        raises_everywhere(comm, InputError, "exp(L dt)", lambda: setattr(stepper, "dt", 8.0))
        assert stepper.dt == 0.1
    with pytest.raises(InputError, match="steps to be an integer"):
        stepper.run(start, True)
