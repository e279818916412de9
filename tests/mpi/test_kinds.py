"""Plans with cosine and sine transforms on 1 to 4 ranks and two MPI libraries."""

from itertools import cycle, islice, product

import numpy as np
import pytest
import scipy.fft
from everywhere import raises_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI
from step_cases import grids, small_units
from truth import random, same_bits, wide

import overlap
from overlap import FFT2, FFT3, InputError

REAL = tuple(f"{name}{number}" for name in ("dct", "dst") for number in range(1, 5))
NORMS = ("backward", "ortho", "forward")
DTYPES = ("f8", "c8", "f4", "c16")
QUICK = {"wait": "off", "effort": "estimate"}


# ---- truth -----------------------------------------------------------------------------------


def along(values, axis, kind, norm):
    """scipy's transform along an axis, of both parts of complex data."""
    if kind in REAL:
        return getattr(scipy.fft, kind[:3])(values, type=int(kind[3]), axis=axis, norm=norm)
    return getattr(scipy.fft, {"c2c": "fft", "r2c": "rfft"}[kind])(values, axis=axis, norm=norm)


def truth(u, kinds, norm, order="natural"):
    found = wide(u)
    for axis in range(-1, -len(kinds) - 1, -1):
        found = along(found, axis, kinds[axis], norm)
    return np.moveaxis(found, -len(kinds), -1) if order == "transposed" else found


def assert_close(comm, found, expected, local_slice, what, factor=1):
    """In relative l2 norm of all ranks; FFTW's transforms of type 1 are its least exact ones."""
    assert found.shape == expected[local_slice].shape, what
    tolerance = factor * 50 * np.finfo(found.dtype).eps
    squared = comm.allreduce(float(np.sum(np.abs(wide(np.asarray(found)) - expected[local_slice]) ** 2)))
    error = np.sqrt(squared) / max(np.linalg.norm(np.ravel(expected)), 1e-300)
    assert error <= tolerance, (what, error, tolerance)


def checked(comm, make, shape, dtype, kinds, norm, seed=0, **options):
    """Forward, backward and pointwise of one plan."""
    what = make.__name__, shape, dtype, kinds, norm, options
    u = random(np.random.default_rng(seed), shape, dtype)
    order = options.get("layout", {}).get("order", "natural")
    with make(comm, shape, dtype, kinds=kinds, norm=norm, tuning="", **{"settings": QUICK, **options}) as plan:
        expected = truth(u, kinds, norm, order)
        mine = u[plan.real.local_slice].copy()
        spectrum = plan.forward(mine)
        assert spectrum.dtype.kind == ("f" if np.dtype(dtype).kind == "f" and "r2c" not in kinds else "c"), what
        assert_close(comm, spectrum, expected, plan.spectrum.local_slice, what)
        assert same_bits(mine, u[plan.real.local_slice]), what
        kept = np.array(spectrum)
        assert_close(comm, plan.backward(spectrum), wide(u), plan.real.local_slice, what)
        assert same_bits(np.asarray(spectrum), kept), what
        squares = plan.pointwise(lambda a: a * a - a)
        expected = truth(wide(u) ** 2 - u, kinds, norm, order)
        assert_close(comm, squares(spectrum), expected, plan.spectrum.local_slice, what, factor=4)
        return kept


def placed(kind, dtype, count):
    """Kinds with this one in every place, beside Fourier transforms, and others."""
    waves = ["c2c"] * (count - 1)
    if np.dtype(dtype).kind == "f":
        waves[-1] = "r2c"
    for place in range(count):
        yield (*waves[:place], kind, *waves[place:])
    yield (kind, *islice(cycle(("dst2", "dct1", "dct3")), count - 1))


# ---- cases -----------------------------------------------------------------------------------


@on_ranks(1, exhaustive(2), 3, exhaustive("openmpi-1"), "openmpi-2", exhaustive("openmpi-3"), deadline_s=600)
@pytest.mark.parametrize("every", [False, exhaustive(True)])
def test_like_scipy(comm, every):
    """All kinds and norms, in all places; by default each kind in two places, with one norm and type."""
    norms, dtypes, number = cycle(NORMS), cycle(DTYPES), cycle(range(4))
    options = cycle([{}, {"layout": {"order": "transposed"}}, {"layout": {"restore": True}}])
    for kind in REAL:
        for norm, dtype in product(NORMS, DTYPES) if every else [(next(norms), next(dtypes))]:
            for make, shape, count in (FFT2, (2, 13, 10), 2), (FFT3, (9, 10, 7), 3):
                several = list(placed(kind, dtype, count))
                for kinds in several if every else [several[next(number) % len(several)]]:
                    checked(comm, make, shape, dtype, kinds, norm, **next(options))


def _drawn_kinds(rng, dtype, count):
    kinds = rng.choice([*REAL, *["c2c"] * 6], count).tolist()
    if np.dtype(dtype).kind == "f" and "c2c" in kinds:
        kinds[max(place for place, kind in enumerate(kinds) if kind == "c2c")] = "r2c"
    return tuple(kinds)


@on_ranks(deadline_s=600)
@pytest.mark.parametrize("comm, count", [(3, 25), *[exhaustive(ranks, 200) for ranks in (1, 2, 3, 4)]])
@small_units(2**13)
def test_drawn(comm, count):
    """Drawn sizes, layouts and settings, with several units and late ones."""
    rng = np.random.default_rng(comm.size)
    for number in range(count):
        axes, dtype = int(rng.integers(2, 4)), DTYPES[rng.integers(4)]
        batch = rng.integers(1, 4, rng.integers(0, 3 if axes == 3 else 2) or axes % 2).tolist()
        lengths = rng.choice([2, 3, 5, 8, 13, 16, 30, 40], axes).tolist()
        layout = {"order": str(rng.choice(["natural", "transposed"])), "restore": bool(rng.integers(2))}
        if rng.integers(2):
            layout["weights"] = tuple(rng.integers(1, 4, comm.size).tolist())
        settings = QUICK | {"wait": str(rng.choice(["off", "block", "poll"])), "depth": 3, "chunk": 1}
        if axes == 3:
            layout["grid"] = grids(comm.size)[rng.integers(len(grids(comm.size)))]
            settings["late"] = float(rng.choice([0.0, 0.6]))
        options = {"layout": layout, "settings": settings, "seed": number}
        kinds, norm = _drawn_kinds(rng, dtype, axes), NORMS[rng.integers(3)]
        checked(comm, FFT2 if axes == 2 else FFT3, (*batch, *lengths), dtype, kinds, norm, **options)


@small_units(2**14)
@on_ranks(exhaustive(1), 2, exhaustive(3))
def test_same_bits(comm):
    """Large enough for all sweeps: contiguous lines, columns through scratch memory, long ones, and late messages."""
    for make, shape, dtype, kinds in (
        (FFT3, (66, 40, 34), "f8", ("dct2", "c2c", "r2c")),
        (FFT3, (48, 30, 52), "f4", ("dct1", "dst1", "dct4")),
        (FFT2, (2, 300, 140), "c16", ("dst3", "c2c")),
    ):
        found = [
            checked(comm, make, shape, dtype, kinds, "ortho", settings=settings)
            for settings in (
                {"wait": "off"},
                {"wait": "poll", "depth": 4, "chunk": 1, **({"late": 0.7} if make is FFT3 else {})},
            )
        ]
        assert same_bits(*found), kinds


@on_ranks(1, 2)
def test_in_single_precision(comm):
    """Doubles travel as singles, real and complex ones."""
    for kinds in (("dct2", "c2c", "r2c"), ("c2c", "r2c", "dst3"), ("dct1", "dst1", "dct4")):
        shape, grid = (16, 12, 10), (comm.size, 1)
        u = random(np.random.default_rng(3), shape, "f8")
        layout = {"grid": grid}
        with FFT3(comm, shape, "f8", kinds=kinds, layout=layout, settings=QUICK, exchange="f4") as plan:
            found, expected = plan.forward(u[plan.real.local_slice]), truth(u, kinds, None)
            error = np.abs(np.asarray(found) - expected[plan.spectrum.local_slice]).max(initial=0.0)
            error = comm.allreduce(error, MPI.MAX) / np.abs(expected).max()
            assert error < 1e-6 and (error > 1e-12) == (comm.size > 1), (kinds, error)


@on_ranks(1, 2)
def test_one_mode(comm):
    """Every mode is a wave between walls: `grid` and `wavenumbers` tell which."""
    n, length = 9, 3.0
    for kind in REAL:
        norm = "forward" if kind in ("dct1", "dct3", "dst3") else "ortho"  # the others scale no values, but modes
        with FFT2(comm, (1, n, 6), "c16", kinds=(kind, "c2c"), norm=norm, settings=QUICK) as plan:
            y, _ = plan.real.grid((length, 1.0))
            modes = plan.wavenumbers()[0]
            assert modes.shape == (n, 1) and (modes[0] == 0) == (kind in ("dct1", "dct2"))
            wave = np.cos if kind[1] == "c" else np.sin
            for number in range(n):
                u = plan.real.empty()
                u[...] = wave(2 * np.pi / length * modes[number, 0] * y)
                here = np.abs(np.asarray(plan.forward(u)))[0].max(axis=1, initial=0.0)
                found = np.max(comm.allgather(here), axis=0)
                assert np.argmax(found) == number and np.delete(found, number).max() < 1e-12 * found[number], kind


@on_ranks(1, 2)
def test_operators(comm):
    """A potential between walls; what is not in the plan's series is refused by name."""
    cases = (("dct2", "dst2", "r2c"), "f8"), (("dct1", "dst1", "dst3"), "f4"), (("c2c", "dct3", "c2c"), "c16")
    for kinds, dtype in cases:

        def potential(*axes, kinds=kinds):
            waves = {"dct1": np.cos, "dct2": np.cos, "dct3": lambda a: np.cos(a / 2), "dst3": lambda a: np.sin(a / 2)}
            found = 1.0
            for kind, axis in zip(kinds, axes):
                found = found * waves.get(kind, np.sin)(axis * (2 if kind in ("c2c", "r2c") else 1))
            return found

        lengths = [2 * np.pi if kind in ("c2c", "r2c") else np.pi for kind in kinds]
        square = sum({"c2c": 4, "r2c": 4, "dct3": 0.25, "dst3": 0.25}.get(kind, 1) for kind in kinds)
        with FFT3(comm, (12, 11, 10), dtype, kinds=kinds, settings=QUICK) as plan:
            ops = plan.operators(lengths)
            for own, other in zip(ops.wavenumbers(), plan.wavenumbers(lengths)):
                np.testing.assert_array_equal(own, other)
            for axis, (kind, k) in enumerate(zip(kinds, plan.wavenumbers(lengths))):
                n = plan.real.global_shape[axis]
                every = {
                    "c2c": np.fft.fftfreq(n, 1 / n),
                    "r2c": np.arange(n // 2 + 1),
                    "dst2": np.arange(1, n + 1),
                    "dst1": np.arange(1, n + 1),
                    "dct3": np.arange(n) + 0.5,
                    "dst3": np.arange(n) + 0.5,
                }.get(kind, np.arange(n))
                np.testing.assert_allclose(k.reshape(-1), every[plan.spectrum.local_slice[axis]], rtol=1e-15)
            phi = plan.real.from_function(potential, lengths)
            spectrum = plan.forward(phi)
            close = {"atol": 1e-4 if dtype == "f4" else 1e-11}
            np.testing.assert_allclose(plan.backward(ops.laplacian(spectrum)), -square * phi, **close)
            np.testing.assert_allclose(plan.backward(ops.inverse_laplacian(spectrum)), -phi / square, **close)
            wall = next(axis for axis in (-3, -2, -1) if kinds[axis] in REAL)
            second = plan.backward(ops.derivative(spectrum, wall, order=2))
            factor = 0.25 if kinds[wall] in ("dct3", "dst3") else 1.0
            np.testing.assert_allclose(second, -factor * phi, **close)
            rough = {"atol": 10 * close["atol"], "rtol": 1e-4}
            np.testing.assert_allclose(ops.product(spectrum, spectrum), plan.forward(phi**2), **rough)
            raises_everywhere(comm, InputError, "even order", lambda: ops.derivative(spectrum, wall))
            raises_everywhere(comm, InputError, "even order", lambda: ops.curl((spectrum,) * 3))
            raises_everywhere(comm, InputError, "Fourier transforms for energies", lambda: ops.energy(spectrum))
            raises_everywhere(comm, InputError, "no finer grid", lambda: plan.operators(lengths, dealias="3/2"))
            raises_everywhere(comm, InputError, "positive length", lambda: plan.wavenumbers((1.0, 0.0, 1.0)))
        with FFT2(comm, (1, 4, 4), dtype, norm="ortho", kinds=(kinds[1], kinds[2]), settings=QUICK) as plan:
            if {"dct1", "dct3", "dst3"} & {*kinds[1:]}:
                raises_everywhere(comm, InputError, "no series", lambda: plan.operators(dealias=None))
            else:
                plan.operators(dealias=None)


@on_ranks(1, 2)
def test_refused(comm):
    def made(make, shape, dtype, kinds, text, **options):
        raises_everywhere(comm, InputError, text, lambda: make(comm, shape, dtype, kinds=kinds, **options))

    made(FFT2, (1, 4, 4), "f8", ("dct5", "r2c"), "one for each of ny, nx")
    made(FFT2, (1, 4, 4), "f8", "dct2", "one for each of ny, nx")
    made(FFT3, (4, 4, 4), "f8", ("dct2", "r2c"), "one for each of nz, ny, nx")
    made(FFT2, (1, 4, 4), "c16", ("c2c", "r2c"), "without 'r2c'")
    made(FFT2, (1, 4, 4), "f8", ("c2c", "c2c"), "'r2c' along the last axis with FFTs")
    made(FFT3, (4, 4, 4), "f8", ("r2c", "c2c", "dct2"), "'r2c' along the last axis with FFTs")
    made(FFT3, (4, 4, 4), "f4", ("r2c", "dct2", "r2c"), "'r2c' along the last axis with FFTs")
    made(FFT2, (1, 1, 4), "f8", ("dct1", "r2c"), "ny >= 2 points for a 'dct1'")
    made(FFT2, (1, 4, 4), "f8", ("dct1", "r2c"), "no finer grid", layout={"dealias": "3/2"})
    if comm.size > 1:
        made(FFT2, (1, 4, 4), "f8", ("dct1", "r2c") if comm.rank else None, "kinds")
    with FFT2(comm, (1, 4, 4), "f8", kinds=("dct2", "r2c"), settings=QUICK) as plan:
        raises_everywhere(comm, InputError, "no finer grid", lambda: plan.pointwise(lambda a: a, dealias="3/2"))
        raises_everywhere(comm, InputError, "no finer grid", lambda: plan.pointwise(lambda a: a, dealias=(6, 6)))
        u = random(np.random.default_rng(1), (1, 4, 4), "f8")
        squares = plan.pointwise(lambda a: a * a, dealias=(4, 6))  # along x alone
        found = squares(plan.forward(u[plan.real.local_slice]))
        modes = np.zeros((1, 4, 4), complex)
        modes[..., :3] = truth(u, ("dct2", "r2c"), None)
        fine = np.fft.irfft(np.where(np.arange(4) < 2, modes, 0), n=6) * 1.5
        fine = scipy.fft.idct(fine, type=2, axis=1)
        expected = np.fft.rfft(scipy.fft.dct(fine * fine, type=2, axis=1))[..., :3] / 1.5
        expected[..., 2] = 0
        np.testing.assert_allclose(found, expected[plan.spectrum.local_slice], atol=1e-12)


@on_ranks(2)
def test_remembered(comm, tmp_path):
    """Another kind is another plan, for tuning files and on other runtimes."""
    kinds, shape, path = ("dct2", "c2c", "r2c"), (8, 6, 4), f"{tmp_path}/tuning.json"
    with FFT3(comm, shape, "f8", kinds=kinds, tuning=path) as plan:
        assert "(dct2 x c2c x r2c)" in plan.describe()
        plan.tune(0.2)
    for others, known in ((kinds, True), (None, False), (("dct3", "c2c", "r2c"), False)):
        with FFT3(comm, shape, "f8", kinds=others, tuning=path) as plan:
            assert ("tuning: from" in plan.describe()) == known, others
    with FFT3(comm, shape, "f8", kinds=kinds, norm="ortho", settings=QUICK) as plan:
        with overlap.Runtime(comm) as runtime, plan.on(runtime) as other:
            u = random(np.random.default_rng(2), shape, "f8")
            assert_close(
                comm, other.forward(u[other.real.local_slice]), truth(u, kinds, "ortho"), other.spectrum.local_slice, 0
            )
        assert plan.balance().gain >= 1.0
        spectrum = plan.forward(u[plan.real.local_slice])
        assert_close(comm, spectrum, truth(u, kinds, "ortho"), plan.spectrum.local_slice, 0)
