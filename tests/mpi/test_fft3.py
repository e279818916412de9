"""`FFT3` on 1 to 6 ranks and two MPI libraries."""

import time
from itertools import product

import drawing
import numpy as np
import pytest
from everywhere import same_everywhere
from hypothesis import strategies as st
from marks import exhaustive, on_ranks
from step_cases import added, grids, labels_of, mpi_functions, small_units
from test_fft2 import LAYOUTS, MODES, WEIGHTS
from truth import COMPLEX, compare_transform, random, same_bits, wide

import overlap
from overlap.arrays import mode_segments
from overlap.fft import fft3

LENGTHS = st.integers(1, 8) | st.sampled_from([1, 2, 11, 13, 16, 20, 30])
CASE = st.fixed_dictionaries(
    {
        "shape": st.builds(
            lambda batch, field: [*batch, *field],
            st.lists(st.integers(0, 4) | st.integers(1, 3), max_size=2),
            st.lists(LENGTHS, min_size=3, max_size=3),
        ),
        "dtype": st.sampled_from(["f4", "f8", "c8", "c16"]),
        "norm": st.sampled_from([None, "backward", "ortho", "forward"]),
        "order": st.sampled_from(["natural", "natural", "transposed"]),
        "restore": st.sampled_from([False, False, True]),
        "weights": WEIGHTS,
        "dealias": st.sampled_from([None, None, "3/2"]),
        "grid": st.sampled_from([0, 1, 2, 3] * 3 + [None]),  # None: grids are measured, which takes time
        "wait": st.sampled_from(["off", "block", "poll"] * 5 + ["auto"]),
        "depth": st.none() | st.integers(1, 6),
        "chunk": st.none() | st.integers(1, 5),
        "late": st.none() | st.sampled_from([0.3, 0.7, 1.0]),
        "source": st.sampled_from(LAYOUTS),
        "target": st.sampled_from([None, *LAYOUTS, "contiguous"]),
        "read_only": st.booleans(),
        "effort": st.sampled_from(["estimate", "estimate", "measure"]),
        "seed": st.integers(0, 2**32),
    }
)
EDGES = [
    {
        "shape": shape,
        "dtype": dtype,
        "norm": None,
        "order": order,
        "restore": restore,
        "weights": None,
        "dealias": None,
        "grid": grid,
        "wait": "poll",
        "depth": None,
        "chunk": 1,
        "late": grid / 2,
        "source": "contiguous",
        "target": None,
        "read_only": True,
        "effort": "estimate",
        "seed": 1,
    }
    for shape in ([1, 1, 1], [0, 3, 4, 5], [2, 3, 1, 7], [2, 40, 24, 36], [3, 2, 60, 32])
    for dtype in ("f8", "c8")
    for order, restore in (("natural", False), ("transposed", True))
    for grid in (0, 1)
]


# Ranks without points, and a target that is no contiguous line: once taken for work memory.
EDGES += [
    EDGES[0] | {"shape": shape, "order": "transposed", "grid": grid, "target": "strided"}
    for shape in ([1, 5, 1], [5, 1, 2])
    for grid in (0, 1, 2)
    for _ in range(2)
]


MANY = [exhaustive(*values, 2) for values in ((1, 60), (2, 80), (3, 60), (4, 60), (6, 30))]
SETTINGS = [(None, None, None), (1, 1, None), (3, 1, 0.5), (2, 4, 1.0), (2, 1, 1.0)]
AXES = (-3, -2, -1)


# ---- truth -----------------------------------------------------------------------------------


def fine_lengths(shape, dealias):
    if isinstance(dealias, tuple):
        return list(dealias)
    return [-(-3 * n // 2) for n in shape[-3:]] if dealias else list(shape[-3:])


def _segments(shape, fine, real):
    return [mode_segments(n, m, half=real and axis == 2) for axis, (n, m) in enumerate(zip(shape[-3:], fine))]


def forward_truth(u, shape, norm=None, order="natural", dealias=None):
    """Spectrum on the resolved grid of values on the (finer) grid."""
    real = u.dtype.kind == "f"
    full = (np.fft.rfftn if real else np.fft.fftn)(wide(u), axes=AXES)
    half = [*shape[:-1], shape[-1] // 2 + 1] if real else shape
    spectrum = np.zeros(half, full.dtype)
    for pairs in product(*_segments(shape, u.shape[-3:], real)):
        spectrum[(..., *(one for one, _ in pairs))] = full[(..., *(other for _, other in pairs))]
    n, m = np.prod(shape[-3:]), np.prod(u.shape[-3:])
    spectrum *= n / m * {None: 1, "backward": 1, "ortho": n**-0.5, "forward": 1 / n}[norm]
    return np.moveaxis(spectrum, -3, -1) if order == "transposed" else spectrum


def backward_truth(spectrum, shape, dtype, norm=None, order="natural", dealias=None):
    """Values on the (finer) grid of a spectrum on the resolved one."""
    real = np.dtype(dtype).kind == "f"
    spectrum = wide(np.moveaxis(spectrum, -1, -3) if order == "transposed" else spectrum)
    fine = fine_lengths(shape, dealias)
    half = [*fine[:-1], fine[-1] // 2 + 1] if real else fine
    full = np.zeros((*shape[:-3], *half), complex)
    for pairs in product(*_segments(shape, fine, real)):
        full[(..., *(other for _, other in pairs))] = spectrum[(..., *(one for one, _ in pairs))]
    # One axis after the other: numpy's irfftn does the same.
    full = np.fft.ifftn(full, axes=AXES[:2])
    u = np.fft.irfft(full, n=fine[-1]) if real else np.fft.ifft(full)
    n, m = np.prod(shape[-3:]), np.prod(fine)
    return u * (m / n * {None: 1, "backward": 1, "ortho": n**0.5, "forward": n}[norm])


def assert_close(comm, found, truth, local_slice, kept=1.0):
    """The local part of `truth`, in relative l2 norm of all ranks together.

    `kept` is how much of the data's norm the truth still has, where modes were dropped.
    """
    local = truth[local_slice]
    assert found.shape == local.shape, (found.shape, local.shape)
    points = np.prod(truth.shape[-3:])
    tolerance = 5 * np.finfo(found.dtype).eps * np.sqrt(np.log2(max(points, 2)))
    error = np.sqrt(comm.allreduce(float(np.sum(np.abs(wide(found) - local) ** 2))))
    assert error * kept <= tolerance * np.linalg.norm(np.ravel(truth)), (
        error * kept / np.linalg.norm(np.ravel(truth)),
        tolerance,
    )


# ---- against numpy ---------------------------------------------------------------------------


@small_units()
def drawn(comm, case, workers=1):
    """A drawn case forward and backward, from and to arrays of any layout."""
    with overlap.Runtime(comm, workers=workers) as rt:
        _drawn(comm, rt, **case)


def _drawn(
    comm,
    rt,
    shape,
    dtype,
    norm,
    order,
    restore,
    weights,
    dealias,
    grid,
    wait,
    depth,
    chunk,
    late,
    seed,
    source,
    target,
    read_only,
    effort,
):
    rng = np.random.default_rng(seed)
    grid = None if grid is None else grids(comm.size)[grid % len(grids(comm.size))]
    u = random(rng, [*shape[:-3], *fine_lengths(shape, dealias)], dtype)
    with overlap.FFT3(
        rt,
        shape,
        dtype,
        norm=norm,
        layout={
            "grid": grid,
            "order": order,
            "restore": restore,
            "dealias": dealias,
            "weights": weights and weights[: comm.size],
        },
        settings={"wait": wait, "depth": depth, "chunk": chunk, "late": late, "effort": effort},
    ) as plan:
        assert grid in (None, plan.grid)
        specs = plan.real, plan.spectrum
        spectrum = random(rng, plan.spectrum.global_shape, COMPLEX[dtype])
        for transform, given, truth, side in (
            (plan.forward, u, forward_truth(u, shape, norm, order, dealias), False),
            (plan.backward, spectrum, backward_truth(spectrum, shape, dtype, norm, order, dealias), True),
        ):
            before, after = specs[side], specs[not side]
            kept = 1.0
            if dealias and not side:
                full = np.linalg.norm(np.fft.fftn(wide(u), axes=AXES))
                back = np.fft.fftn(backward_truth(truth, shape, dtype, norm, order, dealias), axes=AXES)
                kept = np.linalg.norm(back) / full if full else 1.0
            compare_transform(
                transform,
                given,
                truth,
                (before, after),
                (source, target, read_only),
                lambda result: assert_close(comm, result, truth, after.local_slice, kept),
            )


@small_units()
@on_ranks
@pytest.mark.parametrize("comm, grid", [(1, (1, 1)), (2, (2, 1)), (2, (1, 2)), (4, (2, 2)), exhaustive(6, (2, 3))])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_every_step(comm, dtype, grid, shape=(13, 10, 36)):
    """What each stage leaves in its target, against the whole."""
    u = random(np.random.default_rng(1), shape, dtype)
    spectrum = random(np.random.default_rng(2), forward_truth(u, shape).shape, COMPLEX[dtype])
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


@small_units()
@on_ranks(1, 3, exhaustive(4))
def test_plane_waves(comm):
    """A plane wave's spectrum is nothing but its mode, where `wavenumbers` says."""
    nz, ny, nx = shape = 6, 7, 9
    z, y, x = np.mgrid[:nz, :ny, :nx]
    for grid, order, restore, dtype in product(
        grids(comm.size), ("natural", "transposed"), (False, True), ("c16", "f8")
    ):
        with overlap.FFT3(
            comm,
            shape,
            dtype,
            layout={"grid": grid, "order": order, "restore": restore},
            settings={"wait": "off", "effort": "estimate"},
        ) as plan:
            kz, ky, kx = plan.wavenumbers()
            assert np.broadcast_shapes(kz.shape, ky.shape, kx.shape) == plan.spectrum.shape
            for a, b, c in ((0, 0, 0), (1, -2, 3), (-2, 3, -4), (2, 0, 1)):
                phase = 2 * np.pi * (a * z / nz + b * y / ny + c * x / nx)
                u = np.exp(1j * phase) if dtype == "c16" else np.cos(phase)
                expected = ((kz == a) & (ky == b) & (kx == c)).astype(float)
                if dtype == "f8":
                    expected = (expected + ((kz == -a) & (ky == -b) & (kx == -c))) / 2
                found = plan.forward(u[plan.real.local_slice]) / (nx * ny * nz)
                np.testing.assert_allclose(found, expected, atol=1e-14)


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
        modes = forward_truth(random(rng, shape, dtype), shape)
        modes[:, 3] = 0  # of which a finer grid knows nothing
        u = backward_truth(modes, shape, dtype, dealias=fine)
        with overlap.FFT3(comm, shape, dtype, layout={"dealias": fine, "grid": grid}) as plan:
            assert_close(comm, plan.backward(modes[plan.spectrum.local_slice]), u, plan.real.local_slice)
            given = u[plan.real.local_slice]
            assert_close(comm, plan.forward(given), modes, plan.spectrum.local_slice)
            same = plan.pointwise(lambda field: field)(modes[plan.spectrum.local_slice])
            assert_close(comm, same, modes, plan.spectrum.local_slice)


@small_units()
@on_ranks(1, 3, exhaustive(4))
def test_distributed_arrays(comm):
    """Every element belongs to one rank; the attributes say where it is."""
    for shape, grid, order, restore in product(
        ((5, 3, 7), (2, 2, 4, 4, 2), (1, 1, 1), (0, 3, 3, 3)),
        grids(comm.size),
        ("natural", "transposed"),
        (False, True),
    ):
        with overlap.FFT3(
            comm,
            shape,
            "f4",
            layout={"grid": grid, "order": order, "restore": restore},
            settings={"wait": "off", "effort": "estimate"},
        ) as plan:
            for spec in (plan.real, plan.spectrum):
                array = spec.empty()
                whole = np.arange(np.prod(spec.global_shape)).reshape(spec.global_shape)
                array[...] = whole[spec.local_slice]
                assert array.global_shape == whole.shape and array.comm == comm
                assert array.local_slice == spec.local_slice
                for axis, part in enumerate(array.local_slice):
                    if part != slice(0, whole.shape[axis]):
                        assert axis in array.axes
                assert len(array.axes) == sum(size > 1 for size in grid)
                gathered = array.gather()
                owners = comm.reduce(array.size)
                if comm.rank == 0:
                    assert owners == whole.size
                    np.testing.assert_array_equal(gathered, whole)


# ---- every mode gives the same bits ----------------------------------------------------------


@small_units()
def modes_agree(comm, shape, dtype, grid, settings, workers=(1, 2), effort="measure", **options):
    """Each mode, depth, chunk and number of workers: the bits of `off`."""
    rng = np.random.default_rng(4)
    u = random(rng, [*shape[:-3], *fine_lengths(shape, options.get("dealias"))], dtype)
    with overlap.FFT3(
        comm, shape, dtype, layout={"grid": grid} | options, settings={"wait": "off", "effort": effort}
    ) as plan:
        real, spectrum = plan.real.empty(), plan.spectrum.empty()
        real[...] = u[plan.real.local_slice]
        grid = plan.grid
        assert_close(
            comm,
            plan.forward(real, out=spectrum),
            forward_truth(u, shape, **{name: options[name] for name in ("order", "dealias") if name in options}),
            plan.spectrum.local_slice,
        )
        back = plan.backward(spectrum)
    for count in workers:
        with overlap.Runtime(comm, workers=count) as rt:
            for mode, (depth, chunk, late) in product(MODES, settings):
                with overlap.FFT3(
                    rt,
                    shape,
                    dtype,
                    layout={"grid": grid} | options,
                    settings={"wait": mode, "depth": depth, "chunk": chunk, "late": late, "effort": effort},
                ) as plan:
                    label = f"{count} worker(s), {mode}: {plan.forward.settings}"
                    same_everywhere(comm, (plan.forward.settings, plan.backward.settings))
                    for _ in range(2):
                        assert same_bits(plan.forward(real), spectrum), label
                        assert same_bits(plan.backward(spectrum), back), label


@on_ranks
@pytest.mark.parametrize(
    "comm, grid, shape, dtype, options",
    [
        (1, (1, 1), (24, 20, 18), "f8", {}),
        (2, (1, 2), (24, 32, 36), "c16", {}),
        (2, (2, 1), (2, 24, 32, 36), "f4", {"order": "transposed"}),
        exhaustive(3, (1, 3), (3, 22, 32, 36), "f8", {}),
        exhaustive(4, (2, 2), (3, 20, 18, 36), "c16", {}),
        exhaustive(4, (2, 2), (20, 18, 36), "f8", {"dealias": "3/2"}),
        exhaustive(4, (2, 2), (12, 18, 20), "c8", {"restore": True}),
        (2, (1, 2), (30, 4, 6, 5), "f8", {}),
    ],
)
def test_every_mode_gives_the_same_bits(comm, grid, shape, dtype, options):
    modes_agree(comm, shape=shape, dtype=dtype, grid=grid, settings=SETTINGS, effort="estimate", **options)


@on_ranks
@pytest.mark.parametrize("comm, grid", [("openmpi-2", (1, 2)), exhaustive("openmpi-4", (2, 2))])
def test_every_mode_gives_the_same_bits_under_open_mpi(comm, grid):
    modes_agree(comm, shape=(2, 20, 18, 36), dtype="f8", grid=grid, settings=[(3, 1, 0.5)], effort="estimate")


@small_units()
@on_ranks(1, 2, exhaustive(4))
def test_compute_and_communicate(comm):
    """Measuring C and T works in all modes, and leaves the plan right."""
    shape = (2, 9, 8, 6)
    u = random(np.random.default_rng(5), shape, "f8")
    for mode, workers, grid in product(MODES, (1, 2), grids(comm.size)):
        with (
            overlap.Runtime(comm, workers=workers) as rt,
            overlap.FFT3(rt, shape, "f8", layout={"grid": grid}, settings={"wait": mode, "effort": "estimate"}) as plan,
        ):
            real = np.array(u[plan.real.local_slice])
            spectrum = plan.forward(real)
            for transform, given, out in (
                (plan.forward, real, plan.spectrum.empty()),
                (plan.backward, spectrum, plan.real.empty()),
            ):
                transform.compute(given, out=out)
                transform.communicate(given, out=out)
                assert str(transform.settings) in plan.describe()
            assert plan.describe().count("FFTs along") >= 2 and "Stage(" not in plan.describe()
            assert same_bits(plan.forward(real), spectrum)
            assert_close(comm, plan.backward(spectrum), u, plan.real.local_slice)


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
            with overlap.FFT3(
                rt,
                shape,
                dtype,
                layout={"grid": grid},
                settings={"wait": mode, "depth": depth, "chunk": chunk, "late": late, "effort": "estimate"},
            ) as plan:
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


@on_ranks(2, exhaustive(3))
def test_boxes_larger_than_the_cache(comm):
    """Boxes larger than the cache, from arrays that lie as FFTW's plans want it, and from others."""
    rng = np.random.default_rng(11)
    for dtype, shape in (("c16", (1, 70, 66, 68)), ("c8", (1, 70, 90, 67))):
        u = random(rng, shape, dtype)
        modes = np.fft.fftn(wide(u), axes=(1, 2, 3)).astype(dtype)
        for grid in grids(comm.size):
            with overlap.FFT3(comm, shape, dtype, layout={"grid": grid}) as plan:
                part = np.ascontiguousarray(modes[plan.spectrum.local_slice])
                memory = np.empty(part.nbytes + 8, np.uint8)
                moved = memory[8:].view(dtype).reshape(part.shape)
                moved[...] = part
                for given in (part, moved, np.asfortranarray(part)):
                    assert_close(comm, plan.backward(given), u, plan.real.local_slice)
                    np.testing.assert_array_equal(given, part)


@pytest.mark.parametrize("ranks, count, every", [(1, 8, 8), (2, 10, 8), (3, 6, 12), *MANY])
def test_against_numpy(ranks, count, every):
    drawing.check("test_fft3:drawn", CASE, count, ranks, edges=EDGES[ranks % every :: every])


@pytest.mark.parametrize("count", [8, exhaustive(40)])
def test_against_numpy_with_two_workers(count):
    drawing.check("test_fft3:drawn", CASE, count, 2, workers=2)
