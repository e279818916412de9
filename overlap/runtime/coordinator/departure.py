"""A rank's last header, by which the other ranks learn that it leaves.

On each of its ranks a `Coordinator` ends with one more header. `close` sends it, or an exception that leaves a ``with``
block or ends the process on that rank alone, or, if nothing was closed, the end of the process. Whatever another rank
does then (a call, `close`, or leaving as well), its header matches this one, so no rank waits for a rank that has gone.

A rank that closes waits for the others, as in any call. A rank that leaves by an exception must not wait, because the
others may make their next call late, or never. So a thread sends its header and waits, beyond the ``with`` block and
until the process ends if need be. Below ``MPI_THREAD_MULTIPLE`` no other thread may do that; the rank itself waits, up
to its deadline.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from array import array
from collections.abc import Callable
from contextlib import nullcontext, suppress
from time import monotonic

from mpi4py import MPI

from ...abort import abort, limited_to
from ...errors import formatted
from ...freed import MPI4PY_S, ended_by, mpi4py_aborts
from .rendezvous import Rendezvous
from .reports import UNCLOSED, Report

# The rendezvous and the deadline of each communicator on which a last header is still to be sent.
_members: dict[int, tuple[Rendezvous, float | None]] = {}
_departures: set[Departure] = set()  # whose headers some ranks have not reached yet


class Departure(threading.Thread):
    """Sends a rank's last header, or one that reports a failure between two calls, and waits for the other ranks.

    Parameters
    ----------
    rendezvous : Rendezvous
        Reduces the headers of the communicator's ranks.
    report : Report
        What the other ranks receive.
    deadline_s : float or None
        Seconds that a process that has failed waits for the other ranks before it ends the job.
    after_header : callable, optional
        ``after_header(reports)`` is called with the reports of all ranks when they have reached the header, or with
        none if no header was sent, because other ranks have left or are lost.
    after : Departure, optional
        An earlier departure on the same communicator, for which this one waits.
    """

    others_leave = False
    """Whether other ranks have reached the header as their last one: no header follows."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        report: Report,
        deadline_s: float | None,
        after_header: Callable[[list[Report]], object] | None = None,
        after: Departure | None = None,
    ) -> None:
        super().__init__(daemon=True, name="departure")
        self._rendezvous, self._report, self._after_header, self._after = rendezvous, report, after_header, after
        self.deadline_s = deadline_s

    def is_on(self, rendezvous: Rendezvous) -> bool:
        """Return whether this is a departure from the ranks of a rendezvous."""
        return self._rendezvous is rendezvous

    def send(self) -> None:
        """Have a thread send the header; if MPI allows no other thread, send it now."""
        _departures.add(self)
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            with suppress(RuntimeError):  # at its end the interpreter starts no threads
                self.start()
                return
        what = "the last header of all ranks"
        if self._report.failure is not None:
            what = f"notifying the other ranks of {self._report.failure[0]}"
        with nullcontext() if self.deadline_s is None else limited_to(self.deadline_s, what):
            self.run()

    def wait(self) -> None:
        """Wait until all ranks have reached the header."""
        if self.ident is not None:  # a thread was started
            self.join()

    def run(self) -> None:
        try:
            if self._after is not None:
                self._after.wait()
                self.others_leave = self._after.others_leave
            reports: list[Report] = []
            if not self.others_leave:
                with suppress(MPI.Exception):  # a rank is lost: the others learn of that from MPI
                    # A header of a failed rank: whatever the others send, all exchange their reports.
                    self._rendezvous.minimum(array("q", (0, 0, 0)))
                    reports = self._rendezvous.comm.allgather(self._report)
                rank = self._rendezvous.comm.rank
                self.others_leave = any(report.leaving for other, report in enumerate(reports) if other != rank)
            if self._after_header is not None:
                self._after_header(reports)
        finally:
            self._after_header = None
            _departures.discard(self)


def enter(rendezvous: Rendezvous, deadline_s: float | None) -> int:
    """Note that a communicator owes its ranks a last header; return the key for `leave`."""
    key = rendezvous.comm.handle
    if rendezvous.comm.size > 1:
        _members[key] = rendezvous, deadline_s
    return key


def leave(key: int) -> None:
    """Note that the last header was sent, or that all ranks have freed the communicator."""
    _members.pop(key, None)


def _at_exit() -> None:
    """Send the last headers of what was not closed, and wait until the other ranks have reached them.

    MPI must not be finalised while a thread is in an MPI call. If the process ends without an exception, it waits until
    the others end, as it would in ``MPI_Finalize``. If an exception ends it, it waits up to the deadline and then ends
    the job.
    """
    if MPI.Is_finalized():
        return
    error = ended_by()
    while _members:  # in the order in which all ranks have made them, because there may be no thread for each
        rendezvous, deadline_s = _members.pop(next(iter(_members)))
        before = next((one for one in _departures if one.is_on(rendezvous)), None)
        Departure(rendezvous, _unclosed(), deadline_s if error is not None else None, after=before).send()
    waiting = list(_departures)
    aborts = mpi4py_aborts(error)
    limit_s = None
    if aborts:
        limit_s = MPI4PY_S
    elif error is not None and all(one.deadline_s is not None for one in waiting):
        limit_s = max((one.deadline_s or 0.0 for one in waiting), default=0.0)
    began = monotonic()
    for departure in waiting:
        if departure.ident is None:
            continue
        departure.join(None if limit_s is None else max(0.0, began + limit_s - monotonic()))
        if departure.is_alive():
            if not aborts:
                abort(
                    f"{'' if error is None else formatted(error)[0]} has ended this rank, and other ranks have made "
                    f"no call in which they could be notified within {limit_s:g} s"
                )
            return


def _unclosed() -> Report:
    """Report that this process ends without `close`."""
    shown = getattr(sys, "last_value", None)  # IPython and pytest print exceptions themselves, and go on
    if shown is None:
        return Report(leaving=True)
    summary, traceback_text = formatted(shown)
    return Report(leaving=True, failure=(f"{UNCLOSED}, after {summary}", traceback_text))


def _forget() -> None:
    """Forget the communicators in a forked process: they belong to its parent."""
    _members.clear()
    _departures.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_forget)
