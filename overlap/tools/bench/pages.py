"""Benchmarks that are programs of their own: their arguments, their ranks, and where their records go.

Such a program says what is measured and how a record is shown, and leaves everything else to its `Page`. It may be
started by itself, and then starts its ranks, or by a launcher, and then is one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import files
from ...errors import LinksUnavailable
from .. import launch, values
from .report import new_report
from .table import markdown

Records = list[dict[str, Any]]


class Page:
    """A benchmark as a program.

    Parameters
    ----------
    doc : str
        What the program says of itself; the first line is shown by ``--help``.
    measure : callable, optional
        ``measure(comm, given)`` runs on all ranks with the values of the options, and makes a record after the other.
    row : callable, optional
        ``row(record)``: the cells of a record in the table of the page.
    text : callable, optional
        ``text(records, given)``: the page that is printed at the end, and written to the file of ``--out``; by default
        the table, if there are rows.
    head : str
        The headings of the table, with " | " between them.
    here : callable, optional
        ``here(given)`` makes the records in the process of the command; by default one job with the ranks of
        ``--ranks`` on each of ``--links``.
    ranks : int, tuple of int or None
        Number of ranks, or several, each a job of its own; the default of ``--ranks``. None: `here` knows them.
    links : tuple of str
        The default of ``--links``: rates, or "shm" for shared memory. Empty: `here` knows them.
    rounds : int, optional
        The default of ``--rounds``; without one there is no such option.
    quick : mapping, optional
        What ``--quick`` sets options to.
    out : str, optional
        The default of ``--out``, except with ``--quick``.
    deadline_s : float
        Seconds after which a job is ended.

    Attributes
    ----------
    parser : argparse.ArgumentParser
        Knows the options that all benchmarks have, and those that `add`, its ``add_argument``, adds.
    """

    def __init__(
        self,
        doc: str | None,
        measure: Callable[[Any, argparse.Namespace], Iterable[Mapping[str, Any]]] | None = None,
        *,
        row: Callable[[dict[str, Any]], Sequence[object]] | None = None,
        head: str = "",
        text: Callable[[Records, argparse.Namespace], str] | None = None,
        here: Callable[[argparse.Namespace], Iterable[dict[str, Any]]] | None = None,
        ranks: int | tuple[int, ...] | None = 2,
        links: tuple[str, ...] = ("shm",),
        rounds: int | None = None,
        quick: Mapping[str, Any] | None = None,
        out: str | None = None,
        deadline_s: float = 900.0,
    ) -> None:
        self._measure, self._here = measure, here
        self._row, self._text = row, text
        if text is None and row is not None:
            self._text = lambda records, given: markdown(head, map(row, records))
        self._quick, self._out, self._deadline_s = quick or {}, out, deadline_s
        parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
        self.parser, self.add = parser, parser.add_argument
        if measure is not None:
            if ranks is not None:
                several = isinstance(ranks, tuple)
                self.add("--ranks", type=values.count, default=ranks, nargs="+" if several else None)
            if links:
                self.add("--links", nargs="+", default=links, type=_place, metavar="RATE", help="shm, or rates: 2gbit")
            self.add(
                "--thread-level",
                "--level",
                choices=("serialized", "multiple"),
                default="serialized",
                help="at which MPI is started on the ranks; default: serialized",
            )
            self.add("--on", help=argparse.SUPPRESS)  # the link that the ranks are on
            self.add("--part", help=argparse.SUPPRESS)  # the part of the benchmark that they measure
        if rounds:
            self.add("--rounds", type=values.count, default=rounds)
        self.add("--json", metavar="FILE", type=values.output, help="write the records to this file")
        if self._text is not None:
            self.add("--out", metavar="FILE.md", help=f"write the page to this file; default: {out or 'print it'}")
        if quick is not None:
            self.add("--quick", action="store_true", help="small: only to see it work")

    def run(self) -> int:
        """Measure, print and write; return the exit status, 1 if a record has a true ``failed``."""
        given = self.parser.parse_args()
        if getattr(given, "quick", False):
            vars(given).update(self._quick)
        if launch.under_mpi() and self._measure is not None:
            if self._here is not None and given.on is None:
                self.parser.error("expected no mpiexec: the ranks are started from here")
            with launch.aborting():
                return self._end(self._on_ranks(given), given)
        if self._measure is not None:
            os.environ[launch.THREAD_LEVEL[0]] = given.thread_level
        try:
            return self._end([*map(self._show, self._here(given))] if self._here else [*self._jobs(given)], given)
        except (launch.LaunchError, LinksUnavailable) as error:
            sys.exit(str(error))

    def ask(self, *more: str, ranks: int, link: str = "shm", before: Sequence[str] = (), **job: Any) -> Records:
        """Run this program on ranks of its own; the records that they tell.

        Parameters
        ----------
        more : str
            Arguments beside those of this process.
        ranks : int
        link : str
            "shm", or a rate of shaped links.
        before : sequence of str
            Arguments of Python before the program's file.
        job
            What `launch.run_ranks` takes.

        Raises
        ------
        LaunchError
            The ranks failed.
        """
        records: Records = []

        def told(record: dict[str, Any]) -> None:
            records.append({"link": link, "ranks": ranks} | record)
            if self._here is None:
                self._show(records[-1])

        status = launch.run_ranks(
            [sys.executable, *before, os.path.abspath(sys.argv[0]), *sys.argv[1:], "--on", link, *more],
            ranks=ranks,
            link=None if link == "shm" else link,
            on_line=launch.listening(told),
            **{"deadline_s": self._deadline_s} | job,
        )
        if status:
            raise launch.LaunchError(f"{sys.argv[0]}: the ranks ended with status {status}")
        return records

    def _jobs(self, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
        for ranks in given.ranks if isinstance(given.ranks, list | tuple) else [given.ranks]:
            for link in given.links:
                yield from self.ask(ranks=ranks, link=link)

    def _on_ranks(self, given: argparse.Namespace) -> Records:
        """Measure as a rank; the records, unless they are told to who started the ranks."""
        from mpi4py import MPI

        assert self._measure is not None
        comm, records = MPI.COMM_WORLD, []
        for measured in self._measure(comm, given):
            if comm.rank == 0 and given.on is not None:
                launch.tell(dict(measured))
            elif comm.rank == 0:
                records.append({"link": "mpiexec", "ranks": comm.size} | dict(measured))
                self._show(records[-1])
        return records

    def _show(self, record: dict[str, Any]) -> dict[str, Any]:
        """Print a record at once: its row, or all that it holds, unless a page without rows is printed at the end."""
        if self._row is not None:
            print(" | ".join(map(str, self._row(record))), flush=True)
        elif self._text is None:
            print(", ".join(f"{name} {_shown(value)}" for name, value in record.items()), flush=True)
        return record

    def _end(self, records: Records, given: argparse.Namespace) -> int:
        if not records:
            return 0
        if given.json:
            about = new_report([Path(sys.argv[0]).name, *sys.argv[1:]])
            content = {key: about[key] for key in ("date", "command", "machine", "packages", "commit")}
            content |= {"cases": records, "rounds": getattr(given, "rounds", None)}
            files.write(given.json, json.dumps(content, indent=1, default=vars) + "\n")
        if self._text is not None:
            out = given.out or (None if getattr(given, "quick", False) else self._out)
            if out is not None:
                Path(out).parent.mkdir(parents=True, exist_ok=True)
            text = self._text(records, given) + "\n"
            print(text)
            if out is not None:
                files.write(out, text)
        return int(any(record.get("failed") for record in records))


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{key} {_shown(one)}" for key, one in value.items()) + ")"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(_shown, value)) + ")"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _place(text: str) -> str:
    return values.link(text) or text
