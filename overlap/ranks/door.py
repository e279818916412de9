"""`Door`: the coordinator of a communicator, by which ranks enter whatever they do together on it.

An object that all ranks have made has a coordinator of its own. What they do before they have one, or without any (make
an object, gather an array), goes through the door of the user's communicator: there a rank learns of a failure on
another rank, of ranks that do something else, and how long it has waited for whom. The door is made with the first
object of a communicator and is closed when the communicator is freed.

A wait at the door has no limit of its own. The deadlines of the communicator's runtimes hold for it.

Some calls have no header and exchange nothing but their data: rounds of a halo, collectives in a window. These objects
tell the ranks that wait in them what is reported at the door. A rank that learns of a failure in this way lets the
others know, as no header shows it (`Door.answer`).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from mpi4py import MPI

from ..errors import InputError
from .coordinator import Coordinator
from .departure import Departure
from .exclusive import exclusive_use
from .failures import FailureChannel, RankFailure
from .header import Header
from .interrupts import held_signals
from .kept_with import KeptWith
from .losses import guard_of
from .together import Report
from .watchdog import Notice, Watchdog

_TAG = 9


class Door(Coordinator):
    """The coordinator of a user's communicator. Making one is collective."""

    frees_after_failure = False

    def __init__(self, comm: MPI.Intracomm) -> None:
        watchdog = Watchdog(None)
        watchdog.deadline_s = 0.0  # at the process's end the door adds nothing to the wait of the runtimes
        super().__init__(comm, watchdog, guard_of(comm))
        # No thread of its own as long as the communicator exists: a rank that waits at the door prints that itself.
        watchdog.close()
        self.rendezvous.attend = Notice(watchdog).check
        self.exclusive = exclusive_use("this communicator")
        self._without_headers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._answers = FailureChannel(self.comm, _TAG)
        self.holding.add(self._answers.end)
        self._lock = threading.Lock()  # for the answers: any thread may wait in a call without a header
        self._receivers: set[tuple[int, str]] = set()  # ranks, and what they have received
        self._origins: dict[str, int] = {}  # the ranks that have failed, by what this one has received of them

    def tell_too(self, one: Any) -> None:
        """Have an object with calls without a header tell the ranks that wait in them what is reported here.

        Its ``_tell(failure)`` does so (local). The object is not kept alive.
        """
        self._without_headers.add(one)

    def _departing(self, report: Report, after_header: Callable[[list[Report]], object]) -> Departure:
        sent = super()._departing(report, after_header)
        if report.failure is not None:
            failure = RankFailure(self.rank, *report.failure, identity=report.identity, stays=True)
            for one in list(self._without_headers):
                one._tell(failure)
            sent.is_received = partial(self._is_received, report.identity)
        return sent

    def answer(self, failure: RankFailure) -> None:
        """Let all ranks know that this one has raised a failure, or received it without a header (local)."""
        if not failure.identity or self.closed:
            return
        with self._lock, suppress(MPI.Exception):  # a rank is lost: the others learn of that from MPI
            self._origins.setdefault(failure.identity, failure.rank)
            self._receive()  # MPI does not keep answers that nobody waits for
            for rank in range(self.size):
                if rank != self.rank:
                    self._answers.notify(rank, failure.identity.encode())

    def _is_received(self, identity: str) -> bool:
        """Return whether all ranks have received a failure, by their answers."""
        with self._lock, suppress(MPI.Exception):
            self._receive()
        know = self.rank, self._origins.get(identity)
        return self._receivers.issuperset((rank, identity) for rank in range(self.size) if rank not in know)

    def _receive(self) -> None:
        self._receivers.update((rank, content.decode()) for rank, content in self._answers.received())

    def synchronize_here(self, header: Header, error: BaseException | None, entry: bool, leaving: bool = False) -> None:
        """Synchronize; in the middle of a call, too, other ranks may write a file or run a function of the user's."""
        super().synchronize_here(header, error, True, leaving)

    @contextmanager
    def entered(self, call: str, **agreed: Any) -> Iterator[None]:
        """Return a ``with`` block in which all ranks make this call, with these equal values (collective)."""
        with held_signals(), self.exclusive.used(call):
            self.synchronize(call, agreed)
            self.nested += 1
            try:
                yield
            finally:
                self.nested -= 1


_doors = KeptWith(Door, copied=True)


def door_of(comm: MPI.Intracomm) -> Door:
    """Return the door of a communicator, which its duplicates share; make it if there is none yet (collective)."""
    door = _doors.of(comm)
    # MPI may pass the attribute on to a communicator of the ranks that are left after a loss.
    if (door.closed and not door.forked) or door.guard is not guard_of(comm):
        _doors.forget(comm)
        door = _doors.of(comm)
    return door


def enter(comm: MPI.Intracomm, watchdog: Watchdog, call: str, problem: str | None = None, **agreed: Any) -> Door:
    """Go through the door of a communicator, to make an object there whose deadlines hold for the door, too.

    Collective; returns the door. An `InputError` is raised on all ranks if one has a problem, or if values that must be
    `agreed` differ, and a `RankError` if one can start no thread for the watchdog. What another rank has failed with is
    raised here.
    """
    try:
        with watchdog.watching(f"{call}, the first of a communicator", entry=True):
            door = door_of(comm)
        watchdog.watch_too(door.watchdog)
        door.enter(call, agreed, watchdog.refused if problem is None else InputError(problem))
    except BaseException:
        watchdog.close()  # there will be no object
        raise
    return door


@contextmanager
def collective_section(
    comm: MPI.Intracomm, call: str, check: Callable[[MPI.Intracomm], str | None] | None = None, **agreed: Any
) -> Iterator[dict[str, Any]]:
    """Run a ``with`` block that may fail on some ranks, and then raise on all of them (collective).

    The block runs to its end on all ranks, so messages inside of it must go on after a failure. Whoever enters learns
    of what has failed on another rank.

    On all ranks `call`, which names what they do, must be the same, and so must be the values `agreed` when the block
    begins and those that the block puts into the dictionary when it ends. Before the block, `check` is called under the
    deadline with a communicator of the same ranks; it returns, the same on all of them, what is wrong, or None.

    Raises
    ------
    InputError, RankError
        On all ranks, for what has failed; `InputError` also if the values differ, or for what `check` returns.
    """
    at_end: dict[str, Any] = {}
    door = door_of(comm)
    with door.collective_section(call, at_end=at_end, **agreed):
        if check is not None:
            with door.watching(call) as own_comm:
                problem = check(own_comm)
            if problem:
                raise door.mark(InputError(problem))
        yield at_end


def close_doors() -> None:
    """Close all doors (collective over their communicators); the next object of a communicator makes another one."""
    for door in list(_doors.every):
        door.close()


def _close_in_child() -> None:
    for door in _doors.every:
        door.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
