"""A virtual clock: light threads that sleep, wait and queue in simulated seconds.

The runtime's code blocks where it waits. To run it unchanged, each of its threads is a greenlet
here: where the real one blocks, this one gives way to the next event of the clock. Of all that is
ready at one time, what was made ready first goes first, so that a simulation is reproducible.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil
from typing import NoReturn


class Clock:
    """Virtual time, and the events that are to come.

    Attributes
    ----------
    now_s : float
        Seconds since the start; calling the clock gives it too, as `time.perf_counter` would.
    """

    def __init__(self) -> None:
        from greenlet import getcurrent, greenlet

        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._current = getcurrent
        self._main = getcurrent()
        self._greenlet = greenlet

    def __call__(self) -> float:
        return self.now_s

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


class Queue:
    """A queue as `queue.SimpleQueue`: who is awake may be served before who was waiting."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._items: deque[object] = deque()
        self._waiting: deque[Callable[[], object]] = deque()  # what wakes who waits

    def put(self, item: object) -> None:
        self._items.append(item)
        if self._waiting:
            self._clock.at(self._clock.now_s, self._waiting.popleft())

    def get(self) -> object:
        while not self._items:
            self._waiting.append(self._clock.waker())
            self._clock.suspend()
        return self._items.popleft()


class SimulatedWakeEvent:
    """The runtime's `WakeEvent`: wakes one sleeping thread, or ends its next sleep at once.

    A thread that polls, sees nothing, sleeps and polls again would do so until something happens.
    After `between_polls` its sleep lasts until the first of these polls that sees something.

    Parameters
    ----------
    clock : Clock
    delay_s : callable
        Seconds that the thread waits for a core once it is woken.
    """

    def __init__(self, clock: Clock, delay_s: Callable[[], float]) -> None:
        self._clock = clock
        self._delay_s = delay_s
        self._rung = False
        self._waker: Callable[[], object] | None = None  # of the sleeping thread
        self._sleep = 0  # which sleep this is: a timer of an earlier one is void
        self._first_s = 0.0  # the first poll after it
        self._poll_s: float | None = None  # what one poll takes, if the next sleep is one between polls
        self._period_s: float | None = None  # from poll to poll, in such a sleep
        self._skipped = 0

    def ring(self) -> None:
        if self._waker is None:
            self._rung = True
        else:
            self._wake(self._waker, True)

    def between_polls(self, poll_s: float) -> None:
        """Let the next sleep be one between polls, of `poll_s` each."""
        self._poll_s = poll_s

    def sleep(self, seconds: float = -1) -> bool:
        """Sleep until a ring, at most `seconds` if given; True if it rang."""
        poll_s, self._poll_s = self._poll_s, None
        if self._rung:
            self._rung = False
            return True
        clock = self._clock
        self._waker = clock.waker()
        self._sleep += 1
        self._period_s = None
        if poll_s is not None:
            self._period_s = seconds + poll_s
            self._first_s = clock.now_s + seconds
        elif seconds >= 0:
            clock.at(clock.now_s + seconds, self._timer())
        clock.suspend()
        return self._rang

    def happened(self) -> None:
        """There is something to see: who sleeps between polls sees it at the next one."""
        if self._waker is not None and self._period_s is not None:
            self._clock.at(self._first_s + self._periods(self._period_s) * self._period_s, self._timer())

    def _periods(self, period_s: float) -> int:
        return max(0, ceil((self._clock.now_s - self._first_s) / period_s))

    def skipped(self) -> int:
        """Return the number of looks that were skipped since the last question."""
        skipped, self._skipped = self._skipped, 0
        return skipped

    def _timer(self) -> Callable[[], None]:
        sleep = self._sleep

        def end() -> None:
            if self._waker is not None and self._sleep == sleep:
                self._wake(self._waker, False)

        return end

    def _wake(self, waker: Callable[[], object], rang: bool) -> None:
        clock = self._clock
        if self._period_s is not None:
            self._skipped += self._periods(self._period_s)
        self._waker = None
        self._rang = rang
        delay_s = self._delay_s()
        if rang or delay_s:
            clock.at(clock.now_s + delay_s, waker)
        else:
            waker()  # a timer is called by the clock itself
