"""The worker pool: N threads that take the next ready step, whoever is free.

State: a heap of ready steps, ordered by when the communicator will ask for their result, and one
token per ready step in a queue on which idle workers sleep. A worker never waits on anything else,
except, in `block` mode, on a seat: there are N seats for N workers and one communicator, so that
never more than N of them keep a core busy.
"""

import sys
import threading
from contextlib import contextmanager
from heapq import heappop, heappush
from queue import SimpleQueue

import threadpoolctl

from .scheduling import be_nice

_here = threading.local()


def worker_index():
    """Index of the worker this thread is, 0 to N - 1; 0 on any other thread."""
    return getattr(_here, "index", 0)


class Seats:
    """N places for N workers and the communicator: who computes or spins holds one."""

    def __init__(self, count):
        self._free = SimpleQueue()
        for _ in range(count):
            self._free.put(None)

    def __enter__(self):
        self._free.get()

    def __exit__(self, *exc_info):
        self._free.put(None)


class Workers:
    """A pool of `count` daemon threads.

    Parameters
    ----------
    count : int
        Number of threads.
    on_error : callable
        Given the exception of a task that raised one. Tasks must not: their pipeline would never end.
    nice : int
        Added to the threads' nice value (Linux: per thread, no privilege needed). On a core that a
        worker shares with the communicator, a lower priority lets the communicator in at once when
        it wakes, and takes nothing from the worker while it sleeps.
    """

    def __init__(self, count, nice, on_error):
        self.count = count
        self._on_error = on_error
        self.seats = None  # set between pipelines only
        self._ready = []
        self._lock = threading.Lock()
        self._tokens = SimpleQueue()
        self._sequence = 0
        self._threads = [
            threading.Thread(target=self._work, args=(index, nice), daemon=True,
                             name=f"worker {index}")
            for index in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, turn, task):
        """Make `task` ready; among ready tasks the one with the smallest `turn` goes first."""
        with self._lock:
            self._sequence += 1
            heappush(self._ready, (turn, self._sequence, task))
        self._tokens.put(True)

    def close(self):
        """Stop and join the threads. Nothing may be ready or running."""
        for _ in self._threads:
            self._tokens.put(False)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _work(self, index, nice):
        _here.index = index
        be_nice(nice)
        # OpenMP keeps its thread count per thread; it ends with this one.
        threadpoolctl.threadpool_limits(limits=1, user_api="openmp")
        while self._tokens.get():
            with self._lock:
                _, _, task = heappop(self._ready)
            try:
                if self.seats is None:
                    task()
                else:
                    with self.seats:
                        task()
            except BaseException as error:
                self._on_error(error)
            # A finished task's arrays must not live until the next one comes.
            del task


# Thread pools of libraries (BLAS, OpenMP, FFTW through pyfftw) are process-wide, so the limit is
# counted: set by the first runtime that opens, restored by the last one that closes.
_pools_lock = threading.Lock()
_pools_users = 0
_pools_limit = None


@contextmanager
def single_threaded_pools():
    """Limit BLAS, OpenMP and FFTW pools to one thread each; restore them at the last exit."""
    global _pools_users, _pools_limit
    with _pools_lock:
        _pools_users += 1
        if _pools_users == 1:
            _pools_limit = threadpoolctl.threadpool_limits(limits=1), _limit_pyfftw(1)
    try:
        yield
    finally:
        with _pools_lock:
            _pools_users -= 1
            if _pools_users == 0:
                libraries, pyfftw_threads = _pools_limit
                libraries.restore_original_limits()
                _limit_pyfftw(pyfftw_threads)
                _pools_limit = None


def _limit_pyfftw(threads):
    """Set the default thread count of pyfftw, if the program uses it; returns the previous one."""
    pyfftw = sys.modules.get("pyfftw")
    if pyfftw is None or threads is None:
        return None
    previous, pyfftw.config.NUM_THREADS = pyfftw.config.NUM_THREADS, threads
    return previous
