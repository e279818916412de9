"""What the runtime itself costs, on one rank: slices, awaits and plan calls without any work.

    python bench/overhead.py [--slices 1000] [--rounds 9] [--quick]

For each way to wait, with and without a trace: the time per slice that awaits nothing; per await
(slices of two awaits less slices of one; beside it the bare MPI call); per call of a plan (`FFT2`
of a single 4 x 4 slice). Everything is timed in every round, in an order rotated from round to
round: medians over the rounds (range), in microseconds.
"""

import argparse
from contextlib import ExitStack
from statistics import median
from time import perf_counter

import numpy as np
from mpi4py import MPI

import overlap

WAITS = ("off", "block", "poll")


def rotated_rounds(functions, rounds):
    """Seconds of each function in each round, {name: list}; a first round does not count."""
    seconds = {name: [] for name in functions}
    names = list(functions)
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            started_s = perf_counter()
            functions[name]()
            if number:
                seconds[name].append(perf_counter() - started_s)
    return seconds


def bare(comm, wait, slices):
    """The MPI calls of `slices` awaits, and nothing else."""
    send, receive = np.zeros(1), np.zeros(1)

    def run():
        for _ in range(slices):
            if wait == "poll":
                comm.Ialltoall(send, receive).Wait()
            else:
                comm.Alltoall(send, receive)
    return run


def pipeline(runtime, awaits, slices):
    """So many slices of so many awaits."""
    send, receive = np.zeros(1), np.zeros(1)

    async def program(z):
        for _ in range(awaits):
            await runtime.comm.Alltoall(send, receive)

    async def skeleton(z):
        await program(z)

    run = runtime.pipelined(program, skeleton=skeleton)
    return lambda: run(range(slices))


def plan_calls(runtime, stack, wait, calls):
    """So many calls of a plan that has next to nothing to do."""
    plan = stack.enter_context(overlap.FFT2(runtime, (1, 4, 4),
                                            settings={"wait": wait, "depth": 1, "chunk": 1,
                                                      "in_flight": 1, "effort": "estimate"}))
    field, spectrum = plan.real.empty(), plan.spectrum.empty()
    field[...] = 1

    def run():
        for _ in range(calls):
            plan.forward(field, out=spectrum)
    return run


def measure(slices, rounds):
    """Microseconds by (wait, traced) and what was timed, a list with one value per round."""
    functions, traces = {}, []
    with ExitStack() as stack:
        for wait in WAITS:
            functions[wait, "bare"] = bare(MPI.COMM_SELF, wait, slices)
            for traced in (False, True):
                runtime = stack.enter_context(overlap.Runtime(
                    MPI.COMM_SELF, wait=wait, depth=16, trace=traced or None))
                timed = {awaits: pipeline(runtime, awaits, slices) for awaits in range(3)}
                timed["call"] = plan_calls(runtime, stack, wait, max(1, slices // 10))
                for name, run in timed.items():
                    functions[wait, traced, name] = run
                if traced:
                    traces.append(runtime.trace)
                    for name in timed:
                        functions[wait, traced, name] = _then_clear(timed[name], runtime.trace)
        seconds = rotated_rounds(functions, rounds)
    calls = max(1, slices // 10)
    found = {}
    for wait in WAITS:
        found[wait, "bare"] = [1e6 * s / slices for s in seconds[wait, "bare"]]
        for traced in (False, True):
            here = {name: seconds[wait, traced, name] for name in (0, 1, 2, "call")}
            found[wait, traced, "slice"] = [1e6 * s / slices for s in here[0]]
            found[wait, traced, "await"] = [1e6 * (two - one) / slices
                                            for one, two in zip(here[1], here[2])]
            found[wait, traced, "call"] = [1e6 * s / calls for s in here["call"]]
    return found


def _then_clear(run, trace):
    def traced():
        run()
        trace.clear()
    return traced


def _text(values):
    return f"{median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slices", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="only to see it work")
    options = parser.parse_args()
    if options.quick:
        options.slices, options.rounds = 20, 2
    found = measure(options.slices, options.rounds)
    print(f"microseconds, median of {options.rounds} rounds (range); 1 rank, 1 worker")
    heads = ("slice", "await", "plan call")
    print(f"{'wait':6} {'trace':5} " + " ".join(f"{head:>22}" for head in heads)
          + f" {'bare MPI call':>18}")
    for wait in WAITS:
        for traced in (False, True):
            cells = [_text(found[wait, traced, name]) for name in ("slice", "await", "call")]
            print(f"{wait:6} {'on' if traced else 'off':5} "
                  + " ".join(f"{cell:>22}" for cell in cells)
                  + (f" {_text(found[wait, 'bare']):>18}" if not traced else ""))


if __name__ == "__main__":
    main()
