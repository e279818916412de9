"""`FFT3` on 1 to 6 ranks and two MPI libraries."""

import time
from itertools import product

import numpy as np
import pytest
from everywhere import same_everywhere
from marks import exhaustive, on_ranks
from step_cases import added, grids, labels_of, mpi_functions, small_units
from truth import COMPLEX, assert_close, backward_truth, forward_truth, random, same_bits, wide

import overlap
from overlap.fft import fft3


@small_units()
@on_ranks
@pytest.mark.parametrize("comm, grid", [(1, (1, 1)), (2, (2, 1)), (2, (1, 2)), (4, (2, 2)), exhaustive(6, (2, 3))])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_every_step(comm, dtype, grid, shape=(13, 10, 36)):
    """What each stage leaves in its target, against the whole."""
    u = random(np.random.default_rng(1), shape, dtype)
    spectrum = random(np.random.default_rng(2), forward_truth(u, dimensions=3).shape, COMPLEX[dtype])
    with overlap.FFT3(
        comm, shape, dtype, layout={"grid": grid}, settings={"wait": "poll", "chunk": 1, "depth": 3}
    ) as plan:
        for transform, given, side in ((plan.forward, u, False), (plan.backward, spectrum, True)):
            way = transform._kernels
            seen, arrays, arrays_of = [], [], way.arrays

            def complete(task, seen=seen, arrays=arrays):
                if not seen:  # before the result is made, which may be in the same memory
                    seen.extend(np.array(array.array) for (array,) in arrays[1:-1])

            def watched(*args, arrays_of=arrays_of, arrays=arrays):
                arrays[:] = arrays_of(*args)
                return list(arrays)

            way.arrays = watched
            with added(transform, lambda task, step: "complete" in labels_of(step), complete):
                transform(np.array(given[transform.inputs[0].local_slice]))
            del way.arrays
            if not seen:  # nothing had to wait
                seen.extend(np.array(array.array) for (array,) in arrays[1:-1])
            whole = wide(given)[None]
            assert len(seen) == len(way.stages)
            for one, found in zip(way.stages, seen):
                steps = one._steps
                for axis in (*steps.first, *steps.then):
                    whole = _along(whole, axis, dtype, side, shape)
                where = one.layout.local_slice(whole.shape, way.coordinates)
                whole_scale = transform.scale if one is way.stages[0] else 1.0
                whole = whole * whole_scale
                np.testing.assert_allclose(found, whole[where], rtol=0, atol=1e-12 * np.abs(whole).max())


def _along(whole, axis, dtype, backward, shape):
    """One unnormalised FFT."""
    real = axis == 3 and dtype.startswith("f")
    if backward:
        n = shape[axis - 1]
        return np.fft.irfft(whole, n, axis) * n if real else np.fft.ifft(whole, axis=axis) * n
    return np.fft.rfft(whole, axis=axis) if real else np.fft.fft(whole, axis=axis)


@small_units(2**13)
@on_ranks(2, 3)
def test_fields_in_one_message(comm):
    """Several fields that take two exchanges, of one message or two each: work memory serves every other field."""
    shape, axes = (5, 8, 30, 16), (-3, -2, -1)
    whole = np.random.default_rng(4).standard_normal((2, *shape))
    for wait, chunk, order in product(("off", "block", "poll"), (1, 2, 64), ("natural", "transposed")):
        settings = {"wait": wait, "depth": 3, "chunk": chunk, "effort": "estimate"}
        layout = {"restore": True, "grid": (1, comm.size), "order": order}
        with overlap.FFT3(comm, shape, complex, layout=layout, settings=settings) as plan:
            u = plan.real.empty()
            u[...] = (whole[0] + 1j * whole[1])[plan.real.local_slice]
            spectrum = plan.forward(u)
            right = np.fft.fftn(whole[0] + 1j * whole[1], axes=axes)
            if order == "transposed":
                right = np.moveaxis(right, -3, -1)
            np.testing.assert_allclose(spectrum, right[plan.spectrum.local_slice], rtol=0, atol=1e-11)
            np.testing.assert_allclose(plan.backward(spectrum), u, rtol=0, atol=1e-13)


@small_units()
@on_ranks(1, 3, exhaustive(4))
def test_finer_along_some_axes(comm):
    """A layout names the points of the grid in real space; an axis that has no more keeps its Nyquist mode."""
    rng = np.random.default_rng(8)
    for dtype, fine, grid in product(("f8", "c16"), ((6, 8, 16), (9, 8, 7)), grids(comm.size)):
        shape = (2, 6, 8, 7)
        modes = forward_truth(random(rng, shape, dtype), dimensions=3)
        modes[:, 3] = 0  # of which a finer grid knows nothing
        u = backward_truth(modes, shape, dtype, dealias=fine, dimensions=3)
        with overlap.FFT3(comm, shape, dtype, layout={"dealias": fine, "grid": grid}) as plan:
            given, there, here = modes[plan.spectrum.local_slice], plan.spectrum.local_slice, plan.real.local_slice
            assert_close(plan.backward(given), u, here, comm, 3)
            assert_close(plan.forward(u[here]), modes, there, comm, 3)
            assert_close(plan.pointwise(lambda field: field)(given), modes, there, comm, 3)


@small_units()
@on_ranks
@pytest.mark.parametrize(
    "comm, grid, dtype, late",
    [
        (2, (1, 2), "f8", 0),
        (2, (1, 2), "f8", 0.7),
        exhaustive(4, (2, 2), "f8", 0),
        exhaustive(4, (1, 4), "c16", 1.0),
        exhaustive(6, (3, 2), "f8", 0),
    ],
)
@pytest.mark.parametrize("mode", ["block", "poll"])
def test_order_with_random_delays(comm, dtype, grid, mode, late, shape=(2, 24, 40, 96)):
    """Ranks that compute at random speeds issue the same operations in the order of the tasks."""
    rng = np.random.default_rng(comm.rank)
    u = random(np.random.default_rng(6), shape, dtype)
    with overlap.FFT3(
        comm, shape, dtype, layout={"grid": grid}, settings={"wait": "off", "effort": "estimate"}
    ) as plan:
        real = np.array(u[plan.real.local_slice])
        truth = plan.forward(real)
        back = plan.backward(truth)

    def slow(task):
        if rng.random() < 0.3:
            time.sleep(0.003 * rng.random())

    with overlap.Runtime(comm, workers=2) as rt:
        for depth, chunk in ((1, 1), (2, 1), (5, 1), (7, 2)):
            settings = {"wait": mode, "depth": depth, "chunk": chunk, "late": late, "effort": "estimate"}
            with overlap.FFT3(rt, shape, dtype, layout={"grid": grid}, settings=settings) as plan:
                for transform in (plan.forward, plan.backward):
                    assert any(task.kind == "late" for task in transform.configuration.parts) == bool(late)
                for transform, given, expected in ((plan.forward, real, truth), (plan.backward, truth, back)):
                    issued = []

                    def issue(name, real, *words, issued=issued):
                        issued.append(words[8])
                        return real(*words)

                    with (
                        added(transform, lambda task, step: {"pack", "unpack"} & labels_of(step), slow),
                        mpi_functions(issue, transform),
                    ):
                        result = transform(given)
                    assert same_bits(result, expected)
                    comms, stages = transform._comms, transform._kernels.stages
                    assert issued == [
                        comms[stages[task.stage].dimension].word[0] % 2**64
                        for task in transform.configuration.parts
                        if stages[task.stage].dimension is not None and task.kind != "turn"
                    ]


@small_units()
@on_ranks(2, 3, exhaustive(6))
def test_chosen_grid(comm):
    """Without a grid: one that equation (7) prefers; slabs here, as a lone message is slow."""
    from overlap.timing.messages import LatencyBandwidth

    with overlap.FFT3(comm, (8, 8, 8), settings={"wait": "off", "effort": "estimate"}) as plan:
        same_everywhere(comm, plan.grid)
        assert plan.grid[0] * plan.grid[1] == comm.size
        # More ranks than planes: a pencil, where the number of ranks allows one.
        grid = fft3.near_grids(plan.runtime, (2, 64, 64), np.dtype("c16"))[0]
        assert grid[1] <= 2 and grid[0] * grid[1] == comm.size
        # Slow links of no latency: one exchange. A latency that rules: few partners.
        for link, slab in (((0.0, 1e6), True), ((1.0, 1e12), comm.size < 6)):
            plan.runtime.cache["latency and bandwidth"] = LatencyBandwidth(*link)
            found = fft3.near_grids(plan.runtime, (64, 64, 64), np.dtype("c16"))
            same_everywhere(comm, found)
            assert (1 in found[0]) == slab or len(found) == 2, (link, found)
    # A slab and a pencil come close: the faster one, alike on all ranks, and for all plans.
    original = fft3.near_grids
    fft3.near_grids = lambda *_: grids(comm.size)[:2]
    try:
        with overlap.Runtime(comm) as rt:
            found = []
            for mode in ("off", "poll"):
                with overlap.FFT3(rt, (8, 12, 10), settings={"wait": mode, "effort": "estimate"}) as plan:
                    found.append(plan.grid)
                    same_everywhere(comm, plan.grid)
                    assert plan.grid in grids(comm.size)[:2]
            assert found[0] == found[1]
    finally:
        fft3.near_grids = original
