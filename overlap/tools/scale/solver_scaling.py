"""`overlap scale run cg | spmv | mgcg`: measures a sparse solver on growing numbers of ranks.

In strong scaling the global problem stays the same, in weak scaling the part of each rank. Each number of ranks is one
measurement of `overlap.tools.bench.solvers`, on new ranks, or on the first ranks of a launcher's job.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from typing import Any

from ... import files
from .. import launch
from ..bench import report
from ..bench.session import Session, need, refuse_links_under_mpi
from ..bench.solvers import SOLVERS
from ..bench.table import console as make_console

MAIN = {
    "spmv": ("product", "auto_s", "off_s"),
    "cg": ("iteration", "iteration_s", "plain_s"),
    "mgcg": ("solution", "solve_s", "setup_s"),
}  # the reported result: its name, its time, and the time that it is compared with
BESIDE = {"off_s": "not hidden", "plain_s": "not hidden", "setup_s": "set-up"}


def run(
    workload: str,
    *,
    command: Sequence[str],
    ranks: Sequence[int] | None,
    workers: Sequence[int],
    path: str,
    weak: bool = False,
    shape: Sequence[int] | None = None,
    matrix: str = "poisson",
    rounds: int = 5,
    link: str | None = None,
    drawing: str | None = None,
    **limits: Any,
) -> None:
    """Measure, write the report after every point, print a table, draw.

    Parameters
    ----------
    workload : {"spmv", "cg", "mgcg"}
    command : list of str
        For the report.
    ranks : sequence of int or None
        None: all that mpiexec started, or one to as many as there are cores.
    workers : sequence of int
        Worker threads per rank; each number is measured with each number of ranks.
    path : str
    weak : bool
        The shape is that of each rank; the ranks' parts lie side by side along the first axis.
    shape, matrix, rounds
        See `overlap bench`.
    link : str, optional
        Rate of shaped links; shared memory without.
    drawing : str, optional
        File of a picture.
    **limits
        ``burst`` and ``deadline_s``, which `launch.run_ranks` takes.

    Raises
    ------
    CommandError, LaunchError, LinksUnavailable
    """
    need("rich", *(["matplotlib"] if drawing else []))
    refuse_links_under_mpi(link)
    if ranks is None:
        ranks = [_started()] if launch.under_mpi() else range(1, len(os.sched_getaffinity(0)) + 1)
    first, *others = shape or SOLVERS[workload].shape
    session = Session(command, **limits)
    content = session.report | {"solvers": []}
    for each in workers:
        for rank_count in ranks:
            shape_here = [first * rank_count if weak else first, *others]
            asked = {"workload": workload, "shape": shape_here, "rounds": rounds, "matrix": matrix, "workers": each}
            events = session.run("solver", asked, link, rank_count, each)
            if "record" in events:
                content["mpi"] = events["environment"]
                content["solvers"].append(events["record"] | {"link": link or "shm", "weak": weak})
                report.write(content, path, complete=False)
    if not content["solvers"]:
        return
    report.write(content, path)
    show(content["solvers"])
    print(f"written: {path}")
    if drawing:
        draw(content["solvers"], drawing)
        print(f"written: {drawing}")


def _started() -> int:
    from mpi4py import MPI

    return MPI.COMM_WORLD.size


def rows(records: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Make the table, headings first; times in ms."""
    what, key, beside = MAIN[records[0]["workload"]]
    table = [
        [
            "workers",
            "ranks",
            "points",
            "C",
            "T",
            what,
            BESIDE[beside],
            "hidden (control)",
            "efficiency" if records[0]["weak"] else "acceleration",
            "iterations",
        ]
    ]
    for record in records:
        iterations = record.get("iterations", "-")
        table.append(
            [
                str(record["workers"]),
                str(record["ranks"]),
                str(prod(record["shape"])),
                *(f"{1e3 * record[name]:.3g}" for name in ("C_s", "T_s", key, beside)),
                "-" if record["ranks"] == 1 else f"{record['hidden']:.2f} ({record['control_hidden']:.2f})",
                f"{gain(records, record):.2f}",
                str(iterations["iteration"] if isinstance(iterations, dict) else iterations),
            ]
        )
    return table


def gain(records: Sequence[dict[str, Any]], record: dict[str, Any]) -> float:
    """Return the acceleration over the fewest ranks with the same number of workers; in weak scaling at most 1."""
    key = MAIN[record["workload"]][1]
    first = min((other for other in records if other["workers"] == record["workers"]), key=lambda other: other["ranks"])
    return first[key] / record[key]


def show(records: Sequence[dict[str, Any]]) -> None:
    """Print the table."""
    from rich.table import Table

    console = make_console(140, highlight=False)
    head, *cells = rows(records)
    kind = "weak scaling: shape per rank" if records[0]["weak"] else "strong scaling"
    table = Table(
        title=f"{SOLVERS[records[0]['workload']].title}, {records[0]['matrix']}, {kind}; ms", title_justify="left"
    )
    for name in head:
        table.add_column(name, justify="right")
    for row in cells:
        table.add_row(*row)
    console.print(table)


def draw(records: Sequence[dict[str, Any]], path: str) -> None:
    """Draw time and acceleration (or efficiency) against the number of ranks, a line for each number of workers."""
    from matplotlib.figure import Figure

    what, key, beside = MAIN[records[0]["workload"]]
    weak = records[0]["weak"]
    figure = Figure(figsize=(9, 4), layout="constrained")
    times, gains = figure.subplots(1, 2)
    for workers in sorted({record["workers"] for record in records}):
        line = [record for record in records if record["workers"] == workers]
        ranks = [record["ranks"] for record in line]
        times.plot(ranks, [1e3 * record[key] for record in line], "o-", label=f"{what}, {workers} worker(s)")
        times.plot(
            ranks, [1e3 * record[beside] for record in line], "x--", label=f"{BESIDE[beside]}, {workers} worker(s)"
        )
        gains.plot(ranks, [gain(records, record) for record in line], "o-", label=f"{workers} worker(s)")
    first = min(record["ranks"] for record in records)
    every = sorted({record["ranks"] for record in records})
    gains.plot(every, [1 if weak else number / first for number in every], ":", color="black", label="ideal")
    times.set(xlabel="ranks", ylabel="time (ms)", ylim=(0, None))
    gains.set(xlabel="ranks", ylabel="efficiency" if weak else "acceleration", ylim=(0, None))
    for axes in (times, gains):
        axes.legend(fontsize="small")
        axes.set_xticks(every)
    files.save_figure(figure, path, dpi=130)
