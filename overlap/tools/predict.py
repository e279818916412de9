"""`overlap predict`: applies the timing model to given times, or simulates a job on a machine that a file describes."""

from __future__ import annotations

import json
import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from .. import files
from ..errors import InputError
from ..timing import model
from ..timing.simulate import Machine, Options, Prediction, Program, Workload, predict
from .bench.table import markdown

CHUNKS = tuple(2**k for k in range(11))  # numbers of slices per message that are tried if none is given


# --- closed forms ---------------------------------------------------------------------------------


def closed_forms(
    C: float,
    T: float,
    workers: int,
    slices: int | None,
    measured: Mapping[str, float | None] | None = None,
    width: int = 120,
) -> list[str]:
    """Print the model's values, line by line.

    Parameters
    ----------
    C, T : float
        Seconds.
    workers : int
    slices : int or None
        Number of slices; if given, the pipeline's fill and drain are counted.
    measured : dict, optional
        Seconds of ``"off"``, ``"block"`` and ``"poll"``.
    width : int
        Characters per line; longer lines are wrapped and indented.
    """
    rows = [
        ("off", "no overlap: C + T", model.no_overlap_s(C, T), model.no_overlap_s(C, T)),
        (
            "block",
            "blocking calls: C + T/N, or T",
            model.block_s(C, T, workers),
            model.block_s(C, T, workers, slices=slices),
        ),
        (
            "poll",
            "sleeping communicator: max(C, T)",
            model.poll_s(C, T),
            model.poll_s(C, T, slices=slices, workers=workers),
        ),
    ]
    lines = textwrap.wrap(
        f"C = {1e3 * C:.2f} ms, T = {1e3 * T:.2f} ms, N = {workers}, T/C = {T / C if C else math.inf:.3g}",
        width,
        subsequent_indent="    ",
    )
    for name, words, wall_s, filled_s in rows:
        values = [f"{1e3 * wall_s:10.2f} ms"]
        if slices is not None:
            values.append(f"with fill and drain of {slices} {1e3 * filled_s:10.2f} ms")
        measured_s = None if measured is None else measured[name]
        if measured_s is not None:
            values.append(f"measured {1e3 * measured_s:10.2f} ms")
        lines += _fitted(words, values, width)
    bound = (C + T) / max(C, T) if max(C, T) else 1.0
    lines += _fitted("best speed-up, sleeping", [f"{bound:10.2f} x"], width)
    at_s = model.best_speedup_at(C, workers)
    where = "never more" if math.isinf(at_s) else f"at T = {1e3 * at_s:.2f} ms"
    return lines + _fitted(
        "best speed-up, blocking: 2 - 1/N", [f"{model.best_speedup(workers):10.2f} x, {where}"], width
    )


def _fitted(words: str, values: Sequence[str], width: int) -> list[str]:
    """Put words and values into one line, or into one line each if that would be too long."""
    line = f"{words:34} " + "  ".join(values)
    return [line] if len(line) <= width else [words, *(f"  {' '.join(value.split())}" for value in values)]


def form_values(
    C: float, T: float, workers: int, slices: int | None, measured: Mapping[str, float | None] | None = None
) -> dict[str, Any]:
    """Compute the numbers that `closed_forms` shows, by name; times in seconds."""
    fill = {} if slices is None else {"slices": slices}
    return {
        "compute_s": C,
        "communication_s": T,
        "workers": workers,
        "slices": slices,
        "off_s": model.no_overlap_s(C, T),
        "block_s": model.block_s(C, T, workers, **fill),
        "poll_s": model.poll_s(C, T, **fill, workers=workers) if fill else model.poll_s(C, T),
        "best_speedup": (C + T) / max(C, T) if max(C, T) else 1.0,
        "best_speedup_blocking": model.best_speedup(workers),
        "measured_s": dict(measured or {}),
    }


def write_forms(values: Mapping[str, Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Write several cases' `form_values` to a file, whole or not at all."""
    files.write(path, json.dumps([{"case": name, **case} for name, case in values.items()], indent=1) + "\n")


def draw_forms(values: Mapping[str, Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Draw several cases' `form_values` as bars, beside the measured times."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.2 + 1.3 * len(values)), layout="constrained")
    for number, (name, case) in enumerate(values.items()):
        axes = figure.add_subplot(len(values), 1, number + 1)
        modes = "off", "block", "poll"
        axes.barh(modes, [case[f"{mode}_s"] for mode in modes], height=0.6, label="model")
        measured = {mode: value for mode, value in case["measured_s"].items() if value is not None}
        if measured:
            axes.plot(list(measured.values()), list(measured), "ko", label="measured")
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("seconds")
        axes.legend(fontsize=8)
    files.save_figure(figure, path, dpi=110)


# --- simulation -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Row:
    """Simulated times for one number of ranks, in seconds.

    Attributes
    ----------
    ranks, workers, chunk : int
    compute_s, communication_s : float
        C and T.
    off_s, wall_s : float
        Simulated times without overlap (C + T with several workers, with the best number of slices per message for it)
        and with overlap.
    block_s, bound_s : float
        The model's max(C + T/N, T) and max(C, T).
    limit : str
        The largest part of the longer of C and T.
    """

    ranks: int
    workers: int
    chunk: int
    compute_s: float
    communication_s: float
    off_s: float
    wall_s: float
    block_s: float
    bound_s: float
    limit: str

    @property
    def gain(self) -> float:
        """Return the time without overlap over that with it."""
        return self.off_s / self.wall_s


def strong_scaling(
    workload: Workload,
    machine: Machine,
    ranks: Sequence[int],
    *,
    workers: int = 1,
    wait: str = "poll",
    depth: int = 16,
    in_flight: int | None = None,
    chunk: int | None = None,
    compute_s: float | None = None,
) -> list[Row]:
    """Simulate a job on several numbers of ranks.

    Parameters
    ----------
    workload : Workload
    machine : Machine
    ranks : sequence of int
    workers, wait, depth, in_flight
        See `Options`.
    chunk : int, optional
        Slices per message; by default the power of two with the smallest simulated time.
    compute_s : float, optional
        Measured C, if it is known; allowed with one number of ranks only.

    Returns
    -------
    list of Row

    Raises
    ------
    InputError
        A value is out of its range.
    """
    if compute_s is not None and len(ranks) > 1:
        raise InputError(f"compute_s: expected with one number of ranks only, received {len(ranks)} of them")
    rows = []
    for count in ranks:
        candidates = [
            _row(
                workload,
                machine,
                count,
                size,
                compute_s,
                Options(ranks=count, workers=workers, wait=wait, depth=depth, in_flight=in_flight),
            )
            for size in ([chunk] if chunk else CHUNKS)
            if size <= workload.slices
        ]
        best = min(candidates, key=lambda row: (row.wall_s, row.chunk))
        rows.append(replace(best, off_s=min(row.off_s for row in candidates)))
    return rows


def _row(
    workload: Workload, machine: Machine, ranks: int, chunk: int, compute_s: float | None, options: Options
) -> Row:
    program = workload.program(ranks, machine, chunk=chunk, compute_s=compute_s, workers=options.workers)
    prediction = predict(program, machine, options)
    return Row(
        ranks=ranks,
        workers=options.workers,
        chunk=chunk,
        compute_s=prediction.compute_s,
        communication_s=prediction.communication_s,
        off_s=prediction.off_s,
        wall_s=prediction.wall_s,
        block_s=model.block_s(prediction.compute_s, prediction.communication_s, options.workers),
        bound_s=prediction.bound_s,
        limit=_limit(program, workload, machine, options, prediction),
    )


def _limit(program: Program, workload: Workload, machine: Machine, options: Options, prediction: Prediction) -> str:
    """Name the largest part of the longer of C and T, in words."""
    limit = "computing"
    if prediction.communication_s > prediction.compute_s:
        transfers = [transfer for slice_ in program.transfers for transfer in slice_]
        shares = {
            "bandwidth": sum(transfer.nbytes for transfer in transfers)
            * min(machine.ranks_per_node, options.ranks)
            / machine.bandwidth_Bps,
            "latency": len(transfers) * machine.latency_s,
            "core time per message": sum(transfer.messages for transfer in transfers) * machine.message_s,
            "core time per exchange": len(transfers) * machine.operation_s,
        }
        limit = max(shares, key=shares.__getitem__)
    if len(program.steps) < options.workers:
        limit += ", fewer messages than workers"
    if options.ranks > min(workload.shape):
        limit += ", fewer rows than ranks"
    return limit


def table(rows: Sequence[Row]) -> str:
    """Show the rows as a table in Markdown; milliseconds."""
    head = (
        "ranks",
        "slices per message",
        "C",
        "T",
        "T/C",
        "no overlap",
        "max(C + T/N, T)",
        "max(C, T)",
        "simulated",
        "gain",
        "limited by",
    )
    cells = []
    for row in rows:
        ratio = row.communication_s / row.compute_s if row.compute_s else math.inf
        times = [f"{1e3 * seconds:.4g}" for seconds in (row.off_s, row.block_s, row.bound_s, row.wall_s)]
        cells.append(
            (
                row.ranks,
                row.chunk,
                f"{1e3 * row.compute_s:.4g}",
                f"{1e3 * row.communication_s:.4g}",
                f"{ratio:.3g}",
                *times,
                f"{row.gain:.2f}x",
                row.limit,
            )
        )
    return markdown(head, cells)


def write_json(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Write the rows to a file, whole or not at all."""
    content = [asdict(row) | {"gain": row.gain} for row in rows]
    files.write(path, json.dumps(content, indent=1) + "\n")


def draw(series: Mapping[str, Sequence[Row]], path: str | os.PathLike[str], title: str = "") -> None:
    """Draw time and gain over the number of ranks.

    Parameters
    ----------
    series : dict
        Lists of `Row` by name; C + T and the bound are drawn for the first one.
    path : str
    title : str
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    time, gain = figure.subplots(1, 2)
    first = next(iter(series.values()))
    ranks = [row.ranks for row in first]
    time.plot(ranks, [row.off_s for row in first], "k--", label="C + T")
    time.plot(ranks, [row.bound_s for row in first], "k:", label="max(C, T)")
    for name, rows in series.items():
        ranks = [row.ranks for row in rows]
        time.plot(ranks, [row.wall_s for row in rows], "o-", ms=3, label=f"simulated, {name}")
        gain.plot(ranks, [row.gain for row in rows], "o-", ms=3, label=name)
    for axes, label in ((time, "seconds"), (gain, "gain from overlap")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("ranks")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    time.set_yscale("log")
    gain.axhline(1.0, color="k", lw=0.5)
    figure.suptitle(title, fontsize=10)
    files.save_figure(figure, path, dpi=110)
