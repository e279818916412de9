"""Which threads may call MPI, and the exclusive use of a runtime by one of the user's threads at a time.

One thread at a time uses a runtime. Below ``MPI_THREAD_MULTIPLE`` one thread at a time uses MPI, by all runtimes of the
process together. A second thread gets an error at once: if it waited, ranks whose threads arrive in different orders
would deadlock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from mpi4py import MPI

from ..errors import BusyError, ThreadLevelError, note

OWNER = "owner"


IN_SLICES = (
    "; in a slice, await `apply` of a Bracket or of a Transpose's direction, and call other plans before or after the "
    "pipeline, or give their function to `plan.pointwise`"
)


class Exclusive:
    """What one thread may use, several times at once, with its purpose; messages have its name."""

    def __init__(self, name: str) -> None:
        self._name = name
        # The number of the thread that uses it, under OWNER; empty if none does. Not a lock: a signal handler may
        # raise between the call that acquires and the next line, and who had acquired a lock would then be unknown.
        self.held: dict[str, int] = {}
        self.last: int | None = None  # the owner, or the one before
        self.depth = 0
        self.what: str | None = None
        self.next: int | None = None  # the thread that waits for the owner's end; no other one may use it meanwhile

    @property
    def is_own(self) -> bool:
        """Return whether the calling thread uses it."""
        return self.held.get(OWNER) == get_ident()

    def refusal(self, what: str) -> BusyError:
        """Make the exception to raise in a second thread."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        return BusyError(
            f"expected threads to use {self._name} one at a time, received {what} in thread "
            f"{threading.current_thread().name!r} while thread {names.get(self.held.get(OWNER))!r} is in "
            f"{self.what}{IN_SLICES}"
        )

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Return a ``with`` block in which no other thread begins to use it."""
        before, self.next = self.next, get_ident()
        try:
            yield
        finally:
            self.next = before

    def used(self, what: str) -> _Use:
        """Return a ``with`` block, which may be nested, in which the calling thread alone does `what`.

        Raises
        ------
        BusyError
            Another thread is in such a block; the error names both purposes.
        """
        return _Use(self, what)


_process = Exclusive("MPI below MPI_THREAD_MULTIPLE")


def exclusive_use(name: str) -> Exclusive:
    """Keep other threads of the user from using what has this name and, below ``MPI_THREAD_MULTIPLE``, MPI."""
    return _process if MPI.Query_thread() < MPI.THREAD_MULTIPLE else Exclusive(name)


class _Use:
    """Uses an `Exclusive` during a ``with`` block."""

    __slots__ = ("_holder", "_what")

    def __init__(self, holder: Exclusive, what: str) -> None:
        self._holder, self._what = holder, what

    def __enter__(self) -> None:
        holder, me = self._holder, get_ident()
        if holder.held.setdefault(OWNER, me) != me:  # one step, whatever other threads do
            raise holder.refusal(self._what)
        # If a handler raises here, this thread holds it at depth 0, and enters again in its next call.
        if holder.depth == 0:
            if holder.next not in (None, me):
                refusal = holder.refusal(self._what)
                holder.held.clear()
                raise refusal
            holder.last, holder.what = me, self._what
        holder.depth += 1

    def __exit__(self, *exc_info: object) -> None:
        holder = self._holder
        holder.depth -= 1
        if holder.depth == 0:
            holder.held.clear()


def thread_level() -> str:
    """Return the thread level at which MPI runs, in mpi4py's words: ``"serialized"``, ``"multiple"``, ..."""
    names = ("single", "funneled", "serialized", "multiple")
    return {getattr(MPI, f"THREAD_{name.upper()}"): name for name in names}[MPI.Query_thread()]


def check_thread_level() -> None:
    """Raise a `ThreadLevelError` if only the thread that has started MPI may call it."""
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ThreadLevelError(
            "expected an MPI thread level of at least MPI_THREAD_SERIALIZED "
            f"({MPI.THREAD_SERIALIZED}), received {MPI.Query_thread()}; set "
            "mpi4py.rc.thread_level = 'serialized' before importing mpi4py.MPI"
        )


def note_thread_level(comm: MPI.Intracomm) -> None:
    """Have rank 0 say that messages of MPICH are slow at the level "multiple", at which MPICH locks every call."""
    if comm.size > 1 and comm.rank == 0 and thread_level() == "multiple" and MPI.get_vendor()[0] == "MPICH":
        note(
            "MPI runs at MULTIPLE: short messages of MPICH then take several times as long. Set mpi4py.rc.thread_level "
            '= "serialized" before mpi4py.MPI is imported (OVERLAP_NOTES= in the environment: no such notes)'
        )
