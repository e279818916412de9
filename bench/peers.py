"""This library, mpi4py-fft and the C + OpenMP reference: same work, same ranks, same links.

    python bench/peers.py [--quick] [--ranks 2] [--rounds 5] [--passes 2] [--install] [--out DIR]

Each of `CASES` is measured as `overlap bench` does, with mpi4py-fft's rounds interleaved with ours;
the reference is a program of its own and runs right after, in every pass. Prints one table of
times and ratios, writes `peers.json` and `peers.png`. A peer that cannot run is left out, and
the table says why.
"""

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

from overlap.errors import LinksUnavailable
from overlap.tools import picture
from overlap.tools.bench import peer, report
from overlap.tools.bench.cases import Case
from overlap.tools.bench.record import pooled, warnings
from overlap.tools.bench.reference import reference
from overlap.tools.bench.session import CommandError, Session, need
from overlap.tools.bench.table import milliseconds, place
from overlap.tools.launch import LaunchError, under_mpi
from overlap.tools.options import count

CASES = (
    Case(workload="fft2", slices=64, shape=(512, 512), peer=True),
    Case(workload="fft2", slices=64, shape=(512, 512), peer=True, link="2gbit"),
    Case(workload="fft2", slices=64, shape=(512, 512), peer=True, link="4gbit"),
    Case(workload="fft2", slices=1024, shape=(128, 128), peer=True),
    Case(workload="fft2", slices=1024, shape=(128, 128), peer=True, link="2gbit"),
    Case(workload="operation", slices=64, shape=(512, 512)),
    Case(workload="operation", slices=64, shape=(512, 512), link="2gbit"),
    Case(workload="operation", slices=64, shape=(512, 512), link="4gbit"),
    Case(workload="operation", slices=1024, shape=(128, 128)),
)
PEERS = {  # heading: key of its time in a record
    "mpi4py-fft, its fastest": "peer_mpi4py_fft",
    "mpi4py-fft, as it comes": "peer_mpi4py_fft_default",
    "C + OpenMP": "reference",
}


def compare(session, case, ranks, passes, with_reference=True):
    """Measure a case and its peers, pass by pass, into one record of the session's report."""
    link = None if case.link == "shm" else case.link
    records, references = [], []
    for _ in range(passes):
        records.append(session.measure(case, link, ranks))
        references.append(reference(case, ranks, link) if with_reference else {"reference_skipped": "--no-reference"})
    record = pooled(records) | references[-1]
    if all("reference_s" in found for found in references):
        record |= {key: median(found[key] for found in references) for key in references[0] if key.endswith("_s")}
    session.report["cases"][-passes:] = [record]


def table(records):
    """A rich table: our time, T/C, and each peer's time over ours."""
    from rich.table import Table

    shown = Table()
    for heading in ("work", "link", "C", "T", "no overlap", "overlap", "gain", *PEERS):
        shown.add_column(heading, justify="left" if heading in ("work", "link") else "right")
    for record in records:
        cells = [milliseconds(record, key) for key in ("C", "T", "off", "auto")]
        for key in PEERS.values():
            value = record.get(f"{key}_s")
            cells.append("-" if value is None else f"{1e3 * value:.0f}: {value / record['auto_s']:.2f}x")
        shown.add_row(_work(record), place(record), *cells[:4], f"{record['gain']:.2f}x", *cells[4:])
    return shown


def _work(record):
    return f"{record['workload']} {record['slices']} x {' x '.join(map(str, record['shape']))}"


def draw(records, path):
    """Bars: times over that of this library with overlap, case by case."""
    from matplotlib.figure import Figure

    bars = {"overlap": "auto", "overlap, switched off": "off"} | PEERS
    figure = Figure(figsize=(2 + 1.6 * len(records), 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (words, key) in enumerate(bars.items()):
        places = [at + 0.16 * number for at, record in enumerate(records) if record.get(f"{key}_s") is not None]
        axes.bar(
            places,
            [record[f"{key}_s"] / record["auto_s"] for record in records if record.get(f"{key}_s") is not None],
            0.15,
            label=words,
        )
    axes.set_xticks(
        [at + 0.32 for at in range(len(records))],
        [f"{_work(record)}\n{place(record)}" for record in records],
        fontsize="x-small",
    )
    axes.set_ylabel("time over that of this library")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.legend(fontsize="small")
    picture.save(figure, path)


def install():
    """pip-install mpi4py-fft where it is missing; say how that went."""
    if peer.available() is None:
        return
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "mpi4py-fft"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    print(
        "mpi4py-fft: installed"
        if done.returncode == 0
        else "mpi4py-fft cannot be built here (it needs a C compiler and FFTW: apt-get install gcc "
        "libfftw3-dev); going on without it:\n" + done.stderr[-500:]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=count, default=2)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--passes", type=count, default=2)
    parser.add_argument("--quick", action="store_true", help="small sizes: only to see it work")
    parser.add_argument("--only", type=count, nargs="+", metavar="N", help=f"some of the cases, 1 to {len(CASES)}")
    parser.add_argument("--no-reference", action="store_true", help="leave out the C program")
    parser.add_argument("--install", action="store_true", help="pip-install mpi4py-fft if missing")
    parser.add_argument("--out", default="peers-report", metavar="DIR")
    options = parser.parse_args()
    if options.only and max(options.only) > len(CASES):
        parser.error(f"--only: expected numbers up to {len(CASES)}, received {max(options.only)}")
    if under_mpi():
        raise CommandError("expected no mpiexec: the ranks are started from here")
    need("rich", "matplotlib")
    if options.install:
        install()
    cases = [CASES[number - 1] for number in options.only or range(1, len(CASES) + 1)]
    session = Session([Path(sys.argv[0]).name, *sys.argv[1:]], deadline_s=600.0)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    with session.progress(len(cases) * options.passes):
        for case in cases:
            case = replace(case, rounds=options.rounds)
            try:
                compare(
                    session,
                    replace(case, slices=min(case.slices, 12), rounds=3) if options.quick else case,
                    options.ranks,
                    options.passes,
                    not options.no_reference,
                )
            except LinksUnavailable as error:
                session.note(f"no links of {case.link}: {error}")
            report.write(session.report, out / "peers.json", complete=False)
    report.write(session.report, out / "peers.json")
    records = session.report["cases"]
    if not records:
        raise CommandError("nothing was measured; " + "; ".join(session.report["notes"]))
    draw(records, out / "peers.png")
    from rich.console import Console

    console = Console(width=200)
    console.print(
        f"{options.ranks} ranks, {session.report['machine']['cpu']}; ms, median (range) "
        f"of {records[0]['rounds']} rounds; of peers also the ratio to overlap's time",
        markup=False,
    )
    console.print(table(records))
    for line in dict.fromkeys([line for record in records for line in warnings(record)] + session.report["notes"]):
        console.print(line, markup=False)
    console.print(f"written: {out}/peers.json {out}/peers.png", markup=False)


if __name__ == "__main__":
    try:
        main()
    except (CommandError, LaunchError) as error:
        sys.exit(f"peers.py: error: {error}")
