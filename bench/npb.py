"""The NAS kernels of examples/npb on this machine: verified, beside NPB's own programs, with a slow rank, on links.

    python bench/npb.py verified [--classes S W A] [--ranks 1 2 3 4]
    python bench/npb.py equal [--npb "mpiexec -n 2 npb/bin/{kernel}.A.x" ...]
    python bench/npb.py slow | links

`verified` runs all kernels on each number of ranks. The others run class A (--class) on 2 ranks: `equal` on equal ones,
a round of ours and one of each other program in turn; `slow` with a rank that keeps 4/7 of its core, balanced over even
shares; `links` the same on links of 2 Gbit/s, weights 7 : 4 (or --balance) and hidden over even shares that hide
nothing. All end with status 1 where a verification failed.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "npb"
NAMES = ("ep", "is", "cg", "ft", "mg")
SPEEDS = ("7", "4")
DEADLINE_S = 1800.0


# ---- as ranks ------------------------------------------------------------------------------------


def verify(classes: str) -> None:
    """Run all kernels of some classes once on all ranks, and tell of each in a line of JSON."""
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    sys.path.insert(0, str(EXAMPLES))
    from nas import suite

    comm = MPI.COMM_WORLD
    for letter in classes:
        for name in NAMES:
            begun = perf_counter()
            (run,), _ = suite.runs(comm, suite.Case(name, letter), lambda done, total: None)
            if comm.rank == 0:
                print(
                    json.dumps(
                        {
                            "name": name,
                            "class": letter,
                            "ranks": comm.size,
                            "verified": run.verified,
                            "seconds": run.seconds,
                            "whole_s": perf_counter() - begun,
                            "passed": sum(check.passed for check in run.checks),
                            "checks": len(run.checks),
                        }
                    ),
                    flush=True,
                )


# ---- as the command ------------------------------------------------------------------------------


def verified(given: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    """The table of verifications: a line, and whether it is good, for each class and number of ranks."""
    from overlap.tools import launch

    yield "| class | ranks | " + " | ".join(name.upper() for name in NAMES) + " |", True
    yield "|---|---|" + "---|" * len(NAMES), True
    for ranks in given.ranks:
        told: list[str] = []
        status = launch.run_ranks(
            [sys.executable, str(Path(__file__).resolve()), "verified", "--classes", *given.classes],
            ranks=ranks,
            on_line=told.append,
            deadline_s=DEADLINE_S,
        )
        found = {
            (one["class"], one["name"]): one for one in (json.loads(line) for line in told if line.startswith("{"))
        }
        print(*(line for line in told if not line.startswith("{")), sep="\n", end="", file=sys.stderr)
        for letter in given.classes:
            cells, good = [], status == 0
            for name in NAMES:
                one = found.get((letter, name))
                good = good and one is not None and one["verified"]
                cells.append(
                    "missing"
                    if one is None
                    else f"{'' if one['verified'] else 'FAILED '}{one['passed']}/{one['checks']}, "
                    f"{one['seconds']:.2f} s"
                )
            yield f"| {letter} | {ranks} | " + " | ".join(cells) + " |", good


def run(given: argparse.Namespace, name: str, *options: str, before: tuple[str, ...] = ()) -> dict[str, Any]:
    """The figures of a run of the example's command."""
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        subprocess.run(
            [
                *before,
                sys.executable,
                str(EXAMPLES / "run.py"),
                name,
                "--class",
                given.letter,
                "--repeat",
                str(given.repeat),
                "--json",
                str(figures),
                *options,
            ],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=DEADLINE_S,
        )
        return json.loads(figures.read_text())


def equal(given: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    """Millions of operations per second on equal ranks, and those of other programs in the same minutes."""
    yield "| | Mop/s here | others | over the best other | triad GB/s | FFTs in the cache, Mflop/s |", True
    yield "|---|---|---|---|---|---|", True
    for name in given.kernels:
        ours: list[dict[str, Any]] = []
        others: list[list[float]] = [[] for _ in given.npb]
        for _ in range(given.rounds):
            ours.append(run(given, name, "--ranks", "2"))
            for command, found in zip(given.npb, others):
                told = subprocess.run(
                    shlex.split(command.format(kernel=name)),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=DEADLINE_S,
                    check=True,
                ).stdout
                found.append(float(re.search(r"Mop/s total\s*=\s*([\d.]+)", told)[1]))
        mops, theirs = median(one["mops"] for one in ours), [median(found) for found in others]
        last = ours[-1]
        yield (
            (
                f"| {name.upper()} | {mops:.0f} | {', '.join(f'{one:.0f}' for one in theirs) or '-'} | "
                f"{f'{mops / max(theirs):.2f}' if theirs else '-'} | {last['stream_triad_gb_per_s']:.1f} | "
                f"{last['bare_fft_mflop_per_s']:.0f} |"
            ),
            all(one["verified"] for one in ours),
        )


def uneven(given: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    """Shares that follow the ranks' speeds, over even ones."""
    links = ("--hosts", "1", "--ranks", "2") if given.what == "slow" else ("--rate", "2gbit")
    before = (sys.executable, "-m", "overlap", "links", *links, "--speeds", *SPEEDS, "--")
    options = (
        ("--balance",)
        if given.what == "slow"
        else ("--plain", *(("--balance",) if given.balance else ("--weights", *SPEEDS)))
    )
    yield "| | Mop/s plain | even | uneven | over plain | over even | shares | messages |", True
    yield "|---|---|---|---|---|---|---|---|", True
    for name in given.kernels:
        one = run(given, name, *options, before=before)
        plain = one["plain_mops"]
        gain = one["mops"] / plain if plain else None
        yield (
            (
                f"| {name.upper()} | {f'{plain:.0f}' if plain else '-'} | {one['even_mops']:.0f} | {one['mops']:.0f} | "
                f"{f'{gain:.2f}' if gain else '-'} | {one['mops'] / one['even_mops']:.2f} | "
                f"{' : '.join(map(str, one['runs'][-1]['shares']))} | {one['even_messages']}, {one['messages']} |"
            ),
            one["verified"],
        )


def main() -> int:
    from overlap.tools import launch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("verified", "equal", "slow", "links"))
    parser.add_argument("--classes", nargs="+", default=["S", "W", "A"], help="of `verified`")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 3, 4], help="of `verified`")
    parser.add_argument("--class", dest="letter", default="A", help="of the others")
    parser.add_argument("--kernels", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--repeat", type=int, default=3, help="runs in a job; the one of the median time counts")
    parser.add_argument("--rounds", type=int, default=3, help="jobs of ours and of other programs, of `equal`")
    parser.add_argument(
        "--balance", action="store_true", help="shares that are found by measuring, of `links`; `slow` always does"
    )
    parser.add_argument(
        "--npb",
        nargs="+",
        default=[],
        metavar="COMMAND",
        help="other programs that print as NPB's do, {kernel} in place of the name",
    )
    given = parser.parse_args()
    if launch.under_mpi():
        verify("".join(given.classes))
        return 0
    all_good = True
    for line, good in {"verified": verified, "equal": equal, "slow": uneven, "links": uneven}[given.what](given):
        print(line, flush=True)
        all_good = all_good and good
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
