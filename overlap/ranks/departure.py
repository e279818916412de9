"""Headers that a rank sends without a wait for the other ranks: its last one, and those that report a failure.

On each of its ranks a `Coordinator` ends with one more header. `close` sends it, or an exception that leaves a ``with``
block or ends the process on that rank alone, or, if nothing was closed, the end of the process. Whatever another rank
does then (a call, `close`, or leaving as well), its header matches this one, so no rank waits for a rank that has gone.
The same exception is reported on all other communicators of the rank, because nobody knows which of them the other
ranks use next.

A rank that closes waits for the others, as in any call. A rank that leaves by an exception must not wait, because the
others may make their next call late, or never. So it sends its headers all at once. A thread waits for the others,
beyond the ``with`` block and until the process ends if need be. Below ``MPI_THREAD_MULTIPLE`` no other thread may do
that; the rank itself waits until the others have received the report in one way, up to its deadline.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from time import monotonic
from typing import Any

from mpi4py import MPI

from ..errors import formatted
from .rendezvous import Rendezvous
from .resource import MPI4PY_S, ended_by, mpi4py_aborts
from .together import UNCLOSED, Exchange, Report, hear, is_old
from .wait import pause, wait_for
from .watchdog import abort, limited_to

PATIENCE = 20  # times as long as usual the thread sleeps between two looks: it may wait until the process ends

# Coordinators that owe their ranks a last header: a rendezvous, the deadline, and the coordinator while it is in use.
_members: dict[int, tuple[Rendezvous, float | None, weakref.ref[Any]]] = {}
_departures: list[Departure] = []  # whose headers some ranks have not reached yet
_lock = threading.Lock()
_thread: threading.Thread | None = None  # waits for the other ranks
_exiting = False  # this process ends; MPI frees what is left


class Departure:
    """A rank's last header, or one that reports a failure between two calls; the rank does not wait for the others.

    The other ranks receive the `report`. When they have reached the header, ``after_header(reports)`` is called with
    the reports of all ranks, or with none if no header was sent, because other ranks have left or are lost. An earlier
    departure on the same communicator, `after`, is completed first. A process that has failed waits `deadline_s`
    seconds for the other ranks before it ends the job; 0 has no say in that.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        report: Report,
        deadline_s: float | None,
        after_header: Callable[[list[Report]], object] | None = None,
        after: Departure | None = None,
    ) -> None:
        self._rendezvous, self._report, self._after_header, self._after = rendezvous, report, after_header, after
        self.deadline_s = deadline_s
        self.others_leave = False  # other ranks have reached the header as their last one: no header follows
        self.is_received: Callable[[], bool] = bool  # whether all have received the report other than by the header
        self._is_complete: Callable[[], bool] | None = None  # of the header, once it is sent
        self._exchange: Exchange | None = None  # of the reports, once all ranks have reached the header
        self._ends = False  # nothing is left to be sent; what follows may wait for other departures, and advance all
        self._over = threading.Event()

    def is_alive(self) -> bool:
        """Return whether some ranks have not reached the header yet."""
        return not self._over.is_set()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until all ranks have reached the header, or for `timeout_s` seconds at most."""
        end = None if timeout_s is None else monotonic() + timeout_s

        def is_over() -> bool:
            if _thread in (None, threading.current_thread()):
                _advance_all()  # another rank may wait for this one at any of the headers
            return self._over.is_set() or (end is not None and monotonic() > end)

        wait_for(is_over)

    def advance(self) -> None:
        """Do what can be done without a wait: send the header, or exchange the reports when all have reached it."""
        reports: list[Report] = []
        if self._ends:
            return
        try:
            if self._after is not None:
                if self._after.is_alive():
                    return
                self.others_leave, self._after = self._after.others_leave, None
            if not self.others_leave:
                with suppress(MPI.Exception):  # a rank is lost: the others learn of that from MPI
                    if self._is_complete is None:
                        self._is_complete = self._rendezvous.report()
                    if not self._is_complete():
                        return
                    if self._exchange is None:
                        self._exchange = Exchange(self._rendezvous.comm, self._report.renewed())
                    if not self._exchange.is_complete():
                        return
                    reports = self._exchange.wait()
                if is_old(reports) and self._report.leaving:
                    self._is_complete = self._exchange = None  # the last header is still to be sent
                    return
                hear(reports)
                comm = self._rendezvous.comm  # if there are no reports, it may have been freed
                self.others_leave = not is_old(reports) and any(
                    report.leaving for other, report in enumerate(reports) if other != comm.rank
                )
        except BaseException:
            self._end([])
            raise
        self._end(reports)

    def _end(self, reports: list[Report]) -> None:
        self._ends = True
        try:
            if self._after_header is not None:
                self._after_header(reports)
        finally:
            self._after_header = None
            with _lock:
                _departures.remove(self)
            self._over.set()


def send(departures: list[Departure]) -> None:
    """Send the headers of departures and have a thread wait for the other ranks.

    If MPI allows no other thread, wait here until all ranks have received one of the reports.
    """
    global _thread
    with _lock:
        _departures.extend(departures)
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        with _lock, suppress(RuntimeError):  # at its end the interpreter starts no threads
            if _thread is None:
                thread = threading.Thread(target=_wait, daemon=True, name="departure")
                thread.start()
                _thread = thread
            return
    first = departures[0]
    what = "the last header of all ranks"
    if first._report.failure is not None:
        what = f"notifying the other ranks of {first._report.failure[0]}"
    with limited_to(first.deadline_s, what) if first.deadline_s else nullcontext():
        wait_for(
            lambda: (
                not _advance_all().issuperset(departures) or any(departure.is_received() for departure in departures)
            )
        )


def _advance_all() -> set[Departure]:
    """Do for all departures what can be done without a wait; return those that are not over."""
    for departure in list(_departures):
        departure.advance()
    return set(_departures)


def _wait() -> None:
    """Wait, in a thread, for the ranks that have not reached the headers of this rank yet."""
    global _thread

    def is_over() -> bool:
        global _thread
        _advance_all()
        with _lock:
            if not _departures:
                _thread = None
            return not _departures

    try:
        wait_for(is_over, lambda seconds: pause(PATIENCE * seconds))
    except BaseException:
        _thread = None
        raise


def is_exiting() -> bool:
    """Return whether this process ends: all communicators have their last headers, so none of them is freed."""
    return _exiting


def enter(coordinator: Any, deadline_s: float | None) -> int:
    """Note that a `Coordinator` owes its ranks a last header; return the key for `leave`."""
    rendezvous = coordinator.rendezvous
    key = rendezvous.comm.handle
    if rendezvous.comm.size > 1:
        _members[key] = rendezvous, deadline_s, weakref.ref(coordinator)
    return key


def leave(key: int) -> None:
    """Note that the last header was sent."""
    _members.pop(key, None)


def end(key: int) -> None:
    """Before all ranks free the communicator, send the last header unless this was done (collective).

    An object that all ranks have dropped had none. The header matches a report that some rank may have sent there
    and no rank has received: no operation is under way on a communicator that is freed.
    """
    if (member := _members.pop(key, None)) is not None and not MPI.Is_finalized():
        _last(member[0], Report(leaving=True)).join()


def _last(rendezvous: Rendezvous, report: Report, deadline_s: float | None = None) -> Departure:
    """Begin to send a last header, after all reports."""
    with _lock:
        before = next((one for one in reversed(_departures) if one._rendezvous is rendezvous), None)
        last = Departure(rendezvous, report, deadline_s, after=before)
        _departures.append(last)
    return last


def members() -> list[Any]:
    """Return the coordinators of several ranks that are in use, in the order in which they were made."""
    return [coordinator for *_, reference in list(_members.values()) if (coordinator := reference()) is not None]


def _at_exit() -> None:
    """Send the last headers of what was not closed, and wait until the other ranks have reached them.

    MPI must not be finalised while a thread is in an MPI call. If the process ends without an exception, it waits until
    the others end, as it would in ``MPI_Finalize``. If an exception ends it, it waits up to the deadline and then ends
    the job.
    """
    global _exiting
    if MPI.Is_finalized():
        return
    _exiting, error = True, ended_by()
    report = _unclosed()
    for rendezvous, deadline_s, _ in _members.values():
        _last(rendezvous, report, deadline_s if error is not None else None)
    _members.clear()
    waiting = list(_departures)
    aborts = mpi4py_aborts(error)
    limit_s = None
    if aborts:
        limit_s = MPI4PY_S
    elif error is not None and all(one.deadline_s is not None for one in waiting):
        limit_s = max((one.deadline_s or 0.0 for one in waiting), default=0.0) or None  # None: the doors alone wait
    began = monotonic()
    for departure in waiting:
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
