"""Predicted against measured: 24 cases on shaped links, two ranks with one core each.

    python bench/validate_simulation.py [--out bench/results] [--rounds 5]

Two rates, two message sizes, three ways to wait, two depths. For each rate the machine is
measured first (`overlap info --measure`); each case's own C is measured with it, in the same
interleaved rounds as the case. Nothing is fitted to what is predicted.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import median

from overlap import files
from overlap.tools import launch, links
from overlap.tools.bench.table import markdown

RATES = "2gbit", "4gbit"
JOBS = ((512, 64, 1), (256, 128, 2))  # plane, slices, slices per message
DEPTHS = 3, 16
WAITS = "off", "block", "poll"
TARGET = 0.10


def measure(rounds):
    """As one of the ranks: time all cases of one link, interleaved."""
    from time import perf_counter

    import numpy as np
    from mpi4py import MPI

    import overlap

    comm = MPI.COMM_WORLD
    with overlap.Runtime(comm) as runtime:
        for side, slices, chunk in JOBS:
            runs = {}
            for depth in DEPTHS:
                for wait in WAITS:
                    plan = overlap.FFT2(
                        runtime,
                        (slices, side, side),
                        "c16",
                        settings={"wait": wait, "depth": depth, "chunk": chunk, "in_flight": depth},
                    )
                    runs[depth, wait] = plan.forward
            field, out = plan.real.empty(), plan.spectrum.empty()
            field[...] = 1.0
            runs["C"] = runs[DEPTHS[0], "off"].compute
            runs["T"] = runs[DEPTHS[0], "off"].communicate
            reference = runs[DEPTHS[0], "off"](field)
            seconds = {name: [] for name in runs}
            for number in range(rounds + 1):
                names = list(runs)
                for name in names[number % len(names) :] + names[: number % len(names)]:
                    comm.Barrier()
                    started = perf_counter()
                    runs[name](field, out=out)
                    seconds[name].append(comm.allreduce(perf_counter() - started, MPI.MAX))
                    if number == 0 and name not in ("C", "T"):
                        assert np.array_equal(out, reference), name
            if comm.rank == 0:
                launch.tell(
                    [
                        [side, slices, chunk],
                        [
                            [name, median(values[1:]), min(values[1:]), max(values[1:])]
                            for name, values in seconds.items()
                        ],
                    ]
                )


def launch_cases(link, rounds):
    """Run `measure` on two ranks of a link; its times by job."""
    found = {}

    def on_event(event):
        job, rows = event
        found[tuple(job)] = {tuple(name) if isinstance(name, list) else name: values for name, *values in rows}

    status = launch.run_ranks(
        [sys.executable, __file__, "--rank", "--rounds", str(rounds)],
        ranks=2,
        link=link,
        deadline_s=170,
        on_line=launch.listening(on_event),
    )
    if status:
        raise SystemExit(f"the ranks ended with status {status}")
    return found


def predicted(machine, job, depth, wait, compute_s):
    """Seconds that the simulation gives a case."""
    from overlap.timing.simulate import Options, Workload, simulate

    side, slices, chunk = job
    program = Workload(slices=slices, shape=(side, side)).program(2, machine, chunk=chunk, compute_s=compute_s)
    return simulate(program, machine, Options(wait=wait, depth=depth)).wall_s


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default="bench/results")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rates", nargs="*", default=RATES)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        measure(options.rounds)
        return
    from overlap.timing.simulate import Machine

    rows, good, total = [], 0, 0
    for link in options.rates:
        file = Path(__file__).parent / "machines" / f"links-{link}.toml"
        file.parent.mkdir(exist_ok=True)
        subprocess.run([sys.executable, "-m", "overlap", "info", "--measure", str(file), "--link", link], check=True)
        machine = Machine.read(file)
        for job, seconds in launch_cases(link, options.rounds).items():
            compute_s, talking_s = seconds["C"][0], seconds["T"][0]
            for depth in DEPTHS:
                for wait in WAITS:
                    measured, least, most = seconds[depth, wait]
                    guess = predicted(machine, job, depth, wait, compute_s)
                    error = guess / measured - 1
                    good += abs(error) <= TARGET
                    total += 1
                    rows.append(
                        (
                            link,
                            f"{job[1]} x {job[0]}² / {job[2]}",
                            wait,
                            depth,
                            f"{1e3 * compute_s:.1f}",
                            f"{1e3 * talking_s:.1f}",
                            f"{1e3 * guess:.1f}",
                            f"{1e3 * measured:.1f} ({1e3 * least:.1f} to {1e3 * most:.1f})",
                            f"{100 * error:+.1f} %",
                        )
                    )
                    print(*rows[-1])
    print(f"{good} of {total} within {100 * TARGET:.0f} %")
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    text = HEAD.format(rounds=options.rounds, kib=links.BURST // 1024, good=good, total=total) + markdown(
        ("link", "slices / per message", "wait", "depth", "C", "T", "predicted", "measured", "error"), rows
    )
    files.write(out / "simulation_validation.md", text + "\n")


HEAD = """# Simulated against measured

`python bench/validate_simulation.py` on a virtual machine with two AMD EPYC cores: forward
complex FFTs, two ranks, one core and one worker each, shaped links ({kib} KiB token buckets),
MPICH. Median (least to most) of {rounds} interleaved rounds, ms. The machine files
(`bench/machines/`) were measured just before; C is the case's own; T is shown only, the
simulation has it from the machine file. Off runs slot by slot whatever the depth.

{good} of {total} within 10 %.

"""


if __name__ == "__main__":
    main()
