"""Uneven shares on 1 to 4 ranks.

Plans, halos and arrays draw weights in tests of their own, too.
"""

import sys
import time
from unittest.mock import patch

import numpy as np
from everywhere import raises_everywhere
from marks import exhaustive, on_ranks
from step_cases import small_units
from test_bracket import SPACING, modes, run

import overlap
from overlap import FFT2, FFT3, Blocks, Halo, InputError, agreed_blocks
from overlap.arrays import length_of, shares
from overlap.compat.mpi4py_fft import PFFT, newDistArray
from overlap.compat.mpi4py_fft.fftw import dctn, idctn
from overlap.halo import agreed
from overlap.sparse import Matrix

WEIGHTS = (7, 4, 0.001, 3)


def close(found, truth, where):
    """This rank's part of an array, within rounding errors of the whole."""
    np.testing.assert_allclose(found, truth[where], rtol=0, atol=1e-12 * abs(truth).max())


@on_ranks(2, exhaustive(4))
def test_refused(comm):
    """Weights that are bad, or differ, on one rank or on all, are refused on all in the same words."""
    last = comm.rank == comm.size - 1
    for bad in (
        (1.0,) * (comm.size - 1) + (0.0,),
        (1.0,) * (comm.size + 1),
        ("1",) * comm.size,
        3,
        (np.nan,) * comm.size,
    ):
        for given in (bad, bad if last else (1.0,) * comm.size):
            for make in (
                lambda w: FFT2(comm, (4, 8, 8), layout={"weights": w}),
                lambda w: FFT3(comm, (4, 8, 8), layout={"weights": w}),
                lambda w: agreed_blocks(comm, (60,), (comm.size,), weights=w),
                lambda w: Matrix.from_stencil(comm, (8,), [(0,)], [1.0], weights=w),
            ):
                raises_everywhere(comm, InputError, "expected weights to be positive finite numbers", make, given)
    different = tuple(1 + 0.25 * one * (1 + comm.rank) for one in range(comm.size))
    for make in (
        lambda w: FFT2(comm, (4, 8, 8), layout={"weights": w}),
        lambda w: FFT3(comm, (4, 8, 8), layout={"weights": w}),
        lambda w: Halo(comm, Blocks((60,), (comm.size,), weights=w)),
        lambda w: agreed_blocks(comm, (60,), (comm.size,), weights=w),
        lambda w: Matrix.from_stencil(comm, (8,), [(0,)], [1.0], weights=w),
    ):
        raises_everywhere(comm, InputError, "the same on all ranks", lambda: make(different))
    mixed = "measure" if last else None
    raises_everywhere(
        comm, InputError, "the same on all ranks", agreed_blocks, comm, (60,), (comm.size,), weights=mixed
    )
    raises_everywhere(
        comm, InputError, "a number or a pair", agreed_blocks, comm, (60,), (comm.size,), width="no" if last else 1
    )
    raises_everywhere(comm, InputError, f"a grid of {comm.size} ranks", agreed_blocks, comm, (60,), (comm.size + 1,))


@on_ranks(2, exhaustive(4))
def test_messages(comm):
    """As many operations as with even shares, counted by the trace."""
    for kind, shape, dtype in ((FFT2, (24, 40, 36), "c16"), (FFT3, (2, 64, 72, 40), "f8"), (FFT3, (96, 64, 40), "c16")):
        counted = []
        # Left to a model of this moment's speed, the grid may be another one for the second plan.
        grid = {} if kind is FFT2 else {"grid": (2, comm.size // 2)}
        for weights in (None, WEIGHTS[: comm.size]):
            with (
                overlap.Runtime(comm, trace=True) as rt,
                kind(
                    rt,
                    shape,
                    dtype,
                    layout={"weights": weights, **grid},
                    settings={"wait": "poll", "chunk": 2, "depth": 4, "in_flight": 4, "late": 0.0},
                ) as plan,
            ):
                rt.trace.clear()
                plan.backward(plan.forward(np.zeros(plan.real.shape, dtype)))
                counted.append([span.kind for span in rt.trace.spans()].count("communicate"))
        assert counted[0] == counted[1] > 4, counted


@on_ranks(2, exhaustive(4))
def test_fewer_rows_than_units(comm):
    """The last rank's share is cut into as many units as the others', of which some are empty."""
    weights = (15,) * (comm.size - 1) + (1,)
    u = np.random.default_rng(3).standard_normal((128, 96, 64)) + 0j
    with small_units(), FFT3(comm, u.shape, layout={"grid": (1, comm.size), "weights": weights}) as plan:
        spectrum = plan.forward(u[plan.real.local_slice])
        truth = np.fft.fftn(u)
        close(spectrum, truth, plan.spectrum.local_slice)
        np.testing.assert_allclose(plan.backward(spectrum), u[plan.real.local_slice], rtol=0, atol=1e-12)


@on_ranks(exhaustive(1), 2)
def test_loads(comm):
    """What is counted of computing and waiting: by whom, how long, in how many calls."""
    busy_s = 0.05 * (comm.rank == comm.size - 1)

    async def program(number, comm):
        time.sleep(busy_s)
        await comm.Barrier()
        await overlap.parallel(lambda part: time.sleep(busy_s), range(2))

    for wait, workers in (("off", 1), ("poll", 1), ("block", 2), ("poll", 2)):
        with overlap.Runtime(comm, workers=workers, wait=wait) as rt:
            for slices in (3, 1, 1):  # the last ones on the straight path, as far as that goes
                call = rt.pipelined(program, skeleton=skeleton)
                call(range(slices), rt.comm)
                assert call.load.calls == 1 and call.load.computing_s >= slices * 3 * busy_s
            found = rt.loads()
            assert found[comm.rank] == rt.load
            assert {one.calls for one in found} == {3}
            assert all(0 <= one.waiting <= 1 and one.wall_s > 0 for one in found)
            assert found[-1].computing_s >= 15 * busy_s
            assert "waits" in str(rt.load) and "% of the time" in str(rt.load)
            simple = rt.pipelined(straight, skeleton=straight)
            for _ in range(3):
                simple((0,), rt.comm, busy_s)
            assert simple.load.calls == 3 and simple.load.computing_s >= 3 * busy_s
            # Who computes nothing has waited for the one who does, to the end of the call; without a core of its own
            # it may have begun to wait when that one had computed for a while.
            assert simple.load.wall_s >= max(simple.load.computing_s, 0.05)


async def skeleton(number, comm):
    await comm.Barrier()


async def straight(number, comm, busy_s):
    time.sleep(busy_s)
    await comm.Barrier()


@on_ranks(exhaustive(1), 2)
def test_loads_of_plans(comm):
    """A plan tells how long this rank has waited, once it has been called."""
    with FFT2(comm, (8, 16, 16)) as plan:
        assert "waits" not in plan.describe()
        plan.forward(plan.real.empty())
        assert f"rank {comm.rank} waits" in plan.describe().splitlines()[1]


@on_ranks(exhaustive(1), 2, exhaustive(3))
def test_balanced(comm, tmp_path):
    """A plan with a rank that counts as slow: shares follow, arrays move, transforms stay right; and back."""
    counts, path = (5, 3, 1, 1), f"{tmp_path}/tuning.json"
    from overlap.fft.plan import computing_s as true

    rng = np.random.default_rng(1)

    def pretended(transforms):
        share = current[0]._share()
        return [share / counts[comm.rank]] * len(true(transforms))

    for make, truth, _dtype in (
        (lambda rt: FFT2(rt, (6, 20, 18), tuning=path), np.fft.fft2, "c16"),
        (lambda rt: FFT3(rt, (2, 16, 12, 18), layout={"order": "natural"}), None, "c16"),
    ):
        truth = truth or (lambda u: np.fft.fftn(u, axes=(-3, -2, -1)))
        with overlap.Runtime(comm) as rt, make(rt) as plan:
            current = [plan]
            u = rng.standard_normal(plan.real.global_shape) + 0j
            local = plan.real.wrap(np.ascontiguousarray(u[plan.real.local_slice]))
            squares = plan.pointwise(lambda a: a * a)
            spectrum = plan.forward(local)
            forward, settings = plan.forward, plan.forward.settings
            balance_module = sys.modules["overlap.fft.plan"]
            with (
                patch.object(balance_module, "computing_s", pretended),
                patch.object(balance_module, "whole_s", falling()),
            ):
                found = plan.balance(local, spectrum)
            assert found.changed == (comm.size > 1)
            assert found.gain > 1 or comm.size == 1
            assert len(set(comm.allgather((found.weights, found.speeds, found.gain)))) == 1
            if comm.size > 1:
                assert found.weights == tuple(round(1000 * one / 5) for one in counts[: comm.size])
            assert plan.forward is forward and forward.settings == settings
            local, spectrum = found.arrays
            for array, spec, whole in ((local, plan.real, u), (spectrum, plan.spectrum, truth(u))):
                assert array.local_slice == spec.local_slice
                close(array, whole, spec.local_slice)
            plan.forward.settle(local)  # a comparison of settings that began with other shares
            again = plan.forward(local)
            close(again, truth(u), plan.spectrum.local_slice)
            np.testing.assert_allclose(plan.backward(again), u[plan.real.local_slice], rtol=0, atol=1e-12)
            close(squares(again), truth(u * u), plan.spectrum.local_slice)
            raises_everywhere(
                comm,
                InputError,
                "with the distribution of the plan's real or spectrum",
                plan.balance,
                np.zeros(3) if comm.rank == 0 else local,
            )
            # What gains nothing changes nothing: neither equal speeds nor shares that turned out slower.
            with (
                patch.object(balance_module, "computing_s", pretended),
                patch.object(balance_module, "whole_s", falling()),
            ):
                assert not plan.balance().changed
            weights = plan._weights
            with (
                patch.object(balance_module, "computing_s", lambda transforms: [1.0 + comm.rank] * 7),
                patch.object(balance_module, "whole_s", lambda transforms: 1.0),
            ):
                unchanged = plan.balance(local)
                assert not unchanged.changed and plan._weights == weights and unchanged.arrays[0] is local
            np.testing.assert_allclose(plan.forward(local), again, rtol=0, atol=1e-12 * abs(truth(u)).max())
    with FFT2(comm, (6, 20, 18), tuning=path, layout={"weights": "measure"}) as plan:
        assert comm.size == 1 or plan._weights == found.weights
        np.testing.assert_allclose(plan.backward(plan.forward(np.ones(plan.real.shape, complex))), 1, atol=1e-13)


def falling():
    """Times that fall from call to call."""
    times = iter(range(100))
    return lambda transforms: 0.9 ** next(times)


@on_ranks(exhaustive(1), 2, exhaustive(3))
def test_measured(comm):
    """Weights that are measured, whatever comes of it: the same on all ranks, and the result is right."""
    for plan in (
        FFT2(comm, (8, 24, 20), layout={"weights": "measure"}),
        FFT3(comm, (16, 24, 20), layout={"weights": "measure"}),
    ):
        with plan:
            assert len(set(comm.allgather(plan._weights))) == 1
            u = np.random.default_rng(1).standard_normal(plan.real.global_shape) + 0j
            axes = (-2, -1) if isinstance(plan, FFT2) else (-3, -2, -1)
            truth = np.fft.fftn(u, axes=axes)
            close(plan.forward(u[plan.real.local_slice]), truth, plan.spectrum.local_slice)


@on_ranks(exhaustive(1), 2, exhaustive(3))
def test_measured_blocks(comm):
    """Blocks and rows by measured speeds: a slow rank has less, and nothing changes where nothing is sure."""
    counts = (5, 3, 1, 1)[: comm.size]
    for seconds, expected in (
        (lambda *_: 1 / counts[comm.rank], shares(60, counts)),
        (lambda *_: 1.0, shares(60, (1,) * comm.size)),
    ):
        with patch.object(agreed, "_seconds", seconds):
            blocks = agreed_blocks(comm, (60,), (comm.size,), weights="measure")
            with Matrix.from_stencil(comm, (60,), [(0,)], [2.0], weights="measure") as A:
                assert A.count == expected[comm.rank]
        assert tuple(length_of(blocks.part(rank)[0]) for rank in range(comm.size)) == expected
    blocks = agreed_blocks(comm, (60,), (comm.size,), weights="measure")
    assert len(set(comm.allgather(blocks.weights))) == 1
    with Halo(comm, blocks) as halo:
        (u,) = halo.empty()
        u[blocks.own(comm.rank)] = 1 + comm.rank
        halo.exchange(u)
        assert comm.rank == 0 or u[0] == comm.rank


@on_ranks(exhaustive(1), 2, exhaustive(3))
def test_brackets(comm):
    """With any weights, and a rank without planes: the same bits as with even shares."""
    a, f = modes((5, 9, 17), 1), modes((3, 5, 9, 17), 2)
    expected = run(comm, a, f, wait="poll", effort="estimate")
    for weights in (WEIGHTS[: comm.size], (0.001, 1, 1, 1)[: comm.size]):
        with overlap.Bracket(comm, f.shape, SPACING, layout={"weights": weights}, settings={"wait": "poll"}) as bracket:
            bracket.advect(np.ascontiguousarray(a[:, bracket.rows]))
            parts = comm.gather(bracket(np.ascontiguousarray(f[:, :, bracket.rows])))
            found = bracket.balance()
            assert len(set(comm.allgather((found.weights, found.speeds)))) == 1
            bracket.advect(np.ascontiguousarray(a[:, bracket.rows]))
            again = comm.gather(bracket(np.ascontiguousarray(f[:, :, bracket.rows])))
        if comm.rank == 0:
            for some in (parts, again):
                np.testing.assert_array_equal(np.concatenate(some, axis=2), expected)
    if comm.size > 1:
        raises_everywhere(
            comm,
            InputError,
            "weights: expected the same on all ranks",
            overlap.Bracket,
            comm,
            f.shape,
            SPACING,
            layout={"weights": (1 + comm.rank, *(2,) * (comm.size - 1))},
        )
    raises_everywhere(
        comm, InputError, "a Bracket has no other", overlap.Bracket, comm, f.shape, SPACING, layout={"restore": True}
    )


@on_ranks(1, 3, exhaustive(4))
def test_the_drop_in_takes_weights(comm):
    """The drop-in's extra argument: transforms, padding, serial kinds, arrays and their redistribution."""
    weights = WEIGHTS[: comm.size]
    for shape, options in (
        ((12, 10, 9), {}),
        ((12, 10, 9), {"grid": (-1,)}),
        ((12, 10, 9), {"grid": (0, 0, 1)}),
        ((5, 12, 10), {"axes": (1, 2), "slab": True}),
        ((12, 14), {"axes": ((0,), (1,))}),
    ):
        for dtype in "dD":
            u = np.random.default_rng(1).standard_normal(shape).astype(dtype)
            plan = PFFT(comm, shape, dtype=dtype, weights=weights, wait="poll", **options)
            axes = [axis for group in plan.axes for axis in group]
            truth = (np.fft.fftn if dtype == "D" else np.fft.rfftn)(u, axes=axes, norm="forward")
            array = newDistArray(plan, False)
            array[...] = u[plan.local_slice(False)]
            found = plan.forward(array)
            np.testing.assert_allclose(found, truth[plan.local_slice(True)], rtol=0, atol=1e-13)
            np.testing.assert_allclose(plan.backward(found), array, rtol=0, atol=1e-13)
            counts = comm.allgather(array.size)
            assert comm.size == 1 or (len(set(counts)) > 1 and sum(counts) == u.size)
            whole = [axis for axis, one in enumerate(plan.pencil[0].subcomm) if one.size == 1]
            other = array.redistribute(next(axis for axis in range(len(shape)) if axis not in whole[-1:]))
            np.testing.assert_array_equal(other, u[other.local_slice()])
            same = PFFT(comm, darray=array, wait="poll")  # of axes in its own order
            assert same.local_slice(False) == plan.local_slice(False)
            axes = [axis for group in same.axes for axis in group]
            truth = (np.fft.fftn if dtype == "D" else np.fft.rfftn)(u, axes=axes, norm="forward")
            np.testing.assert_allclose(same.forward(array), truth[same.local_slice(True)], rtol=0, atol=1e-13)
            same.destroy()
            plan.destroy()
    plan = PFFT(comm, (8, 9, 10), axes=((0,), (1, 2)), weights=weights, transforms={(1, 2): (dctn, idctn)})
    u = np.random.default_rng(2).standard_normal((8, 9, 10))
    array = newDistArray(plan, False)
    array[...] = u[plan.local_slice(False)]
    np.testing.assert_allclose(plan.backward(plan.forward(array)), u[plan.local_slice(False)], rtol=0, atol=1e-13)
    plan.destroy()
    raises_everywhere(comm, InputError, "positive finite numbers", PFFT, comm, (4, 4), weights=(-1,) * comm.size)
