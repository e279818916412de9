"""Who may be in MPI: one thread of the user's at a time.

A runtime is used by one thread at a time. Below ``MPI_THREAD_MULTIPLE`` so is MPI itself, by all
runtimes of the process together. A second thread is refused at once: to wait in silence could
deadlock, when the threads of another rank come in another order.
"""

import threading

from mpi4py import MPI


class _Holder:
    """A lock that one thread may take several times, and that knows who holds it for what."""

    def __init__(self, name):
        self._name = name
        self._lock = threading.Lock()
        # Only the thread that holds the lock sets it to itself, and clears it before it lets go: so
        # another thread never reads its own number, whatever it reads.
        self._owner = None
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

    def used(self, what):
        """While `what` is done by the calling thread: a ``with`` block.

        Raises
        ------
        RuntimeError
            Another thread is in something; both are named.
        """
        return _Use(self._holders, what)


class _Use:
    """The time in which a thread holds everything that must be held."""

    __slots__ = ("_holders", "_what", "_taken")

    def __init__(self, holders, what):
        self._holders, self._what, self._taken = holders, what, []

    def __enter__(self):
        try:
            for holder in self._holders:
                holder.take(self._what)
                self._taken.append(holder)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc_info):
        while self._taken:
            self._taken.pop().give()
