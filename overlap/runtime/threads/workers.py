"""The worker pool: N threads that take the next ready step, whoever is free.

State: a heap of ready steps, ordered by when the communicator will ask for their result, guarded by a lock;
and one token per ready step in a queue on which idle workers sleep. A step is in the heap before its token
is in the queue, so whoever has a token finds one, though perhaps not the one that it was put for; or none,
if the thread that talks to MPI has taken it, which may compute too (`next_step`). A worker never waits on
anything else, except, in `block` mode, on a core token: there are N of them for N workers and the
communicator thread, so that never more than N threads keep a core busy.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from queue import SimpleQueue
from typing import Any

import threadpoolctl

from .priority import be_nice

_here = threading.local()


def worker_index() -> int:
    """Index of the worker this thread is, 0 to N - 1; 0 on any other thread."""
    return getattr(_here, "index", 0)


class CoreTokens:
    """N places for N workers and the communicator: who computes or spins holds one."""

    def __init__(self, count: int, queue: Callable[[], Any] = SimpleQueue) -> None:
        self._free = queue()
        for _ in range(count):
            self._free.put(None)

    def __enter__(self) -> None:
        self._free.get()

    def __exit__(self, *exc_info: object) -> None:
        self._free.put(None)


class ReadySteps:
    """The ready steps, and what a worker does with them.

    Parameters
    ----------
    on_error : callable
        Given the exception of a task that raised one. Tasks must not: their pipeline would never end.
    queue : callable
        Makes the queue on which idle workers sleep (`overlap.timing.simulate` has its own).

    Attributes
    ----------
    core_tokens : CoreTokens or None
        Set between pipelines only.
    wake : callable or None
        Called when a step is ready: has a thread look that takes steps besides. Set between pipelines only.
    """

    def __init__(self, on_error: Callable[[BaseException], object], queue: Callable[[], Any] = SimpleQueue) -> None:
        self.core_tokens: CoreTokens | None = None
        self.wake: Callable[[], object] | None = None
        self._on_error = on_error
        self._ready: list[tuple[int, int, Callable[[], object]]] = []
        self._lock = threading.Lock()
        self._tokens = queue()
        self._sequence = 0

    def submit(self, turn: int, task: Callable[[], object]) -> None:
        """Make `task` ready; among ready tasks the one with the smallest `turn` goes first."""
        with self._lock:
            self._sequence += 1
            heappush(self._ready, (turn, self._sequence, task))
        self._tokens.put(True)
        if self.wake is not None:
            self.wake()

    def next_step(self) -> Callable[[], object] | None:
        """Take the first ready task, for the calling thread to run; None if none is ready."""
        with self._lock:
            return heappop(self._ready)[2] if self._ready else None

    def stop(self) -> None:
        """Have one worker leave `work`. Nothing may be ready or running."""
        self._tokens.put(False)

    def work(self) -> None:
        """Run ready tasks, one after another, until `stop`."""
        while self._tokens.get():
            task = self.next_step()
            if task is None:
                continue
            try:
                if self.core_tokens is None:
                    task()
                else:
                    with self.core_tokens:
                        task()
            except BaseException as error:
                self._on_error(error)
            # A finished task's arrays must not live until the next one comes.
            del task


class Workers(ReadySteps):
    """A pool of daemon threads.

    Parameters
    ----------
    indices : range
        The threads' `worker_index`, one each.
    nice : int
        Added to the threads' nice value (Linux: per thread, no privilege needed). On a core that a
        worker shares with the communicator, a lower priority lets the communicator in at once when
        it wakes, and takes nothing from the worker while it sleeps.
    on_error : callable
        As of `ReadySteps`.
    """

    def __init__(self, indices: range, nice: int, on_error: Callable[[BaseException], object]) -> None:
        super().__init__(on_error)
        self._threads = [
            threading.Thread(target=self._run, args=(index, nice), daemon=True, name=f"worker {index}")
            for index in indices
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Have all threads end, without waiting for them. Nothing may be ready or running."""
        for _ in self._threads:
            self.stop()

    def close(self) -> None:
        """Stop and join the threads. Nothing may be ready or running."""
        self.end()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _run(self, index: int, nice: int) -> None:
        _here.index = index
        be_nice(nice)
        # OpenMP keeps its thread count per thread; it ends with this one.
        threadpoolctl.threadpool_limits(limits=1, user_api="openmp")
        self.work()


# Thread pools of libraries (BLAS, OpenMP, FFTW through pyfftw) are process-wide, so the limit is
# counted: set by the first runtime that opens, restored by the last one that closes.
_pools_lock = threading.Lock()
_pools_users = 0
_pools_limit: Any = None
_pools_known: tuple[int, Any] = (-1, None)  # modules when they were looked for, and what finds them


@contextmanager
def single_threaded_pools() -> Iterator[None]:
    """Limit BLAS, OpenMP and FFTW pools to one thread each; restore them at the last exit."""
    global _pools_users, _pools_limit
    with _pools_lock:
        _pools_users += 1
        if _pools_users == 1:
            _pools_limit = _pools().limit(limits=1), _limit_pyfftw(1)
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


def _pools() -> Any:
    """Return the pools of all libraries that are loaded, looked for again when there are other modules."""
    global _pools_known
    if _pools_known[0] != len(sys.modules):
        _pools_known = len(sys.modules), threadpoolctl.ThreadpoolController()
    return _pools_known[1]


def _limit_pyfftw(threads: int | None) -> int | None:
    """Set the default thread count of pyfftw, if the program uses it; returns the previous one."""
    pyfftw = sys.modules.get("pyfftw")
    if pyfftw is None or threads is None:
        return None
    previous, pyfftw.config.NUM_THREADS = pyfftw.config.NUM_THREADS, threads
    return previous
