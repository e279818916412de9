"""`FFT2` and `FFT3`: bad input."""

import re
import threading
from itertools import product

import numpy as np
import pytest
from everywhere import raised, raises_everywhere, same_everywhere
from marks import exhaustive, on_ranks
from step_cases import failing
from truth import COMPLEX, assert_close, forward_truth, random

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
