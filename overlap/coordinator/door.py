"""`Door`: the coordinator of a communicator, by which ranks enter whatever they do together on it.

An object that all ranks have made has a coordinator of its own. What they do before they have one, or without any (make
an object, gather an array), goes through the door of the user's communicator: there a rank learns of a failure on
another rank, of ranks that do something else, and how long it has waited for whom. The door is made with the first
object of a communicator and is closed when the communicator is freed.

A wait at the door has no limit of its own. The deadlines of the communicator's runtimes hold for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mpi4py import MPI

from ..interrupts import held_signals
from ..losses import guard_of
from .coordinator import Coordinator
from .exclusive import Exclusive
from .header import Header
from .kept_with import KeptWith
from .watchdog import Notice, Watchdog


class Door(Coordinator):
    """The coordinator of a user's communicator. Making one is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    """

    frees_after_failure = False

    def __init__(self, comm: MPI.Intracomm) -> None:
        watchdog = Watchdog(None)
        watchdog.deadline_s = 0.0  # at the process's end the door adds nothing to the wait of the runtimes
        super().__init__(comm, watchdog, guard_of(comm))
        # No thread of its own as long as the communicator exists: a rank that waits at the door prints that itself.
        watchdog.close()
        self.rendezvous.attend = Notice(watchdog).check
        self.exclusive = Exclusive("this communicator")

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

    def close(self) -> None:
        """Free the communicator and end the watchdog (collective)."""
        if not self.closed:
            try:
                with self.exclusive.used("freeing a communicator"):
                    self.end("freeing a communicator")
            finally:
                self.watchdog.close()


_doors = KeptWith(Door, copied=True)


def door_of(comm: MPI.Intracomm) -> Door:
    """Return the door of a communicator, which its duplicates share; make it if there is none yet (collective)."""
    door = _doors.of(comm)
    # MPI may pass the attribute on to a communicator of the ranks that are left after a loss.
    if (door.closed and not door.forked) or door.guard is not guard_of(comm):
        _doors.forget(comm)
        door = _doors.of(comm)
    return door


def enter(comm: MPI.Intracomm, watchdog: Watchdog, call: str) -> None:
    """Go through the door of a communicator, to make an object there whose deadlines hold for the door, too.

    Collective. What another rank has failed with is raised here.
    """
    try:
        with watchdog.watching(f"{call}, the first of a communicator", entry=True):
            door = door_of(comm)
        watchdog.watch_too(door.watchdog)
        door.enter(call, {})
    except BaseException:
        watchdog.close()  # there will be no object
        raise


def close_doors() -> None:
    """Close all doors (collective over their communicators); the next object of a communicator makes another one."""
    for door in list(_doors.every):
        door.close()


def _close_in_child() -> None:
    for door in _doors.every:
        door.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
