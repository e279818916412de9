"""Predicted against measured: 24 cases on shaped links, two ranks with one core each.

    python bench/validate_simulation.py [--out FILE.md] [--rounds 5] [--rates 2gbit 4gbit]

Two rates, two message sizes, three ways to wait, two depths. For each rate the machine is
measured first (`overlap info --measure`); each case's own C is measured with it, in the same
interleaved rounds as the case. Nothing is fitted to what is predicted.
"""

import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import overlap
from overlap.timing.simulate import Machine, Options, Workload, simulate
from overlap.tools import links
from overlap.tools.bench.pages import Page
from overlap.tools.bench.rounds import alike, seconds_of
from overlap.tools.bench.table import markdown

HERE = Path(__file__).resolve().parent
JOBS = ((512, 64, 1), (256, 128, 2))  # plane, slices, slices per message
WAYS = [f"{wait} {depth}" for depth, wait in product((3, 16), ("off", "block", "poll"))]
TARGET = 0.10


def measure(comm, given):
    """The times of all cases of one link, job by job."""
    with overlap.Runtime(comm) as runtime:
        for job in JOBS:
            side, slices, chunk = job
            plans = {}
            for way in WAYS:
                wait, depth = way.split()
                settings = {"wait": wait, "depth": int(depth), "chunk": chunk, "in_flight": int(depth)}
                plans[way] = overlap.FFT2(runtime, (slices, side, side), "c16", settings=settings)
            first = plans[WAYS[0]]
            field, out = first.real.empty(), first.spectrum.empty()
            field[...] = 1.0
            expected = first.forward(field)
            for way, plan in plans.items():
                plan.forward(field, out=out)
                alike(comm, {WAYS[0]: expected, way: out}, 0.0)
            runs = {way: plan.forward for way, plan in plans.items()}
            runs |= {"C": first.forward.compute, "T": first.forward.communicate}
            seconds = seconds_of(comm, {name: partial(run, field, out=out) for name, run in runs.items()}, given.rounds)
            yield {"job": job, "seconds": {k: [median(s), min(s), max(s)] for k, s in seconds.items()}}


def here(given):
    """The records of all cases, when the machine of each rate has been measured."""
    for link in given.rates:
        file = HERE / "machines" / f"links-{link}.toml"
        file.parent.mkdir(exist_ok=True)
        subprocess.run([sys.executable, "-m", "overlap", "info", "--measure", str(file), "--link", link], check=True)
        machine = Machine.read(file)
        for record in PAGE.ask(ranks=2, link=link):
            (side, slices, chunk), seconds = record["job"], record["seconds"]
            for way in WAYS:
                wait, depth = way.split()
                work = Workload(slices=slices, shape=(side, side))
                program = work.program(2, machine, chunk=chunk, compute_s=seconds["C"][0])
                guess_s = simulate(program, machine, Options(wait=wait, depth=int(depth))).wall_s
                yield {
                    "link": link,
                    "job": record["job"],
                    "wait": wait,
                    "depth": int(depth),
                    "predicted_s": guess_s,
                    "C_s": seconds["C"][0],
                    "T_s": seconds["T"][0],
                    "measured_s": seconds[way],
                    "error": guess_s / seconds[way][0] - 1,
                }


def row(record):
    """A row of the table."""
    (side, slices, chunk), (measured, least, most) = record["job"], (1e3 * one for one in record["measured_s"])
    return (
        *(record["link"], f"{slices} x {side}² / {chunk}", record["wait"], record["depth"]),
        *(f"{1e3 * record[name]:.1f}" for name in ("C_s", "T_s", "predicted_s")),
        f"{measured:.1f} ({least:.1f} to {most:.1f})",
        f"{100 * record['error']:+.1f} %",
    )


HEAD = """# Simulated against measured

`python bench/validate_simulation.py` on a virtual machine with two AMD EPYC cores: forward
complex FFTs, two ranks, one core and one worker each, shaped links ({kib} KiB token buckets),
MPICH. Median (least to most) of {rounds} interleaved rounds, ms. The machine files
(`bench/machines/`) were measured just before; C is the case's own; T is shown only, the
simulation has it from the machine file. Off runs slot by slot whatever the depth.

{good} of {total} within 10 %.

"""


def text(records, given):
    """The page."""
    good = sum(abs(record["error"]) <= TARGET for record in records)
    head = HEAD.format(rounds=given.rounds, kib=links.BURST // 1024, good=good, total=len(records))
    names = "link | slices / per message | wait | depth | C | T | predicted | measured | error"
    return head + markdown(names, map(row, records))


PAGE = Page(
    __doc__,
    measure,
    row=row,
    text=text,
    here=here,
    ranks=None,
    links=(),
    rounds=5,
    out="bench/results/simulation_validation.md",
)
PAGE.add("--rates", nargs="*", default=("2gbit", "4gbit"))

if __name__ == "__main__":
    sys.exit(PAGE.run())
