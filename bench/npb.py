"""The NAS kernels of examples/npb on this machine: verified, beside NPB's own programs, with a slow rank, on links.

    python bench/npb.py verified [--classes S W A] [--ranks 1 2 3 4]
    python bench/npb.py equal [--npb "mpiexec -n 2 npb/bin/{kernel}.A.x" ...]
    python bench/npb.py slow | links

`verified` runs all kernels on each number of ranks. The others run class A (--class) on 2 ranks: `equal` on equal ones,
a round of ours and one of each other program in turn; `slow` with a rank that keeps 4/7 of its core, balanced over even
shares; `links` the same on links of 2 Gbit/s, weights 7 : 4 (or --balance) and hidden over even shares that hide
nothing. All end with status 1 where a verification failed.
"""

import json
import re
import shlex
import subprocess
import sys
import tempfile
from operator import itemgetter
from pathlib import Path
from statistics import median
from time import perf_counter

from overlap.tools.bench.pages import Page
from overlap.tools.bench.table import markdown

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "npb"
NAMES = ("ep", "is", "cg", "ft", "mg")
SPEEDS = ("7", "4")
DEADLINE_S = 1800.0


def measure(comm, given):
    """The records of all kernels of some classes, each run once."""
    sys.path.insert(0, str(EXAMPLES))
    from nas import suite

    for letter in "".join(given.classes):
        for name in NAMES:
            begun = perf_counter()
            (run,), _ = suite.runs(comm, suite.Case(name, letter), lambda done, total: None)
            checks = {"passed": sum(check.passed for check in run.checks), "checks": len(run.checks)}
            times = {"seconds": run.seconds, "whole_s": perf_counter() - begun}
            yield {"name": name, "class": letter, "verified": run.verified} | times | checks


def verified(given):
    """The rows of the table of verifications, and whether each has failed: for each class and number of ranks."""
    for ranks in given.ranks:
        found = {(one["class"], one["name"]): one for one in PAGE.ask(ranks=ranks)}
        for letter in given.classes:
            ones = [found[letter, name] for name in NAMES]
            cells = (
                f"{'' if one['verified'] else 'FAILED '}{one['passed']}/{one['checks']}, {one['seconds']:.2f} s"
                for one in ones
            )
            yield (letter, ranks, *cells), not all(one["verified"] for one in ones)


def run(given, name, *options, before=()):
    """The figures of a run of the example's command."""
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        command = [*before, sys.executable, str(EXAMPLES / "run.py"), name, "--class", given.letter, *options]
        subprocess.run(
            [*command, "--repeat", str(given.repeat), "--json", str(figures)],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=DEADLINE_S,
        )
        return json.loads(figures.read_text())


def mops_of(command, name):
    """Millions of operations per second of another program, which prints as NPB's do."""
    told = subprocess.run(
        shlex.split(command.format(kernel=name)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    ).stdout
    return float(re.search(r"Mop/s total\s*=\s*([\d.]+)", told)[1])


def equal(given):
    """Millions of operations per second on equal ranks, and those of other programs in the same minutes."""
    for name in given.kernels:
        ours, others = [], []
        for _ in range(given.rounds):
            ours.append(run(given, name, "--ranks", "2"))
            others.append([mops_of(command, name) for command in given.npb])
        mops, theirs = median(one["mops"] for one in ours), [median(found) for found in zip(*others)]
        row = (
            *(name.upper(), f"{mops:.0f}", ", ".join(f"{one:.0f}" for one in theirs) or "-"),
            f"{mops / max(theirs):.2f}" if theirs else "-",
            *(f"{ours[-1]['stream_triad_gb_per_s']:.1f}", f"{ours[-1]['bare_fft_mflop_per_s']:.0f}"),
        )
        yield row, not all(one["verified"] for one in ours)


def uneven(given):
    """Shares that follow the ranks' speeds, over even ones."""
    slow = given.what == "slow"
    where = ("--hosts", "1", "--ranks", "2") if slow else ("--rate", "2gbit")
    before = (sys.executable, "-m", "overlap", "links", *where, "--speeds", *SPEEDS, "--")
    shares = ("--balance",) if slow or given.balance else ("--weights", *SPEEDS)
    for name in given.kernels:
        one = run(given, name, *(() if slow else ("--plain",)), *shares, before=before)
        mops, even, plain = one["mops"], one["even_mops"], one["plain_mops"]
        row = (
            *(name.upper(), f"{plain:.0f}" if plain else "-", f"{even:.0f}", f"{mops:.0f}"),
            *(f"{mops / plain:.2f}" if plain else "-", f"{mops / even:.2f}"),
            *(" : ".join(map(str, one["runs"][-1]["shares"])), f"{one['even_messages']}, {one['messages']}"),
        )
        yield row, not one["verified"]


UNEVEN = " | Mop/s plain | even | uneven | over plain | over even | shares | messages"
WHAT = {
    "verified": (verified, "class | ranks | " + " | ".join(name.upper() for name in NAMES)),
    "equal": (equal, " | Mop/s here | others | over the best other | triad GB/s | FFTs in the cache, Mflop/s"),
    "slow": (uneven, UNEVEN),
    "links": (uneven, UNEVEN),
}


def here(given):
    """The records of one of the tables, a row each."""
    rows, _ = WHAT[given.what]
    for row, failed in rows(given):
        yield {"row": row, "failed": failed}


PAGE = Page(
    __doc__,
    measure,
    row=itemgetter("row"),
    text=lambda records, given: markdown(WHAT[given.what][1], [record["row"] for record in records]),
    here=here,
    ranks=(1, 2, 3, 4),
    links=(),
    rounds=3,
    deadline_s=DEADLINE_S,
)
PAGE.add("what", choices=WHAT)
PAGE.add("--classes", nargs="+", default=["S", "W", "A"], help="of `verified`")
PAGE.add("--class", dest="letter", default="A", help="of the others")
PAGE.add("--kernels", nargs="+", choices=NAMES, default=NAMES)
PAGE.add("--repeat", type=int, default=3, help="runs in a job; the one of the median time counts")
PAGE.add("--balance", action="store_true", help="shares found by measuring, of `links`; `slow` always does")
PAGE.add(
    "--npb",
    nargs="+",
    default=[],
    metavar="COMMAND",
    help="other programs that print as NPB's do, {kernel} in place of the name, of `equal`",
)

if __name__ == "__main__":
    sys.exit(PAGE.run())
