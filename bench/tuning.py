"""How good the chosen settings are: `auto` and `tune` against an exhaustive scan, 12 cases.

    python bench/tuning.py [CASE ...]       measure what is not measured yet, or the cases named
    python bench/tuning.py --table          only write the table again

Each case is one job of two ranks. The plan chooses its settings (auto), then tunes itself, then
every combination of mode, slices per message, depth and exchanges in flight runs once, and those within
`CLOSE` of the best again. At last the best of the scan, auto and tuned run in turns, and their
medians of the slowest rank's times are compared. Results: bench/results/tuning.json and .md.
"""

import json
import os
import statistics
import sys
from dataclasses import asdict
from pathlib import Path

from overlap import files
from overlap.tools import launch
from overlap.tools.bench.cases import Case
from overlap.tools.bench.jobs import JOBS
from overlap.tools.bench.report import commit, machine
from overlap.tools.bench.table import markdown

RESULTS = Path(__file__).parent / "results" / "tuning"
RANKS = 2
BUDGET_S = 15.0
DEPTHS = (1, 2, 4, 8, 16, 32)
LARGEST_MESSAGE = 2**22  # bytes
CLOSE = 1.2  # times the scan's best: worth more runs
FINALISTS = 5
FINAL_ROUNDS = 21
TUNED_LIMIT, AUTO_LIMIT = 1.03, 1.10
CASES = {
    f"{link} {workload} {slices} x {n} {dtype}": (
        link,
        Case(workload=workload, slices=slices, shape=(n, n), dtype=dtype, link=link),
    )
    for link, workload, slices, n, dtype in (
        ("shm", "fft2", 1024, 64, "c8"),
        ("shm", "operation", 32, 256, "f8"),
        ("shm", "fft2", 16, 512, "c16"),
        ("shm", "fft2", 8, 1024, "f4"),
        ("2gbit", "fft2", 1024, 64, "f8"),
        ("2gbit", "fft2", 256, 128, "c8"),
        ("2gbit", "fft2", 16, 512, "c16"),
        ("2gbit", "fft2", 8, 1024, "f8"),
        ("4gbit", "operation", 128, 128, "f4"),
        ("4gbit", "fft2", 64, 256, "c16"),
        ("4gbit", "operation", 16, 512, "f8"),
        ("4gbit", "fft2", 8, 1024, "c8"),
    )
}


# --- one rank -------------------------------------------------------------------------------------


def measure(name):
    """Measure a case; collective. The record, on rank 0."""
    from mpi4py import MPI

    from overlap import FFT2

    comm = MPI.COMM_WORLD
    _, case = CASES[name]
    with FFT2(comm, case.global_shape, case.dtype, tuning="") as plan:
        job = JOBS[case.workload](case, plan)
        transform = job.transform(plan)
        out = plan.spectrum.empty()
        auto = transform.settings
        transform.tune(BUDGET_S)
        tuned = transform.settings

        def rounds(entrants, count):
            return run_rounds(comm, transform, entrants, job.inputs, out, count)

        scan = dict.fromkeys(grid(case, comm.allreduce(transform.nbytes_per_slice(), MPI.MAX)))
        rounds([auto], 2)
        first = rounds(list(scan), 1)
        best = min(min(values) for values in first.values())
        close = [settings for settings, values in first.items() if values[0] <= CLOSE * best]
        again = rounds(close, 3)
        finalists = sorted(close, key=lambda settings: statistics.median(again[settings]))
        finalists = finalists[:FINALISTS]
        final = rounds(list(dict.fromkeys((*finalists, auto, tuned))), FINAL_ROUNDS)
        median = {settings: statistics.median(values) for settings, values in final.items()}
        winner = min(finalists, key=median.get)
        return {
            "case": name,
            "scanned": len(scan),
            "best": str(winner),
            "best_s": median[winner],
            "auto": str(auto),
            "auto_s": median[auto],
            "auto_ratio": median[auto] / median[winner],
            "tuned": str(tuned),
            "tuned_s": median[tuned],
            "tuned_ratio": median[tuned] / median[winner],
            "gain": transform.tuned.gain,
            "tried": transform.tuned.tried,
            "case_fields": asdict(case),
            "ranks": comm.size,
            "budget_s": BUDGET_S,
            "mpi": MPI.Get_library_version().split("\n")[0].strip("\0"),
        }


def grid(case, slice_nbytes):
    """Every combination worth the name."""
    from overlap.fft import Settings

    chunk = 1
    while chunk <= case.slices and (chunk == 1 or chunk * slice_nbytes <= LARGEST_MESSAGE):
        yield Settings("off", 1, chunk, 1)
        for depth in DEPTHS:
            if depth == 1 or depth < 2 * case.slices // chunk:
                yield Settings("block", depth, chunk, depth)
                for in_flight in {depth, max(1, depth // 4)}:
                    yield Settings("poll", depth, chunk, in_flight)
        chunk *= 2


def run_rounds(comm, transform, entrants, inputs, out, count):
    """Seconds of the slowest rank by settings, `count` each, in turns."""
    from time import perf_counter

    from mpi4py import MPI

    seconds = {settings: [] for settings in entrants}
    kernels = [transform.kernels_of(settings) for settings in entrants]  # made once
    for number in range(count):
        first = number % len(entrants)
        for settings in entrants[first:] + entrants[:first]:
            transform.configure(settings)
            comm.Barrier()
            started = perf_counter()
            transform(*inputs, out=out)
            seconds[settings].append(comm.allreduce(perf_counter() - started, MPI.MAX))
    del kernels
    return seconds


# --- the driver -----------------------------------------------------------------------------------


def run_case(name):
    """Run a case on ranks of its own; its record."""
    link, _ = CASES[name]
    found = {}
    status = launch.run_ranks(
        [sys.executable, os.path.abspath(__file__), "--rank", name],
        ranks=RANKS,
        link=None if link == "shm" else link,
        deadline_s=240,
        on_line=launch.listening(found.update),
    )
    if status or not found:
        raise SystemExit(f"{name}: the ranks ended with status {status}")
    return found | {"machine": machine(), "commit": commit()}


def load():
    """Records by case."""
    path = RESULTS.with_suffix(".json")
    return json.loads(path.read_text()) if path.exists() else {}


def table(records):
    """All records as Markdown."""
    any_record = next(iter(records.values()))
    lines = [
        "# Tuned and automatic settings against an exhaustive scan",
        "",
        f"`python bench/tuning.py`: {any_record['machine']['cpu']}, "
        f"{any_record['machine']['cores']} cores, {RANKS} ranks, 1 worker each, "
        f"{any_record['mpi']}; budget {BUDGET_S:.0f} s. "
        f"Median ms of {FINAL_ROUNDS} interleaved rounds. Goal: tuned at most "
        f"{TUNED_LIMIT}x the best of the scan, auto at most {AUTO_LIMIT:.2f}x; what misses it is bold.",
        "",
    ]
    rows = []
    for name in CASES:
        if name in records:
            record = records[name]
            cells = [name, record["scanned"]]
            cells += [f"{1e3 * record[key + '_s']:.1f}" for key in ("best", "auto", "tuned")]
            for key, limit in (("auto", AUTO_LIMIT), ("tuned", TUNED_LIMIT)):
                text = f"{record[key + '_ratio']:.3f}"
                cells.append(f"**{text}**" if record[key + "_ratio"] > limit else text)
            cells.append("; ".join(record[key] for key in ("best", "auto", "tuned")))
            rows.append(cells)
    met = [
        sum(record[key + "_ratio"] <= limit for record in records.values())
        for key, limit in (("tuned", TUNED_LIMIT), ("auto", AUTO_LIMIT))
    ]
    lines += [
        markdown(
            ("case", "scanned", "best", "auto", "tuned", "auto / best", "tuned / best", "settings: best; auto; tuned"),
            rows,
        ),
        "",
        f"Met: tuned in {met[0]}, auto in {met[1]} of {len(records)} cases.",
        "",
    ]
    return "\n".join(lines)


def main(names):
    records = load()
    for name in names or [name for name in CASES if name not in records]:
        records[name] = run_case(name)
        RESULTS.parent.mkdir(exist_ok=True)
        files.write(RESULTS.with_suffix(".json"), json.dumps(records, indent=1) + "\n")
        print(name, f"auto {records[name]['auto_ratio']:.3f}", f"tuned {records[name]['tuned_ratio']:.3f}", flush=True)
    files.write(RESULTS.with_suffix(".md"), table(records))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        from mpi4py import MPI

        record = measure(sys.argv[2])
        if MPI.COMM_WORLD.rank == 0:
            launch.tell(record)
    elif sys.argv[1:] == ["--table"]:
        files.write(RESULTS.with_suffix(".md"), table(load()))
    else:
        main(sys.argv[1:])
