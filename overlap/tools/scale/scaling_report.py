"""`overlap scale report`: merges reports of one piece of work into a table, three figures and a page.

The figures show time, acceleration and gain over the number of ranks, as in the GKV application note on hiding MPI
communication with OpenMP threads. Beside the measured times stand the model's values for C and T measured at the same
point: C + T without overlap, C + T/N with a communicator that takes a core (T if that is larger), and the bound
max(C, T). There is a panel for each kind of link and number of workers.
"""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

from ... import files
from ...errors import InputError
from ...timing import model
from ..bench import report as reports
from ..bench import table as tables
from ..bench.jobs import MODES
from ..bench.record import Record, pooled
from ..bench.record import warnings as record_warnings
from ..bench.session import need
from ..bench.table import work


def merge(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[Record], list[str], list[dict[str, Any]]]:
    """Read reports and pool their cases.

    Returns
    -------
    records : list of dict
        One for each link, number of workers and number of ranks, in this order.
    notes : list of str
        Remarks for the reader.
    sources : list of dict
        The reports, without their cases, with their ``file``.

    Raises
    ------
    InputError
        A file is no complete report of this version, or the reports are of different work.
    OSError
    """
    contents = {str(path): reports.read(path) for path in paths}
    works: dict[str, str] = {}
    records: list[Record] = []
    notes: list[str] = []
    for path, content in contents.items():
        for record in content["cases"]:
            works.setdefault(tables.work(record), path)
            records.append(record)
        if not content["complete"]:
            notes.append(f"{path} is incomplete: its run did not end")
        notes += content["notes"]
    if len(works) > 1:
        raise InputError(
            "expected reports of the same work, received "
            + "; ".join(f"{work} in {path}" for work, path in works.items())
        )
    if not records:
        raise InputError(f"expected reports with cases, received none in {', '.join(contents)}")
    for what, read in (
        ("machines", lambda content: content["machine"]["cpu"]),
        ("commits", lambda content: content["commit"]),
        ("MPI libraries", lambda content: (content["mpi"] or {}).get("library")),
    ):
        if len(distinct := sorted({str(read(content)) for content in contents.values()})) > 1:
            notes.append(f"the reports are of several {what}: {', '.join(distinct)}")
    sources = [
        {"file": path} | {key: value for key, value in content.items() if key != "cases"}
        for path, content in contents.items()
    ]
    return pool(records), notes, sources


def pool(records: Sequence[Record]) -> list[Record]:
    """Make one record per point of the matrix, sorted by link, workers and ranks."""
    records = sorted(records, key=lambda record: (*_panel(record), record["ranks"]))
    return [
        pooled(list(same))
        for _, same in groupby(records, key=lambda record: (*_panel(record), record["ranks"], record["modes"]))
    ]


def _panel(record: Record) -> tuple[bool, str, int]:
    return record["link"] != "shm", record["link"], record["workers"]


def panels(records: Sequence[Record]) -> list[list[Record]]:
    """Group the records of each link and number of workers, by growing numbers of ranks."""
    return [list(same) for _, same in groupby(records, key=_panel)]


def caption(record: Record) -> str:
    """Return the caption of a panel."""
    return f"{tables.place(record)}, N = {record['workers']} worker(s) per rank"


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


_COLOURS = {"off": "tab:red", "block": "tab:orange", "poll": "tab:blue", "auto": "tab:green"}
_WORDS = {"off": "no overlap", "block": "blocking calls", "poll": "polling", "auto": "automatic"}


def _times(axes: Any, panel: Sequence[Record], ranks: Sequence[int], modes: Sequence[str]) -> None:
    for mode in modes:
        median = [1e3 * record[f"{mode}_s"] for record in panel]
        spread = [record["spread"][mode] for record in panel]
        error = [
            [value - 1e3 * low for value, (low, _) in zip(median, spread)],
            [1e3 * high - value for value, (_, high) in zip(median, spread)],
        ]
        axes.errorbar(ranks, median, yerr=error, marker="o", capsize=3, color=_COLOURS[mode], label=_WORDS[mode])
    for words, style, value in (
        ("C + T", ":", lambda record: record["C_s"] + record["T_s"]),
        ("C + T/N, or T", "--", lambda record: record["model_block_s"]),
        ("max(C, T)", "-.", lambda record: record["model_poll_s"]),
    ):
        axes.plot(ranks, [1e3 * value(record) for record in panel], style, color="black", label=words)
    axes.set(xscale="log", yscale="log", ylabel="time (ms)")


def _plot(axes: Any, ranks: Sequence[int], mode: str, values: Sequence[float]) -> None:
    axes.plot(ranks, values, "o-", color=_COLOURS[mode], label=_WORDS[mode])


def _acceleration(axes: Any, panel: Sequence[Record], ranks: Sequence[int], modes: Sequence[str]) -> None:
    for mode in modes:
        _plot(axes, ranks, mode, [panel[0]["off_s"] / record[f"{mode}_s"] for record in panel])
    axes.plot(ranks, [count / ranks[0] for count in ranks], ":", color="black", label="ideal")
    axes.set(xscale="log", yscale="log", ylabel=f"acceleration over {ranks[0]} rank(s), no overlap")


def _gain(axes: Any, panel: Sequence[Record], ranks: Sequence[int], modes: Sequence[str]) -> None:
    for mode in modes[1:]:
        _plot(axes, ranks, mode, [record["off_s"] / record[f"{mode}_s"] for record in panel])
    both = [model.no_overlap_s(record["C_s"], record["T_s"]) for record in panel]
    for words, style, key in (
        ("(C + T)/(C + T/N, or T)", "--", "model_block_s"),
        ("(C + T)/max(C, T)", "-.", "model_poll_s"),
    ):
        axes.plot(ranks, [time / record[key] for time, record in zip(both, panel)], style, color="black", label=words)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(xscale="log", ylabel="gain over no overlap")


FIGURES = {"time": _times, "acceleration": _acceleration, "gain": _gain}


def draw(records: Sequence[Record], name: str, path: str | os.PathLike[str]) -> None:
    """Draw one of `FIGURES`, a panel for each link and number of workers.

    Parameters
    ----------
    records : list of dict
        In the order of `pool`.
    name : str
    path : path-like
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    parts = panels(records)
    figure = Figure(figsize=(1 + 5 * len(parts), 4.4), layout="constrained")
    figure.suptitle(work(records[0]), fontsize="medium")
    for axes, panel in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts):
        ranks = [record["ranks"] for record in panel]
        modes = [mode for mode in MODES if all(record[f"{mode}_s"] is not None for record in panel)]
        FIGURES[name](axes, panel, ranks, modes)
        axes.xaxis.set_major_locator(FixedLocator(ranks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
        for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            which(StrMethodFormatter("{x:g}"))
        axes.set_xlabel("ranks")
        axes.set_title(caption(panel[0]), fontsize="small")
        axes.legend(fontsize="x-small")
        axes.grid(alpha=0.3)
    files.save_figure(figure, path, dpi=130)
