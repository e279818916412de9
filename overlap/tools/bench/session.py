"""Measurements for the commands: starts ranks and collects their events into a report.

This process uses no MPI, unless a launcher started it: then it is one of the ranks itself, and only rank 0 gets
results.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ... import files
from .. import launch, links
from . import report

if TYPE_CHECKING:
    from .jobs import Case
    from .record import Record

Events = dict[str, Any]  # what ranks have told, by the event's name

EXTRA = "pip install 'overlap-mpi[demo]'"


class CommandError(RuntimeError):
    """Raised if a command cannot do what it was asked to; the message is for the terminal."""


def need(*modules: str) -> None:
    """Raise an error of one line if an optional package is missing."""
    for module in modules:
        try:
            __import__(module)
        except ImportError as error:
            raise CommandError(f"this command needs {module} ({error}): {EXTRA}") from None


def run_task(
    task: str,
    given: Mapping[str, Any],
    *,
    ranks: int | None,
    on_event: Callable[[dict[str, Any]], None],
    workers: int = 1,
    link: str | None = None,
    burst: int | None = None,
    deadline_s: float | None = None,
) -> None:
    """Run a task of `rank.TASKS` on new ranks, or, under a launcher, on the ranks of this job.

    In a job, `ranks` may be fewer than the job has, or None for all.

    Raises
    ------
    CommandError
        The ranks failed, or did not end in time.
    """
    spec = {"task": task, "given": given, "ranks": ranks, "deadline_s": deadline_s}
    if launch.under_mpi():
        from . import rank  # which needs MPI

        rank.run(spec, on_event)
        return
    # -P: do not import a folder named overlap in the current directory.
    status = launch.run_ranks(
        [sys.executable, "-P", "-m", "overlap.tools.bench", json.dumps(spec)],
        ranks=ranks or 1,
        workers=workers,
        link=link,
        burst=burst,
        deadline_s=deadline_s,
        on_line=launch.listening(on_event),
    )
    if status == launch.DEADLINE_PASSED:
        raise CommandError(f"the ranks did not end within {deadline_s or launch.DEADLINE_S} s and were ended")
    if status:
        raise CommandError(f"the ranks ended with status {status}; their output is above")


def environment(ranks: int) -> dict[str, Any] | None:
    """Start ranks and return the result of `rank.environment`; None on ranks other than 0."""
    events: dict[str, Any] = {}
    run_task("environment", {}, ranks=None if launch.under_mpi() else ranks, on_event=events.update, deadline_s=60)
    return events.get("environment")


def refuse_links_under_mpi(link: str | None) -> None:
    """Raise an error if links are asked for although mpiexec started this process."""
    if link is not None and launch.under_mpi():
        raise CommandError(
            "--link makes ranks and links of its own, and mpiexec started this "
            "process already: leave out one of the two"
        )


def measure_machine(path: str, *, ranks: int, link: str | None = None) -> None:
    """Measure a machine for the simulation and write it to `path`.

    Raises
    ------
    CommandError, LaunchError, LinksUnavailable
    """
    name = f"{report.machine()['cpu']}, {f'links of {link}' if link else 'ranks at hand'}"
    events: dict[str, Any] = {}
    run_task(
        "machine",
        {"name": name, "burst_nbytes": links.BURST if link else 0},
        ranks=ranks,
        link=link,
        on_event=events.update,
        deadline_s=170,
    )
    if "machine" in events:
        files.write(path, events["machine"])
        print(f"{events['machine']}\nwritten: {path}")


class Session:
    """Measures cases one after the other, with one report and one progress bar.

    Parameters
    ----------
    command : list of str
        For the report.
    burst, deadline_s : optional
        What `launch.run_ranks` takes, for each case.
    """

    def __init__(self, command: Sequence[str], burst: int | None = None, deadline_s: float | None = None) -> None:
        self.report = report.new_report(command)
        self._options: dict[str, Any] = dict(burst=burst, deadline_s=deadline_s)
        self._bar: Any = None
        self._task: Any = None

    @contextmanager
    def progress(self, cases: int, duration: str = "") -> Iterator[None]:
        """Show a progress bar for a number of cases, and in words how long they take, on standard error."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn(f"of {duration}:" if duration else ""),
            TextColumn("{task.fields[what]}"),
            console=Console(stderr=True),
            redirect_stdout=False,  # `say` prints there
        )
        with bar:
            self._bar, self._task = bar, bar.add_task("starting", total=cases, what="")
            yield
            bar.update(self._task, description="done", what="", completed=cases)
        self._bar = None

    def measure(self, case: Case, link: str | None, ranks: int | None) -> Record | None:
        """Measure one case on links of a rate (None: shared memory).

        Under mpiexec it runs on the first `ranks` of the job (None: on all).

        Returns
        -------
        dict or None
            The record, which is also added to the report; None on ranks other than 0.
        """
        started_s = perf_counter()
        events = self.run("case", case.as_dict(), link, ranks, case.workers)
        record = events.get("record")
        if record is not None:
            took_s = record["took_s"]
            took_s["start and end"] = perf_counter() - started_s - sum(took_s.values())
            self.report["mpi"] = {key: value for key, value in events["environment"].items() if key != "ranks"}
            self.report["cases"].append(record)
        return record

    def run(self, task: str, given: Mapping[str, Any], link: str | None, ranks: int | None, workers: int) -> Events:
        """Run one task, as `run_task` does, and show its progress; return the last event of each kind."""
        finished = len(self.report["cases"])
        name = "the ranks at hand" if launch.under_mpi() else (f"links of {link}" if link else "shared memory")
        events: Events = {}

        def on_event(event: Events) -> None:
            events.update(event)
            if "progress" in event and self._bar is not None:
                what, done, total = event["progress"]
                self._bar.update(self._task, description=name, what=what, completed=finished + done / total)

        run_task(task, given, ranks=ranks, on_event=on_event, link=link, workers=workers, **self._options)
        return events

    def say(self, line: str) -> None:
        """Print a line at once, above the progress bar if there is one."""
        if self._bar is not None:
            self._bar.stop()
        print(line, flush=True)
        if self._bar is not None:
            self._bar.start()

    def note(self, text: str) -> None:
        """Add a remark to the report."""
        self.report["notes"].append(text)

    def print(self) -> None:
        """Print the table, the warnings and the notes."""
        from . import table
        from .record import warnings

        console = table.console(int(os.environ.get("COLUMNS", 100)))
        console.print(table.heading(self.report["cases"]), markup=False)
        for part in table.tables(self.report["cases"], console.width):
            console.print(part)
        for record in self.report["cases"]:
            for line in warnings(record):
                console.print(line, style="bold red" if line.startswith("warning") else "", markup=False)
        for line in self.report["notes"]:
            console.print(line, markup=False)
