"""`FFT3` on 1 to 6 ranks and two MPI libraries."""

from itertools import product

import numpy as np
from everywhere import same_everywhere
from marks import exhaustive, on_ranks
from step_cases import grids, small_units
from truth import assert_close, backward_truth, forward_truth, random

import overlap
from overlap.fft import fft3


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
