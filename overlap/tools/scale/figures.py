"""Draws time, acceleration and gain over the number of ranks, as in the GKV application note on hiding MPI
communication with OpenMP threads.

Beside the measured times stand the model's values for C and T measured at the same point: C + T without overlap, C +
T/N with a communicator that takes a core (T if that is larger), and the bound max(C, T). There is a panel for each kind
of link and number of workers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ...timing import model
from .. import picture
from ..bench.cases import MODES
from ..bench.record import Record
from ..bench.table import work
from .merge import caption, panels

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


def _acceleration(axes: Any, panel: Sequence[Record], ranks: Sequence[int], modes: Sequence[str]) -> None:
    first = panel[0]
    for mode in modes:
        axes.plot(
            ranks,
            [first["off_s"] / record[f"{mode}_s"] for record in panel],
            "o-",
            color=_COLOURS[mode],
            label=_WORDS[mode],
        )
    axes.plot(ranks, [count / ranks[0] for count in ranks], ":", color="black", label="ideal")
    axes.set(xscale="log", yscale="log", ylabel=f"acceleration over {ranks[0]} rank(s), no overlap")


def _gain(axes: Any, panel: Sequence[Record], ranks: Sequence[int], modes: Sequence[str]) -> None:
    for mode in modes[1:]:
        axes.plot(
            ranks,
            [record["off_s"] / record[f"{mode}_s"] for record in panel],
            "o-",
            color=_COLOURS[mode],
            label=_WORDS[mode],
        )
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
        In the order of `merge.pool`.
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
    picture.save(figure, path, dpi=130)
