"""`FFT2` and `FFT3`: bad input, and a failure at every site."""

import re
import threading
from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest
from everywhere import outcome, raised, raises_everywhere, same_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI
from step_cases import failing, mpi_functions, nothing_fails, sites_of, small_units, step_fails
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
@pytest.mark.parametrize(
    "comm, kind, dtype, mode",
    [
        (1, "FFT2", "c16", "off"),
        (2, "FFT2", "f8", "poll"),
        (3, "FFT2", "c16", "block"),
        (1, "FFT3", "f8", "poll"),
        (3, "FFT3", "f8", "poll"),
        exhaustive(4, "FFT3", "f8", "poll"),
    ],
)
def test_bad_input_on_one_rank(comm, kind, dtype, mode):
    """Bad on one rank only: the same InputError on all, nothing done, the plan works."""
    shape, dimensions = (8, 12, 8), int(kind[-1])
    u = random(np.random.default_rng(6), shape, dtype)
    modes = forward_truth(u, dimensions=dimensions)
    with getattr(overlap, kind)(comm, shape, dtype, settings={"wait": mode, "depth": 2}) as plan:
        real = np.array(u[plan.real.local_slice])
        spectrum = np.array(modes[plan.spectrum.local_slice]).astype(COMPLEX[dtype])
        for transform, given, truth in ((plan.forward, real, spectrum), (plan.backward, spectrum, real)):
            labels = [label for label, *_ in _bad_calls(given, np.empty_like(truth))]
            for bad, (number, label) in product(range(comm.size), enumerate(labels)):
                out = np.full_like(truth, 5)
                call, target, word = (given,), out, ""
                if comm.rank == bad:
                    _, call, target, word = list(_bad_calls(given, out))[number]
                words = f"rank {bad}: ", "expected", "received", word
                raises_everywhere(comm, overlap.InputError, words, transform, *call, out=target)
                assert (out == 5).all(), f"{label}: out was written"
                if number % 5 == 0:
                    np.testing.assert_allclose(transform(given, out=out), truth, atol=1e-10)
            error = raised(overlap.InputError, transform, given[..., :0])  # bad on all
            names = re.findall(r"(?:^|; )(all ranks|ranks? [0-9, ]+):", str(error))
            assert names == ["all ranks"] or {number for name in names for number in re.findall("[0-9]+", name)} == set(
                map(str, range(comm.size))
            ), error
            np.testing.assert_allclose(transform(given), truth, atol=1e-10)


SHAPES = [  # bad ones of any plan, made of the lengths that are right
    lambda good: 4,
    lambda good: None,
    lambda good: "444",
    lambda good: (),
    lambda good: good[1:],
    lambda good: np.float64(4),
    lambda good: np.ones((2, 2), int),
    *[
        lambda good, last=last: (*good[:-1], last)
        for last in (0, -1, 4.5, "x", float("nan"), float("inf"), True, [4], np.array([4, 4]), 10**30, 10**12)
    ],
    lambda good: (0, 10**12, *good),
]
WRONG = {
    "settings": [{"waits": "off"}, 3],
    "layout": ["transposed", {"grids": (1, 1)}],
    "dtype": ["i4", "g", "no type", ">f8", [1], "f8,("],
    "norm": ["forwards", 1, np.array([1, 2])],
    "restore": [1],
    "dealias": ["2/3", 1.5],
    "wait": ["on", None],
    "order": ["xy"],
    "effort": ["none"],
    "depth": [0, 1.5],
    "chunk": [-1, "2"],
    "in_flight": [0],
    "late": [1.5, "half"],
}
WRONG_OF = {
    "FFT2": {"grid": [(1, 1)]},
    "FFT3": {"grid": [2, (1,), (0, 1), (7, 7), (1, 1.5), "ab"], "dealias": [(4, 4, 3)]},
}
OTHER = {
    "dtype": ["c8"],
    "norm": ["ortho"],
    "order": ["transposed"],
    "restore": [True],
    "dealias": ["3/2"],
    "wait": ["poll"],
    "depth": [3],
    "chunk": [2],
    "in_flight": [2],
    "effort": ["estimate"],
    "late": [0.5],
}
OTHER_SHAPES = {"FFT2": [(2, 4, 5), (4, 4), (3, 4, 4), (1, 2, 4, 4)], "FFT3": [(4, 4, 5), (1, 4, 4, 4)]}


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


@on_ranks
@pytest.mark.parametrize(
    "comm, kind, shared",
    [
        (1, "FFT2", False),
        (2, "FFT2", True),
        (3, "FFT2", False),
        (1, "FFT3", False),
        (3, "FFT3", True),
        exhaustive(4, "FFT3", False),
    ],
)
def test_arguments_of_one_rank(comm, kind, shared):
    """Arguments that are bad, or only other ones, on one rank: the same InputError on all, and nothing left behind."""
    good = {"shape": (4, 4, 4), "dtype": "c16", "wait": "off", "effort": "measure", "depth": 2}
    threads = threading.active_count()
    rt = overlap.Runtime(comm) if shared else comm
    make = getattr(overlap, kind)
    changes = [("shape", shape(good["shape"][: int(kind[-1])])) for shape in SHAPES]
    tables = [WRONG, WRONG_OF[kind]]
    if comm.size > 1:
        tables += [OTHER, {"shape": OTHER_SHAPES[kind]}]
    changes += [(name, value) for table in tables for name, values in table.items() for value in values]
    for bad, (name, value) in product({0, comm.size - 1}, changes):
        arguments = good | ({name: value} if comm.rank == bad else {})
        words = "expected", "received", name, f"rank {bad}"
        raises_everywhere(comm, overlap.InputError, words, make, rt, **grouped(arguments))
    if comm.rank == bad:  # numpy's integers are the same as Python's
        good |= {"shape": [np.int64(4), np.int32(4), np.uint8(4)], "depth": np.int64(2)}
    u = random(np.random.default_rng(7), (4, 4, 4), "c16")
    truth = forward_truth(u, dimensions=int(kind[-1]))
    with make(rt, **grouped(good)) as plan:
        assert_close(plan.forward(u[plan.real.local_slice]), truth, plan.spectrum.local_slice, comm)
    if shared:
        rt.close()
    assert threading.active_count() == threads


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


@on_ranks(2)
def test_failed_planning_keeps_the_ffts(comm):
    """A transform that could not be planned anew has the FFTs that it had: others could differ in the last bit."""
    with overlap.FFT2(comm, (4, 2 * comm.size, 7), "f8") as plan:
        forward = plan.forward
        before = forward.configuration
        with failing(type(forward), "run_planes", lambda *_: True):
            raised(overlap.RankError, choose, forward, Settings(effort="measure"))
        assert forward.configuration is before


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_closed(comm):
    """A plan on a runtime leaves it open, and ends with it; a plan of a closed runtime is not made."""
    for make in (overlap.FFT2, overlap.FFT3):
        for shared in (False, True):
            rt = overlap.Runtime(comm) if shared else comm
            plan = make(rt, (4, 4, 4), settings={"wait": "poll", "effort": "estimate"})
            u = plan.real.empty()
            plan.close()
            assert plan.runtime.closed is not shared
            if shared:
                make(rt, (4, 4, 4)).close()
                with make(rt, (4, 4, 4)) as plan:
                    rt.close()
                    raised(overlap.ClosedError, plan.forward, u)
            raised(overlap.ClosedError, make, plan.runtime, (4, 4, 4))


# ---- errors at every site --------------------------------------------------------------------


@small_units()
def injected(comm, kind, mode, shape, dtype="f8", depth=3, layout=None, late=None):
    """A failure at each site, on each rank, is told on all; then all is right again."""
    dimensions, layout = int(kind[-1]), layout or {}
    u = random(np.random.default_rng(9), shape, dtype)
    truth = forward_truth(u, None, layout.get("order"), dimensions=dimensions)
    settings = {"wait": mode, "depth": depth, "chunk": 1, "late": late, "effort": "estimate"}
    with getattr(overlap, kind)(comm, shape, dtype, layout=layout, settings=settings) as plan:
        real = np.array(u[plan.real.local_slice])
        spectrum = plan.forward(real)
        assert_close(spectrum, truth, plan.spectrum.local_slice, comm, dimensions)
        back = plan.backward(spectrum)
        for transform, given, expected in ((plan.forward, real, spectrum), (plan.backward, spectrum, back)):
            reached = set()
            of_kind = _of_slices if kind == "FFT2" else _of_stages
            for name, place, inject, at in of_kind(transform):
                for origin in range(comm.size):
                    out = np.empty_like(np.asarray(expected))
                    label = f"{name} of {place}, rank {origin}"
                    with inject() if comm.rank == origin else nothing_fails() as state:
                        error = outcome(transform, given, out=out)
                    failed = comm.bcast(state["raised"], origin)
                    assert type(error) is (overlap.SliceError if failed else type(None)), (label, error)
                    if failed:
                        same_everywhere(comm, (error.rank, error.slice, str(error), error.traceback_text))
                        expected_text = MPI.Get_error_string(MPI.ERR_COUNT) if name == "MPI call" else "Boom"
                        assert error.rank == origin and expected_text in error.summary, (label, str(error))
                        assert f"on rank {origin}" in str(error)
                        assert name == "MPI call" or "/step_cases.py" in error.traceback_text
                        assert at is None or error.slice == at or (mode != "off" and name in ("exchange", "MPI call"))
                        reached.add((name, place))
                    assert same_bits(transform(given, out=out), expected), label
            was_late = any(task.kind == "late" for task in transform.configuration.parts)
            assert was_late == bool(late) == ({"pack late", "unpack late"} <= {name for name, _ in reached})
            if kind == "FFT2":
                sites = {"pack", "unpack", "exchange", "MPI call"} if comm.size > 1 else {"local"}
                assert reached == set(product(sites, SLICES)), reached
            else:
                assert len(reached) >= 4 * len(transform._kernels.stages), reached


SLICES = (0, 3, 6)


def _of_slices(transform):
    """Sites of some slices: name, slice, what lets it fail, and the slice that the error names."""
    for z in SLICES:
        for name, inject, _ in sites_of(transform, z):
            yield name, z, inject, str(z)


def _of_stages(transform):
    """Sites of every stage: name, stage, what lets a task in its middle fail, if there is any."""
    for stage in range(len(transform._kernels.stages)):
        tasks = [task for task in transform.configuration.parts if task.stage == stage and task.kind == "units"]
        late_half = tasks[len(tasks) // 2 :]
        for name in ("pack", "unpack"):
            yield name, stage, lambda name=name: step_fails(transform, name, lambda task: task is late_half[0]), None
        yield "exchange", stage, lambda: step_fails(transform, None, lambda task: task in late_half), None
        yield "MPI call", stage, lambda: _mpi_fails(transform, stage), None
        for name in ("complete", "pack late", "unpack late"):
            yield name, stage, lambda name=name: step_fails(transform, name), None


@contextmanager
def _mpi_fails(transform, stage):
    """Let MPI reject an exchange of a stage once, not the first one."""
    state = {"calls": 0, "seen": set(), "raised": 0}
    comms = {id(transform._comms[one.dimension]) for one in transform._kernels.stages if one.dimension is not None}

    def rejected(name, real, *words):
        state["calls"] += 1
        state["seen"].add(words[8])
        if not state["raised"] and state["calls"] > 1 and len(state["seen"]) >= min(stage + 1, len(comms)):
            state["raised"] += 1
            return MPI.ERR_COUNT
        return real(*words)

    with mpi_functions(rejected, transform):
        yield state


@on_ranks
@pytest.mark.parametrize(
    "mode, comm",
    [
        (mode, ranks) if (mode, ranks) in (("off", 1), ("block", 2), ("poll", 3)) else exhaustive(mode, ranks)
        for mode in ("off", "block", "poll")
        for ranks in (1, 2, 3)
    ]
    + [("poll", "openmpi-2"), exhaustive("block", "openmpi-2"), ("transposed", 2)],
)
def test_failure_at_every_site_of_planes(comm, mode):
    options = {"dtype": "c16", "depth": 16, "layout": {"order": "transposed"}} if mode == "transposed" else {}
    mode = "poll" if options else mode
    injected(comm, "FFT2", mode, (7, 2 * comm.size + 1, 2 * comm.size + 2), **options)


@on_ranks
@pytest.mark.parametrize(
    "comm, grid, dtype, late",
    [
        (2, (1, 2), "c16", 0),
        exhaustive(4, (2, 2), "f8", 0),
        (2, (1, 2), "f8", 0.7),
        exhaustive(3, (1, 3), "c16", 0.7),
        exhaustive("openmpi-2", (1, 2), "c16", 0.5),
    ],
)
@pytest.mark.parametrize("mode", ["off", "block", "poll"])
def test_failure_at_every_site_of_volumes(comm, grid, dtype, late, mode):
    injected(comm, "FFT3", mode, (16, 24, 96), dtype, layout={"grid": grid}, late=late)


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
            failure = step_fails(plan.forward, "pack", lambda task: task.part.start <= z < task.part.stop)
            with failure if comm.rank == origin else nothing_fails():
                error = raises_everywhere(comm, overlap.SliceError, "", plan.forward, real)
            first, _, last = error.slice.partition("-")
            assert error.rank == origin and int(first) <= z <= int(last or first), str(error)
            assert same_bits(plan.forward(real), spectrum)
