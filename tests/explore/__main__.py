"""Explore many schedules, or one once more."""

import argparse
import os
import sys
import time

from .campaign import campaign
from .defects import DEFECTS, schedules_until_found
from .programs import draw
from .schedule import explore


def put_back(limit):
    """Print a table of the seeded defects; returns the exit status."""
    found = []
    for name, edits in DEFECTS.items():
        schedules, finding = schedules_until_found(edits, limit)
        found.append(schedules is not None)
        print(
            f"{schedules or f'not in {limit}':>10}  {name}"
            + (f": {finding.text.splitlines()[0][:80]}" if finding else ""),
            flush=True,
        )
    return 0 if all(found) else 1


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.explore", description=__doc__)
    parser.add_argument("--schedules", type=int, default=2000, help="how many seeds")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--replay", type=int, metavar="SEED", help="show one seed")
    parser.add_argument(
        "--defects",
        action="store_true",
        help="put one defect after the other back instead, and count until it is found",
    )
    arguments = parser.parse_args(argv)
    if arguments.defects:
        return put_back(arguments.schedules)
    if arguments.replay is not None:
        print(draw(arguments.replay))
        findings = [found] if (found := explore(arguments.replay)) else []
    else:
        started = time.perf_counter()
        findings = campaign(range(arguments.seed, arguments.seed + arguments.schedules), arguments.jobs)
        wall_s = time.perf_counter() - started
        print(
            f"{arguments.schedules} schedules in {wall_s:.1f} s "
            f"({arguments.schedules / wall_s:.0f} per second), {len(findings)} failed"
        )
    for finding in findings:
        print(f"--- {finding}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
