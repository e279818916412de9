"""Ready steps, which any free thread takes: a worker, or the thread that calls MPI.

State: a heap of ready steps, ordered by when their result will be needed and guarded by a lock, and a queue with one
token per ready step, on which idle workers sleep. A step enters the heap before its token enters the queue. So a worker
with a token finds a step, though perhaps another one than the token's, or none if the thread that calls MPI has taken
it (`next_step`). A worker waits for nothing else except, in `block` mode, for a core token: N workers and the
communicator thread share N tokens, so that at most N threads keep a core busy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from heapq import heappop, heappush
from queue import SimpleQueue
from typing import Any

here = threading.local()


def is_worker() -> bool:
    """Return whether this thread is a worker of the library."""
    return hasattr(here, "index")


def worker_index() -> int:
    """Return the index of the worker that this thread is, 0 to N - 1; 0 on any other thread.

    Examples
    --------
    >>> scratch = np.empty((2, 100))  # one row for each worker
    >>> with overlap.Runtime(comm, workers=2) as rt:
    ...     @rt.pipelined
    ...     async def program(i):
    ...         scratch[overlap.worker_index()] = i
    ...         await overlap.take_turn()
    ...     program(range(8))
    """
    return getattr(here, "index", 0)


class CoreTokens:
    """N core tokens for N workers and the communicator thread; each thread that computes or spins holds one."""

    def __init__(self, count: int, queue: Callable[[], Any] = SimpleQueue) -> None:
        self._free = queue()
        for _ in range(count):
            self._free.put(None)

    def __enter__(self) -> None:
        self._free.get()

    def __exit__(self, *exc_info: object) -> None:
        self._free.put(None)


class ReadySteps:
    """Holds the ready steps and runs them in workers.

    Tasks must not raise: their pipeline would never end. If one does, `on_error` is called with the exception. `queue`
    makes the queue on which idle workers sleep; tests with a virtual clock pass their own.
    """

    def __init__(self, on_error: Callable[[BaseException], object], queue: Callable[[], Any] = SimpleQueue) -> None:
        # Set between pipelines only. `wake` is called when a step is ready, for a thread that takes steps, too.
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
        """Take the first ready task for the calling thread to run; return None if none is ready."""
        with self._lock:
            return heappop(self._ready)[2] if self._ready else None

    def stop(self) -> None:
        """Have one worker return from `work`. Nothing may be ready or running."""
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
            # A finished task must not keep its arrays alive until the next task.
            del task
