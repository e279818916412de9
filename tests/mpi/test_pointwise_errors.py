"""Bad input, and a failure at every site."""

import functools
from itertools import product

import numpy as np
import pytest
from everywhere import raised, raises_everywhere, same_everywhere
from marks import exhaustive, on_ranks
from step_cases import Boom, failing, nothing_fails
from test_pointwise import local, spectra
from truth import assert_close, forward_truth, random, same_bits

import overlap
from overlap.compiled import njit
from overlap.fft.pointwise import Pointwise

# ---- what would give wrong numbers -----------------------------------------------------------


@on_ranks(1, exhaustive(2))
def test_functions_that_would_lie(comm):
    """Shared fields cannot be changed; what a function with `out` returns counts; masks and `async` do not."""
    for kind, shape in ((overlap.FFT2, (3, 6, 8)), (overlap.FFT3, (3, 2, 6, 8))):
        with kind(comm, shape, "f8", settings={"wait": "poll"}) as plan:
            u = random(np.random.default_rng(4), shape, "float64")
            v = random(np.random.default_rng(5), shape[1:], "float64")
            field = plan.forward(u[plan.real.local_slice])
            with kind(comm, shape[1:], "f8", settings={"wait": "off"}) as flat_plan:
                flat = flat_plan.forward(v[flat_plan.real.local_slice])
            truth = plan.forward((u * v)[plan.real.local_slice])

            def close(found, truth=truth):
                np.testing.assert_allclose(found, truth, rtol=0, atol=1e-11)

            def changes(u, v):
                v *= 2
                return u * v

            error = raises_everywhere(
                comm, overlap.SliceError, "read-only", plan.pointwise(changes, shared=1), field, flat
            )
            close(plan.pointwise(lambda u, v: u * v, shared=1)(field, flat))
            close(plan.pointwise(lambda u, v, out: u * v, shared=1)(field, flat))
            close(plan.pointwise(lambda u, v, out=None: np.multiply(u, v, out=out), shared=1)(field, flat))
            close(plan.pointwise(lambda u, v, *, out: np.copyto(out, u * v), shared=1)(field, flat))
            for bad in (lambda u, v, out: 0, lambda u, v, out: (u, v), lambda u, v: np.ma.masked_less(u * v, 0)):
                error = raised(overlap.SliceError, plan.pointwise(bad, shared=1), field, flat)
                assert "expected the function to return" in str(error)

            async def product(u, v):
                return u * v

            async def generator(u, v):
                yield u * v

            class Product:
                async def __call__(self, u, v):
                    return u * v

            for bad, name in (
                (product, "product"),
                (generator, "generator"),
                (Product(), "Product"),
                (functools.partial(product), "product"),
            ):
                raises_everywhere(comm, overlap.InputError, ("async", name), plan.pointwise, bad, inputs=2, shared=1)


@on_ranks(1, exhaustive(2))
def test_compiled_functions_that_would_lie(comm):
    """As for functions of Python: shared fields cannot be changed, what a function with `out` returns counts."""
    shape = (3, 6, 8)
    u, v = (random(np.random.default_rng(seed), shape[number:], "float64") for number, seed in enumerate((4, 5)))

    @njit
    def returns(u, v, out):
        return u * v

    @njit
    def fills_and_returns(u, v, out):
        out[:] = u * v
        return out

    @njit
    def fills(u, v, out):
        out[:] = u * v

    @njit
    def assigns(u, v):
        v[0, 0] = 2
        return u * v

    @njit
    def scales(u, v):
        v *= 2
        return u * v

    with (
        overlap.FFT2(comm, shape, "f8", settings={"wait": "off"}) as plan,
        overlap.FFT2(comm, shape[1:], "f8", settings={"wait": "off"}) as flat_plan,
    ):
        field, flat = plan.forward(u[plan.real.local_slice]), flat_plan.forward(v[flat_plan.real.local_slice])
        truth = plan.forward((u * v)[plan.real.local_slice])
        for function in (returns, fills_and_returns, fills):
            found = plan.pointwise(function, shared=1)(field, flat)
            np.testing.assert_allclose(found, truth, rtol=0, atol=1e-11, err_msg=str(function))
        for function in (assigns, scales):
            raises_everywhere(
                comm, overlap.InputError, f"read-only, received {function.__name__}", plan.pointwise, function, shared=1
            )


# ---- errors ----------------------------------------------------------------------------------


@on_ranks
@pytest.mark.parametrize("comm, mode", [(1, "off"), (2, "poll"), (3, "block")])
def test_bad_input_on_one_rank(comm, mode):
    shape = (3, 6, 8)
    (a,) = spectra(np.random.default_rng(8), 1, shape, "f8")
    with overlap.FFT2(comm, shape, "f8", settings={"wait": mode}) as plan:
        field = local(plan, a, "natural")
        flat = np.array(field[0])
        acting = plan.pointwise(lambda u, v: (u * v, u), outputs=2, shared=1)
        expected = acting(field, flat)

        def bad_calls(outs):
            yield "no input", (), outs
            yield "one input", (field,), outs
            yield "three inputs", (field, flat, flat), outs
            yield "shared field with a batch", (field, field), outs
            yield "field without a batch", (flat, flat), outs
            yield "dtype", (field.astype("c8"), flat), outs
            yield "byte order", (field, flat.astype(">c16")), outs
            yield "one out", (field, flat), outs[0]
            yield "tuple of one", (field, flat), outs[:1]
            yield "tuple of three", (field, flat), (*outs, outs[0])
            yield "list", (field, flat), list(outs)
            yield "out holds None", (field, flat), (outs[0], None)
            yield "out is an input", (field, flat), (outs[0], field)
            yield "one array for both", (field, flat), (outs[0], outs[0])
            yield "outs overlap", (field, flat), (outs[0], outs[0][::-1])

        count = len(list(bad_calls((field, field))))
        for bad, number in product(range(comm.size), range(count)):
            outs = tuple(np.full(plan.spectrum.shape, 5, "c16") for _ in range(2))
            given, target = (field, flat), outs
            label = ""
            if comm.rank == bad:
                label, given, target = list(bad_calls(outs))[number]
            error = raises_everywhere(comm, overlap.InputError, "", acting, *given, out=target)
            assert f"rank {bad}: " in str(error) and "received" in str(error), (label, str(error))
            assert all((out == 5).all() for out in outs), label
        for found, truth in zip(acting(field, flat, out=outs), expected):
            assert same_bits(found, truth)
        bad_arguments = (
            {"inputs": 0},
            {"inputs": 2, "shared": 2},
            {"outputs": 0},
            {"dealias": "2/3"},
            {"inputs": 1.0},
            {"shared": -1},
            {"dealias": 1.5},
        )
        for bad, arguments in product({0, comm.size - 1}, bad_arguments):
            arguments = arguments if comm.rank == bad else {"inputs": 2}
            raises_everywhere(comm, overlap.InputError, "", plan.pointwise, lambda u, v: u, **arguments)
        if comm.size > 1:
            for arguments in ({"inputs": 3}, {"outputs": 2}, {"dealias": "3/2"}, {"shared": 1}):
                arguments = {"inputs": 2} | (arguments if comm.rank == 1 else {})
                raises_everywhere(comm, overlap.InputError, "rank 1", plan.pointwise, lambda u, v: u, **arguments)
        for found, truth in zip(acting(field, flat), expected):
            assert same_bits(found, truth)


HOWS = "raise one three shape row scalar None complex text objects list interrupt"


@on_ranks
@pytest.mark.parametrize(
    "comm, mode, workers",
    [
        (1, "off", 1),
        (2, "poll", 1),
        (2, "block", 2),
        exhaustive(3, "poll", 2),
        exhaustive(3, "off", 1),
        exhaustive("openmpi-2", "poll", 1),
    ],
)
def test_bad_results_on_one_rank(comm, mode, workers):
    """What the function returns on one rank does not fit: SliceError on all, naming it."""
    shape = (4, 6, 2 * comm.size + 4)
    (a,) = spectra(np.random.default_rng(9), 1, shape, "f8")
    wrong = {}

    def function(u, v, index):
        how = wrong.get(index)
        if how == "raise":
            raise Boom("in the function")
        if how == "interrupt":
            raise SystemExit("in the function")
        good = u * v, u
        return {
            None: good,
            "one": u,
            "three": (*good, u),
            "shape": (u[:, :-1], u),
            "row": (u[0], u),
            "scalar": (1.0, u),
            "None": None,
            "complex": (1j * u, u),
            "text": ("text", u),
            "objects": (u, np.full(u.shape, None)),
            "list": list(good),
        }[how]

    with (
        overlap.Runtime(comm, workers=workers) as rt,
        overlap.FFT2(rt, shape, "f8", settings={"wait": mode, "depth": 2, "chunk": 1}) as plan,
    ):
        field = local(plan, a, "natural")
        acting = plan.pointwise(function, inputs=2, outputs=2)
        expected = acting(field, field)
        for number, how in enumerate(HOWS.split()):
            for origin, z in ((number % comm.size, number % 4), (comm.size - 1, 3)):
                if comm.rank == origin:
                    wrong[z] = how
                error = raised(overlap.SliceError, acting, field, field)
                same_everywhere(comm, (str(error), error.rank, error.slice))
                assert error.rank == origin, (how, str(error))
                assert error.slice == str(z), (how, str(error))
                assert "in the function" in error.summary or how not in ("raise", "interrupt")
                wrong.clear()
                for found, truth in zip(acting(field, field), expected):
                    assert same_bits(found, truth), how


@on_ranks(1, 2)
def test_making_one_fails(comm):
    """A rank without memory for a function's planes: none on any rank, and the plans go on alike."""
    shape = (3, 6, 8, 10)
    last = comm.size - 1
    for make, axes in ((overlap.FFT2, (-2, -1)), (overlap.FFT3, (-3, -2, -1))):
        with make(comm, shape, "f8", settings={"wait": "poll"}) as plan:
            kept = plan.pointwise(lambda u: u)
            with failing(Pointwise, "configure", lambda *_: True) if (comm.rank == last) else nothing_fails():
                error = raised(overlap.RankError, plan.pointwise, lambda u: u * u)
            same_everywhere(comm, str(error))
            assert error.rank == last and "Boom" in error.summary
            again = plan.pointwise(lambda u: u * u)
            assert plan.tune(0.2).keys() == {"forward", "backward", kept.name, again.name}
            u = random(np.random.default_rng(2), shape, "f8")
            spectrum = plan.forward(u[plan.real.local_slice])
            assert_close(kept(spectrum), np.fft.rfftn(u, axes=axes), plan.spectrum.local_slice, comm)


@on_ranks(1, 2)
def test_planning_calls_no_function(comm):
    """Planning runs on zeros, which the function may not bear; C and T are measured with it."""
    shape = (40, 8, 8)
    calls = []

    def inverse(u):
        calls.append(len(u))
        assert (u != 0).all(), "called on zeros"
        return 1 / u

    u = 1 + random(np.random.default_rng(11), shape, "f8") ** 2
    with overlap.FFT2(comm, shape, "f8", settings={"wait": "auto", "effort": "measure"}) as plan:
        acting = plan.pointwise(inverse)
        assert calls == []
        assert acting.trials or comm.size == 1
        spectrum = plan.forward(u[plan.real.local_slice])
        expected = acting(spectrum)
        assert sum(calls) == shape[0] * plan.real.shape[1]  # every row once
        assert_close(expected, forward_truth(1 / u), plan.spectrum.local_slice, comm)
        product = plan.pointwise(lambda u, v: u * v, shared=1)
        given = spectrum, np.array(spectrum[0])
        expected = product(*given)
        product.compute(*given, out=plan.spectrum.empty())
        product.communicate(*given, out=plan.spectrum.empty())
        assert same_bits(product(*given), expected)
        assert str(product.settings) in product.describe()
