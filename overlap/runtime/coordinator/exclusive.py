"""Who may be in MPI: one thread of the user's at a time.

A runtime is used by one thread at a time. Below ``MPI_THREAD_MULTIPLE`` so is MPI itself, by all
runtimes of the process together. A second thread is refused at once: to wait in silence could
deadlock, when the threads of another rank come in another order.
"""

from __future__ import annotations

import threading
from threading import get_ident

from mpi4py import MPI

from ...errors import BusyError


class _Holder:
    """A lock that one thread may take several times, and that knows who holds it for what."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.lock = threading.Lock()
        # Only the thread that holds the lock sets it to itself, and clears it before it lets go: so
        # another thread never reads its own number, whatever it reads.
        self.owner: int | None = None
        self.last: int | None = None  # the owner, or the one before
        self.depth = 0
        self.what: str | None = None

    def refusal(self, what: str) -> BusyError:
        """Make the exception of a second thread."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        return BusyError(
            f"expected threads to use {self._name} one at a time, received {what} in thread "
            f"{threading.current_thread().name!r} while thread {names.get(self.owner)!r} is in {self.what}"
        )


_process = _Holder("MPI below MPI_THREAD_MULTIPLE")


class Exclusive:
    """Keeps other threads of the user's from using a runtime, and from MPI where that must be.

    Parameters
    ----------
    name : str
        What is used, for the message.
    """

    def __init__(self, name: str) -> None:
        self._holder = _process if MPI.Query_thread() < MPI.THREAD_MULTIPLE else _Holder(name)

    @property
    def last(self) -> int | None:
        """The thread that uses it, or has used it last."""
        return self._holder.last

    def used(self, what: str) -> _Use:
        """Have the calling thread do `what` alone: a ``with`` block, which may be entered again.

        Raises
        ------
        BusyError
            Another thread is in something; both are named.
        """
        return _Use(self._holder, what)


class _Use:
    """The time in which a thread holds what must be held."""

    __slots__ = ("_holder", "_what")

    def __init__(self, holder: _Holder, what: str) -> None:
        self._holder, self._what = holder, what

    def __enter__(self) -> None:
        holder, me = self._holder, get_ident()
        if holder.owner != me:
            if not holder.lock.acquire(False):
                raise holder.refusal(self._what)
            holder.owner = holder.last = me
            holder.what = self._what
        holder.depth += 1

    def __exit__(self, *exc_info: object) -> None:
        holder = self._holder
        holder.depth -= 1
        if holder.depth == 0:
            holder.owner = None
            holder.lock.release()
