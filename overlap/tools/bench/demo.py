"""`overlap demo`: shows in a table and a picture how communication is hidden on this machine."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from ...errors import LinksUnavailable
from .. import launch, links, timeline
from . import report, table
from .jobs import Case
from .record import Record, busy
from .session import Session, need

SLICES, CHOOSING_S = 16, 3.0  # of the short demo: planes, and seconds in which the plan compares settings
BUDGET_S = 55.0  # of the short demo: while so many seconds have not passed, what was disturbed is measured again
NEAR = 1.15  # rates whose ratio is smaller are measured once: a second one would show nothing new
CONTROL_SHARE = 0.05  # largest share of C + T that the control, which hides nothing, may seem to hide
SURPLUS = 0.15  # share by which more than everything may seem to be hidden
LINE = "{:<17} {:>8} {:>8} {:>8} {:>8}  {:>6}  {}"  # a line of the table


def demo(
    case: Case,
    *,
    command: Sequence[str],
    ranks: int | None,  # None: all ranks that mpiexec has started
    rates: Sequence[str],
    out: str,
    full: bool = False,
    burst: int | None = None,
    deadline_s: float | None = None,
) -> None:
    """Measure the spectral operation on shared memory and on links; write a table, a report and a timeline.

    If `full`, measurements on two links show how T depends on the rate. A third link then gets the rate at which T
    should equal C: there overlap gains most.

    Raises
    ------
    CommandError, LaunchError
    """
    need("rich", "matplotlib")
    started = perf_counter()
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
    third = full and len(places) > 2
    folder = Path(out)
    if case.trace is not None:
        raise ValueError("trace: expected None, the demo sets it")
    with tempfile.TemporaryDirectory(prefix="overlap-demo-") as scratch:
        timelines: dict[str | None, tuple[Record, Path]] = {}

        def measure(link: str | None) -> None:
            """Measure on links, or in shared memory, and print the line of the table."""
            path = Path(scratch) / f"{link}.json"
            here = replace(case, link=link or ("mpiexec" if under_mpi else "shm"), trace=str(path))
            record = session.measure(here, link, ranks)
            if record is None:  # rank 0 alone has it
                return
            if not timelines:
                session.say(table.title(record) + ":")
                session.say(LINE.format("times in ms", "C", "T", "no", "with", "gain", "of at most"))
                session.say(LINE.format("", "compute", "exchange", "overlap", "overlap", "", ""))
            timelines[link] = record, path
            session.say(_line(record))

        with session.progress(len(places) + third, "about 4 minutes" if full else "about a minute"):
            for number, link in enumerate(places):  # the loop may add a place
                try:
                    measure(link)
                except LinksUnavailable as error:
                    session.note(f"no links of {link}: {error}")
                    continue
                if third and number == len(rates):
                    rate, why = balanced(session.report["cases"])
                    session.note(why)
                    places += [] if rate is None else [rate]
            again = [link for link, (record, _) in timelines.items() if doubtful(record)]
            for link in again if not full else ():
                record, _ = timelines[link]
                if perf_counter() - started + sum(record["took_s"].values()) < BUDGET_S:
                    session.report["cases"].remove(record)
                    measure(link)
        if not timelines:
            return
        folder.mkdir(parents=True, exist_ok=True)
        record, path = min(timelines.values(), key=_interest)
        spans = timeline.read_chrome(path)
    paths = [folder / name for name in ("report.json", "timeline.json", "timeline.png")]
    if full:
        session.print()
    else:
        for note in session.report["notes"]:
            session.say(note)
    session.say(verdict(session.report["cases"]))
    session.say(_took(session.report["cases"]))
    report.write(session.report, paths[0])
    timeline.write_chrome(spans, paths[1])
    timeline.draw(spans, paths[2], title=_timeline_title(record))
    session.say("written: " + " ".join(map(os.fspath, paths)))


def doubtful(record: Record) -> bool:
    """Return whether a record's times contradict each other, because other programs ran on the cores.

    Then computing alone has not always taken the same time, or the control seems to hide something, or more than
    everything seems to be hidden.
    """
    if record["hosts"] == 1:
        return busy(record)
    hidden = record["hidden"]
    surplus = hidden is not None and not -SURPLUS <= hidden <= 1 + SURPLUS
    seems_s = (record["control_hidden"] or 0.0) * min(record["C_s"], record["T_s"])
    return busy(record) or seems_s > CONTROL_SHARE * (record["C_s"] + record["T_s"]) or surplus


def _line(record: Record) -> str:
    """Return the line of the table: times, and what was gained of what can be gained."""
    times = [table.milliseconds(record, key).split()[0] for key in ("C", "T", "off", "auto")]
    if doubtful(record):
        gain, of = "-", "other programs ran on these cores: no verdict"
    elif record["hosts"] == 1 and record["gain"] < 1 + SURPLUS:
        gain, of = "-", "exchanging is copying, which takes the cores: nothing to gain"
    elif record["auto_choice"]["wait"] == "off":
        gain, of = "-", "the plan chose no overlap: nothing to gain"
    else:
        gain, of = f"{record['gain']:.2f}x", f"{record['gain_bound']:.2f}x, (C + T)/max(C, T)"
    return LINE.format(table.place(record), *times, gain, of)


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


def verdict(records: Sequence[Record]) -> str:
    """Return a sentence about the links with the largest gain."""
    linked = [record for record in records if record["hosts"] > 1]
    trusted = [record for record in linked if not doubtful(record)]
    if not linked:
        return "Between ranks that share memory, communicating is copying: there is little to hide."
    if not trusted:
        return "Other programs ran on these cores, so the times say nothing about hiding: try again without them."
    best = max(trusted, key=lambda record: record["gain"])
    gain = f"{best['gain']:.2f}x of at most {best['gain_bound']:.2f}x"
    return f"On this machine, hiding gains {gain} on {table.place(best)}."


MEASURING = "choosing settings", "rounds", "bare FFTs, timeline"  # steps that count as measuring


def _took(records: Sequence[Record]) -> str:
    """Return how long the demo took, and how much of this time was measuring."""
    whole_s, measuring_s = (
        sum(seconds for record in records for step, seconds in record["took_s"].items() if step in steps)
        for steps in (records[0]["took_s"], MEASURING)
    )
    rest = "the rest started ranks, planned and checked results."
    return f"{whole_s:.0f} s, of which {measuring_s:.0f} s of measuring; {rest}"
