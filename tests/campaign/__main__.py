"""Run parts of the campaign, or one seed once more."""

import argparse
import signal
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "mpi")]  # as pytest has them

import conftest  # noqa: F401  # the environment of the tests' jobs
import launchers

from .harness import Campaign
from .parts import PARTS

REPORT = TESTS.parent / "bench" / "results" / "reliability.json"


signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which a job without a terminal may have ignored, and ranks inherit
signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # with all that it has started


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    names = [part.name for part in PARTS]
    parser.add_argument("--minutes", type=float, default=10.0, help="for all parts together")
    parser.add_argument("--part", nargs="+", choices=names, default=(), metavar="NAME", help=", ".join(names))
    parser.add_argument("--seed", type=int, help="run this seed of one part again, and record nothing")
    parser.add_argument(
        "--again",
        type=int,
        nargs="?",
        const=3,
        metavar="TIMES",
        help="run the seeds that have failed again, so many times each on this commit (default: 3)",
    )
    parser.add_argument("--report", type=Path, default=REPORT, help="the JSON file, with a table beside it")
    arguments = parser.parse_args(argv)
    try:
        if arguments.seed is None:
            campaign = Campaign(PARTS, arguments.report)
            good = (
                campaign.run(arguments.part, arguments.minutes)
                if arguments.again is None
                else campaign.run_again(arguments.part, arguments.minutes, arguments.again)
            )
            return 0 if good else 1
        if len(arguments.part) != 1:
            parser.error("expected one --part for --seed")
        (part,) = (part for part in PARTS if part.name == arguments.part[0])
        part.run(arguments.seed)
        print(f"{part.name}: seed {arguments.seed}: passed")
        return 0
    finally:
        launchers.end_launchers()


if __name__ == "__main__":
    sys.exit(main())
