"""Waiting for something that is looked at again and again: without sleep at first."""

from __future__ import annotations

from collections.abc import Callable
from os import sched_yield
from time import perf_counter, sleep

SHORTEST_SLEEP_S = 20e-6
LONGEST_SLEEP_S = 500e-6
HOT_S = 150e-6  # what takes less is looked at without sleep, if nothing is to be done meanwhile


def pause(seconds: float) -> None:
    """Sleep, or let another process have the core: a sleep of no time may take tens of microseconds."""
    if seconds:
        sleep(seconds)
    else:
        sched_yield()


def wait_for(
    test: Callable[[], object],
    sleep: Callable[[float], object] = pause,
    hot_s: float = HOT_S,
    clock: Callable[[], float] = perf_counter,
) -> None:
    """Wait until `test()` is true: hot for `hot_s` seconds, then with longer and longer sleeps."""
    if test():
        return
    cold_s, sleep_s = clock() + hot_s, SHORTEST_SLEEP_S
    while not test():
        if clock() < cold_s:
            sleep(0.0)
        else:
            sleep(sleep_s)
            sleep_s = min(2 * sleep_s, LONGEST_SLEEP_S)
