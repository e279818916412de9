"""Timelines: what every thread of every rank did, as a file, a picture and numbers.

Everything here works on a plain list of `overlap.runtime.trace.Span`, from `Trace.gather` or from a
file: `write_chrome` and `read_chrome` (a file that Perfetto opens), `draw` (a picture), `summary`
(numbers). Neither MPI nor numpy is needed.

Exchanges in flight overlap within their thread's row. Wherever rows are shown, such spans are dealt
out to *tracks*: each goes to the lowest track that is free when it starts.
"""

from __future__ import annotations

import heapq
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import files
from ..errors import InputError
from ..runtime.trace import CALLS, KINDS, Span, display_order

# Okabe-Ito blue and orange, which differ for every common colour blindness and in grey.
_COLOURS = {"compute": "#0072B2", "communicate": "#E69F00", "call": "#ADB5BD"}
_CHROME_COLOURS = {"compute": "thread_state_running", "communicate": "thread_state_iowait", "call": "grey"}
_WORDS = {"compute": "computing", "communicate": "communicating", "call": "a call"}

_FORMAT = "overlap-trace-2"


# --- order, intervals, tracks ---------------------------------------------------------------------


def _checked(spans: Iterable[Span]) -> list[Span]:
    spans = sorted(spans, key=display_order)
    for span in spans:
        if span.kind not in KINDS:
            raise ValueError(f"kind: expected one of {', '.join(KINDS)}, received {span.kind!r}")
        if not (math.isfinite(span.start_s) and math.isfinite(span.end_s) and span.end_s >= span.start_s):
            raise ValueError(
                f"span {span.label!r} of rank {span.rank}: expected finite times with "
                f"start <= end, received {span.start_s!r} to {span.end_s!r}"
            )
    return spans


def _rows(spans: Iterable[Span]) -> dict[tuple[int, str], list[Span]]:
    """Group spans, which must be in order, by rank and thread; return both in display order."""
    rows: dict[tuple[int, str], list[Span]] = {}
    for span in spans:
        rows.setdefault((span.rank, span.thread), []).append(span)
    return rows


def _tracks(row: Iterable[Span]) -> list[list[Span]]:
    """Deal the spans of a row, ordered by start, to tracks in which they do not overlap."""
    tracks: list[list[Span]] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for span in row:
        while busy and busy[0][0] <= span.start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            track = heapq.heappop(free)
        else:
            track = len(tracks)
            tracks.append([])
        tracks[track].append(span)
        heapq.heappush(busy, (span.end_s, track))
    return tracks


def _union(intervals: Iterable[tuple[float, float]], gap_s: float = 0.0) -> list[list[float]]:
    """Merge intervals into disjoint, ascending ones, across gaps of up to `gap_s`."""
    merged: list[list[float]] = []
    for start_s, end_s in sorted(intervals):
        if merged and start_s <= merged[-1][1] + gap_s:
            merged[-1][1] = max(merged[-1][1], end_s)
        else:
            merged.append([start_s, end_s])
    return merged


def _length(union: Iterable[Sequence[float]]) -> float:
    return math.fsum(end_s - start_s for start_s, end_s in union)


def _common(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float:
    """Return the total length that two unions have in common."""
    total, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        total.append(max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0])))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return math.fsum(total)


# --- numbers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankSummary:
    """Summarises how one rank spent its time, in seconds; each time is a union over the rank's threads.

    Attributes
    ----------
    rank : int
    wall_s : float
        Time in calls; if the spans have no calls, from the rank's first start to its last end.
    compute_s : float
        At least one thread computed.
    communicate_s : float
        At least one exchange was under way.
    both_s : float
        Both at the same time: the communication that was hidden.
    waiting : float
        The share of this time, 0 to 1, in which the threads that compute did not; as in `Load`.

    Examples
    --------
    >>> from overlap.runtime.trace import Span
    >>> from overlap.tools import timeline
    >>> computing = Span(0, "worker 0", "compute", "slice 1", 0.0, 1.0)
    >>> exchange = Span(0, "communicator", "communicate", "slice 0", 0.5, 1.5)
    >>> (of_rank,) = timeline.summary([computing, exchange])
    >>> of_rank.wall_s, of_rank.both_s
    (1.5, 0.5)
    """

    rank: int
    wall_s: float
    compute_s: float
    communicate_s: float
    both_s: float
    waiting: float

    def __str__(self) -> str:
        return (
            f"rank {self.rank}: {self.wall_s:.3g} s; computes {self.compute_s:.3g} s, communicates "
            f"{self.communicate_s:.3g} s, both at once {self.both_s:.3g} s; {self.waits()}"
        )

    def waits(self) -> str:
        """Return `waiting` as text."""
        return f"waits {100 * self.waiting:.0f} % of the time"


def summary(spans: Iterable[Span]) -> list[RankSummary]:
    """Return how each rank spent its time.

    Parameters
    ----------
    spans : iterable of Span

    Returns
    -------
    list of RankSummary
        In order of rank.

    Raises
    ------
    ValueError
        A span has an unknown kind or ends before it starts.

    Examples
    --------
    >>> from overlap.runtime.trace import Span
    >>> from overlap.tools import timeline
    >>> computing = Span(0, "worker 0", "compute", "slice 1", 0.0, 1.0)
    >>> exchange = Span(0, "communicator", "communicate", "slice 0", 0.5, 1.5)
    >>> print(timeline.summary([computing, exchange])[0])
    rank 0: 1.5 s; computes 1 s, communicates 1 s, both at once 0.5 s; waits 33 % of the time
    """
    ranks: dict[int, list[Span]] = {}
    for span in _checked(spans):
        ranks.setdefault(span.rank, []).append(span)
    records = []
    for rank, own in ranks.items():
        compute, communicate, calls = (
            _union((span.start_s, span.end_s) for span in own if span.kind == kind) for kind in KINDS
        )
        wall_s = _length(calls or [[min(span.start_s for span in own), max(span.end_s for span in own)]])
        threads = [
            _length(_union((span.start_s, span.end_s) for span in row))
            for row in _rows(span for span in own if span.kind == "compute").values()
        ]
        threads_s = max(1, len(threads)) * wall_s
        records.append(
            RankSummary(
                rank,
                wall_s,
                _length(compute),
                _length(communicate),
                _common(compute, communicate),
                max(0.0, 1.0 - math.fsum(threads) / threads_s) if threads_s else 0.0,
            )
        )
    return records


# --- Chrome trace file ----------------------------------------------------------------------------


def write_chrome(spans: Iterable[Span], path: str | os.PathLike[str]) -> None:
    """Write spans as a Chrome trace, which https://ui.perfetto.dev opens.

    One process per rank and one track per thread; exchanges in flight at the same time get further
    tracks ("communicator, in flight 2"), because a track can show nested spans only. Time starts
    with the first span. The name of each rank contains the share of the time that it waits. The file appears whole or
    not at all.

    Parameters
    ----------
    spans : iterable of Span
    path : path-like

    Raises
    ------
    ValueError
        A span has an unknown kind or ends before it starts.

    Examples
    --------
    >>> from overlap.runtime.trace import Span
    >>> from overlap.tools import timeline
    >>> computing = Span(0, "worker 0", "compute", "slice 1", 0.0, 1.0)
    >>> exchange = Span(0, "communicator", "communicate", "slice 0", 0.5, 1.5)
    >>> timeline.write_chrome([computing, exchange], "timeline.json")
    """
    spans = _checked(spans)
    origin_s = min((span.start_s for span in spans), default=0.0)
    events = []
    for rank_summary in summary(spans):
        events.append(_metadata("process_name", rank_summary.rank, 0, name=f"rank {rank_summary.rank}"))
        events.append(_metadata("process_labels", rank_summary.rank, 0, labels=rank_summary.waits()))
        events.append(_metadata("process_sort_index", rank_summary.rank, 0, sort_index=rank_summary.rank))
    tid = 0
    for (rank, thread), row in _rows(spans).items():
        for track, members in enumerate(_tracks(row), start=1):
            tid += 1  # unique in the file: some viewers forget the process
            name = thread if track == 1 else f"{thread}, in flight {track}"
            events.append(_metadata("thread_name", rank, tid, name=name, thread=thread))
            events.append(_metadata("thread_sort_index", rank, tid, sort_index=tid))
            for span in members:
                events.append(
                    {
                        "ph": "X",
                        "name": span.label,
                        "cat": span.kind,
                        "pid": rank,
                        "tid": tid,
                        "ts": round((span.start_s - origin_s) * 1e6, 3),
                        "dur": round((span.end_s - span.start_s) * 1e6, 3),
                        "cname": _CHROME_COLOURS[span.kind],
                    }
                )
    # One event per line, so that two files can be compared.
    lines = ",\n".join(json.dumps(event) for event in events)
    text = (
        f'{{"displayTimeUnit": "ms", "otherData": {{"format": "{_FORMAT}", "digest": ""}},\n'
        f'"traceEvents": [\n{lines}\n]}}\n'
    )
    files.write(path, files.sealed(text))


def _metadata(what: str, rank: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": tid, "args": args}


def read_chrome(path: str | os.PathLike[str]) -> list[Span]:
    """Read back what `write_chrome` wrote.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    list of Span
        In display order; times count from the first span, rounded to nanoseconds.

    Raises
    ------
    InputError
        The file is cut off, was changed, or is of another program.
    OSError
        The file cannot be read.

    Examples
    --------
    >>> from overlap.runtime.trace import Span
    >>> from overlap.tools import timeline
    >>> computing = Span(0, "worker 0", "compute", "slice 1", 0.0, 1.0)
    >>> exchange = Span(0, "communicator", "communicate", "slice 0", 0.5, 1.5)
    >>> timeline.write_chrome([computing, exchange], "timeline.json")
    >>> [span.label for span in timeline.read_chrome("timeline.json")]
    ['slice 1', 'slice 0']
    """
    with open(path, "rb") as file:
        content = file.read()
    try:
        document = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        if _FORMAT.encode() in content[:200]:
            reason = f"the file is cut off or damaged ({error}); it holds {len(content)} bytes"
        else:
            reason = "expected JSON written by overlap.tools.timeline.write_chrome, received something else"
        raise InputError(f"cannot read the trace {os.fspath(path)!r}: {reason}") from None
    try:
        file_format = document["otherData"]["format"]
    except (TypeError, KeyError, IndexError):
        file_format = None
    if file_format != _FORMAT:
        raise InputError(
            f"cannot read the trace {os.fspath(path)!r}: expected JSON written by "
            f"overlap.tools.timeline.write_chrome (format {_FORMAT!r}), received "
            + ("other JSON" if file_format is None else f"format {file_format!r}")
        )
    if not files.is_sealed(content, document["otherData"].get("digest")):
        raise InputError(
            f"cannot read the trace {os.fspath(path)!r}: the file is damaged: its content does not match its digest"
        )
    try:
        threads = {
            event["tid"]: event["args"]["thread"]
            for event in document["traceEvents"]
            if event["ph"] == "M" and event["name"] == "thread_name"
        }
        spans = [
            Span(
                int(event["pid"]),
                threads[event["tid"]],
                event["cat"],
                event["name"],
                event["ts"] / 1e6,
                (event["ts"] + event["dur"]) / 1e6,
            )
            for event in document["traceEvents"]
            if event["ph"] == "X"
        ]
        return _checked(spans)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise InputError(
            f"cannot read the trace {os.fspath(path)!r}: the file is damaged ({type(error).__name__}: {error})"
        ) from None


# --- picture --------------------------------------------------------------------------------------


def draw(spans: Iterable[Span], path: str | os.PathLike[str], title: str = "") -> None:
    """Draw a timeline: one row per thread, grouped by rank, computing and communicating in two colours.

    Exchanges in flight at the same time lie above each other within their row. The number at the
    end of a row is the share of the whole time in which the thread was busy.

    Parameters
    ----------
    spans : iterable of Span
    path : path-like
        The suffix chooses the format (.png, .pdf, .svg).
    title : str, optional

    Raises
    ------
    ValueError
        There is no span, or one has an unknown kind or ends before it starts.
    ImportError
        matplotlib is missing.

    Examples
    --------
    >>> from overlap.runtime.trace import Span
    >>> from overlap.tools import timeline
    >>> computing = Span(0, "worker 0", "compute", "slice 1", 0.0, 1.0)
    >>> exchange = Span(0, "communicator", "communicate", "slice 0", 0.5, 1.5)
    >>> timeline.draw([computing, exchange], "timeline.png", title="one rank")
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ImportError("drawing a timeline needs matplotlib: pip install 'overlap-mpi[demo]'") from error
    spans = _checked(spans)
    if not spans:
        raise ValueError("spans: expected at least one span to draw, received none")
    first_s = min(span.start_s for span in spans)
    wall_s = max(span.end_s for span in spans) - first_s or 1e-9

    rows = {key: (row, _tracks(row)) for key, row in _rows(spans).items()}
    heights = [1.0 if len(tracks) < 3 else min(2.0, 0.28 * len(tracks)) for _, tracks in rows.values()]
    ranks = sorted({rank for rank, _ in rows})
    gap = 0.45  # space between ranks, in row heights
    total = sum(heights) + gap * (len(ranks) - 1)
    inch = min(0.36, 60 / total)  # height of a row
    font = min(9.0, 0.8 * 72 * inch)

    longest = max(len(f"rank {rank} {thread}") for rank, thread in rows)
    width_in, right_in, top_in, bottom_in = 11.0, 0.7, 0.66, 0.55
    left_in = 0.3 + 0.6 * longest * font / 72
    height_in = total * inch + top_in + bottom_in
    figure = Figure(figsize=(width_in, height_in), facecolor="white")
    axes = figure.add_axes(
        (
            left_in / width_in,
            bottom_in / height_in,
            (width_in - left_in - right_in) / width_in,
            total * inch / height_in,
        )
    )

    centres, names, top, previous = [], [], 0.0, None
    for ((rank, thread), (row, tracks)), height in zip(rows.items(), heights):
        if previous is not None and rank != previous:
            top += gap
        previous = rank
        axes.axhspan(top + 0.06, top + height - 0.06, color="#F1F3F5", linewidth=0, zorder=0)
        track_height = (height - 0.24) / len(tracks)
        for track, members in enumerate(tracks):
            for kind in KINDS:
                own: list[Any] = [(span.start_s, span.end_s) for span in members if span.kind == kind]
                # A white edge separates neighbours, but would hide spans of a pixel's width. Such spans are merged
                # across gaps of a tenth of a pixel, because their antialiased edges would add up to a paler colour.
                wide = min((end_s - start_s for start_s, end_s in own), default=0) > 4e-3 * wall_s
                if not wide:
                    own = _union(own, gap_s=8e-5 * wall_s)
                axes.broken_barh(
                    [((start_s - first_s) * 1e3, (end_s - start_s) * 1e3) for start_s, end_s in own],
                    (top + 0.12 + track * track_height, track_height * (0.88 if len(tracks) > 1 else 1)),
                    facecolors=_COLOURS[kind],
                    edgecolors="white" if wide else "none",
                    linewidth=0.5 if wide else 0,
                    snap=False,
                    zorder=2,
                )
            for span in members if thread == CALLS else ():
                room_in = (span.end_s - span.start_s) / wall_s * (width_in - left_in - right_in)
                characters = int(72 * room_in / (0.6 * font))  # of which the call's box has room
                axes.text(
                    ((span.start_s + span.end_s) / 2 - first_s) * 1e3,
                    top + height / 2,
                    span.label if len(span.label) <= characters else "",
                    va="center",
                    ha="center",
                    fontsize=font,
                    parse_math=False,
                )
        busy = _length(_union((span.start_s, span.end_s) for span in row)) / wall_s
        centre = top + height / 2
        axes.text(
            1.008,
            centre,
            f"{busy:.0%}",
            transform=axes.get_yaxis_transform(),
            va="center",
            ha="left",
            fontsize=font,
            color="#343A40",
        )
        centres.append(centre)
        names.append(f"rank {rank} {thread}")
        top += height

    axes.set_xlim(0, wall_s * 1e3)
    axes.set_ylim(top, 0)
    axes.set_yticks(centres, names, fontsize=font, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=9, color="#868E96")
    axes.grid(axis="x", color="#DEE2E6", linewidth=0.6, zorder=1)
    axes.set_axisbelow(True)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#868E96")
    axes.set_xlabel("time (ms)", fontsize=9)
    axes.text(
        1.008,
        1 + 0.12 / (total * inch),
        "busy",
        transform=axes.transAxes,
        ha="left",
        va="center",
        fontsize=font,
        color="#868E96",
    )
    figure.text(
        0.12 / width_in,
        1 - 0.24 / height_in,
        title,
        ha="left",
        va="center",
        fontsize=11,
        fontweight="bold",
        parse_math=False,
    )
    figure.legend(
        handles=[
            Patch(facecolor=_COLOURS[kind], label=_WORDS[kind])
            for kind in KINDS
            if kind != "call" or any(span.kind == kind for span in spans)
        ],
        loc="upper right",
        bbox_to_anchor=(1 - right_in / width_in, 1 - 0.1 / height_in),
        ncols=2,
        frameon=False,
        fontsize=9,
        borderpad=0.2,
        handlelength=1.2,
    )
    files.save_figure(figure, path, dpi=150)
