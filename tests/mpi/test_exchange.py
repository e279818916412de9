"""Exchanges in single precision on 1 to 3 ranks."""

from contextlib import contextmanager

import numba
import numpy as np
import pytest
import test_bracket
from everywhere import raised, raises_everywhere, same_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI
from step_cases import small_units
from truth import WAITS, random, same_bits

import overlap
import overlap.fft
from overlap import InputError
from overlap.arrays import block
from overlap.compat.mpi4py_fft import PFFT

PLANES = [((5, 12, 9), "c16"), ((7, 13, 10), "f8")]
FIELDS = [((3, 8, 9, 7), "c16"), ((2, 12, 10, 9), "f8")]
ROUNDING = 2.0**-24  # of a number that becomes a single, relative to it


# An output is a sum over a line of numbers that were rounded. Each error is a share of its number, spread over +-2^-24
# at most, one independent of the other: so that of the sum is normal, with a deviation of at most 2^-24 / sqrt(3) times
# the root of the sum of the line's squares. The root mean square of the line's outputs is that root (Parseval), and
# their largest is no smaller. Of 10^5 outputs none is beyond four and a half deviations: 2.6 roundings.
FACTOR = 3
KINDS = {"FFT2": (-2, -1), "FFT3": (-3, -2, -1)}


def close(found, truth, where, exchanges=1):
    """Compare this rank's part with a global truth; return the error."""
    assert found.shape == truth[where].shape
    error = np.abs(found - truth[where]).max(initial=0.0) / np.abs(truth).max()
    assert error <= FACTOR * exchanges**0.5 * ROUNDING + 1e-14, (error, exchanges)
    return error


def filled(spec, values):
    array = spec.empty()
    array[...] = values[spec.local_slice]
    return array


def spectrum_of(u, kind):
    return (np.fft.fftn if u.dtype.kind == "c" else np.fft.rfftn)(u, axes=KINDS[kind])


@contextmanager
def plan_of(comm, kind, shape, dtype, wait="poll", workers=1, layout=None, **settings):
    options = {"wait": wait, "effort": "estimate"} | settings
    with (
        overlap.Runtime(comm, workers=workers) as runtime,
        getattr(overlap, kind)(
            runtime, shape, dtype, exchange="f4", settings=options, layout=layout, tuning=""
        ) as plan,
    ):
        yield plan


@small_units()
def transforms(comm, kind, shape, dtype, waits=WAITS, **options):
    """Forward and backward agree with numpy, are rounded where there are other ranks, and equal in all modes."""
    u = random(np.random.default_rng(1), shape, dtype)
    spectrum, results = spectrum_of(u, kind), []
    transposed = (options.get("layout") or {}).get("order") == "transposed"
    for wait in waits:
        with plan_of(comm, kind, shape, dtype, wait, **options) as plan:
            assert plan.exchange == "f4" and ("single precision" in repr(plan)) and repr(plan)[1:-1] in plan.describe()
            there_truth = np.moveaxis(spectrum, KINDS[kind][0], -1) if transposed else spectrum
            exchanges = sum(stage.blocks.size > 1 for stage in plan.forward._kernels.stages)
            assert (exchanges > 0) == (comm.size > 1)
            given = filled(plan.real, u)
            there = plan.forward(given)
            assert np.array_equal(given, u[plan.real.local_slice])
            back = plan.backward(filled(plan.spectrum, there_truth))
            errors = (
                close(there, there_truth, plan.spectrum.local_slice, exchanges),
                close(back, u, plan.real.local_slice, exchanges),
            )
            assert (comm.allreduce(max(errors)) > 1e-12) == (comm.size > 1)
            results.append((np.array(there), np.array(back)))
    for found in results[1:]:
        assert all(map(same_bits, found, results[0]))


@on_ranks(1, exhaustive(2), 3)
@pytest.mark.parametrize("kind, shape, dtype", [("FFT2", *one) for one in PLANES] + [("FFT3", *one) for one in FIELDS])
def test_transforms(comm, kind, shape, dtype):
    transforms(comm, kind=kind, shape=shape, dtype=dtype)


@on_ranks
@pytest.mark.parametrize(
    "comm, kind, dtype, options",
    [
        (3, "FFT2", "f8", {"layout": {"order": "transposed", "weights": [1, 2, 0.001]}}),
        (3, "FFT2", "f8", {"layout": {"restore": True}}),
        (3, "FFT2", "f8", {"workers": 2, "depth": 3, "chunk": 2}),
        *((2, "FFT3", dtype, {"late": 0.5, "chunk": 1}) for dtype in ("f8", "c16")),
        *((3, "FFT3", dtype, {"late": 0.5, "chunk": 1, "layout": {"grid": [3, 1]}}) for dtype in ("f8", "c16")),
        (2, "FFT3", "f8", {"layout": {"order": "transposed", "restore": True, "grid": [2, 1]}}),
        (2, "FFT3", "c16", {"layout": {"order": "transposed", "restore": True, "grid": [2, 1]}}),
        exhaustive(4, "FFT3", "f8", {"late": 0.5, "layout": {"grid": [2, 2]}}),
        exhaustive(4, "FFT3", "c16", {"late": 0.5, "layout": {"grid": [2, 2]}}),
        exhaustive(4, "FFT3", "f8", {"late": 0.3, "workers": 2, "layout": {"grid": [2, 2], "weights": [1, 2, 3, 4]}}),
    ],
)
def test_other_layouts(comm, kind, dtype, options):
    transforms(comm, kind, (7, 13, 10) if kind == "FFT2" else (15, 14, 13), dtype, **options)


@on_ranks(1, 2, exhaustive(3))
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_all_numbers_are_rounded(comm, dtype):
    """What comes out is as if all numbers had been rounded in the exchange, those that stay on their rank too."""
    shape = 3, 14, 15
    u = random(np.random.default_rng(2), shape, dtype)
    real = u.dtype.kind == "f"

    def single(values):
        return values.astype(np.complex64).astype(complex) if comm.size > 1 else values

    truth = np.fft.fft(single((np.fft.rfft if real else np.fft.fft)(u)), axis=1)
    spectrum = spectrum_of(u, "FFT2")
    columns = single(np.fft.ifft(spectrum / u[0].size, axis=1, norm="forward"))
    back_truth = (np.fft.irfft if real else np.fft.ifft)(columns, shape[2], norm="forward")
    with plan_of(comm, "FFT2", shape, dtype) as plan:
        there, back = plan.forward(filled(plan.real, u)), plan.backward(filled(plan.spectrum, spectrum))
        assert np.allclose(there, truth[plan.spectrum.local_slice], rtol=0, atol=1e-12)
        assert np.allclose(back, back_truth[plan.real.local_slice], rtol=0, atol=1e-13)
    with plan_of(comm, "FFT3", shape, dtype, layout={"grid": (1, comm.size)}) as plan:
        planes = single((np.fft.rfft2 if real else np.fft.fft2)(u))
        there = plan.forward(filled(plan.real, u))
        assert np.allclose(there, np.fft.fft(planes, axis=0)[plan.spectrum.local_slice], rtol=0, atol=1e-11)


def product_of(a, b):
    return a * b


@small_units()
@on_ranks
@pytest.mark.parametrize("comm, compiled", [(2, False), exhaustive(3, False), exhaustive(2, True)])
@pytest.mark.parametrize("kind, shape, dtype", [("FFT2", *PLANES[1]), ("FFT2", *PLANES[0]), ("FFT3", *FIELDS[1])])
def test_pointwise(comm, kind, shape, dtype, compiled):
    """A product of fields against numpy's."""
    rng = np.random.default_rng(3)
    fields = [random(rng, shape, dtype) for _ in range(2)]
    truth, results = spectrum_of(fields[0] * fields[1], kind), []
    for wait in WAITS:
        with plan_of(comm, kind, shape, dtype, wait) as plan:
            multiply = plan.pointwise(numba.njit(nogil=True)(product_of) if compiled else product_of)
            found = multiply(*(filled(plan.spectrum, spectrum_of(u, kind)) for u in fields))
            exchanges = 3 * sum(stage.blocks.size > 1 for stage in plan.forward._kernels.stages)
            close(found, truth, plan.spectrum.local_slice, exchanges)
            results.append(np.array(found))
    assert all(same_bits(found, results[0]) for found in results[1:])


@on_ranks(1, 3)
def test_brackets(comm):
    """Brackets against a direct sum over modes; the same bits on any number of ranks that exchange."""
    shape = 3, 4, 5, 9
    a, f = test_bracket.modes(shape[1:], 1), test_bracket.modes(shape, 2)
    truth = np.array([[test_bracket.direct(a[p], f[z, p]) for p in range(shape[1])] for z in range(shape[0])])
    results = []
    for ranks in range(min(2, comm.size), comm.size + 1):
        part = comm.Split(int(comm.rank < ranks))
        for wait in WAITS if comm.rank < ranks else ():
            found = test_bracket.run(part, a, f, exchange="f4", wait=wait)
            if part.rank == 0:
                close(found, truth, ..., 3)
                assert comm.size == 1 or abs(found - truth).max() > 1e-12 * abs(truth).max()
                results.append(found)
        part.Free()
    assert all(same_bits(found, results[0]) for found in results)


@on_ranks("openmpi-2")
def test_openmpi(comm):
    transforms(comm, kind="FFT2", shape=PLANES[1][0], dtype="f8")
    test_brackets(comm)


@on_ranks(3)
def test_brackets_in_a_program(comm):
    """`apply` in a slice program gives the bits of a call."""
    shape = 5, 4, 5, 7
    a, f = test_bracket.modes(shape[1:], 7), test_bracket.modes(shape, 8)
    with overlap.Runtime(comm) as runtime, overlap.Bracket(runtime, shape, exchange="f4") as plan:
        plan.advect(filled(plan.advecting, a))
        mine = filled(plan.spectrum, f)
        expected, found = plan(mine), plan.spectrum.empty()

        @runtime.pipelined(buffers=plan.buffers, depth=3, wait="poll")
        async def program(z, slot):
            await plan.apply(mine[z], found[z], slot)

        program(range(shape[0]))
        assert same_bits(np.array(found), np.array(expected))
        mine[-1, 0, -1, -1] *= 1e300
        error = raised(overlap.SliceError, program, range(shape[0]))
        assert "single precision" in str(error)


@on_ranks
@pytest.mark.parametrize(
    "comm, wait, kind, shape, dtype, options",
    [
        value
        for kind, shape, dtype in (("FFT2", *PLANES[1]), ("FFT3", *FIELDS[0]))
        for value in (
            (2, "poll", kind, shape, dtype, {}),
            (3, "off", kind, shape, dtype, {}),
            exhaustive(3, "block", kind, shape, dtype, {}),
        )
    ]
    + [(2, "poll", "FFT3", (15, 14, 13), "f8", {"late": 0.5})],
)
def test_too_large_numbers(comm, wait, kind, shape, dtype, options):
    """A number that is too large on one rank is told on all, and the next call is right."""
    u = random(np.random.default_rng(4), shape, dtype)
    spectrum = spectrum_of(u, kind)
    with plan_of(comm, kind, shape, dtype, wait, **options) as plan:
        multiply = plan.pointwise(product_of)
        real, there = filled(plan.real, u), filled(plan.spectrum, spectrum)
        for origin in range(comm.size):
            large = [np.array(real), np.array(there)]
            if comm.rank == origin:
                for one in large:
                    one[0].flat[-1] = 1e300
            for call in (
                lambda: plan.forward(large[0]),
                lambda: plan.backward(large[1]),
                lambda: multiply(there, large[1]),
            ):
                error = raised(overlap.SliceError, call)
                assert "InputError" in error.summary and "single precision" in error.summary, str(error)
                same_everywhere(comm, (error.rank, error.slice, str(error)))
                close(plan.forward(real), spectrum, plan.spectrum.local_slice, 2)
        # What is too large appears between the exchanges only.
        error = raised(overlap.SliceError, multiply, 1e25 * there, 1e25 * there)
        assert "single precision" in error.summary
        close(multiply(there, there), spectrum_of(u * u, kind), plan.spectrum.local_slice, 6)
        plan.forward(3e38 / np.abs(spectrum).max() * real)  # singles hold these


@on_ranks(2)
@pytest.mark.parametrize("wait", ["poll", exhaustive("off"), exhaustive("block")])
def test_too_large_brackets(comm, wait):
    """As plans, in each exchange of a bracket and in that of the advecting field."""
    shape = 3, 4, 5, 9
    a, f = test_bracket.modes(shape[1:], 1), test_bracket.modes(shape, 2)
    with overlap.Bracket(comm, shape, exchange="f4", settings={"wait": wait}) as plan:
        given, advecting = filled(plan.spectrum, f), filled(plan.advecting, a)
        plan.advect(advecting)
        expected = np.array(plan(given))
        large = given.copy()
        if comm.rank == comm.size - 1:
            large[1, 2, -1, 3] = -1e39j
        for call in (
            lambda: plan(large),
            lambda: plan(1e38 * given),  # the brackets
            lambda: plan.advect(1e39 * advecting),
        ):
            error = raised(overlap.SliceError, call)
            assert "single precision" in str(error)
            same_everywhere(comm, (error.rank, error.slice, str(error)))
            plan.advect(advecting)
            assert same_bits(np.array(plan(given)), expected)


@on_ranks(2)
@pytest.mark.parametrize("kind, shape, dtype", [("FFT2", (4, 12, 9), "c16"), ("FFT3", (4, 6, 8, 5), "f8")])
def test_what_is_not_finite_passes(comm, kind, shape, dtype):
    """NaN and infinity pass as they are, and spoil no other slice."""
    u = random(np.random.default_rng(5), shape, dtype)
    u[0].flat[-1], u[2].flat[0] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        truth = spectrum_of(u, kind)
    with plan_of(comm, kind, shape, dtype) as plan:
        found, truth = plan.forward(filled(plan.real, u)), truth[plan.spectrum.local_slice]
        for part in (np.real, np.imag):
            assert np.array_equal(np.isfinite(part(found[1::2])), np.isfinite(part(truth[1::2])))
        assert not np.isfinite(found[::2]).any() and np.isfinite(found[1::2]).all()
        assert np.allclose(found[1::2], truth[1::2], rtol=1e-5, atol=1e-5)


@on_ranks(1, 2, exhaustive(3))
def test_arguments(comm):
    """Bad values are refused on all ranks; what a plan is for is known wherever plans are told apart."""
    shape, last = (4, 8, 10), comm.rank == comm.size - 1
    for exchange, dtype in (
        ("f2", complex),
        (4, complex),
        (None if last else "f4", complex),
        ("f4", "f4" if last else "c8"),
    ):
        if exchange is None and comm.size == 1:
            continue
        error = raised(InputError, overlap.FFT2, comm, shape, dtype, exchange=exchange)
        assert "exchange" in str(error) or "dtype" in str(error), str(error)
        same_everywhere(comm, str(error))
    raises_everywhere(comm, InputError, "", overlap.Bracket, comm, (1, 2, 3, 5), exchange="f8" if last else "f4")
    with overlap.Runtime(comm) as runtime, overlap.Runtime(comm) as other:
        for kind in KINDS:
            with (
                getattr(overlap, kind)(runtime, shape, exchange="f4") as plan,
                getattr(overlap, kind)(runtime, shape) as doubles,
                plan.on(other) as again,
            ):
                assert again.exchange == "f4" and doubles.exchange is None
                assert plan._memory._plan == doubles._memory._plan | {"exchange": "f4"} | {
                    name: plan._memory._plan[name] for name in ("grid",)
                }
                assert plan.forward.exchange_dtype == (np.complex64 if comm.size > 1 else complex)
                if comm.size > 1 and plan.forward.settings == doubles.forward.settings:
                    assert 2 * plan.forward.nbytes_per_slice() == doubles.forward.nbytes_per_slice()


@on_ranks(1, exhaustive(2), 3)
def test_redistribution(comm):
    """Arrays that are split otherwise by singles, on any shares; errors on all ranks."""
    last = comm.rank == comm.size - 1
    for dtype in ("f8", "c16"):
        values = random(np.random.default_rng(6), (4, 7, 9), dtype)
        values[0, 0, 0], values[1, 2, 3] = np.nan, -np.inf
        with overlap.FFT2(comm, values.shape, dtype) as plan:
            u = filled(plan.real, values)
        found = u.redistribute(2, exchange="f4", weights=[1 + 3 * rank for rank in range(comm.size)])
        single = values.astype("c8" if dtype == "c16" else "f4") if comm.size > 1 else values
        assert found.dtype == u.dtype and np.array_equal(found, single[found.local_slice], equal_nan=True)
        assert np.array_equal(u.redistribute(0), values[u.redistribute(0).local_slice], equal_nan=True)
        for large in (1e39, -1e300):
            wrong = u.copy()
            if last:
                wrong[(-1,) * 3] = large * (1j if dtype == "c16" else 1)
            if comm.size > 1:
                raises_everywhere(
                    comm,
                    InputError,
                    (f"rank {comm.size - 1}", "single precision"),
                    wrong.redistribute,
                    0,
                    exchange="f4",
                )
        for exchange in ("f8", "f4" if last and comm.size > 1 else "c8"):
            raises_everywhere(comm, InputError, "", u.redistribute, 0, exchange=exchange)
    error = raised(InputError, u.real.astype("f4").redistribute, 0, exchange="f4")
    assert "double precision" in str(error)


@on_ranks(1, 2, exhaustive(3))
def test_functions(comm):
    """The functions with scipy's names exchange singles if asked to, along any axes, and pad and cut as before."""
    shape = 5, 12, 9
    values = random(np.random.default_rng(7), shape, "c16")
    for name, exchanges, options in (
        ("fft2", 1, {}),
        ("rfft2", 1, {"norm": "ortho"}),
        ("fftn", 1, {"axes": (0, 2, 1)}),
        ("rfftn", 1, {}),
        ("fft", 3, {"axis": 1}),  # the other axes are whole: the exchange and what is around it are `FFTN`'s
        ("fft2", 2, {"s": (9, 10)}),  # its input is split otherwise before
    ):
        data = values.real if name[0] == "r" else values
        axis = 0 if name.endswith("n") else 1
        part = block(shape[axis], comm.size)[comm.rank]
        mine = np.ascontiguousarray(np.moveaxis(np.moveaxis(data, axis, 0)[part], 0, axis))
        found = getattr(overlap.fft, name)(mine, comm, split=axis, exchange="f4", **options)
        truth = getattr(np.fft, name)(data, **{"axes": (-2, -1)} | options if name.endswith("2") else options)
        error = close(found, truth, found.local_slice, exchanges)
        assert (comm.allreduce(error, MPI.MAX) > 1e-12) == (comm.size > 1)
        inverse = name.replace("rfft", "irfft") if name[0] == "r" else f"i{name}"
        if "s" not in options:
            back = getattr(overlap.fft, inverse)(found, exchange="f4", **options | lengths_of(name, shape, options))
            close(back, data, back.local_slice, 2 * exchanges)
        doubles = getattr(overlap.fft, name)(mine, comm, split=axis, **options)
        assert np.allclose(doubles, truth[doubles.local_slice], rtol=0, atol=1e-12)
    if comm.size > 1:
        large = mine * (1e300 if comm.rank == comm.size - 1 else 1)
        raises_everywhere(comm, overlap.SliceError, "", overlap.fft.fft2, large, comm, exchange="f4")
    for dtype, exchange in (("c8", "f4"), ("c16", "f8")):
        raises_everywhere(comm, InputError, "", overlap.fft.fft2, mine.astype(dtype), comm, exchange=exchange)
    overlap.fft.close_plans()


def lengths_of(name, shape, options):
    """The lengths that an inverse of half the spectrum cannot know."""
    return {} if name[0] != "r" else {"s": shape if name.endswith("n") else shape[1:]}


@on_ranks(1, 2, exhaustive(3))
def test_drop_in_for_mpi4py_fft(comm):
    """A `PFFT` exchanges singles if asked to, and says so; where it makes no pipelines it refuses."""
    shape = 6, 8, 10
    for dtype, grid in (("D", None), ("d", (comm.size, 1, 1)), ("D", (1, comm.size, 1))):
        values = random(np.random.default_rng(8), shape, {"d": "f8", "D": "c16"}[dtype])
        truth = (np.fft.rfftn if dtype == "d" else np.fft.fftn)(values, norm="forward")
        plan = PFFT(comm, shape, dtype=dtype, grid=grid, exchange="f4")
        for text in (repr(plan), plan.describe()):
            assert "exchanged in single precision" in text
        found = plan.forward(values[plan.local_slice(False)])
        error = close(found, truth, plan.local_slice(True), 2)
        assert (comm.allreduce(error, MPI.MAX) > 1e-12) == (comm.size > 1)
        close(plan.backward(truth[plan.local_slice(True)]), values, plan.local_slice(False), 2)
        large = values[plan.local_slice(False)] * (1e300 if comm.rank == 0 else 1)
        if comm.size > 1:
            raises_everywhere(comm, overlap.SliceError, "", plan.forward, large)
        plan.destroy()
    last = comm.rank == comm.size - 1
    for options in (
        {"dtype": "F", "exchange": "f4"},
        {"dtype": "D", "backend": "numpy", "exchange": "f4"},
        {"dtype": "D", "exchange": "f8" if last else "f4"},
        {"dtype": "D", "exchange": "f4" if last and comm.size > 1 else "f2"},
    ):
        raises_everywhere(comm, InputError, "", PFFT, comm, shape, **options)
