"""Prints and draws the results of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from .kernel import Advance, Check, Kernel
from .suite import Run


def text(runs: list[Run], kernel: Kernel) -> str:
    """Return the report of a benchmark in NPB's format."""
    last = runs[-1]
    ranks = len(last.shares)
    lines = [f" {kernel.title} Benchmark Completed."]

    def line(name, value):
        lines.append(f" {name:<23} = {value:>24}")

    line("Class", kernel.letter)
    line("Size", kernel.size)
    line("Iterations", kernel.iterations)
    line("Time in seconds", f"{last.seconds:.3f}")
    line("Total processes", ranks)
    line("Mop/s total", f"{last.mops:.2f}")
    line("Mop/s/process", f"{last.mops / ranks:.2f}")
    line("Operation type", kernel.operation)
    line("Verification", "SUCCESSFUL" if all(run.verified for run in runs) else "UNSUCCESSFUL")
    for run in runs:
        lines += [f"   {run.how}: {failed}" for failed in _failed(run.checks)]
        lines.append(
            f" {run.how + ' shares':<23} : {run.mops:.2f} Mop/s in {run.seconds:.3f} s, "
            f"{sum(c.passed for c in run.checks)} "
            f"of {len(run.checks)} checks passed, at most {run.messages} messages from a rank"
        )
        for rank, (share, waited_s) in enumerate(zip(run.shares, run.waited_s)):
            lines.append(
                f"   rank {rank:<3} {share:>10} {kernel.unit}, waited {100 * waited_s / run.seconds:.0f} % of the time"
            )
    for run in runs[:-1]:
        line(f"{last.how} over {run.how}", f"{last.mops / run.mops:.3f}")
    return "\n".join(lines)


def _failed(checks: list[Check]) -> Iterator[str]:
    """Describe the checks that have failed."""
    for check in checks:
        if not check.passed:
            yield f"{check.name}: expected {check.expected} within {check.tolerance:g}, received {check.received}"


@contextmanager
def progress(rank: int, title: str) -> Iterator[Advance]:
    """Yield a function that shows the progress of a run: a bar on the terminal of rank 0, updated ten times a second at
    most."""
    if rank:
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _nothing
        return
    shown_at = monotonic()
    with Progress(
        TextColumn(title), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), console=console, auto_refresh=False
    ) as bar:
        task = bar.add_task("", total=1.0)

        def show(done: int, total: int) -> None:
            nonlocal shown_at
            if done == total or monotonic() - shown_at > 0.1:
                shown_at = monotonic()
                bar.update(task, completed=done, total=total, refresh=True)

        yield show


def _nothing(done: int, total: int) -> None:
    pass


def draw(runs: list[Run], kernel: Kernel, path: str) -> None:
    """Draw the share of each rank, and its times of computing and waiting."""
    from matplotlib.figure import Figure

    from overlap import files

    ranks = range(len(runs[0].shares))
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    width = 0.8 / len(runs)
    for number, run in enumerate(runs):
        places = [rank + (number - (len(runs) - 1) / 2) * width for rank in ranks]
        left.bar(places, run.shares, width, color=f"C{number}", label=f"{run.how}, {run.mops:.0f} Mop/s")
        computed = [run.seconds - waited for waited in run.waited_s]
        right.bar(places, computed, width, color=f"C{number}", label=f"{run.how}: computing")
        right.bar(
            places, run.waited_s, width, bottom=computed, color=f"C{number}", alpha=0.35, label=f"{run.how}: waiting"
        )
    left.set(xlabel="rank", ylabel=kernel.unit, title=f"{kernel.title}, class {kernel.letter}: shares", xticks=ranks)
    right.set(xlabel="rank", ylabel="s", title="times", xticks=ranks)
    for axes in (left, right):
        axes.margins(y=0.3)  # room for the legend
        axes.legend(fontsize="small", loc="upper center", ncols=2 if axes is right else 1)
    files.save_figure(figure, Path(path))
