"""What `test_fft2` runs on every rank: `FFT2` against `numpy.fft` of globally known arrays."""

import copy
import gc
import threading
import tracemalloc
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import numpy as np
from communicators import few_left
from mpi4py import MPI

import overlap
from overlap.arrays.exchange import Exchange
from overlap.fft import Settings
from overlap.fft.engine import kernels
from overlap.fft.engine.fftw import HUGE_PAGE_NBYTES, InPlace
from overlap.fft.engine.kernels import ColumnSweep, RowSweep
from overlap.runtime.requests import Operation

MODES = ("off", "block", "poll", "auto")
WAITS = ("off", "block", "poll")
COMPLEX = {"f4": "c8", "f8": "c16", "c8": "c8", "c16": "c16"}


# ---- data and truth --------------------------------------------------------------------------

def random(rng, shape, dtype):
    """The same random array on every rank."""
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def wide(array):
    """In double precision: numpy transforms single precision in single precision."""
    return np.asarray(array).astype("c16" if array.dtype.kind == "c" else "f8")


def forward_truth(u, norm=None, order="natural"):
    spectrum = (np.fft.fft2 if u.dtype.kind == "c" else np.fft.rfft2)(wide(u), norm=norm)
    return spectrum.swapaxes(-1, -2) if order == "transposed" else spectrum


def backward_truth(spectrum, shape, dtype, norm=None, order="natural"):
    spectrum = wide(spectrum.swapaxes(-1, -2) if order == "transposed" else spectrum)
    if np.dtype(dtype).kind == "c":
        return np.fft.ifft2(spectrum, norm=norm)
    return np.fft.irfft2(spectrum, s=shape[-2:], norm=norm)


def assert_close(found, truth, local_slice, comm=None):
    """The local part of `truth`, in relative l2 norm; of all ranks together if `comm` is given."""
    local = truth[local_slice]
    assert found.shape == local.shape, (found.shape, local.shape)
    points = truth.shape[-1] * truth.shape[-2]
    tolerance = 5 * np.finfo(found.dtype).eps * np.sqrt(np.log2(max(points, 2)))
    squared = float(np.sum(np.abs(wide(found) - local) ** 2))
    if comm is not None:
        squared = comm.allreduce(squared)
    error = np.sqrt(squared)
    assert error <= tolerance * np.linalg.norm(np.ravel(truth)), (
        error / np.linalg.norm(np.ravel(truth)), tolerance)


def same_bits(found, truth):
    return found.shape == truth.shape and found.dtype == truth.dtype and (
        np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(truth).tobytes())


def laid_out(values, layout):
    """The values in memory of some layout: the array, and all memory that belongs to it."""
    shape, dtype = values.shape, values.dtype
    if layout == "contiguous":
        whole = np.full(shape, 7, dtype)
        array = whole
    elif layout == "strided":
        whole = np.full([2 * length + 1 for length in shape], 7, dtype)
        array = whole[(slice(1, None, 2),) * len(shape)]
    elif layout == "misaligned":  # by an element
        whole = np.full(values.size + 1, 7, dtype)
        array = whole[1:].reshape(shape)
    elif layout == "unaligned":  # by a byte
        whole = np.full(values.nbytes + 1, 7, "u1")
        array = whole[1:].view(dtype).reshape(shape)
    elif layout == "fortran":
        whole = np.full(shape, 7, dtype, order="F")
        array = whole
    elif layout == "reversed":
        whole = np.full(shape, 7, dtype)
        array = whole[(slice(None, None, -1),) * len(shape)]
    elif layout == "batch last":
        batch, plane = shape[:-2], shape[-2:]
        whole = np.full((*plane, *batch), 7, dtype)
        array = np.moveaxis(whole, (0, 1), (-2, -1))
    elif layout == "batch swapped":  # two batch axes of it can't be joined without a copy
        batch, plane = shape[:-2], shape[-2:]
        whole = np.full((*batch[::-1], *plane), 7, dtype)
        array = whole.transpose(*range(len(batch))[::-1], len(batch), len(batch) + 1)
    assert array.shape == shape
    array[...] = values
    return array, whole


def raised(kind, function, *args, **kwargs):
    """The exception of this kind that the call raises."""
    try:
        function(*args, **kwargs)
    except kind as error:
        assert type(error) is kind, repr(error)
        return error
    raise AssertionError(f"expected {kind.__name__}, nothing was raised")


def same_everywhere(comm, value):
    values = comm.allgather(value)
    assert all(other == values[0] for other in values), values


# ---- against numpy ---------------------------------------------------------------------------

def drawn(comm, case, workers=1):
    """A drawn case forward and backward, from and to arrays of any layout."""
    with overlap.Runtime(comm, workers=workers) as rt:
        _drawn(comm, rt, **case)


def _drawn(comm, rt, shape, dtype, norm, order, wait, depth, chunk, seed, source, target,
           read_only, effort):
    rng = np.random.default_rng(seed)
    u = random(rng, shape, dtype)
    half = (*shape[:-1], shape[-1] // 2 + 1 if dtype.startswith("f") else shape[-1])
    if order == "transposed":
        half = (*half[:-2], *half[:-3:-1])
    spectrum = random(rng, half, COMPLEX[dtype])
    with overlap.FFT2(rt, shape, dtype, norm=norm, layout={"order": order},
                      settings={"wait": wait, "depth": depth, "chunk": chunk,
                                "effort": effort}) as plan:
        specs = plan.real, plan.spectrum
        for transform, given, truth, side in (
                (plan.forward, u, forward_truth(u, norm, order), False),
                (plan.backward, spectrum, backward_truth(spectrum, shape, dtype, norm, order),
                 True)):
            assert specs[side].global_shape == given.shape
            assert specs[not side].global_shape == truth.shape
            array, memory = laid_out(given[specs[side].local_slice], source)
            array.flags.writeable = not read_only
            before = memory.tobytes()
            out = around = None
            if target is not None:
                nothing = np.full(specs[not side].shape, 5, specs[not side].dtype)
                out, around = laid_out(nothing, target)
                guard = around.tobytes()
            result = transform(array, out=out)
            assert memory.tobytes() == before, "the input has changed"
            if out is None:
                assert type(result) is overlap.DistArray
                assert result.global_shape == truth.shape
            else:
                assert result is out
            assert result.dtype == specs[not side].dtype
            assert_close(result, truth, specs[not side].local_slice, comm)
            if out is not None:
                out[...] = nothing
                assert around.tobytes() == guard, "memory around `out` has changed"


def broadcast_input(comm):
    """The same memory for all slices."""
    plane = random(np.random.default_rng(1), (6, 5), "c16")
    truth = np.broadcast_to(plane, (4, 3, 6, 5))
    with overlap.FFT2(comm, truth.shape, "c16", settings={"wait": "poll"}) as plan:
        local = np.broadcast_to(plane[plan.real.local_slice[-2:]], plan.real.shape)
        assert_close(plan.forward(local), forward_truth(truth), plan.spectrum.local_slice, comm)


def outputs_that_look_contiguous(comm):
    """Along an axis of length one any stride is contiguous, for numpy but not for FFTW."""
    for dtype, order, shape in product(("c16", "f8"), ("natural", "transposed"),
                                       ((3, 1, 8), (3, 8, comm.size), (1, 8, 8), (3, 8, 1))):
        u = random(np.random.default_rng(2), shape, dtype)
        with overlap.FFT2(comm, shape, dtype, layout={"order": order},
                          settings={"wait": "poll", "chunk": 1}) as plan:
            for flip in product((1, -1), repeat=3):
                flips = tuple(slice(None, None, step) for step in flip)
                out = plan.spectrum.empty()[flips]
                result = plan.forward(np.asarray(u[plan.real.local_slice]), out=out)
                assert_close(result, forward_truth(u, order=order), plan.spectrum.local_slice, comm)


def round_trips_of_other_plans(comm):
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
        assert_close(plan.forward(u[plan.real.local_slice]), forward_truth(u), plan.spectrum.local_slice,
                     part)
    part.Free()


# ---- every mode gives the same bits ----------------------------------------------------------

def modes_agree(comm, shape, dtype, order, settings, workers=(1, 2, 3), effort="measure"):
    """Each mode, depth, chunk and number of workers: the bits of `off`."""
    rng = np.random.default_rng(4)
    u = random(rng, shape, dtype)
    with overlap.FFT2(comm, shape, dtype, layout={"order": order},
                      settings={"wait": "off", "effort": effort}) as plan:
        real, spectrum = plan.real.empty(), plan.spectrum.empty()
        real[...] = u[plan.real.local_slice]
        assert_close(plan.forward(real, out=spectrum), forward_truth(u, order=order),
                     plan.spectrum.local_slice, comm)
        back = plan.backward(spectrum)
        assert_close(back, u, plan.real.local_slice, comm)
    for count in workers:
        with overlap.Runtime(comm, workers=count) as rt:
            for mode, (depth, chunk, in_flight) in product(MODES, settings):
                with overlap.FFT2(rt, shape, dtype, layout={"order": order},
                                  settings={"wait": mode, "depth": depth, "chunk": chunk,
                                            "in_flight": in_flight, "effort": effort}) as plan:
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


def compute_and_communicate(comm):
    """Measuring C and T works in all modes, and leaves the plan right."""
    u = random(np.random.default_rng(5), (9, 8, 6), "f8")
    for mode, workers in product(MODES, (1, 2)):
        with overlap.Runtime(comm, workers=workers) as rt, \
                overlap.FFT2(rt, u.shape, "f8", settings={"wait": mode}) as plan:
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

def distributed_arrays(comm):
    for shape, dtype, order in product(((3, 5, 7), (2, 2, 4, 4), (1, 1), (0, 4, 4), (2, 3, 16)),
                                       ("f8", "c8"), ("natural", "transposed")):
        with overlap.FFT2(comm, shape, dtype, layout={"order": order},
                          settings={"wait": "off"}) as plan:
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
        assert tuple(getattr(array, name) for name in names) == (
            expected if known else (None,) * 4), names

    check(array)
    array[...] = whole[spec.local_slice]
    for same in (array + 1, 2 * array, np.sqrt(np.abs(array)), array == array, array.copy(), -array,
                 array.astype("c16"), np.add(array, array, out=spec.empty()), array[...],
                 copy.copy(array), np.empty_like(array), array.reshape(array.shape), array * array):
        check(same)
    array += 1
    check(array)
    array -= 1
    if array.size > 1:
        for other in (array[0], array[..., :0], array.ravel(), array[None], array.sum(axis=0)):
            assert getattr(other, "global_shape", None) is None, other
            if isinstance(other, overlap.DistArray):
                check(other, known=False)
    if array.size:
        assert np.ndim(array.sum()) == 0 and not isinstance(array.sum(), np.ndarray)
        assert not isinstance(np.max(np.abs(array)), np.ndarray)
        assert float(array.sum().real) == whole[spec.local_slice].sum()
    view = np.asarray(array)
    assert type(view) is np.ndarray and view.base is not None or array.size == 0
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


# ---- bad input -------------------------------------------------------------------------------

def _bad_calls(given, out):
    """Ways to call a transform of one input and one output that must be refused."""
    read_only = out.copy()
    read_only.flags.writeable = False
    swapped = given.astype(given.dtype.newbyteorder())
    narrow = given.astype({"f8": "f4", "c16": "c8"}[given.dtype.str[1:]])
    yield "shape", (given[:1],), out, "shape"
    yield "axes", (given[None],), out, "shape"
    yield "dtype", (narrow,), out, "dtype"
    yield "integers", (np.ones(given.shape, int),), out, "dtype"
    yield "byte order", (swapped,), out, "dtype"
    yield "list", (given.tolist(),), out, "numpy array"
    yield "None", (None,), out, "numpy array"
    yield "no array", (), out, "1 input"
    yield "two arrays", (given, given), out, "1 input"
    yield "shape of out", (given,), out[..., :-1], "shape"
    yield "dtype of out", (given,), out.astype("O"), "dtype"
    yield "byte order of out", (given,), out.astype(out.dtype.newbyteorder()), "dtype"
    yield "list as out", (given,), out.tolist(), "numpy array"
    yield "tuple as out", (given,), (out,), "out"
    yield "read-only out", (given,), read_only, "writeable"
    memory = np.empty(given.nbytes + out.nbytes, "u1")
    aliased = memory[:given.nbytes].view(given.dtype).reshape(given.shape)
    for offset in (0, given.nbytes - 16):
        over = memory[offset:offset + out.nbytes].view(out.dtype).reshape(out.shape)
        yield f"out {offset} bytes into the input", (aliased,), over, "memory"


def bad_input(comm, dtype, mode):
    """Bad on one rank only: the same InputError on all, nothing done, the plan works."""
    shape = (2, 12, 8)
    u = random(np.random.default_rng(6), shape, dtype)
    with overlap.FFT2(comm, shape, dtype, settings={"wait": mode, "depth": 2}) as plan:
        real = np.array(u[plan.real.local_slice])
        spectrum = np.array(forward_truth(u)[plan.spectrum.local_slice]).astype(COMPLEX[dtype])
        for transform, given, truth in ((plan.forward, real, spectrum),
                                        (plan.backward, spectrum, real)):
            labels = [label for label, *_ in _bad_calls(given, np.empty_like(truth))]
            for bad, (number, label) in product(range(comm.size), enumerate(labels)):
                out = np.full_like(truth, 5)
                call, target = (given,), out
                if comm.rank == bad:
                    _, call, target, word = list(_bad_calls(given, out))[number]
                error = raised(overlap.InputError, transform, *call, out=target)
                same_everywhere(comm, str(error))
                text = str(error)
                assert f"rank {bad}: " in text and "expected" in text and "received" in text, text
                if comm.rank == bad:
                    assert word in text, (label, text)
                assert (out == 5).all(), f"{label}: out was written"
                if number % 5 == 0:
                    np.testing.assert_allclose(transform(given, out=out), truth, atol=1e-10)
            error = raised(overlap.InputError, transform, given[:1])  # bad on all
            assert all(f"rank {rank}: " in str(error) for rank in range(comm.size))
            np.testing.assert_allclose(transform(given), truth, atol=1e-10)


BAD_ARGUMENTS = (
    {"shape": (4,)}, {"shape": ()}, {"shape": 4}, {"shape": None}, {"shape": "44"},
    {"shape": (4, 0)}, {"shape": (-1, 4, 4)}, {"shape": (4, 4.5)}, {"shape": (4, "x")},
    {"shape": (4, float("nan"))}, {"shape": (4, float("inf"))}, {"dtype": "i4"}, {"dtype": "g"},
    {"dtype": "no type"}, {"dtype": ">f8"}, {"dtype": [1]}, {"dtype": "f8,("},
    {"shape": (10**30, 4, 4)}, {"shape": (10**12, 16, 16)}, {"shape": (0, 10**12, 16)},
    {"shape": (np.array([4, 4]), 4)}, {"shape": ([4], [4, 4])}, {"shape": np.ones((2, 2), int)},
    {"shape": (True, 4, 4)}, {"shape": np.float64(4)}, {"settings": {"waits": "off"}},
    {"settings": 3}, {"layout": "transposed"}, {"grid": (1, 1)}, {"restore": True},
    {"dealias": "3/2"},
    {"wait": "on"}, {"wait": None}, {"norm": "forwards"}, {"norm": 1},
    {"norm": np.array([1, 2])}, {"order": "xy"}, {"effort": "none"}, {"depth": 0}, {"depth": 1.5},
    {"chunk": -1}, {"chunk": "2"}, {"in_flight": 0})
OTHER_ARGUMENTS = (
    {"shape": (2, 4, 5)}, {"shape": (4, 4)}, {"shape": (3, 4, 4)}, {"shape": (1, 2, 4, 4)},
    {"dtype": "c8"}, {"norm": "ortho"}, {"order": "transposed"}, {"wait": "poll"}, {"depth": 3},
    {"chunk": 2}, {"in_flight": 2}, {"effort": "estimate"})


def grouped(options):
    """A plan's keyword arguments, of options by their own names."""
    groups = {"layout": ("order", "grid", "restore", "dealias"),
              "settings": ("wait", "depth", "chunk", "in_flight", "effort", "late")}
    found = {name: value for name, value in options.items() if name not in sum(groups.values(), ())}
    for group, names in groups.items():
        given = {name: options[name] for name in names if name in options}
        if given and group not in found:
            found[group] = given
    return found


def bad_arguments(comm, shared, others):
    """Arguments that are bad, or only other ones, on one rank: the same InputError on all."""
    good = {"shape": (2, 4, 4), "dtype": "c16", "wait": "off", "effort": "measure"}
    threads = threading.active_count()
    rt = overlap.Runtime(comm) if shared else None
    for bad, change in product({0, comm.size - 1}, OTHER_ARGUMENTS if others else BAD_ARGUMENTS):
        arguments = good | (change if comm.rank == bad else {})
        error = raised(overlap.InputError, overlap.FFT2, rt or comm, **grouped(arguments))
        same_everywhere(comm, str(error))
        assert "expected" in str(error) and "received" in str(error), str(error)
        (name, _), = change.items()
        assert name in str(error), (name, str(error))
        assert f"rank {bad}" in str(error), str(error)
    u = random(np.random.default_rng(7), (2, 4, 4), "c16")
    if comm.rank == bad:  # numpy's integers are the same as Python's
        good |= {"shape": [np.int64(2), np.int32(4), np.uint8(4)], "depth": np.int64(2)}
    else:
        good |= {"depth": 2}
    with overlap.FFT2(rt or comm, **grouped(good)) as plan:
        assert_close(plan.forward(u[plan.real.local_slice]), forward_truth(u), plan.spectrum.local_slice,
                     comm)
    if shared:
        rt.close()
    assert threading.active_count() == threads


def other_communicator(comm):
    """A plan on one of a runtime's communicators: of all ranks, in any order."""
    with overlap.Runtime(comm) as rt:
        if comm.size > 1:
            for color, key in ((comm.rank, 0), (0, -comm.rank)):
                error = raised(overlap.InputError, overlap.FFT2, rt.comm.Split(color, key), (4, 4))
                same_everywhere(comm, str(error))
        raised(overlap.InputError, overlap.FFT2, "a communicator", (4, 4))
        u = random(np.random.default_rng(8), (3, 4, 4), "c16")
        for shared in (rt, rt.comm, rt.wrap(comm)):
            with overlap.FFT2(shared, u.shape, settings={"wait": "off"}) as plan:
                assert_close(plan.forward(u[plan.real.local_slice]), forward_truth(u),
                             plan.spectrum.local_slice, comm)


def closed(comm):
    for shared in (False, True):
        rt = overlap.Runtime(comm) if shared else None
        plan = overlap.FFT2(rt or comm, (2, 4, 4), settings={"wait": "poll"})
        forward, backward = plan.forward, plan.backward
        square = plan.pointwise(lambda a: a * a)
        u = plan.real.empty()
        u[...] = 0
        forward(u)
        plan.close()
        plan.close()
        for function in (plan.forward, plan.backward, forward, backward, square):
            raised(overlap.ClosedError, function, u)
        raised(overlap.ClosedError, lambda: plan.forward.settings)
        raised(overlap.ClosedError, plan.pointwise, lambda a: a)
        assert plan.runtime.closed is not shared
        if shared:
            with overlap.FFT2(rt, (2, 4, 4)):
                pass
            rt.close()
        raised(overlap.ClosedError, overlap.FFT2, plan.runtime, (2, 4, 4))
    plan = overlap.FFT2(rt := overlap.Runtime(comm), (2, 4, 4))
    rt.close()
    raised(overlap.ClosedError, plan.forward, u)
    plan.close()


# ---- errors at every site --------------------------------------------------------------------

class Boom(Exception):
    """Injected."""


@contextmanager
def failing(kind, name, when):
    """Let a function of a class or module raise once, at a call with ``when(number, *args)``."""
    original = getattr(kind, name)
    state = {"calls": 0, "raised": 0}

    def method(*args):
        number = state["calls"]
        state["calls"] += 1
        if not state["raised"] and when(number, *args):
            state["raised"] += 1
            raise Boom(f"{name}, call {number}")
        return original(*args)

    setattr(kind, name, method)
    try:
        yield state
    finally:
        setattr(kind, name, original)


@contextmanager
def nothing_fails():
    yield {"raised": 0}


def _sites(transform, inputs, outputs, z):
    """Places in which a transform can fail at slice `z`, as context managers by name."""
    forward = transform.inputs[0].dtype.kind == "f" or type(transform).__name__ == "Forward"

    def reads(number, sweep, source, *_):
        return np.shares_memory(source, inputs[z])

    def into(number, sweep, source, target, *_):
        return np.shares_memory(target, outputs[z])

    def loads(number, sweep, work, source):
        return np.shares_memory(source, inputs[z])

    def late(number, *_):
        return number == z

    if forward:
        yield "pack", lambda: failing(RowSweep, "forward", reads), True
        yield "unpack", lambda: failing(ColumnSweep, "forward", into), True
    else:
        yield "pack", lambda: failing(ColumnSweep, "backward_in", loads), True
        yield "unpack", lambda: failing(RowSweep, "backward", into), True
    yield "FFT along x", lambda: failing(kernels, "copy", late), False  # into or out of its scratch
    yield "FFT along y", lambda: failing(InPlace, "execute", late), False
    yield "exchange", lambda: failing(
        Exchange, "forward" if forward else "backward", late), False
    calls = {"off": "call", "block": "call", "poll": "start"}
    yield "MPI call", lambda: failing(
        Operation, calls[transform.settings.wait], late), False


def injected(comm, mode, order="natural", dtype="f8", depth=3, workers=1):
    """A failure at each site and slice, on each rank, is told on all; then all is right again."""
    shape = (7, 2 * comm.size + 1, 2 * comm.size + 2)
    u = random(np.random.default_rng(9), shape, dtype)
    truth = forward_truth(u, order=order)
    with overlap.FFT2(comm, shape, dtype, layout={"order": order},
                      settings={"wait": mode, "depth": depth, "chunk": 1}) as plan:
        real = np.array(u[plan.real.local_slice])
        spectrum = plan.forward(real)
        assert_close(spectrum, truth, plan.spectrum.local_slice, comm)
        back = plan.backward(spectrum)
        reached = set()
        for transform, given, expected in ((plan.forward, real, spectrum),
                                           (plan.backward, spectrum, back)):
            names = [site[0] for site in _sites(transform, given, expected, 0)]
            for number, z, origin in product(range(len(names)), (0, 3, 6), range(comm.size)):
                out = np.empty_like(np.asarray(expected))
                name, inject, exact = list(_sites(transform, given, out, z))[number]
                label = f"{name} of {type(transform).__name__}, slice {z}, rank {origin}"
                with (inject() if comm.rank == origin else nothing_fails()) as state:
                    error = raised(overlap.SliceError, transform, given, out=out)
                assert state["raised"] == (comm.rank == origin), label
                same_everywhere(comm, (error.rank, error.slice, str(error), error.traceback_text))
                assert error.rank == origin and "Boom" in error.summary, (label, str(error))
                assert f"on rank {origin}" in str(error) and "_cases.py" in error.traceback_text
                if exact or mode == "off":
                    assert error.slice == str(z), (label, error.slice)
                reached.add(name)
                assert same_bits(transform(given, out=out), expected), label
        assert reached == {"pack", "unpack", "FFT along x", "FFT along y", "exchange", "MPI call"}


def injected_in_chunks(comm, mode, workers=2):
    """Several slices per message and several workers."""
    u = random(np.random.default_rng(10), (11, 6, 8), "c8")
    with overlap.Runtime(comm, workers=workers) as rt, \
            overlap.FFT2(rt, u.shape, "c8",
                         settings={"wait": mode, "depth": 2, "chunk": 3}) as plan:
        real = np.array(u[plan.real.local_slice])
        spectrum = np.array(plan.forward(real))
        for z, origin in product((0, 5, 10), range(comm.size)):
            with (failing(RowSweep, "forward", lambda number, sweep, source, *_: np.shares_memory(
                    source, real[z])) if comm.rank == origin else nothing_fails()):
                error = raised(overlap.SliceError, plan.forward, real)
            same_everywhere(comm, str(error))
            first, _, last = error.slice.partition("-")
            assert error.rank == origin and int(first) <= z <= int(last or first), str(error)
            assert same_bits(plan.forward(real), spectrum)


# ---- memory, and what is left ----------------------------------------------------------------

def memory(comm, mode, dtype="c16", order="natural"):
    """Nothing is allocated by a call with `out`; the slots are what the plan prints."""
    shape = (24, 128, 96)
    slices, slack = shape[0], 64 * 1024
    with overlap.FFT2(comm, shape, dtype, layout={"order": order},
                      settings={"wait": mode, "depth": 4, "chunk": 2, "effort": "measure"}) as plan:
        real, spectrum = plan.real.empty(), plan.spectrum.empty()
        real[...] = 1
        assert min(real.nbytes, spectrum.nbytes) > 2**20 / comm.size
        for transform, given, out in ((plan.forward, real, spectrum),
                                      (plan.backward, spectrum, real)):
            transform(given, out=out)
            gc.collect()
            tracemalloc.start()
            transform(given, out=out)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            transform(given, out=out)
            grown = tracemalloc.get_traced_memory()[1] - before
            tracemalloc.stop()
            assert grown < slack + 2048 * slices, (type(transform), grown)
            assert f"{transform.nbytes_in_flight / 2**20:.1f} MiB in flight" in plan.describe()
            points = [np.prod(spec.shape[-2:], dtype=int) for spec in (plan.real, plan.spectrum)]
            columns = plan.spectrum.global_shape[-1 if order == "natural" else -2]
            sent = points[0] // shape[-1] * columns
            lines = (max(1, -(-2 * length * plan.spectrum.dtype.itemsize // 64))
                     for length in (sent, points[1]))
            slot = 64 * sum(lines)  # each buffer begins with a cache line
            assert transform.settings.depth <= 4
            assert transform.nbytes_in_flight == transform.settings.depth * slot
            _lanes_grow_as_printed(transform)


def _lanes_grow_as_printed(transform):
    sizes, printed = [], []
    tracemalloc.start()
    for depth in (2, 9):
        transform.configure(Settings("poll", 1, 1, 1))
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        small = _allocated(transform.nbytes_in_flight)
        transform.configure(Settings("poll", depth, 2, 2))
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0] - before)
        printed.append(_allocated(transform.nbytes_in_flight) - small)
    tracemalloc.stop()
    for size, expected in zip(sizes, printed):
        assert abs(size - expected) < 64 * 1024, (sizes, printed)


def _allocated(nbytes):
    """With the room that aligning a large array to huge pages takes; it is never touched."""
    return nbytes + (HUGE_PAGE_NBYTES if nbytes >= HUGE_PAGE_NBYTES else 0)


def fewer_slices_than_lanes(comm):
    """Slots are made for what can be in flight only."""
    for slices, depth, chunk, slots in ((3, 16, 1, 3), (0, 16, 1, 1), (10, 4, 5, 2), (10, 4, 1, 4),
                                        (7, 16, 100, 1)):
        with overlap.FFT2(comm, (slices, 4, 4),
                          settings={"wait": "poll", "depth": depth, "chunk": chunk}) as plan:
            for transform in (plan.forward, plan.backward):
                all_slots = transform.nbytes_in_flight
                transform.configure(replace(transform.settings, depth=1))
                assert all_slots == slots * transform.nbytes_in_flight
                transform.configure(replace(transform.settings, depth=depth))
            u = random(np.random.default_rng(11), (slices, 4, 4), "c16")
            assert_close(plan.forward(u[plan.real.local_slice]), forward_truth(u),
                         plan.spectrum.local_slice, comm)


def memory_is_given_back(comm):
    """`close` frees the slots there and then, not when Python next looks for cycles."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    with overlap.Runtime(comm) as rt:
        for _ in range(2):  # the first time fills caches
            before = tracemalloc.get_traced_memory()[0]
            plan = overlap.FFT2(rt, (8, 96, 96),
                                settings={"wait": "poll", "depth": 8, "chunk": 1,
                                          "effort": "estimate"})
            square = plan.pointwise(lambda a: a * a, dealias="3/2")
            held = (plan.forward.nbytes_in_flight + plan.backward.nbytes_in_flight
                    + square.nbytes_in_flight)
            grown = tracemalloc.get_traced_memory()[0] - before
            assert grown >= held > 2**20 / comm.size, (grown, held)
            plan.close()
            del plan, square
        left = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    gc.enable()
    assert left < 0.1 * held, (left, held)


def many_plans(comm, own, shared, left=None):
    """Plans come and go and leave no thread and no communicator: there are only so many left."""
    u = random(np.random.default_rng(12), (2, 3, 4), "c16")
    truth = forward_truth(u)
    threads = threading.active_count()
    with few_left(comm, left):
        for number in range(own):
            mode = "poll" if number % 10 == 0 else "off"
            with overlap.FFT2(comm, u.shape, settings={"wait": mode, "effort": "estimate"}) as plan:
                result = plan.forward(u[plan.real.local_slice])
            assert plan.runtime.closed
        assert_close(result, truth, result.local_slice, comm)
        assert threading.active_count() == threads
        with overlap.Runtime(comm) as rt:
            for _ in range(shared):
                with overlap.FFT2(rt, u.shape, settings={"wait": "off", "effort": "estimate"}):
                    pass
            assert threading.active_count() <= threads + 1
            with overlap.FFT2(rt, u.shape, settings={"wait": "poll"}) as plan:
                result = plan.forward(u[plan.real.local_slice])
                assert_close(result, truth, plan.spectrum.local_slice, comm)
        assert threading.active_count() == threads


def on_links(comm):
    """Real messages over real links, larger and smaller than TCP's own pieces."""
    assert comm.size == MPI.COMM_WORLD.size > 1
    assert comm.Split_type(MPI.COMM_TYPE_SHARED).size == 1
    for shape, dtype in (((12, 64, 96), "f8"), ((6, 31, 8), "c8"), ((3, 256, 256), "c16")):
        modes_agree(comm, shape, dtype, "natural", [(None, None, None), (2, 1, None), (3, 2, 1)],
                    workers=(1, 2), effort="estimate")
