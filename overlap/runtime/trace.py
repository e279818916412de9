"""Traces: recording what every thread of every rank does, and when.

A runtime that traces owns one `Trace` and calls `Trace.add` after each step; otherwise it pays for one ``is not None``.
The state of a trace is one list per thread, to which only that thread appends: there is no lock, and nothing is
allocated but the tuple.

Times are those of `time.perf_counter`, whose zero differs between hosts. `Trace.start` estimates
once how far this rank's clock is ahead of rank 0's; `Trace.gather` moves all spans to rank 0's
clock. The result is a plain list of `Span`, which `overlap.tools.timeline` writes to
a file, draws and summarises::

    from overlap.tools import timeline

    with overlap.Runtime(comm, workers=4, trace=True) as runtime:
        ...
        spans = runtime.trace.gather(comm)
    if comm.rank == 0:
        timeline.write_chrome(spans, "timeline.json")

This module does not import mpi4py: communicators are passed in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ranks.clocks import clock_offset

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

KINDS = ("compute", "communicate", "call")
CALLS = "calls"  # the row of spans of whole calls, which no thread has


@dataclass(frozen=True, slots=True)
class Span:
    """One activity of one thread, from `start_s` to `end_s`.

    Attributes
    ----------
    rank : int
    thread : str
        Name of the thread within its rank, such as "worker 0" or "communicator"; "calls" for whole calls.
    kind : {"compute", "communicate", "call"}
        A call lasts from the moment at which all ranks have made it.
    label : str
        Names the activity, such as "slice 12"; of a call also the way to wait.
    start_s, end_s : float
        Seconds, on rank 0's clock.

    Examples
    --------
    >>> from overlap.runtime.trace import Span
    >>> span = Span(rank=0, thread="worker 0", kind="compute", label="slice 12", start_s=0.5, end_s=0.75)
    >>> span.end_s - span.start_s
    0.25
    """

    rank: int
    thread: str
    kind: str
    label: str
    start_s: float
    end_s: float


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Return the sort key in which "worker 10" follows "worker 9"."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]


def display_order(span: Span) -> tuple:
    """Return the key by which spans are sorted: by rank, thread and start.

    Calls come first, and communicators after the threads whose waiting they hide.
    """
    place = 0 if span.thread == CALLS else 2 if span.thread.startswith("communicator") else 1
    return (span.rank, place, _natural(span.thread), span.start_s, span.end_s)


class Trace:
    """Records the spans of one rank.

    Parameters
    ----------
    offset_s : float, optional
        This rank's clock minus rank 0's, in seconds; `start` measures it.

    Examples
    --------
    >>> with overlap.Runtime(comm, trace=True) as rt, overlap.FFT2(rt, (8, 16, 16)) as plan:
    ...     spectrum = plan.forward(plan.real.empty())
    ...     spans = rt.trace.gather(comm)  # on rank 0
    >>> spans[0].kind, spans[1].kind
    ('call', 'compute')
    """

    __slots__ = ("_rows", "offset_s")

    def __init__(self, offset_s: float = 0.0) -> None:
        self.offset_s = offset_s
        self._rows: dict[str, list[tuple[str, object, float, float]]] = {}

    def __repr__(self) -> str:
        return f"<Trace: {sum(map(len, self._rows.values()))} span(s) of {len(self._rows)} thread(s)>"

    @classmethod
    def start(cls, comm: Comm, rounds: int = 20) -> Trace:
        """Measure this rank's clock offset and return an empty trace. Collective.

        Parameters
        ----------
        comm : mpi4py.MPI.Comm
        rounds : int, optional
            See `clock_offset`.

        Returns
        -------
        Trace
        """
        return cls(clock_offset(comm, rounds))

    def add(self, thread: str, kind: str, label: object, start_s: float, end_s: float) -> None:
        """Record a span; called by the thread that `thread` names.

        Nothing is checked here, because a trace must not slow or break a run.

        Parameters
        ----------
        thread : str
        kind : {"compute", "communicate", "call"}
        label : object
            Turned into text only by `gather`.
        start_s, end_s : float
            `time.perf_counter` values.
        """
        try:
            row = self._rows[thread]
        except KeyError:
            row = self._rows[thread] = []
        row.append((kind, label, start_s, end_s))

    def clear(self) -> None:
        """Forget all spans but keep the clock offset. No thread may be recording."""
        self._rows.clear()

    def spans(self, rank: int = 0) -> list[Span]:
        """Return the spans of this rank alone, moved to rank 0's clock.

        Parameters
        ----------
        rank : int, optional
            The number to put into the spans.

        Returns
        -------
        list of Span
        """
        return [
            Span(rank, str(thread), kind, str(label), start_s - self.offset_s, end_s - self.offset_s)
            for thread, row in list(self._rows.items())
            for kind, label, start_s, end_s in list(row)
        ]

    def gather(self, comm: Comm) -> list[Span] | None:
        """Bring the spans of all ranks together. Collective.

        Parameters
        ----------
        comm : mpi4py.MPI.Comm

        Returns
        -------
        list of Span or None
            On rank 0 all spans on rank 0's clock, in order of rank, thread and start; elsewhere
            None.
        """
        parts = comm.gather(self.spans(comm.Get_rank()), root=0)
        if parts is None:
            return None
        return sorted((span for part in parts for span in part), key=display_order)
