"""Ends and edges of plans on 1 and 2 ranks."""

import copy
import pickle

import numpy as np
from everywhere import outcome, raised, raises_everywhere
from marks import on_ranks

import overlap

SETTINGS = {"wait": "off", "effort": "estimate"}


def plans_of(runtime):
    """A plan of every kind."""
    return (
        overlap.FFT2(runtime, (2, 8, 8), settings=SETTINGS),
        overlap.FFT3(runtime, (2, 4, 4, 8), settings=SETTINGS),
        overlap.Bracket(runtime, (2, 2, 3, 5), settings=SETTINGS),
    )


@on_ranks(1, 2)
def test_not_copied(comm):
    """What has communicators and threads is neither copied nor pickled, and stays as it was."""
    with overlap.Runtime(comm) as runtime:

        @runtime.pipelined
        async def program(z):
            await runtime.comm.Barrier()

        two, three, bracket = plans = plans_of(runtime)
        product = two.pointwise(lambda a, b: a * b)
        for one in (*plans, runtime, runtime.comm, program, two.forward, three.backward, bracket.transform, product):
            for way in (copy.copy, copy.deepcopy, pickle.dumps):
                error = raised(overlap.InputError, way, one)
                assert type(one).__name__ in str(error) and "make another one" in str(error)
        program(range(3))
        u = two.real.empty()
        u[...] = 1
        assert np.allclose(two.backward(two.forward(u)), 1)
        for plan in plans:
            plan.close()
        for settings in (overlap.Settings(**SETTINGS), overlap.ArrayLayout(weights=(1, 2))):
            assert pickle.loads(pickle.dumps(settings)) == copy.deepcopy(settings) == settings


@on_ranks(1, 2)
def test_overlapping(comm):
    """A result has a place for each of its elements, away from the inputs; an input may repeat itself."""
    last = comm.rank == comm.size - 1
    with overlap.FFT2(comm, (4, 8, 8), settings=SETTINGS) as plan:
        lengths = plan.spectrum.shape
        u = np.random.default_rng(comm.rank).standard_normal(plan.real.shape) + 0j
        expected = plan.forward(u)
        sized = plan.spectrum.empty()
        flat = np.zeros(4 * sized.size, complex)
        step = flat.itemsize
        broken = [
            np.lib.stride_tricks.as_strided(flat, lengths, strides)
            for strides in (
                (0, lengths[2] * step, step),
                (lengths[1] * lengths[2] * step, 0, step),
                (lengths[2] * step, lengths[2] * step, step),
                (step, step, step),
                (lengths[2] * step // 2, 4 * lengths[2] * step, step),
            )
        ]
        for out in broken:
            raises_everywhere(
                comm,
                overlap.InputError,
                "place in memory for each element",
                plan.forward,
                u,
                out=out if last else sized,
            )
            assert np.array_equal(plan.forward(u, out=sized), expected)
        assert not flat.any()
        for strided in (
            flat[: sized.size].reshape(lengths[::-1]).T,
            flat[: sized.size].reshape(lengths)[::-1, :, ::-1],
            flat.reshape(*lengths, 4)[..., 1],
            np.lib.stride_tricks.as_strided(flat, lengths, (step, lengths[0] * step, lengths[0] * lengths[1] * step)),
        ):
            assert np.array_equal(plan.forward(u, out=strided), expected)
            strided[...] = 0
        one = np.broadcast_to(u[:1], u.shape)
        assert np.array_equal(plan.forward(one), plan.forward(one.copy()))
        # Overlapping an input is refused, wherever it is.
        room = np.zeros(2 * max(u.size, sized.size), complex)
        given = room[: u.size].reshape(u.shape)
        given[...] = u
        for start in (0, 1, u.size - 1):
            out = room[start : start + sized.size].reshape(lengths)
            error = raised(overlap.InputError, plan.forward, given, out=out if last else sized)
            assert "share no memory" in str(error)
            assert np.array_equal(given, u)
        assert np.array_equal(plan.forward(given, out=room[u.size : u.size + sized.size].reshape(lengths)), expected)
    with overlap.Bracket(comm, (2, 2, 3, 5), settings=SETTINGS) as bracket:
        f = bracket.spectrum.empty()
        f[...] = 0
        if f.size:
            flat = np.broadcast_to(f[:1], f.shape)
            flat.flags.writeable = True
            error = outcome(bracket, f, out=flat)
            assert isinstance(error, overlap.InputError), error


@on_ranks(1, 2)
def test_bounded(comm):
    """Counts that cannot be meant are refused before anything is made, and the message states the bound."""
    last = comm.rank == comm.size - 1
    huge = 10**9

    def at_end(value, otherwise):
        return value if last else otherwise

    for name, value, bound in (
        ("workers", 10**6, "4096"),
        ("depth", huge, "65536"),
        ("in_flight", huge, "65536"),
        ("agree_every", 10**20, "2147483647"),
    ):
        raises_everywhere(
            comm,
            overlap.InputError,
            f"{name} to be an integer from 1 to {bound}, received {value}",
            overlap.Runtime,
            comm,
            **{name: at_end(value, 2)},
        )
    with overlap.Runtime(comm) as runtime:
        for name, bound in (("depth", "65536"), ("in_flight", "65536"), ("chunk", "2147483647")):
            settings = {name: at_end(10**10, 2)}
            for make in (
                lambda settings=settings: overlap.FFT2(runtime, (8, 8), settings=settings),
                lambda settings=settings: overlap.FFT3(runtime, (4, 8, 8), settings=settings),
            ):
                raises_everywhere(comm, overlap.InputError, f"{name} to be an integer from 1 to {bound}", make)
        with overlap.FFT2(runtime, (8, 8), settings=SETTINGS) as two, overlap.FFT3(runtime, (4, 4, 4)) as three:
            for plan, axes in ((two, 2), (three, 3)):
                raises_everywhere(comm, overlap.InputError, "progress", plan.tune, 1.0, at_end(np.nan, None))
                points = (at_end(10**7, 16),) * axes
                raises_everywhere(comm, overlap.InputError, "", plan.pointwise, lambda a: a, dealias=points)
        raises_everywhere(
            comm,
            overlap.InputError,
            "fit into memory",
            overlap.Bracket,
            runtime,
            (2, 2, 3, 5),
            points=(at_end(10**7, 16),) * 2,
        )


@on_ranks(1, 2)
def test_alike_plans(comm):
    """The ranks call different plans that look alike, or different parts of a call: one error, and all plans work."""
    whole = np.random.default_rng(4).standard_normal((3, 8, 6)) + 0j
    modes = np.random.default_rng(5).standard_normal((2, 2, 5, 9)) + 0j
    with overlap.Runtime(comm) as runtime:
        plans = [overlap.FFT2(runtime, whole.shape) for _ in range(2)]  # refined in their calls
        boxes = [overlap.Bracket(runtime, modes.shape, (ky, 1.0)) for ky in (1.0, 2.0)]
        restored = overlap.FFT2(runtime, whole.shape, layout={"restore": True})
        sums = [plan.operators() for plan in (plans[0], restored)]
        longer = [plans[0].operators((1, length)) for length in (1, 2)]
        moves = [overlap.Transpose(runtime, whole.shape, *axes) for axes in ((1, 2), (2, 1))]
        f, results = boxes[0].spectrum.wrap(np.ascontiguousarray(modes[:, :, boxes[0].rows])), []
        for box in boxes:
            box.advect(np.asarray(f[0]))
            results.append(np.array(box(f)))

        def works():
            for plan in plans:
                spectrum = plan.forward(plan.real.wrap(whole[plan.real.local_slice]))
                np.testing.assert_allclose(spectrum, np.fft.fft2(whole)[plan.spectrum.local_slice], rtol=0, atol=1e-12)
            for move in moves:
                moved = move.forward(move.source.wrap(whole[move.source.local_slice]))
                np.testing.assert_array_equal(moved, whole[move.target.local_slice])
            for box, result in zip(boxes, results):
                np.testing.assert_array_equal(box(f), result)

        def different(which):
            plan, box, move = plans[which], boxes[which], moves[which]
            part = (plans[0].forward.compute, plans[0].forward.communicate)[which]
            yield from (lambda: plan.forward(plan.real.empty()), lambda: plan.backward(plan.spectrum.empty()))
            yield from (lambda: plan.forward.tune(0.1), lambda: plan.tune(0.1), plan.balance, plan.operators)
            yield lambda: plan.pointwise(np.abs)
            yield from (lambda: box(f), lambda: box.advect(np.asarray(f[0])), box.balance)
            yield from (lambda: move.forward(move.source.empty()), lambda: move.backward(move.target.empty()))
            yield lambda: part(plans[0].real.empty())
            yield lambda: sums[which].energy((plans[0], restored)[which].spectrum.empty())
            yield lambda: longer[which].energy_spectrum(plans[0].spectrum.empty())

        for _ in range(3):  # so that calls with new settings are among them
            for way in different(comm.rank == comm.size - 1):
                if comm.size > 1:
                    raises_everywhere(comm, overlap.InputError, "expected the same on all ranks, received", way)
                works()
        for plan in (*plans, restored, *boxes, *moves):
            plan.close()
