"""How good the settings are that plans choose in their first calls: run after run, each from nothing.

    python bench/tuning.py [--links shm 2gbit 4gbit] [--jobs NAME ...] [--runs 10] [--quick]
    python bench/tuning.py --table          only write the table again

Jobs are a spectral operation, and forward and backward transforms of planes and of a field. A run is one job of two
ranks, each pinned to a core, with an empty cache. Every second run has a process beside it that never sleeps. The plan
chooses its settings in its first calls (`auto`). Then every combination of way to wait, slices per message and depth
that tuning knows runs once, the best of them again, and the best few with `auto` in turns: the smallest median of the
slowest rank's times is `best`. What is compared are other rounds, in which `best`, `auto` and the fastest without
overlap (`off`) take turns: the smallest of several medians that chance has a part in would be too small. Results:
bench/results/tuning.json and .md.
"""

import argparse
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

from overlap import files
from overlap.tools import launch

RESULTS = Path(__file__).parent / "results" / "tuning"
RANKS = 2
JOBS = {  # workload, direction, slices, shape, type
    "operation": ("operation", "forward", 16, (512, 512), "f8"),
    "fft2 forward": ("fft2", "forward", 16, (512, 512), "c16"),
    "fft2 backward": ("fft2", "backward", 16, (512, 512), "c16"),
    "fft3 forward": ("fft3", "forward", 1, (128, 128, 128), "c16"),
    "fft3 backward": ("fft3", "backward", 1, (128, 128, 128), "c16"),
}
LINKS = ("shm", "2gbit", "4gbit")
AGAIN, FINALISTS, FINAL_ROUNDS = 8, 4, 15
ROUNDS = 31
LIMIT = 1.03  # times the best, and times `off`


# ---- on the ranks --------------------------------------------------------------------------------


def measure(name, link, quick):
    """Measure a run; collective. The record."""
    os.environ["OVERLAP_CACHE"] = ""
    from mpi4py import MPI

    import overlap
    from overlap.tools.bench import jobs
    from overlap.tools.bench.cases import Case

    comm = MPI.COMM_WORLD
    workload, direction, slices, shape, dtype = JOBS[name]
    if quick:
        slices, shape = min(slices, 4), tuple(n // 8 for n in shape)
    case = Case(workload=workload, slices=slices, shape=shape, dtype=dtype, link=link)
    job_class = jobs.JOBS[workload]
    with job_class.plan(comm, case, wait="auto") as plan:
        job = job_class(case, plan)
        transform, inputs = job.transform(plan), job.inputs
        if direction == "backward":
            inputs = (transform(*inputs),)
            transform = plan.backward
        out = transform(*inputs)
        transform.settle(*inputs, out=out)
        auto = transform.settings
        candidates = transform.candidates(transform, overlap.Settings())
        scan = list(dict.fromkeys(replace(one, effort=auto.effort) for one in candidates.grid()))
        if quick:
            scan = scan[::10]

        def rounds(entrants, count):
            return times_s(comm, transform, list(dict.fromkeys(entrants)), inputs, out, count)

        def fastest(found):
            return sorted(found, key=lambda settings: min(found[settings]))

        first = fastest(rounds(scan, 1))
        again = fastest(rounds(first[:AGAIN], 2))
        off = next(one for one in first if one.wait == "off")
        final = rounds([*again[:FINALISTS], auto], FINAL_ROUNDS)
        best = min(final, key=lambda settings: median(final[settings]))
        medians = {one: median(times) for one, times in rounds([best, auto, off], ROUNDS).items()}
        return {
            "job": name,
            "link": link,
            "scanned": len(scan),
            **{
                key: {"settings": str(one), "s": medians[one]}
                for key, one in (("best", best), ("auto", auto), ("off", off))
            },
            "mpi": " ".join(MPI.Get_library_version().split("\n")[0].strip("\0").split()),
        }


def times_s(comm, transform, entrants, inputs, out, count):
    """Seconds of the slowest rank by settings, `count` each, in turns."""
    from mpi4py import MPI

    seconds = {settings: [] for settings in entrants}
    kernels = [transform.kernels_of(settings) for settings in entrants]  # made once
    for number in range(count):
        first = number % len(entrants)
        for settings in entrants[first:] + entrants[:first]:
            transform.configure(settings)
            transform(*inputs, out=out)  # touches new memory
            comm.Barrier()
            started = perf_counter()
            transform(*inputs, out=out)
            seconds[settings].append(comm.allreduce(perf_counter() - started, MPI.MAX))
    del kernels
    return seconds


# ---- the driver ----------------------------------------------------------------------------------


@contextmanager
def busy(wanted):
    """Meanwhile, a process that never sleeps, if `wanted`."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def run(name, link, number, quick):
    """Run a job on ranks of its own; its record."""
    found = {}
    with busy(number % 2):
        status = launch.run_ranks(
            [sys.executable, os.path.abspath(__file__), "--rank", name, link, *["--quick"] * quick],
            ranks=RANKS,
            link=None if link == "shm" else link,
            deadline_s=240,
            on_line=launch.listening(found.update),
        )
    if status or not found:
        raise SystemExit(f"{name}, {link}: the ranks ended with status {status}")
    return found | {"run": number, "busy": bool(number % 2)}


def ratio(record, to):
    """How many times longer the chosen settings take."""
    return record["auto"]["s"] / record[to]["s"]


def line(record):
    """A record as text."""
    return (
        f"{record['link']:6} {record['job']:14} {'busy' if record['busy'] else 'alone':6}"
        f" auto {1e3 * record['auto']['s']:7.2f} ms, over best {ratio(record, 'best'):.3f}, "
        f"over off {ratio(record, 'off'):.3f}; auto: {record['auto']['settings']}; best: {record['best']['settings']}"
    )


def table(results):
    """All records as Markdown."""
    from overlap.tools.bench.table import markdown

    records = results["runs"]
    about = results["machine"]
    rows = []
    for link, name in dict.fromkeys((record["link"], record["job"]) for record in records):
        for beside in (False, True):
            these = [r for r in records if (r["link"], r["job"], r["busy"]) == (link, name, beside)]
            if these:
                over_best, over_off = ([ratio(record, to) for record in these] for to in ("best", "off"))
                rows.append(
                    (
                        f"{link} {name}",
                        "yes" if beside else "no",
                        f"{1e3 * median(record['auto']['s'] for record in these):.1f}",
                        f"{sum(one <= LIMIT for one in over_best)} of {len(these)}",
                        f"{median(over_best):.3f} ({max(over_best):.3f})",
                        f"{median(over_off):.3f} ({max(over_off):.3f})",
                    )
                )
    close = sum(ratio(record, "best") <= LIMIT for record in records)
    slower = sum(ratio(record, "off") > LIMIT for record in records)
    return "\n".join(
        [
            "# Settings that plans choose in their first calls against fixed ones",
            "",
            f"`python bench/tuning.py`, {about['cpu']}, {about['cores']} cores, {RANKS} ranks, 1 worker each, "
            f"{records[0]['mpi']}, commit {results['commit'][:7]}, {results['date']}. Every run begins with an empty "
            f"cache. Times over the best, and over the fastest without overlap: median of the runs (largest).",
            "",
            markdown(
                ("job", "busy process beside", "auto, ms", f"within {LIMIT - 1:.0%}", "auto / best", "auto / off"), rows
            ),
            "",
            f"Within {LIMIT - 1:.0%} of the best: {close} of {len(records)} runs. "
            f"Slower than without overlap by more than {LIMIT - 1:.0%}: {slower}.",
            "",
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--links", nargs="+", default=LINKS)
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS), metavar="NAME")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--quick", action="store_true", help="only to see it work: small, and kept nowhere")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        from mpi4py import MPI

        record = measure(*options.rank, options.quick)
        if MPI.COMM_WORLD.rank == 0:
            launch.tell(record)
        return
    from overlap.tools.bench.report import commit, machine

    path = RESULTS.with_suffix(".json")
    if not options.table:
        from datetime import date

        results = {"machine": machine(), "commit": commit(), "date": str(date.today()), "runs": []}
        for number in range(options.runs):
            for link in options.links:
                for name in options.jobs:
                    results["runs"].append(run(name, link, number, options.quick))
                    print(line(results["runs"][-1]), flush=True)
            if not options.quick:
                files.write(path, json.dumps(results, indent=1) + "\n")
        if options.quick:
            return
    files.write(RESULTS.with_suffix(".md"), table(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
