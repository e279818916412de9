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

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import overlap
from overlap import files
from overlap.tools.bench import jobs, report
from overlap.tools.bench.jobs import Case
from overlap.tools.bench.pages import Page
from overlap.tools.bench.rank import environment
from overlap.tools.bench.rounds import timed, turns
from overlap.tools.bench.table import markdown

RESULTS = Path(__file__).parent / "results" / "tuning"
JOBS = {  # workload, direction, slices, shape, type
    "operation": ("operation", "forward", 16, (512, 512), "f8"),
    "fft2 forward": ("fft2", "forward", 16, (512, 512), "c16"),
    "fft2 backward": ("fft2", "backward", 16, (512, 512), "c16"),
    "fft3 forward": ("fft3", "forward", 1, (128, 128, 128), "c16"),
    "fft3 backward": ("fft3", "backward", 1, (128, 128, 128), "c16"),
}
AGAIN, FINALISTS, FINAL_ROUNDS = 8, 4, 15
ROUNDS = 31
LIMIT = 1.03  # times the best, and times `off`


def measure(comm, given):
    """The record of a run."""
    os.environ["OVERLAP_CACHE"] = ""
    workload, direction, slices, shape, dtype = JOBS[given.part]
    if given.quick:
        slices, shape = min(slices, 4), tuple(n // 8 for n in shape)
    case = Case(workload=workload, slices=slices, shape=shape, dtype=dtype, link=given.on)
    job_class = jobs.JOBS[workload]
    with job_class.plan(comm, case, wait="auto") as plan:
        job = job_class(case, plan)
        transform, inputs = job.transform(plan), job.inputs
        if direction == "backward":
            inputs, transform = (transform(*inputs),), plan.backward
        out = transform(*inputs)
        transform.settle(*inputs, out=out)
        auto = transform.settings
        candidates = transform.candidates(transform, overlap.Settings())
        scan = list(dict.fromkeys(replace(one, effort=auto.effort) for one in candidates.grid()))

        def once(settings):
            transform.configure(settings)
            transform(*inputs, out=out)  # touches new memory
            return timed(comm, partial(transform, *inputs, out=out))

        def rounds(entrants, count):
            return turns({settings: partial(once, settings) for settings in entrants}, count, warm=0)

        def fastest(found):
            return sorted(found, key=lambda settings: min(found[settings]))

        first = fastest(rounds(scan[::10] if given.quick else scan, 1))
        again = fastest(rounds(first[:AGAIN], 2))
        off = next(one for one in first if one.wait == "off")
        final = rounds([*again[:FINALISTS], auto], FINAL_ROUNDS)
        best = min(final, key=lambda settings: median(final[settings]))
        times = rounds([best, auto, off], ROUNDS)
    named = {"best": best, "auto": auto, "off": off}
    yield {
        "job": given.part,
        "scanned": len(first),
        "mpi": environment(comm)["library"],
        **{key: {"settings": str(one), "s": median(times[one])} for key, one in named.items()},
    }


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


def here(given):
    """The records of all runs; they are kept as they come, or read again for ``--table``."""
    path = RESULTS.with_suffix(".json")
    if given.table:
        yield from json.loads(path.read_text())["runs"]
        return
    about = report.new_report(())
    results = {"machine": about["machine"], "commit": about["commit"], "date": about["date"][:10], "runs": []}
    for number in range(given.runs):
        for link in given.links:
            for name in given.jobs:
                with busy(number % 2):
                    (record,) = PAGE.ask("--part", name, ranks=2, link=link)
                results["runs"].append(record | {"run": number, "busy": bool(number % 2)})
                yield results["runs"][-1]
        if not given.quick:
            files.write(path, json.dumps(results, indent=1) + "\n")


def ratio(record, to):
    """How many times longer the chosen settings take."""
    return record["auto"]["s"] / record[to]["s"]


def text(records, given):
    """The page."""
    path = RESULTS.with_suffix(".json")
    about = report.new_report(()) if given.quick else json.loads(path.read_text())
    rows = []
    for link, name in dict.fromkeys((record["link"], record["job"]) for record in records):
        for beside in (False, True):
            these = [r for r in records if (r["link"], r["job"], r["busy"]) == (link, name, beside)]
            if these:
                over_best, over_off = ([ratio(record, to) for record in these] for to in ("best", "off"))
                rows.append(
                    (
                        *(f"{link} {name}", "yes" if beside else "no"),
                        f"{1e3 * median(record['auto']['s'] for record in these):.1f}",
                        f"{sum(one <= LIMIT for one in over_best)} of {len(these)}",
                        *(f"{median(over):.3f} ({max(over):.3f})" for over in (over_best, over_off)),
                    )
                )
    close = sum(ratio(record, "best") <= LIMIT for record in records)
    slower = sum(ratio(record, "off") > LIMIT for record in records)
    head = f"job | busy process beside | auto, ms | within {LIMIT - 1:.0%} | auto / best | auto / off"
    return "\n\n".join(
        [
            "# Settings that plans choose in their first calls against fixed ones",
            f"`python bench/tuning.py`, {about['machine']['cpu']}, {about['machine']['cores']} cores, 2 ranks, 1 "
            f"worker each, {records[0]['mpi']}, commit {str(about['commit'])[:7]}, {about['date'][:10]}. Every run "
            "begins with an empty cache. Times over the best, and over the fastest without overlap: median of the runs "
            "(largest).",
            markdown(head, rows),
            f"Within {LIMIT - 1:.0%} of the best: {close} of {len(records)} runs. "
            f"Slower than without overlap by more than {LIMIT - 1:.0%}: {slower}.",
        ]
    )


PAGE = Page(
    __doc__,
    measure,
    text=text,
    here=here,
    ranks=None,
    links=("shm", "2gbit", "4gbit"),
    quick={},
    out=str(RESULTS.with_suffix(".md")),
)
PAGE.add("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS), metavar="NAME")
PAGE.add("--runs", type=int, default=10)
PAGE.add("--table", action="store_true", help="only write the table again")

if __name__ == "__main__":
    sys.exit(PAGE.run())
