"""Bad input, and a failure at every site."""

import re
import threading
from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest
from everywhere import raised, same_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI
from step_cases import added, is_exchange, labels_of, mpi_functions
from truth import COMPLEX, assert_close, forward_truth, random, same_bits

import overlap
from overlap.fft.planning.settings import Settings
from overlap.fft.planning.tournament import choose

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
    aliased = memory[: given.nbytes].view(given.dtype).reshape(given.shape)
    for offset in (0, given.nbytes - 16):
        over = memory[offset : offset + out.nbytes].view(out.dtype).reshape(out.shape)
        yield f"out {offset} bytes into the input", (aliased,), over, "memory"


@on_ranks
@pytest.mark.parametrize("comm, dtype, mode", [(1, "c16", "off"), (2, "f8", "poll"), (3, "c16", "block")])
def test_bad_input_on_one_rank(comm, dtype, mode):
    """Bad on one rank only: the same InputError on all, nothing done, the plan works."""
    shape = (2, 12, 8)
    u = random(np.random.default_rng(6), shape, dtype)
    with overlap.FFT2(comm, shape, dtype, settings={"wait": mode, "depth": 2}) as plan:
        real = np.array(u[plan.real.local_slice])
        spectrum = np.array(forward_truth(u)[plan.spectrum.local_slice]).astype(COMPLEX[dtype])
        for transform, given, truth in ((plan.forward, real, spectrum), (plan.backward, spectrum, real)):
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
            names = re.findall(r"(?:^|; )(all ranks|ranks? [0-9, ]+):", str(error))
            assert names == ["all ranks"] or {number for name in names for number in re.findall("[0-9]+", name)} == set(
                map(str, range(comm.size))
            ), error
            np.testing.assert_allclose(transform(given), truth, atol=1e-10)


BAD_ARGUMENTS = (
    {"shape": (4,)},
    {"shape": ()},
    {"shape": 4},
    {"shape": None},
    {"shape": "44"},
    {"shape": (4, 0)},
    {"shape": (-1, 4, 4)},
    {"shape": (4, 4.5)},
    {"shape": (4, "x")},
    {"shape": (4, float("nan"))},
    {"shape": (4, float("inf"))},
    {"dtype": "i4"},
    {"dtype": "g"},
    {"dtype": "no type"},
    {"dtype": ">f8"},
    {"dtype": [1]},
    {"dtype": "f8,("},
    {"shape": (10**30, 4, 4)},
    {"shape": (10**12, 16, 16)},
    {"shape": (0, 10**12, 16)},
    {"shape": (np.array([4, 4]), 4)},
    {"shape": ([4], [4, 4])},
    {"shape": np.ones((2, 2), int)},
    {"shape": (True, 4, 4)},
    {"shape": np.float64(4)},
    {"settings": {"waits": "off"}},
    {"settings": 3},
    {"layout": "transposed"},
    {"grid": (1, 1)},
    {"restore": 1},
    {"dealias": "2/3"},
    {"wait": "on"},
    {"wait": None},
    {"norm": "forwards"},
    {"norm": 1},
    {"norm": np.array([1, 2])},
    {"order": "xy"},
    {"effort": "none"},
    {"depth": 0},
    {"depth": 1.5},
    {"chunk": -1},
    {"chunk": "2"},
    {"in_flight": 0},
)
OTHER_ARGUMENTS = (
    {"shape": (2, 4, 5)},
    {"shape": (4, 4)},
    {"shape": (3, 4, 4)},
    {"shape": (1, 2, 4, 4)},
    {"dtype": "c8"},
    {"norm": "ortho"},
    {"order": "transposed"},
    {"wait": "poll"},
    {"depth": 3},
    {"chunk": 2},
    {"in_flight": 2},
    {"effort": "estimate"},
)


def grouped(options):
    """A plan's keyword arguments, of options by their own names."""
    groups = {
        "layout": ("order", "grid", "restore", "dealias"),
        "settings": ("wait", "depth", "chunk", "in_flight", "effort", "late"),
    }
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
        ((name, _),) = change.items()
        assert name in str(error), (name, str(error))
        assert f"rank {bad}" in str(error), str(error)
    u = random(np.random.default_rng(7), (2, 4, 4), "c16")
    if comm.rank == bad:  # numpy's integers are the same as Python's
        good |= {"shape": [np.int64(2), np.int32(4), np.uint8(4)], "depth": np.int64(2)}
    else:
        good |= {"depth": 2}
    with overlap.FFT2(rt or comm, **grouped(good)) as plan:
        assert_close(plan.forward(u[plan.real.local_slice]), forward_truth(u), plan.spectrum.local_slice, comm)
    if shared:
        rt.close()
    assert threading.active_count() == threads


@on_ranks
@pytest.mark.parametrize("comm, shared", [(1, False), (2, True), (3, False)])
def test_bad_arguments_on_one_rank(comm, shared):
    bad_arguments(comm, shared=shared, others=False)


@on_ranks
@pytest.mark.parametrize("comm, shared", [(2, False), (3, True)])
def test_arguments_that_differ_between_ranks(comm, shared):
    bad_arguments(comm, shared=shared, others=True)


@on_ranks(2, 3)
def test_a_runtime_of_another_communicator(comm):
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
                assert_close(plan.forward(u[plan.real.local_slice]), forward_truth(u), plan.spectrum.local_slice, comm)


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_closed(comm):
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

    def method(*args, **kwargs):
        number = state["calls"]
        state["calls"] += 1
        if not state["raised"] and when(number, *args):
            state["raised"] += 1
            raise Boom(f"{name}, call {number}")
        return original(*args, **kwargs)

    setattr(kind, name, method)
    try:
        yield state
    finally:
        setattr(kind, name, original)


@contextmanager
def step_fails(transform, label, when=lambda task: True):
    """Let a step with this label raise once, of a slice with ``when(task)``; without a label, an exchange."""
    state = {"raised": 0}

    def at(task, step):
        named = is_exchange(step) if label is None else label in labels_of(step)
        return named and when(task)

    def fail(task):
        if not state["raised"]:
            state["raised"] += 1
            raise Boom(f"{label}, {task}")

    with added(transform, at, fail):
        yield state


@contextmanager
def mpi_fails(transform, number):
    """Let MPI reject an exchange once, the one with this number in the next call."""
    state = {"calls": 0, "raised": 0}

    def rejected(name, real, *words):
        state["calls"] += 1
        if state["calls"] == number + 1:
            state["raised"] += 1
            return MPI.ERR_COUNT
        return real(*words)

    with mpi_functions(rejected, transform):
        yield state


@contextmanager
def nothing_fails():
    yield {"raised": 0}


def _sites(transform, z):
    """Places in which a transform can fail at slice `z`, as context managers by name."""

    def has(task):
        return task.part.start <= z < task.part.stop

    if transform.runtime.comm.size == 1:
        yield "local", lambda: step_fails(transform, "local", has), True
        return
    for name in ("pack", "unpack"):
        yield name, lambda name=name: step_fails(transform, name, has), True
    yield "exchange", lambda: step_fails(transform, None, has), False
    yield "MPI call", lambda: mpi_fails(transform, z), False


@on_ranks(2)
def test_failed_planning_keeps_the_ffts(comm):
    """A transform that could not be planned anew has the FFTs that it had: others could differ in the last bit."""
    with overlap.FFT2(comm, (4, 2 * comm.size, 7), "f8") as plan:
        forward = plan.forward
        before = forward.configuration
        with failing(type(forward), "run_planes", lambda *_: True):
            raised(overlap.RankError, choose, forward, Settings(effort="measure"))
        assert forward.configuration is before


def injected(comm, mode, order="natural", dtype="f8", depth=3, workers=1):
    """A failure at each site and slice, on each rank, is told on all; then all is right again."""
    shape = (7, 2 * comm.size + 1, 2 * comm.size + 2)
    u = random(np.random.default_rng(9), shape, dtype)
    truth = forward_truth(u, order=order)
    with overlap.FFT2(
        comm, shape, dtype, layout={"order": order}, settings={"wait": mode, "depth": depth, "chunk": 1}
    ) as plan:
        real = np.array(u[plan.real.local_slice])
        spectrum = plan.forward(real)
        assert_close(spectrum, truth, plan.spectrum.local_slice, comm)
        back = plan.backward(spectrum)
        reached = set()
        for transform, given, expected in ((plan.forward, real, spectrum), (plan.backward, spectrum, back)):
            names = [site[0] for site in _sites(transform, 0)]
            for number, z, origin in product(range(len(names)), (0, 3, 6), range(comm.size)):
                out = np.empty_like(np.asarray(expected))
                name, inject, exact = list(_sites(transform, z))[number]
                label = f"{name} of {type(transform).__name__}, slice {z}, rank {origin}"
                with inject() if comm.rank == origin else nothing_fails() as state:
                    error = raised(overlap.SliceError, transform, given, out=out)
                assert state["raised"] == (comm.rank == origin), label
                same_everywhere(comm, (error.rank, error.slice, str(error), error.traceback_text))
                expected_text = MPI.Get_error_string(MPI.ERR_COUNT) if name == "MPI call" else "Boom"
                assert error.rank == origin and expected_text in error.summary, (label, str(error))
                assert f"on rank {origin}" in str(error)
                assert name == "MPI call" or "/test_fft" in error.traceback_text
                if exact or mode == "off":
                    assert error.slice == str(z), (label, error.slice)
                reached.add(name)
                assert same_bits(transform(given, out=out), expected), label
        assert reached == ({"pack", "unpack", "exchange", "MPI call"} if comm.size > 1 else {"local"})


@on_ranks
@pytest.mark.parametrize(
    "mode, comm",
    [
        (mode, ranks) if (mode, ranks) in (("off", 1), ("block", 2), ("poll", 3)) else exhaustive(mode, ranks)
        for mode in ("off", "block", "poll")
        for ranks in (1, 2, 3)
    ]
    + [("poll", "openmpi-2"), exhaustive("block", "openmpi-2")],
)
def test_failure_at_every_site(comm, mode):
    injected(comm, mode=mode)


@on_ranks(2)
def test_failure_in_transposed_order(comm):
    injected(comm, mode="poll", order="transposed", dtype="c16", depth=16)


@on_ranks(3)
@pytest.mark.parametrize("mode", [exhaustive("block"), "poll"])
def test_failure_in_chunks(comm, mode, workers=2):
    """Several slices per message and several workers."""
    u = random(np.random.default_rng(10), (11, 6, 8), "c8")
    with (
        overlap.Runtime(comm, workers=workers) as rt,
        overlap.FFT2(rt, u.shape, "c8", settings={"wait": mode, "depth": 2, "chunk": 3}) as plan,
    ):
        real = np.array(u[plan.real.local_slice])
        spectrum = np.array(plan.forward(real))
        for z, origin in product((0, 5, 10), range(comm.size)):
            with (
                step_fails(plan.forward, "pack", lambda task: task.part.start <= z < task.part.stop)
                if comm.rank == origin
                else nothing_fails()
            ):
                error = raised(overlap.SliceError, plan.forward, real)
            same_everywhere(comm, str(error))
            first, _, last = error.slice.partition("-")
            assert error.rank == origin and int(first) <= z <= int(last or first), str(error)
            assert same_bits(plan.forward(real), spectrum)
