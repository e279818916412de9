"""NAS parallel benchmarks on ranks that need not be equal.

    mpiexec -n 2 python examples/npb/run.py ft --class A
    python examples/npb/run.py mg --class A --ranks 2 --balance --json mg.json --picture mg.png
    python examples/npb/run.py ep --class W --ranks 2 --weights 7 4

Without options shares are even. With --weights or --balance a run with even shares comes first; with --plain also one
with even shares that waits for every exchange. The report contains all runs. The status is 1 if NPB's verification
fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from math import inf
from pathlib import Path
from typing import NoReturn

import mpi4py

mpi4py.rc.thread_level = "serialized"  # enough for overlap; the default, multiple, costs MPICH latency
mpi4py.rc.initialize, mpi4py.rc.finalize = False, True  # later, if this process is a rank
from mpi4py import MPI

from overlap.errors import LinksUnavailable, OverlapError
from overlap.files import write
from overlap.tools import launch
from overlap.tools.links import parse_rate

NAMES, CLASSES = ("ep", "is", "cg", "ft", "mg"), "SWAB"


class Parser(argparse.ArgumentParser):
    """Reports a bad argument once, not on every rank."""

    def error(self, message: str) -> NoReturn:
        alone = not MPI.Is_initialized() or MPI.COMM_WORLD.rank == 0
        if alone:
            self.print_usage(sys.stderr)
            print(f"{self.prog}: error: {message}", file=sys.stderr)
        if MPI.Is_initialized():
            MPI.COMM_WORLD.Barrier()
        sys.exit(2)


def parsed(arguments: list[str], ranks: int | None) -> argparse.Namespace:
    """Read the arguments of a process that is one of several ranks, or (None) of one that must start them."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", choices=NAMES)
    parser.add_argument("--class", dest="letter", choices=CLASSES, default="S", help="size of the problem; default: S")
    shares = parser.add_mutually_exclusive_group()
    shares.add_argument("--weights", nargs="+", type=_weight, metavar="W", help="speed of each rank")
    shares.add_argument(
        "--balance", action="store_true", help="shares after measured speeds; EP: batches drawn by who is free"
    )
    parser.add_argument("--plain", action="store_true", help="first a run of even shares that hides nothing")
    parser.add_argument("--ranks", type=int, metavar="N", help="start so many ranks; default: those of mpiexec, or 1")
    parser.add_argument(
        "--link", type=_rate, metavar="RATE", help="start each rank on a host of its own, joined by such links: 2gbit"
    )
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="run so often, and tell of the run of the median time"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    parser.add_argument("--picture", metavar="FILE", help="draw shares and times of the ranks")
    given = parser.parse_args(arguments)
    if ranks is not None and (given.ranks or given.link):
        parser.error("expected --ranks and --link without mpiexec, received them in a job of MPI")
    if ranks is None:
        ranks = given.ranks = given.ranks if given.ranks is not None else 2 if given.link else 1
        if ranks < 1:
            parser.error(f"expected --ranks to be at least 1, received {ranks}")
    if given.repeat < 1:
        parser.error(f"expected --repeat to be at least 1, received {given.repeat}")
    if given.weights and len(given.weights) != ranks:
        parser.error(f"expected a weight for each of {ranks} rank(s), received {len(given.weights)}")
    for name in ("json", "picture"):
        path = getattr(given, name)
        if path and not Path(path).resolve().parent.is_dir():
            parser.error(f"expected --{name} to be a file in a folder that is there, received {path}")
    return given


def _weight(text: str) -> float:
    weight = float(text)
    if not 0 < weight < inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, received {text}")
    return weight


def _rate(text: str) -> str:
    try:
        parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def benchmark(comm: MPI.Intracomm, given: argparse.Namespace) -> bool:
    """Run a benchmark, print and write the results; return whether it was verified (collective)."""
    from nas import machine, report, suite

    with report.progress(comm.rank, f"{given.kernel.upper()} {given.letter}") as advance:
        runs, kernel = suite.runs(
            comm,
            suite.Case(given.kernel, given.letter, given.repeat),
            advance,
            weights=given.weights and tuple(given.weights),
            balance=given.balance,
            plain=given.plain,
        )
    figures = suite.figures(runs, kernel)
    figures["stream_triad_gb_per_s"] = machine.triad_gb_per_s(comm)
    figures["bare_fft_mflop_per_s"] = machine.fft_mflop_per_s(comm)
    if comm.rank == 0:
        print(report.text(runs, kernel))
        print(
            f" STREAM triad            : {figures['stream_triad_gb_per_s']:.1f} GB/s; FFTs in the cache: "
            f"{figures['bare_fft_mflop_per_s']:.0f} Mflop/s; all ranks together"
        )
        if given.json:
            write(given.json, json.dumps(figures, indent=1) + "\n")
        if given.picture:
            report.draw(runs, kernel, given.picture)
    return figures["verified"]


def start(given: argparse.Namespace, arguments: list[str]) -> int:
    """Start the ranks; return their exit status."""
    kept = [sys.executable, str(Path(__file__).resolve()), *_without(arguments, "--ranks", "--link")]
    try:
        return launch.run_ranks(kept, ranks=given.ranks, link=given.link)
    except (launch.LaunchError, LinksUnavailable) as error:
        print(f"run.py: error: {error}", file=sys.stderr)
        return 2


def _without(arguments: list[str], *names: str) -> list[str]:
    """Return the arguments without some options and their values."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if not skip and argument.partition("=")[0] not in names:
            kept.append(argument)
        skip = not skip and argument in names
    return kept


def main(arguments: list[str]) -> int:
    """Run as a rank, or start the ranks."""
    if not launch.under_mpi():
        given = parsed(arguments, None)
        if given.ranks > 1 or given.link:
            return start(given, arguments)
    MPI.Init_thread(MPI.THREAD_SERIALIZED)
    comm = MPI.COMM_WORLD
    if launch.under_mpi():
        given = parsed(arguments, comm.size)
    try:
        return 0 if benchmark(comm, given) else 1
    except OverlapError as error:
        if comm.rank == 0:
            print(f"run.py: error: {error}", file=sys.stderr)
        comm.Barrier()
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
