"""`overlap demo`: shows in a table and a picture how communication is hidden on this machine."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...errors import LinksUnavailable
from .. import launch, links, timeline
from . import report, table
from .cases import Case
from .record import Record, busy
from .session import Session, at_hand, need

NEAR = 1.15  # rates whose ratio is smaller are measured once: a second one would show nothing new


def demo(
    case: Case,
    *,
    command: Sequence[str],
    ranks: int,
    rates: Sequence[str],
    out: str,
    burst: int | None = None,
    deadline_s: float | None = None,
) -> None:
    """Measure the spectral operation on shared memory and on links; write a table, a report and a timeline.

    Measurements on two links show how T depends on the rate. A third link then gets the rate at which T should equal C:
    there overlap gains most.

    Raises
    ------
    CommandError, LaunchError
    """
    need("rich", "matplotlib")
    session = Session(command, burst, deadline_s)
    under_mpi = launch.under_mpi()
    reason = None
    if rates:
        reason = (
            "mpiexec started this process already, on links of its own" if under_mpi else links.unavailable_reason()
        )
    if reason:
        session.note(f"no shaped links: {reason}")
    places: list[str | None] = [None, *(rates if not reason else ())]
    third = len(places) > 2
    folder = Path(out)
    if case.trace is not None:
        raise ValueError("trace: expected None, the demo sets it")
    with tempfile.TemporaryDirectory(prefix="overlap-demo-") as scratch:
        timelines = []
        with session.progress(len(places) + third):
            for number, link in enumerate(places):  # the loop may add a place
                path = Path(scratch) / f"{number}.json"
                try:
                    record = session.measure(
                        replace(case, link=link or ("mpiexec" if under_mpi else "shm"), trace=str(path)),
                        link,
                        at_hand(ranks),
                    )
                except LinksUnavailable as error:
                    session.note(f"no links of {link}: {error}")
                    continue
                if record is not None:  # on rank 0
                    timelines.append((record, path))
                if third and number == len(rates):
                    rate, why = balanced(session.report["cases"])
                    session.note(why)
                    places += [] if rate is None else [rate]
        if not timelines:
            return
        folder.mkdir(parents=True, exist_ok=True)
        record, path = min(timelines, key=_interest)
        spans = timeline.read_chrome(path)
    paths = [folder / name for name in ("report.json", "timeline.json", "timeline.png")]
    console = session.print()
    console.print(_sentence(session.report["cases"]), markup=False)
    console.print(_took(session.report["cases"]), markup=False)
    report.write(session.report, paths[0])
    timeline.write_chrome(spans, paths[1])
    timeline.draw(spans, paths[2], title=_timeline_title(record))
    console.print("written: " + " ".join(map(os.fspath, paths)), markup=False, soft_wrap=True)


def balanced(records: Sequence[Record]) -> tuple[str | None, str]:
    """Choose the rate of links at which communicating takes as long as computing, T = C.

    Between two measured rates the model is T = t0 + bits / rate. The part t0 does not depend on the rate: it is work of
    the cores, by the kernel for TCP and by MPI.

    Parameters
    ----------
    records : sequence of Record
        At least two of them were measured on links.

    Returns
    -------
    str or None
        The rate; None if there is no such rate, or if it was measured already.
    str
        The reason.
    """
    linked = sorted((record for record in records if record["hosts"] > 1), key=lambda record: record["T_s"])
    if len(linked) < 2:
        return None, "the rate at which T equals C was not searched for, because fewer than two links were measured"
    fast, slow = linked[0], linked[-1]
    between = 1 / links.parse_rate(slow["link"]) - 1 / links.parse_rate(fast["link"])
    bits = (slow["T_s"] - fast["T_s"]) / between if between > 0 else 0.0
    work_s = fast["T_s"] - bits / links.parse_rate(fast["link"])
    compute_s = statistics.median(record["C_s"] for record in linked)
    share = f"at least {1e3 * max(work_s, 0.0):.0f} ms of T are work of the kernel and MPI, at any rate"
    if bits <= 0 or work_s >= compute_s:
        return None, f"{share}: T equals C at no rate"
    rate = bits / (compute_s - work_s)
    for record in linked:
        if abs(math.log(rate / links.parse_rate(record["link"]))) < math.log(NEAR):
            return None, f"{share}; T is about C on {table.place(record)}"
    return f"{rate / 1e9:.2g}gbit", f"{share}; T should equal C on links of {rate / 1e9:.2g}gbit"


def _interest(measured: tuple[Record, Path]) -> tuple[bool, float]:
    """Rank a timeline by how much it shows: links before shared memory, then the smallest distance of T from C."""
    record, _ = measured
    ratio = record["T_over_C"]
    return record["hosts"] == 1, abs(math.log(ratio)) if ratio else math.inf


def _timeline_title(record: Record) -> str:
    wait = record["auto_choice"]["wait"]
    then = "" if wait == "off" else f", then with it ({wait})"
    return f"{table.place(record)}: without overlap{then}"


def _sentence(records: Sequence[Record]) -> str:
    """Return a sentence about the links with the largest gain."""
    linked = [record for record in records if record["hosts"] > 1]
    trusted = [record for record in linked if record["control_ok"] and not busy(record)]
    if not linked:
        return "Between ranks that share memory, communicating is copying: there is little to hide."
    if not trusted:
        return "No time on links can be trusted: see the warnings."
    best = max(trusted, key=lambda record: record["gain"])
    hidden = (
        ""
        if best["hidden"] is None
        else (f"; {100 * min(max(best['hidden'], 0), 1):.0f} % of the shorter of the two is hidden")
    )
    return (
        f"On {table.place(best)}, computing takes {1e3 * best['C_s']:.0f} ms and "
        f"communicating {1e3 * best['T_s']:.0f} ms: {1e3 * best['off_s']:.0f} ms without "
        f"overlap, {1e3 * best['auto_s']:.0f} ms with it{hidden}."
    )


MEASURING = "choosing settings", "rounds", "bare FFTs, timeline"  # steps that count as measuring


def _took(records: Sequence[Record]) -> str:
    """Return how long the demo took, and how much of this time was measuring."""
    whole_s, measuring_s = (
        sum(seconds for record in records for step, seconds in record["took_s"].items() if step in steps)
        for steps in (records[0]["took_s"], MEASURING)
    )
    rest = "the rest started ranks, planned and checked results."
    return f"{whole_s:.0f} s, of which {measuring_s:.0f} s of measuring; {rest}"


def quick(case: Case) -> Case:
    """Shrink a case to a few seconds. Planes keep their size: links let small messages pass at once."""
    return replace(case, slices=min(case.slices, 12), rounds=min(case.rounds, 3))
