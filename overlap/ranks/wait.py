"""Waiting for a condition: without sleep at first."""

from __future__ import annotations

from collections.abc import Callable
from os import sched_yield
from time import perf_counter, sleep

SHORTEST_SLEEP_S = 20e-6
LONGEST_SLEEP_S = 500e-6
POLL_S = 0.005  # between two polls of a waiting rank, for failures and for the deadline
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
    clock: Callable[[], float] = perf_counter,
) -> None:
    """Wait until `test()` is true: poll without sleep for `hot_s` seconds, then with longer and longer sleeps."""
    if test():
        return
    cold_s, sleep_s = clock() + hot_s, SHORTEST_SLEEP_S
    while not test():
        if clock() < cold_s:
            sleep(0.0)
        else:
            sleep(sleep_s)
            sleep_s = min(2 * sleep_s, LONGEST_SLEEP_S)


def wait_until(done: Callable[[], bool], poll: Callable[[], object], polls: int = 0) -> None:
    """Wait until `done()` is true: poll `polls` times, then yield the core and call `poll`, which may raise."""
    polled = perf_counter()
    while not done():
        polls -= 1
        if polls >= 0:
            continue
        sched_yield()
        now = perf_counter()
        if now - polled > POLL_S:
            polled = now
            poll()
