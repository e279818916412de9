"""`overlap bench` and `overlap demo`: start the ranks, show progress, write the report.

This side knows no MPI unless a launcher started it already: then it is one of the ranks itself,
and only rank 0 prints and writes.
"""

import json
import math
import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ...errors import LinksUnavailable
from ...timing.simulate import Machine
from .. import launch, links, timeline
from . import report as reports
from .__main__ import MARK, run
from .cases import Case
from .reference import reference

LINK_BURST = 96 * 1024
EXTRA = "pip install 'overlap-mpi[demo]'"


class CommandError(RuntimeError):
    """A command cannot do what it was asked; the message is for the terminal."""


def need(*modules):
    """Fail with one clear line where an optional package is missing."""
    for module in modules:
        try:
            __import__(module)
        except ImportError as error:
            raise CommandError(f"this command needs {module} ({error}): {EXTRA}") from None


def run_ranks(spec, *, ranks, on_event, threads=1, link=None, burst=None, deadline_s=None):
    """Run a rank program's spec on ranks of its own, or on those this process is one of.

    There, `ranks` may be fewer than there are, or None for all.

    Raises
    ------
    CommandError
        The ranks failed, or did not end in time.
    """
    spec = dict(spec, ranks=ranks)
    if launch.under_mpi():
        run(spec, on_event)
        return

    def on_line(line):
        if line.startswith(MARK):
            on_event(json.loads(line.removeprefix(MARK)))
        else:
            print(line, file=sys.stderr)

    # -P: a directory named overlap in the current one is not us.
    status = launch.run_ranks(
        [sys.executable, "-P", "-m", "overlap.tools.bench", json.dumps(spec)], ranks=ranks,
        threads=threads, link=link, burst=burst, deadline_s=deadline_s, on_line=on_line)
    if status == launch.DEADLINE_PASSED:
        raise CommandError(f"the ranks did not end within {deadline_s} s and were ended")
    if status:
        raise CommandError(f"the ranks ended with status {status}; what they said is above")


def environment(ranks):
    """What `overlap.tools.bench.__main__.environment` finds on fresh ranks; None off rank 0."""
    events = {}
    run_ranks({"task": "environment"}, ranks=at_hand(ranks), on_event=events.update, deadline_s=60)
    return events.get("environment")


def refuse_links_under_mpi(link):
    """Fail where links are asked for, and mpiexec started this process."""
    if link is not None and launch.under_mpi():
        raise CommandError("--link makes ranks and links of its own, and mpiexec started this "
                           "process already: leave out one of the two")


def at_hand(ranks):
    """`ranks`, or None for all of those that mpiexec started already."""
    return None if launch.under_mpi() else ranks


def measure(path, *, ranks, link=None):
    """Measure a machine for the simulation and write it to `path`.

    Raises
    ------
    CommandError, LaunchError, LinksUnavailable
    """
    name = f"{reports.machine()['cpu']}, {f'links of {link}' if link else 'ranks at hand'}"
    events = {}
    run_ranks({"task": "machine", "name": name, "burst_nbytes": LINK_BURST if link else 0},
              ranks=ranks, link=link, burst=LINK_BURST if link else None, on_event=events.update,
              deadline_s=170)
    if "machine" in events:
        machine = Machine(**events["machine"])
        machine.write(path)
        print(f"{machine.text()}\nwritten: {path}")


class Session:
    """Cases measured one after the other into one report, under one progress bar.

    Parameters
    ----------
    command : list of str
        For the report.
    burst, deadline_s
        As of `launch.run_ranks`, for each case.
    """

    def __init__(self, command, burst=None, deadline_s=None):
        self.report = reports.new_report(command)
        self._options = dict(burst=burst, deadline_s=deadline_s)
        self._bar = self._task = None

    @contextmanager
    def progress(self, cases):
        """Show a bar for so many cases, on standard error."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
                       TextColumn("{task.fields[what]}"), console=Console(stderr=True))
        with bar:
            self._bar, self._task = bar, bar.add_task("starting", total=cases, what="")
            yield
            bar.update(self._task, description="done", what="", completed=cases)

    def measure(self, case, link, ranks):
        """Measure one case on links of that rate (None: shared memory).

        Under mpiexec it runs on the first `ranks` of those at hand (None: all).

        Returns
        -------
        dict or None
            Its record, also added to the report; None off rank 0.
        """
        finished = len(self.report["cases"])
        name = "the ranks at hand" if launch.under_mpi() else (
            f"links of {link}" if link else "shared memory")
        events = {}

        def on_event(event):
            events.update(event)
            if "progress" in event and self._bar is not None:
                what, done, total = event["progress"]
                self._bar.update(self._task, description=name, what=what,
                                 completed=finished + done / total)

        run_ranks({"task": "case", **case.as_dict()}, ranks=ranks, on_event=on_event, link=link,
                  threads=case.threads, **self._options)
        record = events.get("record")
        if record is not None:
            self.report["mpi"] = {key: value for key, value in events["environment"].items()
                                  if key != "ranks"}
            self.report["cases"].append(record)
        return record

    def note(self, text):
        """Add a remark to the report."""
        self.report["notes"].append(text)


def _print(session):
    """The table, then what a reader must know."""
    from rich.console import Console
    console = Console()
    if console.width < 60 or not console.is_terminal:
        console = Console(width=100)
    console.print(reports.heading(session.report["cases"]), markup=False)
    console.print(reports.table(session.report["cases"]))
    for record in session.report["cases"]:
        for line in reports.warnings(record):
            console.print(line, style="bold red" if line.startswith("warning") else "",
                          markup=False)
    for line in session.report["notes"]:
        console.print(line, markup=False)
    return console


def bench(cases, *, command, ranks, link=None, burst=None, deadline_s=None, with_reference=False,
          json_path=None):
    """Measure cases, print their table, write their report.

    Raises
    ------
    CommandError, LaunchError, LinksUnavailable
    """
    need("rich")
    refuse_links_under_mpi(link)
    session = Session(command, burst, deadline_s)
    with session.progress(len(cases)):
        for case in cases:
            record = session.measure(case, link, at_hand(ranks))
            if record is not None and with_reference:
                record |= ({"reference_skipped": "mpiexec started this process already"}
                           if launch.under_mpi() else reference(case, ranks, link))
    if not session.report["cases"]:
        return
    _print(session)
    if json_path is not None:
        reports.write(session.report, json_path)


def demo(case, *, command, ranks, rates, out, burst=None, deadline_s=None):
    """The spectral operation on shared memory and on links; table, report and timeline.

    Raises
    ------
    CommandError, LaunchError
    """
    need("rich", "matplotlib")
    session = Session(command, burst, deadline_s)
    under_mpi = launch.under_mpi()
    reason = None
    if rates:
        reason = ("mpiexec started this process already, on what it is on" if under_mpi
                  else links.unavailable_reason())
    if reason:
        session.note(f"no shaped links: {reason}")
    places = [None, *(rates if not reason else ())]
    out = Path(out)
    if case.trace is not None:
        raise ValueError("trace: expected None, the demo sets it")
    with tempfile.TemporaryDirectory(prefix="overlap-demo-") as scratch:
        timelines = []
        with session.progress(len(places)):
            for number, link in enumerate(places):
                path = Path(scratch) / f"{number}.json"
                try:
                    record = session.measure(
                        replace(case, link=link or ("mpiexec" if under_mpi else "shm"),
                                trace=str(path)), link, at_hand(ranks))
                except LinksUnavailable as error:
                    session.note(f"no links of {link}: {error}")
                    continue
                timelines.append((record, path))
        if timelines[0][0] is None:
            return
        out.mkdir(parents=True, exist_ok=True)
        record, path = min(timelines, key=_interest)
        spans = timeline.read_chrome(path)
    files = [out / name for name in ("report.json", "timeline.json", "timeline.png")]
    reports.write(session.report, files[0])
    timeline.write_chrome(spans, files[1])
    timeline.draw(spans, files[2], title=_timeline_title(record))
    console = _print(session)
    console.print(_sentence(session.report["cases"]), markup=False)
    console.print("written: " + " ".join(map(os.fspath, files)), markup=False, soft_wrap=True)


def _interest(timeline):
    """Order of timelines: links before shared memory, then T nearest C."""
    record, _ = timeline
    ratio = record["T_over_C"]
    return record["hosts"] == 1, abs(math.log(ratio)) if ratio else math.inf


def _timeline_title(record):
    wait = record["auto_choice"]["wait"]
    then = "" if wait == "off" else f", then with it ({wait})"
    return f"{reports.place(record)}: without overlap{then}"


def _sentence(records):
    """What the table says, of the links on which most is gained."""
    linked = [record for record in records if record["hosts"] > 1]
    trusted = [record for record in linked if record["control_ok"] and not reports.busy(record)]
    if not linked:
        return ("Between ranks that share memory, communicating is copying: there is little to "
                "hide.")
    if not trusted:
        return "No times on links to be trusted: see the warnings."
    best = max(trusted, key=lambda record: record["gain"])
    hidden = "" if best["hidden"] is None else (
        f"; {100 * min(max(best['hidden'], 0), 1):.0f} % of the shorter of the two is hidden")
    return (f"On {reports.place(best)}, computing takes {1e3 * best['C_s']:.0f} ms and "
            f"communicating {1e3 * best['T_s']:.0f} ms: {1e3 * best['off_s']:.0f} ms without "
            f"overlap, {1e3 * best['auto_s']:.0f} ms with it{hidden}.")


def quick(case):
    """A case of a few seconds. Its planes stay large: links let small messages pass for free."""
    return replace(case, slices=min(case.slices, 12), rounds=min(case.rounds, 3))


__all__ = ["Case", "CommandError", "bench", "demo", "environment", "measure", "need", "quick"]
