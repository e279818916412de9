"""The one way to wait in Python: without sleep at first, then with sleeps, with a look at failures and deadlines.

Compiled code waits by the same rule and the same constants (`overlap.runtime.loop.ranks.rest`).
"""

from __future__ import annotations

from collections.abc import Callable
from os import sched_yield
from time import perf_counter, sleep

SHORTEST_SLEEP_S = 20e-6
LONGEST_SLEEP_S = 500e-6
ATTEND_S = 0.005  # after so long a waiting rank looks again for failures and at its deadline
HOT_S = 150e-6  # shorter waits are polled without sleep if there is nothing to compute meanwhile


def pause(seconds: float) -> None:
    """Sleep; for 0 s yield the core instead, since a sleep of 0 s may take tens of microseconds."""
    if seconds:
        sleep(seconds)
    else:
        sched_yield()


def wait_for(
    test: Callable[[], object],
    sleep: Callable[[float], object] = pause,
    hot_s: float = HOT_S,
    attend: Callable[[float], object] | None = None,
) -> None:
    """Wait until `test()` is true: poll without sleep for `hot_s` seconds, then with longer and longer sleeps.

    The calls of `test` may be what brings the event about: MPI moves long messages only while it is called. Such a wait
    is hot up to its end (``math.inf``). ``sleep(0.0)`` lets other threads run. If there is `attend`, it is called with
    the time every few milliseconds; what it raises ends the wait: a failure of another rank, or the deadline.
    """
    if test():
        return
    attended_s = perf_counter()
    cold_s, sleep_s = attended_s + hot_s, SHORTEST_SLEEP_S
    while not test():
        now_s = perf_counter()
        if attend is not None and now_s - attended_s > ATTEND_S:
            attended_s = now_s
            attend(now_s)
        if now_s < cold_s:
            sleep(0.0)
        else:
            sleep(sleep_s)
            sleep_s = min(2 * sleep_s, LONGEST_SLEEP_S)
