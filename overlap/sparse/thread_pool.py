"""`ThreadPool`: the threads that share the compiled kernels of a rank."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise


class ThreadPool:
    """Shares a range among threads, the caller's among them.

    The results must not depend on where the range is cut; they are then the same bits for any number of workers.

    Parameters
    ----------
    workers : int
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._others = ThreadPoolExecutor(workers - 1, "sparse worker") if workers > 1 else None

    def run(self, function: Callable[[int, int], object], first: int, last: int, least: int = 2) -> None:
        """Call ``function(begin, end)`` for parts of the range from `first` to `last` - 1; return when all parts are
        complete.

        A range shorter than `least` is not shared.
        """
        if self._others is None or last - first < least:
            function(first, last)
            return
        cuts = [first + (last - first) * number // self.workers for number in range(self.workers + 1)]
        parts = [self._others.submit(function, *cut) for cut in pairwise(cuts[1:])]
        try:
            function(*cuts[:2])
        finally:
            for part in parts:
                part.result()

    def close(self) -> None:
        """End the threads."""
        if self._others is not None:
            self._others.shutdown()
