"""What the runtime itself costs: calls of a pipeline, slices of a long job, calls of a plan.

    python bench/overhead.py [--ranks 2] [--rounds 15] [--calls 300] [--slices 2000] [--json FILE] [--quick]

For each way to wait, beside the bare MPI call of the same kind (blocking for ``off`` and ``block``, nonblocking and hot
for ``poll``), in microseconds:

* ``call_us``: one call of a pipeline of one slice that awaits one `Alltoall` of 16 bytes, with a skeleton
  and without one (then every call learns what it awaits);
* ``short_us``: one call of eight such slices;
* ``slice_us``: one slice with one await in a job of many;
* ``plan_us``: one forward transform of an `FFT2` of a single 4 x 4 plane per rank, and ``plans_us``: the same of four
  plans in turn;
* ``bracket_us``: one call of a `Bracket` of a single plane, 3 x 5 modes;
* ``halo_us``: one `Halo.exchange` of 64 bytes with two neighbours, and ``product_us``: one product ``A @ x`` of a
  seven-point stencil on 4 x 4 x 4 points per rank; nobody chooses how they wait;
* ``python_us``: a loop of 300 additions in Python, which has nothing to do with the library: where it takes
  twice as long in one round as in another, the cores were not the ranks' own.

Everything takes turns: medians over the rounds (range) of the slowest rank, one record for each way to wait.
"""

import sys
from contextlib import ExitStack
from functools import partial
from statistics import median

import numpy as np

import overlap
from overlap.sparse import diffusion
from overlap.tools.bench.pages import Page
from overlap.tools.bench.rounds import seconds_of

SHORT = 8  # slices of a short job


def repeated(call, calls):
    """So many calls of a function."""
    for _ in range(calls):
        call()


def bare(comm, wait):
    """The MPI call of an await, and nothing else."""
    send, receive = np.zeros((2, 2))

    def hot():
        request = comm.Ialltoall(send, receive)
        while not request.Test():
            pass

    return hot if wait == "poll" else partial(comm.Alltoall, send, receive)


def additions():
    """A loop of additions."""
    total = 0
    for number in range(300):
        total += number


def pipeline(runtime, wait, slices, learned=False):
    """A call of a pipeline of so many slices, each with one exchange of 16 bytes."""
    send, receive = np.zeros((2, runtime.comm.size))

    async def program(z):
        await runtime.comm.Alltoall(send, receive)

    return partial(runtime.pipelined(program, skeleton=None if learned else program, wait=wait), range(slices))


def plan_call(runtime, stack, wait):
    """A call of a plan that has next to nothing to do."""
    size = 4 * runtime.comm.size
    settings = {"wait": wait, "depth": 1, "chunk": 1, "in_flight": 1, "effort": "estimate"}
    plan = stack.enter_context(overlap.FFT2(runtime, (1, size, size), settings=settings))
    field, spectrum = plan.real.empty(), plan.spectrum.empty()
    field[...] = 1
    return partial(plan.forward, field, out=spectrum)


def in_turn(calls):
    """A call of each function."""
    for call in calls:
        call()


def bracket_call(runtime, stack, wait):
    """A call of a bracket that has next to nothing to do."""
    bracket = stack.enter_context(overlap.Bracket(runtime, (1, 1, 3, 5), settings={"wait": wait}))
    a, f, out = bracket.advecting.empty(), bracket.spectrum.empty(), bracket.spectrum.empty()
    a[...] = f[...] = out[...] = 0
    bracket.advect(a)
    return partial(bracket, f, out=out)


def halo_call(comm, stack):
    """An exchange of ghost cells."""
    halo = stack.enter_context(overlap.Halo(comm, overlap.Blocks((8 * comm.size, 8), (comm.size, 1), periodic=True)))
    (u,) = halo.empty()
    return partial(halo.exchange, u)


def product_call(comm, stack):
    """A product of a sparse matrix with a vector."""
    A = stack.enter_context(diffusion(comm, overlap.Blocks((4 * comm.size, 4, 4), (comm.size, 1, 1)), 1.0))
    return partial(A.__matmul__, np.ones(64))


def measure(world, given):
    """The records: figures' names and values, medians and ranges."""
    runs, calls, per = {}, {}, {}
    comm = world.Dup()
    with ExitStack() as stack:
        for wait in ("off", "block", "poll"):
            runtime = stack.enter_context(overlap.Runtime(comm, wait=wait, depth=16))
            few = max(1, given.calls // SHORT)
            for name, call, times, each in (
                ("bare", bare(comm, wait), given.calls, 1),
                ("call", pipeline(runtime, wait, 1), given.calls, 1),
                ("learned_call", pipeline(runtime, wait, 1, True), given.calls, 1),
                ("short", pipeline(runtime, wait, SHORT), few, 1),
                ("slice", pipeline(runtime, wait, given.slices), 1, given.slices),
                ("plan", plan_call(runtime, stack, wait), given.calls, 1),
                ("plans", partial(in_turn, [plan_call(runtime, stack, wait) for _ in range(4)]), given.calls // 4, 4),
                ("bracket", bracket_call(runtime, stack, wait), given.calls, 1),
                ("halo", halo_call(comm, stack), given.calls, 1),
                ("product", product_call(comm, stack), given.calls, 1),
                ("python", additions, given.calls, 1),
            ):
                runs[wait, name], calls[wait, name], per[wait, name] = call, times, each
        seconds = seconds_of(comm, runs, given.rounds, calls=calls)
    comm.Free()
    for wait in dict.fromkeys(wait for wait, _ in runs):
        record = {"wait": wait, "thread_level": given.thread_level}
        for (way, name), found in seconds.items():
            if way == wait:
                us = [1e6 * one / per[way, name] for one in found]
                record[f"{name}_us"] = round(median(us), 2)
                record[f"{name}_range_us"] = [round(min(us), 2), round(max(us), 2)]
        yield record


PAGE = Page(__doc__, measure, rounds=15, quick={"rounds": 2, "calls": 16, "slices": 20})
PAGE.add("--calls", type=int, default=300)
PAGE.add("--slices", type=int, default=2000)

if __name__ == "__main__":
    sys.exit(PAGE.run())
