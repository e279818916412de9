"""A virtual clock: light threads that sleep, wait and queue in simulated seconds.

The runtime's code blocks where it waits. To run it unchanged, each of its threads is a greenlet
here: where the real one blocks, this one gives way to the next event of the clock. Of all that is
ready at one time, what was made ready first goes first, so that a simulation is reproducible.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NoReturn


class Clock:
    """Virtual time, and the events that are to come.

    Attributes
    ----------
    now_s : float
        Seconds since the start.
    """

    def __init__(self) -> None:
        from greenlet import getcurrent, greenlet

        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._current = getcurrent
        self._main = getcurrent()
        self._greenlet = greenlet

    def at(self, time_s: float, function: Callable[[], object]) -> None:
        """Have `function` called at `time_s`."""
        self._count += 1
        heappush(self._events, (time_s, self._count, function))

    def fail(self, error: BaseException) -> None:
        """Have `run` raise `error` at once."""

        def fail() -> NoReturn:
            raise error

        self.at(self.now_s, fail)

    def spawn(self, function: Callable[[], object]) -> None:
        """Have `function` run as a thread, from now on."""
        self.at(self.now_s, self._greenlet(function, self._main).switch)

    def sleep(self, seconds: float) -> None:
        """Sleep, in a thread."""
        self.at(self.now_s + seconds, self._current().switch)
        self._main.switch()

    def suspend(self) -> None:
        """Give way until the clock calls what `waker` returned."""
        self._main.switch()

    def thread(self) -> object:
        """Give the calling thread."""
        return self._current()

    def waker(self) -> Callable[[], object]:
        """Give what wakes the calling thread: a function, to be given to `at`."""
        return self._current().switch

    def run(self) -> None:
        """Go through all events."""
        events = self._events
        collecting = gc.isenabled()
        gc.disable()  # millions of objects, and the few cycles end with the simulation
        try:
            while events:
                self.now_s, _, function = heappop(events)
                function()
        finally:
            if collecting:
                gc.enable()
