"""The command `overlap advise`, and its arguments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import values
from .program import Recording, run
from .records import RankRecord

WORDS = "run an mpi4py program as it is; report where it waits in MPI, and what hiding could gain"
EXAMPLES = (
    "mpiexec -n 4 overlap advise program.py ARGS",
    "mpiexec -n 4 overlap advise --slices 16 --json advice.json -m package.module ARGS",
)
CALLS = 300_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--slices",
        type=values.count,
        metavar="S",
        help="number of independent slices into which the work between two exchanges can be cut; default: 4, 16 and 64",
    )
    parser.add_argument("--workers", type=values.count, default=1, metavar="N", help="threads per rank; default: 1")
    parser.add_argument(
        "--machine",
        metavar="FILE.toml",
        help="description of the machine, written by `overlap info --measure`: costs of messages and of the runtime",
    )
    parser.add_argument(
        "--json", type=values.output, metavar="FILE", help="write the report with the times of all ranks"
    )
    parser.add_argument(
        "--timeline", type=values.output, metavar="FILE.json", help="write a timeline, for Perfetto and `overlap trace`"
    )
    parser.add_argument(
        "--calls",
        type=values.count,
        default=CALLS,
        metavar="K",
        help=f"calls of a rank to record at most; default: {CALLS}",
    )
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module, with its arguments"
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="the program, with its arguments")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a program and report.

    Parameters
    ----------
    argv : list of str, optional
        Arguments; by default those of this process.

    Returns
    -------
    int
        0. If the program ends with another status or by an exception, that leaves this function.
    """
    parser = argparse.ArgumentParser(
        prog="overlap advise",
        description=WORDS,
        epilog="\n  ".join(["examples:", *EXAMPLES]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    given = parser.parse_args(argv)
    program = given.module or given.program
    if not program:
        parser.error("expected a program: overlap advise PROGRAM ARGS, or overlap advise -m MODULE ARGS")
    if not given.module and not Path(program[0]).exists():
        parser.error(f"expected a program: {program[0]} does not exist")

    if given.machine and not Path(given.machine).is_file():
        parser.error(f"--machine: expected a file, received {given.machine}")

    def report(records: list[RankRecord]) -> None:
        try:
            _report(records, given)
        except Exception as error:  # the program has ended well, and so does the command
            print(f"overlap advise: no report: {type(error).__name__}: {error}", file=sys.stderr)

    run(program, given.module is not None, Recording(given.calls, report))
    return 0


def _report(records: list[RankRecord], given: argparse.Namespace) -> None:
    # Imported here, because the program may come to its end without a report, and begins earlier so.
    from ...timing.simulate import Machine
    from .. import timeline
    from .estimate import SLICES, estimate
    from .matching import match
    from .report import spans, text, write_json

    matched = match(records)
    machine = Machine.read(given.machine) if given.machine else None
    estimates = estimate(matched, (given.slices,) if given.slices else SLICES, given.workers, machine)
    print("\n" + text(matched, estimates, given.workers), file=sys.stderr)
    if given.json:
        write_json(matched, estimates, given.workers, given.json)
    if given.timeline:
        timeline.write_chrome(spans(matched), given.timeline)
