"""Who may be in MPI: one thread of the user's at a time.

A runtime is used by one thread at a time. Below ``MPI_THREAD_MULTIPLE`` so is MPI itself, by all
runtimes of the process together. A second thread is refused at once: to wait in silence could
deadlock, when the threads of another rank come in another order.
"""

import threading
from threading import get_ident

from mpi4py import MPI


class _Holder:
    """A lock that one thread may take several times, and that knows who holds it for what."""

    def __init__(self, name):
        self._name = name
        self._lock = threading.Lock()
        # Only the thread that holds the lock sets it to itself, and clears it before it lets go: so
        # another thread never reads its own number, whatever it reads.
        self._owner = None
        self._what = None
        self._depth = 0

    def take(self, what):
        me = get_ident()
        if self._owner != me:
            self._acquire(what)
            self._owner, self._what = me, what
        self._depth += 1

    def give(self):
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            self._release()

    def _acquire(self, what):
        if self._lock.acquire(blocking=False):
            return
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        raise RuntimeError(
            f"expected threads to use {self._name} one at a time, received {what} in thread "
            f"{threading.current_thread().name!r} while thread {names.get(self._owner)!r} is in "
            f"{self._what}")

    def _release(self):
        self._lock.release()


_process = _Holder("MPI below MPI_THREAD_MULTIPLE")


class Exclusive(_Holder):
    """Keeps other threads of the user's from using a runtime, and MPI where that must be.

    Parameters
    ----------
    name : str
        What is used, for the message.
    """

    def __init__(self, name):
        super().__init__(name)
        self._process = _process if MPI.Query_thread() < MPI.THREAD_MULTIPLE else None

    def used(self, what):
        """While `what` is done by the calling thread: a ``with`` block.

        Raises
        ------
        RuntimeError
            Another thread is in something; both are named.
        """
        return _Use(self, what)

    def _acquire(self, what):
        if self._process is None:
            super()._acquire(what)
            return
        self._process.take(what)
        try:
            super()._acquire(what)
        except BaseException:
            self._process.give()
            raise

    def _release(self):
        super()._release()
        if self._process is not None:
            self._process.give()


class _Use:
    """The time in which a thread holds everything that must be held."""

    __slots__ = ("_exclusive", "_what")

    def __init__(self, exclusive, what):
        self._exclusive, self._what = exclusive, what

    def __enter__(self):
        self._exclusive.take(self._what)

    def __exit__(self, *exc_info):
        self._exclusive.give()
