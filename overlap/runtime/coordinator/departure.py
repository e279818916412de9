"""A rank's last header, with which it leaves the others.

Every `Coordinator` of several ranks ends on each of them with one header more: of `close`; of an exception that leaves
a ``with`` block, or ends the process, on that rank alone; or of the end of the process, where nothing was closed.
Whatever another rank does then, a call, `close` or the same, its header meets this one, and so nobody waits for a
rank that has gone.

A rank that closes waits there for the others, as in any call. One that leaves by an exception must not: others may
come late, or never. A thread sends its header, and waits beyond the ``with`` block if need be, until the process
ends. Below ``MPI_THREAD_MULTIPLE`` no thread may do that, and the rank waits itself, up to its deadline.
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
from ...freed import ended_by
from .rendezvous import Rendezvous
from .reports import UNCLOSED, Report

MPI4PY_S = 1.0  # for others to be told, where mpi4py ends the job at the end of a process that has failed

_members: dict[
    int, tuple[Rendezvous, float | None]
] = {}  # meetings of communicators whose last header is to come, and deadlines
_departures: set[Departure] = set()  # whose headers other ranks have not met yet


class Departure(threading.Thread):
    """Sends a rank's last header, or one that says what has failed between two calls, and waits for the other ranks.

    Parameters
    ----------
    rendezvous : Rendezvous
        Where the communicator's ranks meet.
    report : Report
        What the others are to know.
    deadline_s : float or None
        How long a process that has failed waits for them before it ends the job.
    met : callable, optional
        ``met(all_leave)`` is called when all ranks have met, with whether this was the last header of each of them.
    after : Departure, optional
        An earlier one on the same communicator.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        report: Report,
        deadline_s: float | None,
        met: Callable[[bool], object] | None = None,
        after: Departure | None = None,
    ) -> None:
        super().__init__(daemon=True, name="departure")
        self._rendezvous, self._report, self._met, self._after = rendezvous, report, met, after
        self.deadline_s = deadline_s

    def send(self) -> None:
        """Have it sent by a thread, or here and now where MPI allows no other thread."""
        _departures.add(self)
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            with suppress(RuntimeError):  # the interpreter ends, and starts no threads any more
                self.start()
                return
        what = "a last meeting of all ranks"
        if self._report.failure is not None:
            what = f"telling the other ranks of {self._report.failure[0]}"
        with nullcontext() if self.deadline_s is None else limited_to(self.deadline_s, what):
            self.run()

    def wait(self) -> None:
        """Wait until all ranks have met."""
        if self.ident is not None:  # it was started
            self.join()

    def run(self) -> None:
        try:
            if self._after is not None:
                self._after.wait()
            all_leave = False
            try:
                # Not well, whatever the others send: all exchange their reports.
                self._rendezvous.minimum(array("q", (0, 0, 0)))
                all_leave = all(report.leaving for report in self._rendezvous.comm.allgather(self._report))
            except MPI.Exception:
                pass  # a rank is lost: there is nobody to be told
            if self._met is not None:
                self._met(all_leave)
        finally:
            self._met = None
            _departures.discard(self)


def enter(rendezvous: Rendezvous, deadline_s: float | None) -> int:
    """Note that the ranks of a communicator meet from now on; returns what `leave` wants."""
    key = rendezvous.comm.handle
    if rendezvous.comm.size > 1:
        _members[key] = rendezvous, deadline_s
    return key


def leave(key: int) -> None:
    """Note that the last header was sent, or that all ranks have freed the communicator."""
    _members.pop(key, None)


def _at_exit() -> None:
    """Leave what was not closed, and wait until the other ranks have met what this one has sent.

    MPI must not be finalised while a thread is in it. A process that has ended well waits as long as the others, which
    it does in ``MPI_Finalize`` anyway; one that an exception has ended waits up to the deadline, then ends the job.
    """
    if MPI.Is_finalized():
        return
    error = ended_by()
    while _members:  # in the order in which all ranks have made them, where no thread can wait for each
        rendezvous, deadline_s = _members.pop(next(iter(_members)))
        Departure(rendezvous, _unclosed(), deadline_s if error is not None else None).send()
    waiting = list(_departures)
    aborts = error is not None and "mpi4py.run" in sys.modules  # mpi4py will end the job
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
                    f"no call in which they could be told of it within {limit_s:g} s"
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
    """Forget the communicators: they are the parent's."""
    _members.clear()
    _departures.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_forget)
