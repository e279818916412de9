"""The report: where the program waits, and what hiding could gain. As text, as JSON, and as a timeline."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ... import files
from ...runtime.trace import Span
from ..bench.table import markdown
from .estimate import Estimates
from .matching import Matched
from .records import Site

LEAST_GAIN = 1.05  # below this, hiding is not worth while
SHORT_S = 2e-5  # a transfer that is shorter than the price of awaiting it
ROWS = 12  # of the table
CAVEAT = (
    "These are upper bounds: what can be gained depends on how early the received data is needed. Computing that needs "
    "the data of an exchange cannot hide that exchange, only those of other, independent slices."
)


@dataclass(frozen=True)
class SiteTimes:
    """The calls at one place, per rank: numbers, bytes, and seconds.

    Attributes
    ----------
    calls, nbytes : list of int
    time_s, waiting_s, transferring_s : list of float
        The whole time, and its parts.
    unsplit_s : list of float
        The part of `transferring_s` of calls of which it is not known for whom they wait.
    computing_s : list of float
        Time from the call before to the calls.
    covered_s : list of float
        Computing while requests, which the calls complete, are under way.
    near : float
        Share of the transferring time among ranks of one host.
    """

    site: Site
    calls: list[int]
    nbytes: list[int]
    time_s: list[float]
    waiting_s: list[float]
    transferring_s: list[float]
    unsplit_s: list[float]
    computing_s: list[float]
    covered_s: list[float]
    near: float


def by_site(matched: Matched) -> list[SiteTimes]:
    """Sum up the calls at each place on each rank; the place with the most time first."""
    columns: dict[str, list[np.ndarray]] = {}
    count = len(matched.sites)
    for calls in matched.ranks:
        inside = calls.end_s - calls.start_s
        waiting = np.nan_to_num(calls.waiting_s)
        values = {
            "calls": np.ones_like(inside),
            "nbytes": calls.nbytes,
            "time_s": inside,
            "waiting_s": waiting,
            "transferring_s": inside - waiting,
            "unsplit_s": np.where(np.isnan(calls.waiting_s), inside, 0),
            "computing_s": calls.computing_s,
            "covered_s": calls.covered_s,
            "near_s": (inside - waiting) * calls.near,
        }
        for name, value in values.items():
            columns.setdefault(name, []).append(np.bincount(calls.site, value, minlength=count))
    found = []
    for number, site in enumerate(matched.sites):
        own: dict[str, list[float]] = {name: [float(of[number]) for of in ranks] for name, ranks in columns.items()}
        near_s, transferring_s = sum(own.pop("near_s")), sum(own["transferring_s"])
        count_of, nbytes = ([round(value) for value in own.pop(name)] for name in ("calls", "nbytes"))
        share = near_s / transferring_s if transferring_s else 0.0
        found.append(SiteTimes(site=site, calls=count_of, nbytes=nbytes, near=share, **own))
    return sorted(found, key=lambda times: -sum(times.time_s))


# ---- what can be gained, in words --------------------------------------------------------------


def obstacle(times: SiteTimes, whole_s: float) -> str:
    """Say why hiding the calls at a place would gain nothing, or "".

    Parameters
    ----------
    times : SiteTimes
    whole_s : float
        Time of the program, summed over its ranks.
    """
    calls, transferring_s, time_s = sum(times.calls), sum(times.transferring_s), sum(times.time_s)
    if transferring_s < 0.01 * whole_s:
        if sum(times.waiting_s) >= 0.01 * whole_s:
            return "waits for the slowest rank"
        return "hidden already" if sum(times.covered_s) > transferring_s > 0 else "takes no time"
    if times.near > 0.5:
        return "copies in memory"
    if transferring_s < SHORT_S * calls:
        return "too short"
    return "waits for the slowest rank" if transferring_s < 0.1 * time_s else ""


def pages(matched: Matched, sites: Sequence[SiteTimes]) -> list[tuple[str, str]]:
    """Choose the pages of the documentation to read next, with what they are about."""
    found = []
    kinds = {times.site.operation.lower().lstrip("i") for times in sites if sum(times.time_s)}
    libraries = " ".join(times.site.library for times in sites)
    if "mpi4py_fft" in matched.modules or "mpi4py_fft" in libraries:
        found.append(("docs/tutorials/mpi4py_fft.md", "the drop-in for mpi4py-fft: one line changes"))
    elif any(kind.startswith("alltoall") for kind in kinds):
        found.append(("docs/tutorials/plan.md", "plans, if the all-to-alls are of distributed FFTs"))
        found.append(("docs/howto/transposes.md", "transposes of other programs"))
    messages = ("send", "recv", "sendrecv", "wait", "waitall", "start", "startall")
    if any(kind in messages or kind.startswith("neighbor") for kind in kinds):
        found.append(("docs/tutorials/halo.md", "halos: exchange ghost cells behind the interior"))
    if any(kind.startswith(("allreduce", "reduce")) for kind in kinds):
        found.append(("docs/tutorials/allreduce.md", "reductions: hide them, or make short ones cheap"))
    found.append(("docs/howto/slice_programs.md", "slice programs, for anything else"))
    return found


def advice(matched: Matched, estimates: Estimates, sites: Sequence[SiteTimes]) -> list[str]:
    """Say in sentences what hiding could gain, or why it cannot."""
    ranks = len(matched.ranks)
    if not any(sum(times.calls) for times in sites):
        return ["The program made no calls of MPI through mpi4py: there is nothing to hide."]
    waiting = float(np.mean([each.waiting_s for each in estimates.times]))
    transferring = float(np.mean([each.transferring_s for each in estimates.times]))
    computing = float(np.mean([each.computing_s for each in estimates.times]))
    near = sum(each.near_s for each in estimates.times) / max(
        sum(each.transferring_s for each in estimates.times), 1e-30
    )
    now = estimates.now_s
    if ranks == 1:
        return ["One rank communicates with nobody: there is nothing to hide. Start the program with several ranks."]
    said = []
    if estimates.bound < LEAST_GAIN:
        if estimates.idle_s > transferring:
            reason = "the time in MPI is imbalance: it is spent waiting for the slowest rank"
        elif near > 0.5 and transferring > 0.02 * now:
            reason = "the ranks exchange in the memory of one host, where their own cores copy"
        elif transferring <= computing:
            reason = f"transferring takes only {_time(transferring)} of {_time(now)}"
        else:
            reason = (
                f"there are only {_time(computing)} of computing to hide {_time(transferring)} of transferring behind"
            )
        said.append(f"Hiding cannot gain here: {reason}.")
    else:
        gains = [f"{now / row.simulated_s:.2f}x with {row.slices} slices" for row in estimates.rows]
        said.append(f"Hiding gains at most {estimates.bound:.2f}x; simulated: {', '.join(gains)}.")
    said.append(
        f"{_time(waiting)} of {_time(now)} is imbalance. Hiding does not shorten {_time(estimates.idle_s)} of it, in "
        "which ranks wait for one that computes longer."
    )
    if estimates.idle_s > 0.1 * now:
        said[-1] += " To even it out: docs/howto/unequal_ranks.md."
    covered = float(np.mean([each.covered_s for each in estimates.times]))
    if covered > 0.01 * now:
        said.append(
            f"The program computes for {_time(covered)} while its nonblocking calls are under way: hidden already."
        )
    return said


# ---- text --------------------------------------------------------------------------------------


def text(matched: Matched, estimates: Estimates, workers: int) -> str:
    """Return the report."""
    sites = by_site(matched)
    whole_s = sum(each.wall_s for each in estimates.times)
    ranks, hosts = len(matched.ranks), len(set(matched.hosts))
    lines = [
        f"overlap advise: {ranks} rank{'s' * (ranks > 1)} on {hosts} host{'s' * (hosts > 1)}, {workers} "
        f"thread{'s' * (workers > 1)} each; {_time(estimates.now_s)} of repeated work, "
        f"{_time(estimates.startup_s)} of start-up (the first call at each place, and before it)"
    ]
    if matched.cut:
        lines.append("Only the first calls are recorded; --calls records more.")
    lines += ["", *_ranks_table(estimates), "", *_sites_table(sites, ranks, whole_s), ""]
    worth = estimates.bound >= LEAST_GAIN and ranks > 1
    if worth:
        lines += [*_slices_table(estimates), ""]
    lines += advice(matched, estimates, sites)
    if worth:
        lines += [CAVEAT, "", "Read next:", *(f"  {page}: {words}" for page, words in pages(matched, sites))]
    return "\n".join(lines)


def _ranks_table(estimates: Estimates) -> list[str]:
    names = {"computing_s": "computing, C", "transferring_s": "transferring, T", "waiting_s": "waiting"}
    cells = []
    for name, words in names.items():
        values = [getattr(each, name) for each in estimates.times]
        cells.append((words, _time(float(np.mean(values))), _time(min(values)), _time(max(values))))
    return markdown(("per rank", "mean", "least", "most"), cells).splitlines()


def _sites_table(sites: Sequence[SiteTimes], ranks: int, whole_s: float) -> list[str]:
    head = (
        "place",
        "operation",
        "calls",
        "bytes",
        "time",
        "waiting",
        "transferring",
        "computing before",
        "meanwhile",
        "",
    )
    cells = []
    for times in sites[:ROWS]:
        seconds = (times.time_s, times.waiting_s, times.transferring_s, times.computing_s, times.covered_s)
        cells.append(
            (
                place(times.site),
                times.site.operation,
                f"{sum(times.calls) / ranks:.4g}",
                _size(sum(times.nbytes) / ranks),
                *(_time(sum(values) / ranks) for values in seconds),
                obstacle(times, whole_s),
            )
        )
    lines = markdown(head, cells).splitlines()
    if len(sites) > ROWS:
        rest = sum(sum(times.time_s) for times in sites[ROWS:]) / ranks
        lines.append(f"and {len(sites) - ROWS} more places with {_time(rest)}")
    unsplit = sum(sum(times.unsplit_s) for times in sites) / ranks
    if unsplit > 0.01 * whole_s / ranks:
        lines.append(
            f"{_time(unsplit)} of transferring may be waiting: it is not known for which ranks these calls wait."
        )
    return lines


def _slices_table(estimates: Estimates) -> list[str]:
    now = estimates.now_s
    cells = [
        (
            row.slices,
            *(f"{_time(seconds)}, {now / seconds:.2f}x" for seconds in (row.block_s, row.poll_s, row.simulated_s)),
        )
        for row in estimates.rows
    ]
    return markdown(("slices", "communicator takes a core", "communicator sleeps", "simulated"), cells).splitlines()


def place(site: Site) -> str:
    """Return a short "file:line" of a site, and where the library makes the call."""
    name = f"{os.path.basename(site.file)}:{site.line}"
    return (
        f"{name} ({os.path.basename(os.path.dirname(site.library))}/{os.path.basename(site.library)})"
        if site.library
        else name
    )


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} us"


def _size(nbytes: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.4g} B"


# ---- JSON and timeline -------------------------------------------------------------------------


def content(matched: Matched, estimates: Estimates, workers: int) -> dict[str, Any]:
    """Return the report as numbers and words, for JSON; times in seconds."""
    sites = by_site(matched)
    whole_s = sum(each.wall_s for each in estimates.times)
    return {
        "format": "overlap-advice-1",
        "hosts": list(matched.hosts),
        "workers": workers,
        "cut": matched.cut,
        "ranks": [asdict(each) for each in estimates.times],
        "sites": [asdict(times) | {"obstacle": obstacle(times, whole_s)} for times in sites],
        "startup_s": estimates.startup_s,
        "now_s": estimates.now_s,
        "idle_s": estimates.idle_s,
        "bound_s": estimates.bound_s,
        "gain_at_most": estimates.bound,
        "estimates": [asdict(row) | {"gain": estimates.now_s / row.simulated_s} for row in estimates.rows],
        "advice": advice(matched, estimates, sites),
        "caveat": CAVEAT,
        "read_next": [page for page, _ in pages(matched, sites)],
    }


def write_json(matched: Matched, estimates: Estimates, workers: int, path: str | os.PathLike[str]) -> None:
    """Write the report to a file, whole or not at all."""
    files.write(path, json.dumps(content(matched, estimates, workers), indent=1) + "\n")


def spans(matched: Matched) -> list[Span]:
    """Return the timeline of all ranks: computing and calls one after the other, and requests under way."""
    found = []
    for rank, calls in enumerate(matched.ranks):
        labels = [f"{site.operation} {place(site)}" for site in matched.sites]
        for number, start_s, end_s, before_s in zip(
            calls.site.tolist(), calls.start_s.tolist(), calls.end_s.tolist(), calls.computing_s.tolist()
        ):
            if before_s:
                found.append(Span(rank, "program", "compute", f"before {labels[number]}", start_s - before_s, start_s))
            found.append(Span(rank, "program", "communicate", labels[number], start_s, end_s))
        for number, start_s, end_s in calls.requests:
            found.append(
                Span(rank, "communicator: requests", "communicate", labels[number], start_s, max(start_s, end_s))
            )
    return found
