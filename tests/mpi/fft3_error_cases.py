"""What `test_fft3` runs on every rank: bad input, and a failure at every site."""

from contextlib import ExitStack
from itertools import product

import numpy as np
from fft2_cases import raised, random, same_bits, same_everywhere
from fft2_error_cases import failing, grouped, nothing_fails, step_fails
from fft3_cases import assert_close, forward_truth, small_units
from local_call_cases import in_pipelines

import overlap
from overlap.fft.engine.schedule import Issue, Schedule
from overlap.runtime.requests.requests import Operation

# ---- errors ----------------------------------------------------------------------------------


@small_units()
@in_pipelines()  # known calls do not come to these sites: see `known_call_cases`
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
            sites = "pack", "unpack", "exchange", "MPI", "complete", "set aside", "unpack late"
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
                    assert error.rank == origin and "Boom" in error.summary, (label, str(error))
                    reached.add((site, stage))
                assert same_bits(transform(given, out=out), expected), label
            assert len(reached) >= 4 * stages, reached
            was_late = any(task.kind == "late" for task in transform._parts)
            assert was_late == (late > 0)
            assert was_late == ({"set aside", "unpack late"} <= {site for site, _ in reached})


def _failing(transform, site, stage):
    """Make the task in the middle of a stage fail at some site, once."""
    tasks = [task for task in transform._parts if task.stage == stage and task.kind == "units"]

    def middle(_, schedule, number, arrays, rows):
        return site in rows.label.split(", ") and schedule._labels[number] is tasks[len(tasks) // 2]

    if site == "exchange":
        last = tasks[len(tasks) // 2 :]
        return failing(Issue, "operation", lambda _, issue, *args: transform._parts[issue.slice] in last)
    if site == "MPI":
        comms = {id(transform._comms[one.dimension]) for one in transform._kernels.stages if one.dimension is not None}
        state = {"seen": set()}

        def when(number, operation, *_):
            state["seen"].add(id(operation.comm))
            return number >= 1 and len(state["seen"]) >= min(stage + 1, len(comms))

        return failing(Operation, "make", when)
    if site in ("complete", "set aside", "unpack late"):
        return step_fails(site)
    return failing(Schedule, "_execute", middle)


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
def bad_arguments(comm):
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
def bad_calls(comm):
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
def closed(comm):
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
