"""Forward transforms whose exchanges are in double and in single precision, in turns, on links.

    python bench/exchange.py [--links 2gbit shm] [--rounds N] [--json FILE]

Starts its own ranks, each pinned to a core. In every round, in an order that is rotated: of each plan the call as it
settles by itself (`auto`), without overlap (`off`), its computing and its exchanges alone (C and T). Medians over the
rounds of the slowest rank, and the largest error against NumPy. ``ratios`` are those of a plan that exchanges doubles
over those of one with ``exchange="f4"``: the medians over the rounds of the ratio within a round.
"""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

from recording import Recording

from overlap.tools import launch
from overlap.tools.bench.cases import Case

EXCHANGES = None, "f4"
CASES = (
    {"workload": "fft2", "slices": 64, "shape": (512, 512)},
    {"workload": "fft3", "slices": 1, "shape": (256, 256, 256)},
)


# ---- on the ranks --------------------------------------------------------------------------------


def timed(comm, call):
    """Seconds of a call, the slowest rank's."""
    comm.Barrier()
    started_s = perf_counter()
    call()
    return comm.allreduce(perf_counter() - started_s, max)


def measure(comm, cases, rounds):
    """The record of a case with every kind of exchange."""
    import overlap
    from overlap.tools.bench.jobs import JOBS, max_rel_error

    kind, columns, errors, chosen = JOBS[cases[0].workload], {}, {}, {}
    with ExitStack() as stack:
        runtime = stack.enter_context(overlap.Runtime(comm))
        for case in cases:
            plans = [stack.enter_context(kind.plan(runtime, case, wait=wait)) for wait in ("auto", "off")]
            job = kind(case, plans[0])
            auto, off = (job.transform(plan) for plan in plans)
            out = plans[0].spectrum.empty()
            auto.settle(*job.inputs, out=out)
            errors[case.exchange] = max_rel_error(comm, job, case, plans[0], out)
            chosen[case.exchange] = str(auto.settings)
            for name, run in (("t", auto), ("off", off), ("C", auto.compute), ("T", auto.communicate)):
                columns[name, case.exchange] = lambda run=run, given=job.inputs, out=out: run(*given, out=out)
        seconds, names = {name: [] for name in columns}, list(columns)
        for number in range(rounds + 1):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                value = timed(comm, columns[name])
                if number:
                    seconds[name].append(value)
    ratios = {
        name: [one / other for one, other in zip(seconds[name, None], seconds[name, "f4"])]
        for name in ("t", "off", "C", "T")
    }
    return {
        "case": f"{cases[0].workload} {cases[0].global_shape} {cases[0].dtype}",
        "ranks": comm.size,
        "medians_s": {f"{name}, {exchange}": median(values) for (name, exchange), values in seconds.items()},
        "ratios": {name: [median(values), min(values), max(values)] for name, values in ratios.items()},
        "max_rel_error": {str(exchange): error for exchange, error in errors.items()},
        "settings": {str(exchange): settings for exchange, settings in chosen.items()},
    }


def on_ranks(options):
    """Measure all cases of a link."""
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    for sizes in CASES:
        record = measure(MPI.COMM_WORLD, [Case(**sizes, exchange=exchange) for exchange in EXCHANGES], options.rounds)
        if MPI.COMM_WORLD.rank == 0:
            launch.tell(record | {"link": options.on})


# ---- here ----------------------------------------------------------------------------------------


def line(record):
    """A record as lines of text."""
    times = "; ".join(f"{name} {1e3 * value:.0f} ms" for name, value in record["medians_s"].items())
    ratios = ", ".join(
        f"{name} {middle:.2f} ({least:.2f}-{most:.2f})" for name, (middle, least, most) in record["ratios"].items()
    )
    errors = ", ".join(f"{name} {error:.1e}" for name, error in record["max_rel_error"].items())
    return "\n  ".join(
        (
            f"{record['case']}, {record['link']}: {times}",
            f"doubles over singles: {ratios}; errors {errors}",
            str(record["settings"]),
        )
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--links", nargs="+", default=["2gbit", "shm"], help="shm, or rates")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--on", default="shm", help=argparse.SUPPRESS)  # the link that the ranks are on
    options = parser.parse_args()
    if launch.under_mpi():
        on_ranks(options)
        return 0
    recording = Recording(line)
    for link in options.links:
        if status := recording.run("--on", link, ranks=options.ranks, link=None if link == "shm" else link):
            return status
    recording.write(options.json, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
