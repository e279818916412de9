"""Any sizes, the finer grid, and memory."""

from itertools import product

import numpy as np
import pytest
from marks import exhaustive, on_ranks
from test_pointwise import Modes, local, points_of, spectra, whole
from truth import assert_close, backward_truth, forward_truth, wide

import overlap

# ---- any sizes -------------------------------------------------------------------------------

SIZES = [(1, 1), (1, 6), (7, 1), (2, 2), (3, 4), (4, 3), (5, 7), (6, 8), (9, 6), (8, 11)]


@on_ranks
@pytest.mark.parametrize(
    "comm, dtype, dealias, mode",
    [
        (1, "f8", "3/2", "block"),
        (2, "f8", "3/2", "poll"),
        (2, "c16", "3/2", "off"),
        exhaustive(3, "c8", "3/2", "poll"),
        (3, "f8", None, "block"),
        exhaustive(4, "f4", "3/2", "poll"),
        exhaustive(4, "c16", None, "poll"),
    ],
)
def test_any_sizes(comm, dtype, dealias, mode):
    """Products and copies of fields on grids of odd and even sizes, every norm and order."""
    with overlap.Runtime(comm, workers=2) as rt:
        for number, (shape, order, norm) in enumerate(
            product(SIZES, ("natural", "transposed"), (None, "ortho", "forward"))
        ):
            if norm is not None and number % 3:
                continue
            _sizes(comm, rt, (3, *shape), dtype, dealias, mode, order, norm)


def _sizes(comm, rt, shape, dtype, dealias, mode, order, norm):
    real = dtype.startswith("f")
    a, b = spectra(np.random.default_rng(3), 2, shape, dtype)
    up, down = points_of(norm, shape)
    if dealias:
        modes = Modes(shape, real)
        ac, bc = up * modes.of_spectrum(wide(a)), up * modes.of_spectrum(wide(b))
        products = (
            modes.to_spectrum(modes.convolve(ac, bc)),
            modes.to_spectrum(modes.convolve(ac, ac)),
            modes.to_spectrum(ac - 2 * bc),
        )
        products = tuple(down * truth for truth in products)
    else:
        ur, vr = (backward_truth(field, shape, dtype, norm) for field in (a, b))
        products = tuple(forward_truth(field, norm) for field in (ur * vr, ur * ur, ur - 2 * vr))
    with overlap.FFT2(
        rt, shape, dtype, norm=norm, layout={"order": order}, settings={"wait": mode, "depth": 2, "effort": "estimate"}
    ) as plan:
        acting = plan.pointwise(lambda u, v: (u * v, u * u, u - 2 * v), outputs=3, dealias=dealias)
        results = acting(local(plan, a, order), local(plan, b, order))
        assert isinstance(results, tuple) and len(results) == 3
        size = max(np.linalg.norm(truth.ravel()) for truth in products)
        for found, truth in zip(results, products):
            truth = whole(truth, order)
            assert type(found) is overlap.DistArray and found.global_shape == truth.shape
            error = np.linalg.norm((wide(found) - truth[plan.spectrum.local_slice]).ravel())
            eps = np.finfo(dtype).eps
            assert error <= 5 * eps * np.sqrt(np.log2(max(4, 9 * shape[-1] * shape[-2]))) * size, (
                shape,
                order,
                norm,
                error / size,
            )


@on_ranks(1, 3, exhaustive("openmpi-2"))
def test_nyquist_dropped(comm):
    """With de-aliasing, Nyquist modes neither enter nor leave."""
    shape = (2, 8, 6)
    for dtype in ("f8", "c16"):
        (a,) = spectra(np.random.default_rng(4), 1, shape, dtype)
        nyquist = np.zeros_like(a)
        nyquist[:, 4], nyquist[:, :, 3] = a[:, 4], a[:, :, 3]
        with overlap.FFT2(comm, shape, dtype, settings={"wait": "poll"}) as plan:
            same = plan.pointwise(lambda u: u, dealias="3/2")
            assert (same(local(plan, nyquist, "natural")) == 0).all()
            kept = same(local(plan, a, "natural"))
            assert_close(kept, a - nyquist, plan.spectrum.local_slice, comm)
            ky, kx = plan.wavenumbers()
            assert (kept[np.broadcast_to((abs(ky) == 4) | (abs(kx) == 3), kept.shape)] == 0).all()
            # Without, they stay.
            same = plan.pointwise(lambda u: u)
            assert_close(same(local(plan, a, "natural")), a, plan.spectrum.local_slice, comm)


@on_ranks(1, 2)
def test_points_of_the_finer_grid(comm):
    """De-aliased products do not depend on how fine the grid is; the points can be given."""
    for make, shape, points in ((overlap.FFT2, (3, 7, 9), (12, 15)), (overlap.FFT3, (2, 5, 6, 7), (8, 10, 12))):
        found = []
        with make(comm, shape, dtype="f8", settings={"wait": "poll"}) as plan:
            field = plan.real.empty()
            field[...] = np.random.default_rng(1).random(shape)[plan.real.local_slice]
            spectrum = plan.forward(field)
            for dealias in ("3/2", points):

                @plan.pointwise(dealias=dealias)
                def square(u):
                    assert u.shape[-1] == (points[-1] if dealias != "3/2" else -(-3 * shape[-1] // 2))
                    return u * u

                found.append(np.array(square(spectrum)))
            largest = max(comm.allgather(abs(found[0]).max(initial=0)))
            assert abs(found[0] - found[1]).max(initial=0) <= 1e-13 * largest
            for bad in ((2,) * len(points), points[1:], "2/3", 1.5):
                with pytest.raises(overlap.InputError, match="expected dealias to be None, '3/2' or at least"):
                    plan.pointwise(lambda u: u, dealias=bad)


@on_ranks(2)
@pytest.mark.parametrize("mode", [exhaustive("off"), exhaustive("block"), "poll"])
def test_no_allocation(comm, mode):
    """Nothing is allocated by a call with `out` if the function allocates nothing."""
    import gc
    import tracemalloc

    shape = (16, 96, 128)

    def function(u, v, out):
        np.multiply(u, v, out=out)

    for dealias in (None, "3/2"):
        with overlap.FFT2(
            comm, shape, "f8", settings={"wait": mode, "depth": 3, "chunk": 2, "effort": "measure"}
        ) as plan:
            acting = plan.pointwise(function, dealias=dealias, shared=1)
            field, out = plan.spectrum.empty(), plan.spectrum.empty()
            field[...] = 1
            flat = np.array(field[0])
            acting(field, flat, out=out)
            gc.collect()
            tracemalloc.start()
            acting(field, flat, out=out)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            acting(field, flat, out=out)
            grown = tracemalloc.get_traced_memory()[1] - before
            tracemalloc.stop()
            assert grown < 64 * 1024 + 4096 * shape[0], grown
            assert f"{acting.nbytes_in_flight / 2**20:.1f} MiB in flight" in acting.describe()
            assert acting.settings.depth == (1 if mode == "off" else 3)
