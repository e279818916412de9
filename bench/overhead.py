"""What the runtime itself costs: calls of a pipeline, slices of a long job, calls of a plan.

    python bench/overhead.py [--ranks 2] [--rounds 15] [--calls 300] [--slices 2000] [--json FILE] [--quick]

Starts its own ranks, each pinned to a core. For each way to wait, beside the bare MPI call of the same
kind (blocking for ``off`` and ``block``, nonblocking and hot for ``poll``), in microseconds:

* ``call_us``: one call of a pipeline of one slice that awaits one `Alltoall` of 16 bytes, with a skeleton
  and without one (then every call learns what it awaits);
* ``written_call_us``: as ``call_us``, where blocking agreements of the runtime go by remote writes
  (`overlap.collectives`);
* ``short_us``: one call of eight such slices;
* ``slice_us``: one slice with one await in a job of many;
* ``plan_us``: one forward transform of an `FFT2` of a single 4 x 4 plane per rank, and ``plans_us``: the same of four
  plans in turn;
* ``bracket_us``: one call of a `Bracket` of a single plane, 3 x 5 modes;
* ``halo_us``: one `Halo.exchange` of 64 bytes with two neighbours, and ``product_us``: one product ``A @ x`` of a
  seven-point stencil on 4 x 4 x 4 points per rank; nobody chooses how they wait;
* ``python_us``: a loop of 300 additions in Python, which has nothing to do with the library: where it takes
  twice as long in one round as in another, the cores were not the ranks' own.

Everything is timed in every round, in an order rotated from round to round: medians over the rounds (range)
of the slowest rank. With ``--json`` a list ``cases``, one entry for each way to wait and kind.
"""

import argparse
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

from overlap.tools import launch

WAITS = ("off", "block", "poll")
SHORT = 8  # slices of a short job


# ---- on the ranks --------------------------------------------------------------------------------


def rotated_rounds(comm, functions, rounds):
    """Seconds of each function in each round, {name: list}, of the slowest rank; one more warms up."""
    seconds = {name: [] for name in functions}
    names = list(functions)
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            comm.Barrier()
            started_s = perf_counter()
            functions[name]()
            took_s = perf_counter() - started_s
            if number:
                seconds[name].append(max(comm.allgather(took_s)))
    return seconds


def bare(comm, wait, calls):
    """The MPI calls of so many awaits, and nothing else."""
    import numpy as np

    send, receive = np.zeros((2, 2))

    def run():
        for _ in range(calls):
            if wait == "poll":
                request = comm.Ialltoall(send, receive)
                while not request.Test():
                    pass
            else:
                comm.Alltoall(send, receive)

    return run


def additions(calls):
    """So many loops of additions."""

    def run():
        for _ in range(calls):
            total = 0
            for number in range(300):
                total += number

    return run


def pipeline(runtime, wait, calls, slices, learned=False):
    """So many calls of a pipeline of so many slices, each with one exchange of 16 bytes."""
    import numpy as np

    send, receive = np.zeros((2, 2 * runtime.comm.size // 2))

    async def program(z):
        await runtime.comm.Alltoall(send, receive)

    run = runtime.pipelined(program, skeleton=None if learned else program, wait=wait)
    keys = range(slices)

    def repeated():
        for _ in range(calls):
            run(keys)

    return repeated


def by_remote_writes(comm):
    """The communicator, for a runtime whose blocking reductions go by remote writes, and not by MPI."""
    import numpy as np
    from mpi4py import MPI

    from overlap.collectives import Collectives

    class RemoteWrites(MPI.Intracomm):
        def Dup(self, info=MPI.INFO_NULL):
            twin = super().Dup(info)
            twin.fast = Collectives(twin)
            return twin

        def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM):
            values = np.frombuffer(recvbuf, getattr(recvbuf, "typecode", None) or recvbuf.dtype)
            self.fast.Allreduce(values, values, numbers[op.handle])

        def Free(self):
            self.fast.free()
            super().Free()

    from overlap.collectives.collectives import operation_number

    numbers = {op.handle: operation_number(op) for op in (MPI.SUM, MPI.MIN, MPI.MAX)}
    return RemoteWrites(comm)


def plan_calls(runtime, stack, wait, calls, plans=1):
    """So many calls, in turn, of plans that have next to nothing to do."""
    import overlap

    size = 4 * runtime.comm.size
    settings = {"wait": wait, "depth": 1, "chunk": 1, "in_flight": 1, "effort": "estimate"}
    forwards = []
    for _ in range(plans):
        plan = stack.enter_context(overlap.FFT2(runtime, (1, size, size), settings=settings))
        field, spectrum = plan.real.empty(), plan.spectrum.empty()
        field[...] = 1
        forwards.append((plan.forward, field, spectrum))

    def run():
        for _ in range(calls // plans):
            for forward, field, spectrum in forwards:
                forward(field, out=spectrum)

    return run


def bracket_calls(runtime, stack, wait, calls):
    """So many calls of a bracket that has next to nothing to do."""
    import overlap

    bracket = stack.enter_context(overlap.Bracket(runtime, (1, 1, 3, 5), settings={"wait": wait}))
    a, f, out = bracket.advecting.empty(), bracket.spectrum.empty(), bracket.spectrum.empty()
    a[...] = f[...] = out[...] = 0
    bracket.advect(a)

    def run():
        for _ in range(calls):
            bracket(f, out=out)

    return run


def halo_calls(comm, stack, calls):
    """So many exchanges of ghost cells."""
    import overlap

    halo = stack.enter_context(overlap.Halo(comm, overlap.Blocks((8 * comm.size, 8), (comm.size, 1), periodic=True)))
    (u,) = halo.empty()

    def run():
        for _ in range(calls):
            halo.exchange(u)

    return run


def product_calls(comm, stack, calls):
    """So many products of a sparse matrix with a vector."""
    import numpy as np

    import overlap
    from overlap.sparse import diffusion

    A = stack.enter_context(diffusion(comm, overlap.Blocks((4 * comm.size, 4, 4), (comm.size, 1, 1)), 1.0))
    x = np.ones(64)

    def run():
        for _ in range(calls):
            A @ x

    return run


def measure(options):
    """The cases: dictionaries of the figures' names and values, medians and ranges."""
    import mpi4py

    mpi4py.rc.thread_level = options.level
    from mpi4py import MPI

    import overlap

    comm = MPI.COMM_WORLD.Dup()
    calls, slices = options.calls, options.slices
    functions, per = {}, {}

    def add(key, function, count):
        functions[key], per[key] = function, count

    with ExitStack() as stack:
        for wait in WAITS:
            runtime = stack.enter_context(overlap.Runtime(comm, wait=wait, depth=16))
            add((wait, "bare_us"), bare(comm, wait, calls), calls)
            add((wait, "call_us"), pipeline(runtime, wait, calls, 1), calls)
            written = stack.enter_context(overlap.Runtime(by_remote_writes(comm), wait=wait, depth=16))
            add((wait, "written_call_us"), pipeline(written, wait, calls, 1), calls)
            add((wait, "learned_call_us"), pipeline(runtime, wait, calls, 1, True), calls)
            few = max(1, calls // SHORT)
            add((wait, "short_us"), pipeline(runtime, wait, few, SHORT), few)
            add((wait, "slice_us"), pipeline(runtime, wait, 1, slices), slices)
            add((wait, "plan_us"), plan_calls(runtime, stack, wait, calls), calls)
            add((wait, "plans_us"), plan_calls(runtime, stack, wait, calls, 4), calls // 4 * 4)
            add((wait, "bracket_us"), bracket_calls(runtime, stack, wait, calls), calls)
            add((wait, "halo_us"), halo_calls(comm, stack, calls), calls)
            add((wait, "product_us"), product_calls(comm, stack, calls), calls)
            add((wait, "python_us"), additions(calls), calls)
        seconds = rotated_rounds(comm, functions, options.rounds)
    comm.Free()
    cases = []
    for wait in WAITS:
        case = {"wait": wait, "ranks": comm_size(MPI), "thread_level": options.level}
        for (way, name), found in seconds.items():
            if way == wait:
                us = [1e6 * s / per[way, name] for s in found]
                case[name] = round(median(us), 2)
                case[f"{name[:-3]}_range_us"] = [round(min(us), 2), round(max(us), 2)]
        cases.append(case)
    if MPI.COMM_WORLD.rank == 0:
        launch.tell({"cases": cases, "library": MPI.Get_library_version().split("\n")[0].strip()})


def comm_size(MPI):
    return MPI.COMM_WORLD.size


# ---- here ----------------------------------------------------------------------------------------

NAMES = {
    "call_us": "call",
    "written_call_us": "call, remote writes",
    "learned_call_us": "call, learned",
    "short_us": f"call of {SHORT}",
    "slice_us": "slice",
    "plan_us": "plan call",
    "plans_us": "of four in turn",
    "bracket_us": "Bracket",
    "halo_us": "halo exchange",
    "product_us": "A @ x",
    "bare_us": "bare MPI call",
    "python_us": "Python loop",
}


def table(cases, rounds):
    """The cases as text."""
    first = cases[0]
    lines = [
        f"microseconds, median of {rounds} rounds (range); {first['ranks']} ranks, 1 worker, "
        f"thread level {first['thread_level']}",
        f"{'wait':6}" + "".join(f" {name:>22}" for name in NAMES.values()),
    ]
    for case in cases:
        cells = ["{:.1f} ({:.1f}-{:.1f})".format(case[key], *case[f"{key[:-3]}_range_us"]) for key in NAMES]
        lines.append(f"{case['wait']:6}" + "".join(f" {cell:>22}" for cell in cells))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--slices", type=int, default=2000)
    parser.add_argument("--level", choices=("serialized", "multiple"), default="serialized", help="MPI's thread level")
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--quick", action="store_true", help="only to see it work")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.calls, options.slices = 2, 16, 20
    if launch.under_mpi():
        measure(options)
        return 0
    found = []
    status = launch.run_ranks(
        [sys.executable, os.path.abspath(__file__), *sys.argv[1:]],
        ranks=options.ranks,
        on_line=launch.listening(found.append),
    )
    if status or not found:
        return status or 1
    record = found[0]
    print(table(record["cases"], options.rounds))
    if options.json:
        options.json.write_text(json.dumps(record | {"rounds": options.rounds}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
