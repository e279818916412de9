"""Bad input, and a failure at every site."""

from contextlib import ExitStack, contextmanager
from itertools import product

import numpy as np
import pytest
from everywhere import raised, same_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI
from step_cases import mpi_functions, small_units
from test_fft2_errors import grouped, nothing_fails, step_fails
from test_fft3 import assert_close, forward_truth
from truth import random, same_bits

import overlap

# ---- errors ----------------------------------------------------------------------------------


@small_units()
def injected(comm, mode, grid, dtype, shape, late, workers=1):
    """A failure at each site, stage and rank is told on all; then all is right again."""
    u = random(np.random.default_rng(9), shape, dtype)
    with (
        overlap.Runtime(comm, workers=workers) as rt,
        overlap.FFT3(
            rt,
            shape,
            dtype,
            layout={"grid": grid},
            settings={"wait": mode, "depth": 3, "chunk": 1, "late": late, "effort": "estimate"},
        ) as plan,
    ):
        real = np.array(u[plan.real.local_slice])
        spectrum = plan.forward(real)
        assert_close(comm, spectrum, forward_truth(u, shape), plan.spectrum.local_slice)
        back = plan.backward(spectrum)
        for transform, given, expected in ((plan.forward, real, spectrum), (plan.backward, spectrum, back)):
            stages = len(transform._kernels.stages)
            reached = set()
            sites = "pack", "unpack", "exchange", "MPI", "complete", "pack late", "unpack late"
            for site, stage, origin in product(sites, range(stages), range(comm.size)):
                out = np.empty_like(np.asarray(expected))
                label = f"{site}, stage {stage}, rank {origin}"
                with ExitStack() as stack:
                    if comm.rank == origin:
                        state = stack.enter_context(_failing(transform, site, stage))
                    else:
                        state = stack.enter_context(nothing_fails())
                    error = None
                    try:
                        transform(given, out=out)
                    except overlap.SliceError as failure:
                        error = failure
                failed = comm.bcast(state["raised"], origin)
                same_everywhere(comm, error and (error.rank, error.slice, str(error)))
                assert (error is not None) == bool(failed), label
                if failed:
                    expected_text = MPI.Get_error_string(MPI.ERR_COUNT) if site == "MPI" else "Boom"
                    assert error.rank == origin and expected_text in error.summary, (label, str(error))
                    reached.add((site, stage))
                assert same_bits(transform(given, out=out), expected), label
            assert len(reached) >= 4 * stages, reached
            was_late = any(task.kind == "late" for task in transform.configuration.parts)
            assert was_late == (late > 0)
            assert was_late == ({"pack late", "unpack late"} <= {site for site, _ in reached})


@on_ranks
@pytest.mark.parametrize(
    "comm, grid, dtype, late",
    [(2, (1, 2), "c16", 0), exhaustive(4, (2, 2), "f8", 0), (2, (1, 2), "f8", 0.7), exhaustive(3, (1, 3), "c16", 0.7)],
)
@pytest.mark.parametrize("mode", ["off", "block", "poll"])
def test_failure_at_every_site(comm, grid, dtype, late, mode):
    injected(comm, mode=mode, grid=grid, dtype=dtype, late=late, shape=(16, 24, 96))


@pytest.mark.exhaustive
@on_ranks("openmpi-2")
def test_failure_at_every_site_under_open_mpi(comm):
    injected(comm, mode="poll", grid=(1, 2), dtype="c16", late=0.5, shape=(16, 24, 96))


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


def _failing(transform, site, stage):
    """Make the task in the middle of a stage fail at some site, once."""
    tasks = [task for task in transform.configuration.parts if task.stage == stage and task.kind == "units"]
    if site == "MPI":
        return _mpi_fails(transform, stage)
    if site == "exchange":
        return step_fails(transform, None, lambda task: task in tasks[len(tasks) // 2 :])
    if site in ("complete", "pack late", "unpack late"):
        return step_fails(transform, site)
    return step_fails(transform, site, lambda task: task is tasks[len(tasks) // 2])


BAD_ARGUMENTS = (
    {"shape": (4, 4)},
    {"shape": 4},
    {"shape": (4, 4, 0)},
    {"shape": (-1, 4, 4, 4)},
    {"shape": (4, 4, 4.5)},
    {"shape": (10**30, 4, 4)},
    {"shape": (10**10, 16, 16, 16)},
    {"shape": ([4], [4, 4], 4)},
    {"layout": {"grids": (1, 1)}},
    {"dtype": "i4"},
    {"grid": 2},
    {"grid": (1,)},
    {"grid": (0, 1)},
    {"grid": (7, 7)},
    {"grid": (1, 1.5)},
    {"grid": "ab"},
    {"wait": "on"},
    {"norm": 1},
    {"order": "zyx"},
    {"restore": 1},
    {"dealias": "2/3"},
    {"dealias": 1.5},
    {"dealias": (4, 4, 3)},
    {"effort": "none"},
    {"depth": 0},
    {"chunk": -1},
    {"in_flight": 0},
    {"late": 1.5},
    {"late": "half"},
)
OTHER_ARGUMENTS = (
    {"shape": (4, 4, 5)},
    {"dtype": "c8"},
    {"norm": "ortho"},
    {"restore": True},
    {"order": "transposed"},
    {"dealias": "3/2"},
    {"chunk": 2},
    {"depth": 3},
    {"late": 0.5},
)


@small_units()
@on_ranks(1, 3, exhaustive(4))
def test_bad_arguments(comm):
    """Bad, or other ones, on one rank: the same InputError on all, and nothing left behind."""
    good = {"shape": (4, 4, 4), "dtype": "c16", "wait": "off", "effort": "estimate"}
    changes = [*BAD_ARGUMENTS, *(OTHER_ARGUMENTS if comm.size > 1 else ())]
    for bad, change in product({0, comm.size - 1}, changes):
        arguments = good | (change if comm.rank == bad else {})
        error = raised(overlap.InputError, overlap.FFT3, comm, **grouped(arguments))
        same_everywhere(comm, str(error))
        ((name, _),) = change.items()
        assert "expected" in str(error) and "received" in str(error), str(error)
        assert name in str(error) and f"rank {bad}" in str(error), str(error)


@small_units()
@on_ranks(1, 3, exhaustive(4))
def test_bad_calls(comm):
    """A bad array on one rank: the same InputError on all, nothing done, the plan works."""
    u = random(np.random.default_rng(6), (6, 8, 8), "f8")
    with overlap.FFT3(comm, u.shape, "f8", settings={"wait": "poll"}) as plan:
        real = np.array(u[plan.real.local_slice])
        for bad, change in product(
            range(comm.size),
            (
                lambda: ((real[:1, :1],), None),
                lambda: ((real.astype("f4"),), None),
                lambda: ((real, real), None),
                lambda: ((real.tolist(),), None),
                lambda: ((real,), plan.real.empty()),
                lambda: ((real,), real),
            ),
        ):
            call, out = change() if comm.rank == bad else ((real,), None)
            error = raised(overlap.InputError, plan.forward, *call, out=out)
            same_everywhere(comm, str(error))
            assert f"rank {bad}: expected" in str(error) and "received" in str(error), str(error)
        assert_close(comm, plan.forward(real), forward_truth(u, u.shape), plan.spectrum.local_slice)


@small_units()
@on_ranks(1, 3, exhaustive(4))
def test_closed(comm):
    for shared in (False, True):
        rt = overlap.Runtime(comm) if shared else None
        plan = overlap.FFT3(rt or comm, (4, 4, 4), settings={"wait": "poll", "effort": "estimate"})
        forward, u = plan.forward, plan.real.empty()
        u[...] = 0
        forward(u)
        plan.close()
        plan.close()
        for function in (plan.forward, plan.backward, forward):
            raised(overlap.ClosedError, function, u)
        assert plan.runtime.closed is not shared
        if shared:
            rt.close()
