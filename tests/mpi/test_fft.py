"""`FFT2` and `FFT3` against numpy, on 1 to 6 ranks and two MPI libraries."""

from itertools import product

import drawing
import numpy as np
import pytest
from everywhere import same_everywhere
from hypothesis import strategies as st
from marks import exhaustive, on_ranks
from mpi4py import MPI
from step_cases import grids, small_units
from truth import (
    COMPLEX,
    assert_close,
    backward_truth,
    compare_transform,
    fine_lengths,
    forward_truth,
    random,
    same_bits,
    wide,
)

import overlap

LAYOUTS = ("contiguous", "strided", "misaligned", "unaligned", "fortran", "reversed", "batch last", "batch swapped")
LENGTHS = {
    2: st.integers(1, 12) | st.sampled_from([13, 16, 17, 23, 30, 37]),
    3: st.integers(1, 8) | st.sampled_from([1, 2, 11, 13, 16, 20, 30]),
}
CASES = {
    dimensions: st.fixed_dictionaries(
        {
            "shape": st.builds(
                lambda batch, field: [*batch, *field],
                st.lists(st.integers(0, 4) | st.integers(1, 3), max_size=5 - dimensions),
                st.lists(lengths, min_size=dimensions, max_size=dimensions),
            ),
            "dtype": st.sampled_from(["f4", "f8", "c8", "c16"]),
            "norm": st.sampled_from([None, "backward", "ortho", "forward"]),
            "order": st.sampled_from(["natural", "natural", "transposed"]),
            "restore": st.sampled_from([False, False, True]),
            "weights": st.none() | st.lists(st.sampled_from([1, 2, 3, 0.3, 0.001]), min_size=6, max_size=6),
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
    for dimensions, lengths in LENGTHS.items()
}
EDGE = dict.fromkeys(("norm", "weights", "dealias", "depth", "chunk", "late", "target")) | {
    "restore": False,
    "grid": 0,
    "wait": "poll",
    "source": "contiguous",
    "read_only": True,
    "effort": "estimate",
    "seed": 1,
}
EDGES = {
    2: [
        EDGE | {"shape": shape, "wait": wait, "chunk": chunk, "dtype": dtype, "order": order, "target": target}
        for shape, wait, chunk in (
            ([1, 1], "poll", None),
            ([0, 3, 4], "poll", None),
            ([2, 0, 3, 4], "auto", 2),
            ([5, 1, 1], "block", 2),
            ([5, 2, 7], "poll", 1),
            ([3, 31, 2], "off", None),
            ([2, 2, 2, 2, 3], "poll", 3),
        )
        for dtype in ("f8", "c8")
        for order in ("natural", "transposed")
        for target in (None, "reversed")
    ],
    3: [
        EDGE
        | {"shape": shape, "chunk": 1, "dtype": dtype, "order": order, "grid": grid, "late": grid / 2}
        | {"restore": order == "transposed"}
        for shape in ([1, 1, 1], [0, 3, 4, 5], [2, 3, 1, 7], [2, 40, 24, 36], [3, 2, 60, 32])
        for dtype in ("f8", "c8")
        for order in ("natural", "transposed")
        for grid in (0, 1)
    ]
    + [  # ranks without points, and a target that is no contiguous line: once taken for work memory
        EDGE | {"shape": shape, "chunk": 1, "dtype": "f8", "order": "transposed", "grid": grid, "target": "strided"}
        for shape in ([1, 5, 1], [5, 1, 2])
        for grid in (0, 1, 2)
        for _ in range(2)
    ],
}
MODES = ("off", "block", "poll", "auto")
PLANES, VOLUMES = ("FFT2", 2), ("FFT3", 3)


def layouts_of(comm, kind, **options):
    """The layouts of a plan with these options: of every grid, if it has any."""
    return [options | {"grid": grid} for grid in grids(comm.size)] if kind == "FFT3" else [options]


# ---- drawn cases -----------------------------------------------------------------------------


@small_units()
def drawn(comm, case, dimensions, workers=1):
    """A drawn case forward and backward, from and to arrays of any layout."""
    shape, dtype, norm, order, dealias = (case[name] for name in ("shape", "dtype", "norm", "order", "dealias"))
    rng, axes = np.random.default_rng(case["seed"]), range(-dimensions, 0)
    layout = {"order": order, "restore": case["restore"], "dealias": dealias}
    layout["weights"] = case["weights"] and case["weights"][: comm.size]
    if dimensions == 3:
        layout["grid"] = None if case["grid"] is None else grids(comm.size)[case["grid"] % len(grids(comm.size))]
    settings = {name: case[name] for name in ("wait", "depth", "chunk", "late", "effort")}
    u = random(rng, [*shape[:-dimensions], *fine_lengths(shape[-dimensions:], dealias)], dtype)
    with (
        overlap.Runtime(comm, workers=workers) as rt,
        getattr(overlap, f"FFT{dimensions}")(rt, shape, dtype, norm=norm, layout=layout, settings=settings) as plan,
    ):
        assert layout.get("grid") is None or plan.grid == layout["grid"]
        specs = plan.real, plan.spectrum
        spectrum = random(rng, plan.spectrum.global_shape, COMPLEX[dtype])
        values = backward_truth(spectrum, shape, dtype, norm, order, dealias, dimensions)
        for transform, given, truth, side in (
            (plan.forward, u, forward_truth(u, norm, order, shape, dimensions), False),
            (plan.backward, spectrum, values, True),
        ):
            before, after = specs[side], specs[not side]
            kept = 1.0
            if dealias and not side:
                full = np.linalg.norm(np.fft.fftn(wide(u), axes=axes))
                back = backward_truth(truth, shape, dtype, norm, order, dealias, dimensions)
                kept = np.linalg.norm(np.fft.fftn(back, axes=axes)) / full if full else 1.0
            compare_transform(
                transform,
                given,
                truth,
                (before, after),
                (case["source"], case["target"], case["read_only"]),
                lambda result: assert_close(result, truth, after.local_slice, comm, dimensions, kept),
            )


@pytest.mark.parametrize(
    "dimensions, ranks, count, every",
    [
        (2, 1, 10, 8),
        (2, 2, 10, 8),
        (2, 3, 6, 8),
        *[exhaustive(2, ranks, 80, 2) for ranks in (1, 2, 3, 4)],
        (3, 1, 8, 8),
        (3, 2, 10, 8),
        (3, 3, 6, 12),
        *[exhaustive(3, *values, 2) for values in ((1, 60), (2, 80), (3, 60), (4, 60), (6, 30))],
    ],
)
def test_against_numpy(dimensions, ranks, count, every):
    edges = EDGES[dimensions][ranks % every :: every]
    drawing.check("test_fft:drawn", CASES[dimensions], count, ranks, edges=edges, dimensions=dimensions)


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize("count", [8, exhaustive(40)])
def test_against_numpy_with_two_workers(dimensions, count):
    drawing.check("test_fft:drawn", CASES[dimensions], count, 2, dimensions=dimensions, workers=2)


@pytest.mark.parametrize("ranks, count, every", [(2, 5, 9), exhaustive(3, 20, 3)])
def test_against_numpy_under_open_mpi(openmpi, ranks, count, every):
    drawing.check("test_fft:drawn", CASES[2], count, ranks, edges=EDGES[2][::every], mpi="openmpi", dimensions=2)


# ---- modes and arrays ------------------------------------------------------------------------


@small_units()
@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_plane_waves(comm):
    """A plane wave's spectrum is nothing but its mode, where `wavenumbers` says."""
    for (kind, dimensions), shape, order, restore, dtype in product(
        (PLANES, VOLUMES), ((6, 7, 9), (2, 6, 7, 9)), ("natural", "transposed"), (False, True), ("c16", "f8")
    ):
        points = shape[-dimensions:]
        for layout in layouts_of(comm, kind, order=order, restore=restore):
            settings = {"wait": "off", "effort": "estimate"}
            with getattr(overlap, kind)(comm, shape, dtype, layout=layout, settings=settings) as plan:
                k = plan.wavenumbers()
                assert np.broadcast_shapes(*(one.shape for one in k)) == plan.spectrum.shape[-dimensions:]
                assert all(sum(length != 1 for length in one.shape) <= 1 for one in k)
                for modes in ((0, 0, 0), (1, -2, 3), (-2, 3, -4), (2, 0, 1)):
                    modes = modes[-dimensions:]
                    phase = sum(2 * np.pi * m * x / n for m, x, n in zip(modes, np.indices(points), points))
                    u = np.broadcast_to(np.exp(1j * phase) if dtype == "c16" else np.cos(phase), shape)
                    expected = np.logical_and.reduce([one == m for one, m in zip(np.broadcast_arrays(*k), modes)]) * 1.0
                    if dtype == "f8":
                        mirrored = [one == -m for one, m in zip(np.broadcast_arrays(*k), modes)]
                        expected = (expected + np.logical_and.reduce(mirrored)) / 2
                    found = plan.forward(u[plan.real.local_slice]) / np.prod(points)
                    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), atol=1e-14)


@small_units()
@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_distributed_arrays(comm):
    """Every element belongs to one rank; the attributes say where it is."""
    for (kind, dimensions), shape, order, restore in product(
        (PLANES, VOLUMES),
        ((5, 3, 7), (2, 2, 4, 4, 2), (1, 1, 1), (0, 3, 3, 3), (1, 1)),
        ("natural", "transposed"),
        (False, True),
    ):
        if len(shape) < dimensions:
            continue
        for layout in layouts_of(comm, kind, order=order, restore=restore):
            settings = {"wait": "off", "effort": "estimate"}
            with getattr(overlap, kind)(comm, shape, "f4", layout=layout, settings=settings) as plan:
                for spec in (plan.real, plan.spectrum):
                    array = spec.empty()
                    whole = np.arange(np.prod(spec.global_shape)).reshape(spec.global_shape)
                    array[...] = whole[spec.local_slice]
                    assert type(array) is overlap.DistArray and array.comm == comm
                    assert (array.shape, array.dtype) == (spec.shape, spec.dtype)
                    assert (array.global_shape, array.local_slice) == (whole.shape, spec.local_slice)
                    assert array.flags.c_contiguous and array.flags.writeable
                    assert array.size == 0 or array.ctypes.data % 64 == 0
                    for axis, part in enumerate(array.local_slice):
                        assert part == slice(0, whole.shape[axis]) or axis in array.axes
                    split = [size > 1 for size in plan.grid] if kind == "FFT3" else [True]
                    assert len(array.axes) == sum(split)
                    if kind == "FFT2":
                        of_rows = spec is plan.real or restore != (order == "transposed")
                        assert array.axes == (len(shape) - (2 if of_rows else 1),)
                    gathered, owners = array.gather(), comm.reduce(array.size)
                    if comm.rank == 0:
                        assert owners == whole.size
                        np.testing.assert_array_equal(gathered, whole)


# ---- every mode gives the same bits ----------------------------------------------------------


@small_units()
def modes_agree(comm, kind, shape, dtype, settings, workers=(1, 2), effort="estimate", layout=None):
    """Each mode, setting and number of workers: the bits of `off`."""
    dimensions, layout = int(kind[-1]), layout or {}
    order, dealias = layout.get("order", "natural"), layout.get("dealias")
    fine = fine_lengths(shape[-dimensions:], dealias)
    u = random(np.random.default_rng(4), [*shape[:-dimensions], *fine], dtype)
    make = getattr(overlap, kind)
    with make(comm, shape, dtype, layout=layout, settings={"wait": "off", "effort": effort}) as plan:
        real, spectrum = plan.real.empty(), plan.spectrum.empty()
        real[...] = u[plan.real.local_slice]
        truth = forward_truth(u, None, order, shape, dimensions)
        assert_close(plan.forward(real, out=spectrum), truth, plan.spectrum.local_slice, comm, dimensions)
        back = plan.backward(spectrum)
        if dealias is None:
            assert_close(back, u, plan.real.local_slice, comm, dimensions)
        if kind == "FFT3":
            layout = layout | {"grid": plan.grid}
    for count in workers:
        with overlap.Runtime(comm, workers=count) as rt:
            for mode, some in product(MODES, settings):
                asked = {"wait": mode, "effort": effort} | some
                with make(rt, shape, dtype, layout=layout, settings=asked) as plan:
                    label = f"{count} worker(s), {mode}: {plan.forward.settings}"
                    same_everywhere(comm, (plan.forward.settings, plan.backward.settings))
                    for chosen in (plan.forward.settings, plan.backward.settings):
                        assert chosen.wait == mode or mode == "auto", label
                        assert some.get("chunk") in (None, chosen.chunk), label
                        assert some.get("depth") in (None, chosen.depth) or chosen.wait == "off", label
                    for _ in range(2):
                        assert same_bits(plan.forward(real), spectrum), label
                        assert same_bits(plan.backward(spectrum), back), label


MANY = [{}, {"depth": 1, "chunk": 1}, {"depth": 3, "chunk": 1}, {"depth": 5, "chunk": 100}]
IN_FLIGHT = [{"depth": 3, "chunk": 1, "in_flight": 2}, {"depth": 2, "chunk": 4, "in_flight": 1}]
LATE = [
    {"depth": depth, "chunk": chunk, "late": late} for depth, chunk, late in ((3, 1, 0.5), (2, 4, 1.0), (2, 1, 1.0))
]
TRANSPOSED = {"order": "transposed"}


@on_ranks
@pytest.mark.parametrize(
    "comm, shape, dtype, layout, workers",
    [
        (1, (19, 12, 10), "f8", {}, [1, 2, 3]),
        exhaustive(2, (19, 12, 10), "f8", {}, [1, 2, 3]),
        exhaustive(4, (19, 12, 10), "f8", {}, [2]),
        (2, (13, 7, 11), "c8", {}, [2]),
        exhaustive(3, (13, 7, 11), "c8", {}, [2]),
        (1, (2, 5, 16, 9), "c16", TRANSPOSED, [1, 3]),
        (2, (2, 5, 16, 9), "c16", TRANSPOSED, [1]),
        exhaustive(4, (2, 5, 16, 9), "c16", TRANSPOSED, [1]),
        (3, (11, 3, 24), "f4", TRANSPOSED, [1]),
        exhaustive(2, (11, 3, 24), "f4", TRANSPOSED, [3]),
        exhaustive(2, (6, 192, 128), "f8", {}, [2]),
        ("openmpi-2", (11, 9, 8), "f8", {}, [2]),
    ],
)
def test_every_mode_gives_the_same_bits_of_planes(comm, shape, dtype, layout, workers):
    modes_agree(comm, "FFT2", shape, dtype, MANY[:2] + MANY[3:] + IN_FLIGHT, workers, "measure", layout)


@on_ranks
@pytest.mark.parametrize(
    "comm, shape, dtype, layout",
    [
        (1, (24, 20, 18), "f8", {"grid": (1, 1)}),
        (2, (24, 32, 36), "c16", {"grid": (1, 2)}),
        (2, (2, 24, 32, 36), "f4", {"grid": (2, 1), "order": "transposed"}),
        exhaustive(3, (3, 22, 32, 36), "f8", {"grid": (1, 3)}),
        exhaustive(4, (3, 20, 18, 36), "c16", {"grid": (2, 2)}),
        exhaustive(4, (20, 18, 36), "f8", {"grid": (2, 2), "dealias": "3/2"}),
        exhaustive(4, (12, 18, 20), "c8", {"grid": (2, 2), "restore": True}),
        (2, (30, 4, 6, 5), "f8", {"grid": (1, 2)}),
        ("openmpi-2", (2, 20, 18, 36), "f8", {"grid": (1, 2)}),
        exhaustive("openmpi-4", (2, 20, 18, 36), "f8", {"grid": (2, 2)}),
    ],
)
def test_every_mode_gives_the_same_bits_of_volumes(comm, shape, dtype, layout):
    modes_agree(comm, "FFT3", shape, dtype, MANY[:2] + LATE, layout=layout)


def on_links(comm):
    """Real messages over real links, larger and smaller than TCP's own pieces."""
    assert comm.size == MPI.COMM_WORLD.size > 1
    assert comm.Split_type(MPI.COMM_TYPE_SHARED).size == 1
    for shape, dtype in (((12, 64, 96), "f8"), ((6, 31, 8), "c8"), ((3, 256, 256), "c16")):
        modes_agree(
            comm, "FFT2", shape, dtype, [{}, {"depth": 2, "chunk": 1}, {"depth": 3, "chunk": 2, "in_flight": 1}]
        )


@small_units()
@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_compute_and_communicate(comm):
    """Measuring C and T works in all modes, and leaves the plan right."""
    u = random(np.random.default_rng(5), (2, 9, 8, 6), "f8")
    for (kind, dimensions), mode, workers in product((PLANES, VOLUMES), MODES, (1, 2)):
        for layout in layouts_of(comm, kind):
            settings = {"wait": mode, "effort": "estimate"}
            with (
                overlap.Runtime(comm, workers=workers) as rt,
                getattr(overlap, kind)(rt, u.shape, "f8", layout=layout, settings=settings) as plan,
            ):
                real = np.array(u[plan.real.local_slice])
                spectrum = plan.forward(real)
                truth = forward_truth(u, dimensions=dimensions)
                assert_close(spectrum, truth, plan.spectrum.local_slice, comm, dimensions)
                for transform, given, after in (
                    (plan.forward, real, plan.spectrum),
                    (plan.backward, spectrum, plan.real),
                ):
                    transform.compute(given, out=after.empty())
                    transform.communicate(given, out=after.empty())
                    assert str(transform.settings) in plan.describe()
                    assert mode == "auto" or transform.trials == ()
                    for trial in transform.trials:
                        assert str(trial) in plan.describe() and trial.seconds_per_slice > 0
                assert plan.describe().count("FFTs along") >= dimensions - 1 and "Stage(" not in plan.describe()
                assert same_bits(plan.forward(real), spectrum)
                assert_close(plan.backward(spectrum), u, plan.real.local_slice, comm, dimensions)


@on_ranks(2, exhaustive(3))
def test_boxes_larger_than_the_cache(comm):
    """Boxes larger than the cache, from arrays that lie as FFTW's plans want it, and from others."""
    for kind, shape, dtype in (
        ("FFT2", (2, 300, 270), "c16"),
        ("FFT2", (2, 300, 427), "c8"),
        ("FFT2", (2, 300, 540), "f8"),
        ("FFT3", (1, 70, 66, 68), "c16"),
        ("FFT3", (1, 70, 90, 67), "c8"),
    ):
        dimensions = int(kind[-1])
        u = random(np.random.default_rng(11), shape, dtype)
        for order in ("natural", "transposed") if kind == "FFT2" else ("natural",):
            modes = forward_truth(u, None, order, dimensions=dimensions).astype(COMPLEX[dtype])
            truth = backward_truth(modes, shape, dtype, None, order, dimensions=dimensions)
            for layout in layouts_of(comm, kind, order=order):
                with getattr(overlap, kind)(comm, shape, dtype, layout=layout) as plan:
                    part = np.ascontiguousarray(modes[plan.spectrum.local_slice])
                    moved = np.empty(part.nbytes + 8, np.uint8)[8:].view(part.dtype).reshape(part.shape)
                    moved[...] = part
                    gaps = np.repeat(part, 2, axis=-1)[..., ::2]
                    for given in (part, moved, gaps, np.asfortranarray(part)):
                        assert_close(plan.backward(given), truth, plan.real.local_slice, comm, dimensions)
                        np.testing.assert_array_equal(given, part)
