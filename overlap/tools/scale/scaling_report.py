"""`overlap scale report`: merges reports of one piece of work into a table, three figures and a page."""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from ... import files
from ..bench import table as tables
from ..bench.record import Record
from ..bench.record import warnings as record_warnings
from ..bench.session import need
from .figures import FIGURES, draw
from .merge import caption, merge, panels

# --- the table ------------------------------------------------------------------------------------


def _ms(key: str) -> Callable[[Record], str]:
    return lambda record: tables.milliseconds(record, key)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _over(record: Record, key: str) -> str:
    """Return the time of a column over that of the automatic plan."""
    auto_s, other_s = record["auto_s"], record[key]
    return _ratio(other_s / auto_s if auto_s and other_s else None)


COLUMNS: dict[str, Callable[[Record], str]] = {  # heading: function that makes a record's cell; times in ms
    "link": tables.place,
    "workers N": lambda record: str(record["workers"]),
    "ranks": lambda record: str(record["ranks"]),
    "C": _ms("C"),
    "T": _ms("T"),
    "T/C": lambda record: _ratio(record["T_over_C"]),
    "no overlap": _ms("off"),
    "blocking": _ms("block"),
    "C + T/N, or T": _ms("model_block"),
    "polling": _ms("poll"),
    "max(C, T)": _ms("model_poll"),
    "automatic": _ms("auto"),
    "chosen": lambda record: record["auto_choice"]["wait"],
    "gain": lambda record: _ratio(record["gain"]),
    "over blocking": lambda record: _over(record, "block_s"),
    "over C + T/N": lambda record: _over(record, "model_block_s"),
    "bound": lambda record: _ratio(record["gain_bound"]),
    "hidden (control)": lambda record: (
        "-" if record["ranks"] == 1 else f"{_ratio(record['hidden'])} ({_ratio(record['control_hidden'])})"
    ),
}


def rows(records: Sequence[Record]) -> list[list[str]]:
    """Make the rows of the table, headings first; leave out columns in which no record has a value."""
    shown = {
        heading: cells
        for heading, cell in COLUMNS.items()
        if set(cells := [cell(record) for record in records]) != {"-"}
    }
    return [list(shown), *map(list, zip(*shown.values()))]


def heading(records: Sequence[Record]) -> str:
    """Return the heading of the table, one line."""
    rounds = sorted({record["rounds"] for record in records})
    return f"{tables.work(records[0])}: ms, median (range) of {' or '.join(map(str, rounds))} rounds"


def show(records: Sequence[Record], notes: Sequence[str], paths: Sequence[object]) -> None:
    """Print the table, one block per panel, and the warnings."""
    from rich.table import Table

    console = tables.console(240, highlight=False)
    console.print(heading(records), markup=False)
    for panel in panels(records):
        console.print(caption(panel[0]), markup=False)
        head, *cells = rows(panel)
        table = Table()
        for name in head[2:]:
            table.add_column(name, justify="right")
        for row in cells:
            table.add_row(*row[2:])
        console.print(table)
    for line in [*warnings(records), *notes]:
        console.print(line, markup=False, style="bold red" if line.startswith("warning") else "")
    console.print("written: " + " ".join(map(str, paths)), markup=False, soft_wrap=True)


def warnings(records: Sequence[Record]) -> list[str]:
    """Collect the warnings of all records, each with the point that it concerns."""
    lines = []
    for record in records:
        for line in record_warnings(record):
            lines.append(f"{line} [{record['ranks']} ranks of {record['workers']} worker(s)]")
    return lines


# --- the page -------------------------------------------------------------------------------------


def page(
    records: Sequence[Record], notes: Sequence[str], sources: Sequence[dict[str, Any]], pictures: dict[str, bytes]
) -> str:
    """Make the page's text: table, figures and their sources, with no references to other files.

    Parameters
    ----------
    records, notes, sources
        What `merge` returns.
    pictures : dict
        PNG bytes by name.
    """

    def cells(tag: str, row: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"

    head, *body = rows(records)
    template = Template(resources.files(__package__).joinpath("templates", "report.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=html.escape(tables.work(records[0])),
        heading=html.escape(heading(records)),
        table="\n".join([cells("th", head), *(cells("td", row) for row in body)]),
        notes="\n".join(f"<li>{html.escape(line)}</li>" for line in [*warnings(records), *notes]),
        figures="\n".join(
            f'<img alt="{name} against ranks" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'
            for name, picture in pictures.items()
        ),
        sources="\n".join(cells("td", _source(source)) for source in sources),
        binding="\n".join(cells("td", row) for row in _bindings(records)),
    )


def _source(source: dict[str, Any]) -> list[str]:
    job = source.get("job")
    computer, mpi = source["machine"], source["mpi"] or {}
    return [
        Path(source["file"]).name,
        source["date"],
        source["command"],
        f"{computer['cpu']}, {computer['cores']} core(s), {computer['system']}",
        mpi.get("library", "-"),
        f"{mpi.get('fftw', '-')}",
        ", ".join(f"{name} {version}" for name, version in source["packages"].items()),
        source["commit"] or "-",
        f"{job['scheduler']} {job['id']}" if job else "-",
    ]


def _bindings(records: Iterable[Record]) -> Iterator[list[str]]:
    for record in records:
        for rank, place in enumerate(record["binding"]):
            yield [
                tables.place(record),
                str(record["workers"]),
                str(record["ranks"]),
                str(rank),
                place["host"],
                tables.ranges(place["cores"]),
            ]


def report(given: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> None:
    """Merge reports, print the table, write three pictures and the page into the folder `out`.

    Raises
    ------
    CommandError
        matplotlib or rich is missing.
    InputError, OSError
    """
    need("rich", "matplotlib")
    records, notes, sources = merge(given)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, bytes] = {}
    paths: list[Path] = []
    for name in FIGURES:
        paths.append(folder / f"{name}.png")
        draw(records, name, paths[-1])
        pictures[name] = paths[-1].read_bytes()
    paths.append(folder / "report.html")
    files.write(paths[-1], page(records, notes, sources, pictures))
    show(records, notes, paths)
