"""Who may be in MPI: one thread of the user's at a time.

A runtime is used by one thread at a time. Below ``MPI_THREAD_MULTIPLE`` so is MPI itself, by all
runtimes of the process together. A second thread is refused at once: to wait in silence could
deadlock, when the threads of another rank come in another order.
"""

import threading
from contextlib import contextmanager

from mpi4py import MPI


class _Holder:
    """A lock that one thread may take several times, and that knows who holds it for what."""

    def __init__(self, name):
        self._name = name
        self._lock = threading.Lock()
        self._owner = None  # only the owner itself sets it, and clears it: no race decides wrongly
        self._thread = self._what = None
        self._depth = 0

    def take(self, what):
        me = threading.get_ident()
        if self._owner != me:
            if not self._lock.acquire(blocking=False):
                raise RuntimeError(
                    f"expected threads to use {self._name} one at a time, received {what} in thread "
                    f"{threading.current_thread().name!r} while thread {self._thread!r} is in "
                    f"{self._what}")
            self._owner, self._what = me, what
            self._thread = threading.current_thread().name
        self._depth += 1

    def give(self):
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            self._lock.release()


_process = _Holder("MPI below MPI_THREAD_MULTIPLE")


class Exclusive:
    """Keeps other threads of the user's from using a runtime, and MPI where that must be.

    Parameters
    ----------
    name : str
        What is used, for the message.
    """

    def __init__(self, name):
        self._holders = [_Holder(name)]
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            self._holders.insert(0, _process)

    @contextmanager
    def used(self, what):
        """While `what` is done by the calling thread.

        Raises
        ------
        RuntimeError
            Another thread is in something; both are named.
        """
        taken = 0
        try:
            for holder in self._holders:
                holder.take(what)
                taken += 1
            yield
        finally:
            for holder in self._holders[:taken][::-1]:
                holder.give()
