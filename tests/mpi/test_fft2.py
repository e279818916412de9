"""`FFT2` on 1 to 4 ranks and two MPI libraries."""

import copy
from dataclasses import replace
from itertools import product

import drawing
import numpy as np
import pytest
from everywhere import same_everywhere
from hypothesis import strategies as st
from marks import exhaustive, on_ranks
from mpi4py import MPI
from truth import (
    COMPLEX,
    assert_close,
    backward_truth,
    compare_transform,
    forward_truth,
    random,
    same_bits,
)

import overlap

LENGTHS = st.integers(1, 12) | st.sampled_from([13, 16, 17, 23, 30, 37])
LAYOUTS = ("contiguous", "strided", "misaligned", "unaligned", "fortran", "reversed", "batch last", "batch swapped")
WEIGHTS = st.none() | st.lists(st.sampled_from([1, 2, 3, 0.3, 0.001]), min_size=6, max_size=6)  # of the first ranks
CASE = st.fixed_dictionaries(
    {
        "shape": st.builds(
            lambda batch, ny, nx: [*batch, ny, nx],
            st.lists(st.integers(0, 4) | st.integers(1, 4), max_size=3),
            LENGTHS,
            LENGTHS,
        ),
        "dtype": st.sampled_from(["f4", "f8", "c8", "c16"]),
        "norm": st.sampled_from([None, "backward", "ortho", "forward"]),
        "order": st.sampled_from(["natural", "transposed"]),
        "weights": WEIGHTS,
        "wait": st.sampled_from(["off", "block", "poll"] * 5 + ["auto"]),
        "depth": st.none() | st.integers(1, 6),
        "chunk": st.none() | st.integers(1, 5),
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
        "weights": None,
        "wait": overlap,
        "depth": None,
        "chunk": chunk,
        "source": "contiguous",
        "target": target,
        "read_only": True,
        "effort": "estimate",
        "seed": 1,
    }
    for shape, overlap, chunk in (
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
]
MANY = [exhaustive(ranks, 80, 2) for ranks in (1, 2, 3, 4)]
BATCHES = [
    ((19, 12, 10), "f8", "natural"),
    ((13, 7, 11), "c8", "natural"),
    ((2, 5, 16, 9), "c16", "transposed"),
    ((11, 3, 24), "f4", "transposed"),
]
MODES = ("off", "block", "poll", "auto")


# ---- data and truth --------------------------------------------------------------------------


# ---- against numpy ---------------------------------------------------------------------------


def drawn(comm, case, workers=1):
    """A drawn case forward and backward, from and to arrays of any layout."""
    with overlap.Runtime(comm, workers=workers) as rt:
        _drawn(comm, rt, **case)


def _drawn(comm, rt, shape, dtype, norm, order, weights, wait, depth, chunk, seed, source, target, read_only, effort):
    rng = np.random.default_rng(seed)
    u = random(rng, shape, dtype)
    half = (*shape[:-1], shape[-1] // 2 + 1 if dtype.startswith("f") else shape[-1])
    if order == "transposed":
        half = (*half[:-2], *half[:-3:-1])
    spectrum = random(rng, half, COMPLEX[dtype])
    with overlap.FFT2(
        rt,
        shape,
        dtype,
        norm=norm,
        layout={"order": order, "weights": weights and weights[: comm.size]},
        settings={"wait": wait, "depth": depth, "chunk": chunk, "effort": effort},
    ) as plan:
        specs = plan.real, plan.spectrum
        for transform, given, truth, side in (
            (plan.forward, u, forward_truth(u, norm, order), False),
            (plan.backward, spectrum, backward_truth(spectrum, shape, dtype, norm, order), True),
        ):
            before, after = specs[side], specs[not side]
            compare_transform(
                transform,
                given,
                truth,
                (before, after),
                (source, target, read_only),
                lambda result: assert_close(result, truth, after.local_slice, comm),
            )


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_broadcast_input(comm):
    """The same memory for all slices."""
    plane = random(np.random.default_rng(1), (6, 5), "c16")
    truth = np.broadcast_to(plane, (4, 3, 6, 5))
    with overlap.FFT2(comm, truth.shape, "c16", settings={"wait": "poll"}) as plan:
        local = np.broadcast_to(plane[plan.real.local_slice[-2:]], plan.real.shape)
        assert_close(plan.forward(local), forward_truth(truth), plan.spectrum.local_slice, comm)


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_outputs_that_look_contiguous(comm):
    """Along an axis of length one any stride is contiguous, for numpy but not for FFTW."""
    for dtype, order, shape in product(
        ("c16", "f8"), ("natural", "transposed"), ((3, 1, 8), (3, 8, comm.size), (1, 8, 8), (3, 8, 1))
    ):
        u = random(np.random.default_rng(2), shape, dtype)
        with overlap.FFT2(comm, shape, dtype, layout={"order": order}, settings={"wait": "poll", "chunk": 1}) as plan:
            for flip in product((1, -1), repeat=3):
                flips = tuple(slice(None, None, step) for step in flip)
                out = plan.spectrum.empty()[flips]
                result = plan.forward(np.asarray(u[plan.real.local_slice]), out=out)
                assert_close(result, forward_truth(u, order=order), plan.spectrum.local_slice, comm)


@on_ranks(1, 3)
def test_round_trips_of_other_plans(comm):
    """Several plans on one runtime, in turns; a sub-communicator; a list as shape."""
    rng = np.random.default_rng(3)
    shapes = ([5, 7, 6], (2, 3, 4, 9), (8, 8))
    with overlap.Runtime(comm, workers=2) as rt:
        plans = [overlap.FFT2(rt, shape, "f8", settings={"wait": "poll"}) for shape in shapes]
        for _ in range(3):
            for plan, shape in zip(plans, shapes):
                u = random(rng, shape, "f8")
                result = plan.forward(u[plan.real.local_slice])
                assert_close(result, forward_truth(u), plan.spectrum.local_slice, comm)
                assert_close(plan.backward(result), u, plan.real.local_slice)
        for plan in plans:
            plan.close()
    part = comm.Split(comm.rank % 2)
    with overlap.FFT2(part, (3, 5, 4), "c16", settings={"wait": "block"}) as plan:
        u = random(rng, (3, 5, 4), "c16") * (1 + comm.rank % 2)
        assert_close(plan.forward(u[plan.real.local_slice]), forward_truth(u), plan.spectrum.local_slice, part)
    part.Free()


# ---- every mode gives the same bits ----------------------------------------------------------


def modes_agree(comm, shape, dtype, order, settings, workers=(1, 2, 3), effort="measure"):
    """Each mode, depth, chunk and number of workers: the bits of `off`."""
    rng = np.random.default_rng(4)
    u = random(rng, shape, dtype)
    with overlap.FFT2(comm, shape, dtype, layout={"order": order}, settings={"wait": "off", "effort": effort}) as plan:
        real, spectrum = plan.real.empty(), plan.spectrum.empty()
        real[...] = u[plan.real.local_slice]
        assert_close(plan.forward(real, out=spectrum), forward_truth(u, order=order), plan.spectrum.local_slice, comm)
        back = plan.backward(spectrum)
        assert_close(back, u, plan.real.local_slice, comm)
    for count in workers:
        with overlap.Runtime(comm, workers=count) as rt:
            for mode, (depth, chunk, in_flight) in product(MODES, settings):
                with overlap.FFT2(
                    rt,
                    shape,
                    dtype,
                    layout={"order": order},
                    settings={"wait": mode, "depth": depth, "chunk": chunk, "in_flight": in_flight, "effort": effort},
                ) as plan:
                    chosen = plan.forward.settings
                    label = f"{count} worker(s), {mode}: {chosen}"
                    assert chosen == plan.backward.settings
                    assert chosen.wait == mode or mode == "auto", label
                    assert chunk in (None, chosen.chunk), label
                    assert depth in (None, chosen.depth) or chosen.wait == "off", label
                    same_everywhere(comm, chosen)
                    for _ in range(2):
                        assert same_bits(plan.forward(real), spectrum), label
                        assert same_bits(plan.backward(spectrum), back), label


@on_ranks
@pytest.mark.parametrize(
    "number, comm, workers",
    [
        (0, 1, [1, 2, 3]),
        (2, 1, [1, 3]),
        exhaustive(0, 2, [1, 2, 3]),
        (1, 2, [2]),
        (2, 2, [1]),
        exhaustive(3, 2, [3]),
        exhaustive(1, 3, [2]),
        (3, 3, [1]),
        exhaustive(0, 4, [2]),
        exhaustive(2, 4, [1]),
    ],
)
def test_every_mode_gives_the_same_bits(comm, number, workers):
    modes_agree(
        comm,
        **dict(zip(("shape", "dtype", "order"), BATCHES[number])),
        workers=workers,
        settings=[(None, None, None), (1, 1, None), (3, 1, 2), (2, 4, 1), (5, 100, None)],
    )


@pytest.mark.exhaustive
@on_ranks(2)
def test_bits_at_a_larger_size(comm):
    modes_agree(
        comm,
        shape=(6, 192, 128),
        dtype="f8",
        order="natural",
        workers=[2],
        settings=[(None, None, None), (3, 1, None), (2, 2, None)],
    )


@on_ranks("openmpi-2")
def test_every_mode_gives_the_same_bits_under_open_mpi(comm):
    modes_agree(comm, shape=(11, 9, 8), dtype="f8", order="natural", workers=[2], settings=[(3, 2, None)])


@on_ranks(1, 3)
def test_compute_and_communicate(comm):
    """Measuring C and T works in all modes, and leaves the plan right."""
    u = random(np.random.default_rng(5), (9, 8, 6), "f8")
    for mode, workers in product(MODES, (1, 2)):
        with (
            overlap.Runtime(comm, workers=workers) as rt,
            overlap.FFT2(rt, u.shape, "f8", settings={"wait": mode}) as plan,
        ):
            real = np.array(u[plan.real.local_slice])
            spectrum = plan.forward(real)
            assert_close(spectrum, forward_truth(u), plan.spectrum.local_slice, comm)
            plan.forward.compute(real, out=plan.spectrum.empty())
            plan.forward.communicate(real, out=plan.spectrum.empty())
            plan.backward.compute(spectrum, out=plan.real.empty())
            plan.backward.communicate(spectrum, out=plan.real.empty())
            assert same_bits(plan.forward(real), spectrum)
            assert_close(plan.backward(spectrum), u, plan.real.local_slice, comm)
            assert str(plan.forward.settings) in plan.describe()
            if mode != "auto":
                assert plan.forward.trials == ()
            for trial in plan.forward.trials:
                assert str(trial) in plan.describe() and trial.seconds_per_slice > 0


# ---- distributed arrays ----------------------------------------------------------------------


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_distributed_arrays(comm):
    for shape, dtype, order in product(
        ((3, 5, 7), (2, 2, 4, 4), (1, 1), (0, 4, 4), (2, 3, 16)), ("f8", "c8"), ("natural", "transposed")
    ):
        with overlap.FFT2(comm, shape, dtype, layout={"order": order}, settings={"wait": "off"}) as plan:
            _tiles(comm, plan.real)
            _tiles(comm, plan.spectrum)
            _attributes(comm, plan.real, -2)
            _attributes(comm, plan.spectrum, -1 if order == "natural" else -2)
            _wavenumbers(comm, plan, shape, dtype, order)


def _tiles(comm, spec):
    """Every element of the global array belongs to one rank."""
    owners = np.zeros(spec.global_shape, int)
    where = spec.local_slice
    owners[where] += 1
    assert owners[where].shape == spec.shape
    comm.Allreduce(MPI.IN_PLACE, owners)
    assert (owners == 1).all()


def _attributes(comm, spec, split):
    whole = np.arange(np.prod(spec.global_shape)).reshape(spec.global_shape)
    array = spec.empty()
    assert type(array) is overlap.DistArray and isinstance(array, np.ndarray)
    assert array.dtype == spec.dtype and array.shape == spec.shape
    assert array.flags.c_contiguous and array.flags.writeable
    assert array.size == 0 or array.ctypes.data % 64 == 0
    names = "comm", "global_shape", "axes", "local_slice"
    axes = (len(array.shape) + split,)

    def check(array, known=True):
        expected = (comm, spec.global_shape, axes, spec.local_slice)
        assert tuple(getattr(array, name) for name in names) == (expected if known else (None,) * 4), names

    check(array)
    array[...] = whole[spec.local_slice]
    for same in (
        array + 1,
        2 * array,
        np.sqrt(np.abs(array)),
        array == array,
        array.copy(),
        -array,
        array.astype("c16"),
        np.add(array, array, out=spec.empty()),
        array[...],
        copy.copy(array),
        np.empty_like(array),
        array.reshape(array.shape),
        array * array,
    ):
        check(same)
    array += 1
    check(array)
    array -= 1
    if array.size > 1:
        for other in (np.take(array, 0, split), array.ravel(), array.sum(axis=0)):
            assert getattr(other, "global_shape", None) is None, other
            if isinstance(other, overlap.DistArray):
                check(other, known=False)
    if array.size:
        assert np.ndim(array.sum()) == 0 and not isinstance(array.sum(), np.ndarray)
        assert not isinstance(np.max(np.abs(array)), np.ndarray)
        assert float(array.sum().real) == whole[spec.local_slice].sum()
    view = np.asarray(array)
    assert (type(view) is np.ndarray and view.base is not None) or array.size == 0
    for root in {0, comm.size - 1}:
        gathered = array.gather(root)
        assert (gathered is None) == (comm.rank != root)
        if comm.rank == root:
            assert type(gathered) is np.ndarray and gathered.dtype == array.dtype
            np.testing.assert_array_equal(gathered, whole)


def _wavenumbers(comm, plan, shape, dtype, order):
    """A plane wave's spectrum is nothing but its mode."""
    ny, nx = shape[-2:]
    ky, kx = plan.wavenumbers()
    plane = plan.spectrum.shape[-2:]
    ones = (0, 1) if order == "natural" else (1, 0)
    assert ky.shape[ones[1]] == kx.shape[ones[0]] == 1
    assert np.broadcast_shapes(ky.shape, kx.shape) == plane
    all_y, all_x = np.mgrid[:ny, :nx]
    rows = plan.real.local_slice[-2]
    for p, q in ((0, 0), (1, 0), (0, 1), (-1, 1), (2, 2)):
        if 2 * abs(p) >= ny or 2 * abs(q) >= nx:
            continue
        phase = 2 * np.pi * (p * all_y / ny + q * all_x / nx)
        u = np.exp(1j * phase) if dtype == "c8" else np.cos(phase) * (1 + (p != 0 or q != 0))
        local = np.broadcast_to(u[rows], plan.real.shape).astype(dtype)
        expected = ((ky == p) & (kx == q)).astype(float)
        if dtype == "f8":
            expected = expected + ((ky == -p) & (kx == -q)) * (p != 0 or q != 0)
        found = plan.forward(local) / (ny * nx)
        np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), atol=1e-5)


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_fewer_slices_than_lanes(comm):
    """Slots are made for what can be in flight only."""
    for slices, depth, chunk, slots in ((3, 16, 1, 3), (0, 16, 1, 1), (10, 4, 5, 2), (10, 4, 1, 4), (7, 16, 100, 1)):
        with overlap.FFT2(comm, (slices, 4, 4), settings={"wait": "poll", "depth": depth, "chunk": chunk}) as plan:
            for transform in (plan.forward, plan.backward):
                all_slots = transform.nbytes_in_flight
                transform.configure(replace(transform.settings, depth=1))
                assert all_slots == slots * transform.nbytes_in_flight
                transform.configure(replace(transform.settings, depth=depth))
            u = random(np.random.default_rng(11), (slices, 4, 4), "c16")
            assert_close(plan.forward(u[plan.real.local_slice]), forward_truth(u), plan.spectrum.local_slice, comm)


def on_links(comm):
    """Real messages over real links, larger and smaller than TCP's own pieces."""
    assert comm.size == MPI.COMM_WORLD.size > 1
    assert comm.Split_type(MPI.COMM_TYPE_SHARED).size == 1
    for shape, dtype in (((12, 64, 96), "f8"), ((6, 31, 8), "c8"), ((3, 256, 256), "c16")):
        modes_agree(
            comm,
            shape,
            dtype,
            "natural",
            [(None, None, None), (2, 1, None), (3, 2, 1)],
            workers=(1, 2),
            effort="estimate",
        )


@on_ranks(2, exhaustive(3))
def test_boxes_larger_than_the_cache(comm):
    """Boxes larger than the cache, from arrays that lie as FFTW's plans want it, and from others."""
    rng = np.random.default_rng(11)
    for dtype, shape in (("c16", (2, 300, 270)), ("c8", (2, 300, 427)), ("f8", (2, 300, 540))):
        spectral = COMPLEX[dtype]
        u = random(rng, shape, dtype)
        modes = forward_truth(u).astype(spectral)
        for order in ("natural", "transposed"):
            with overlap.FFT2(comm, shape, dtype, layout={"order": order}) as plan:
                mine = modes.swapaxes(-1, -2) if order == "transposed" else modes
                part = np.ascontiguousarray(mine[plan.spectrum.local_slice])
                memory = np.empty(part.nbytes + 8, np.uint8)
                moved = memory[8:].view(spectral).reshape(part.shape)
                moved[...] = part
                gaps = np.repeat(part, 2, axis=-1)[..., ::2]
                for given in (part, moved, gaps, np.asfortranarray(part)):
                    assert_close(
                        plan.backward(given),
                        backward_truth(mine, shape, dtype, order=order),
                        plan.real.local_slice,
                        comm,
                    )
                    np.testing.assert_array_equal(given, part)


@pytest.mark.parametrize("ranks, count, every", [(1, 10, 8), (2, 10, 8), (3, 6, 8), *MANY])
def test_against_numpy(ranks, count, every):
    drawing.check("test_fft2:drawn", CASE, count, ranks, edges=EDGES[ranks % every :: every])


@pytest.mark.parametrize("count", [8, exhaustive(40)])
def test_against_numpy_with_two_workers(count):
    drawing.check("test_fft2:drawn", CASE, count, 2, workers=2)


@pytest.mark.parametrize("ranks, count, every", [(2, 5, 9), exhaustive(3, 20, 3)])
def test_against_numpy_under_open_mpi(openmpi, ranks, count, every):
    drawing.check("test_fft2:drawn", CASE, count, ranks, edges=EDGES[::every], mpi="openmpi")
