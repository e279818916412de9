"""Makes ranks slow: processes take a part of a rank's core time, and the rest is measured.

A competitor computes in bursts of some tens of microseconds. After each burst it compares the processor time that it
has had with the clock. So its share is right over half a millisecond, whatever the kernel's scheduler does and
whichever other processes run. (Bursts must be short: ranks that synchronize a few times in a millisecond would wait for
long bursts, as they would not on a slow processor.) A competitor runs at the highest priority if it may, so that it
starts at once. Otherwise as many competitors start as get this share among processes of equal priority. A competitor
takes its share also while the rank waits.

`overlap links` starts them in its namespaces, where they end with everything else. This file is also the program that
they run.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

LEAST = 0.05  # smallest share of a core that a rank keeps
_PERIOD_S = 0.0001  # length of a burst and a pause
_MOST_BEHIND_S = 0.05  # the largest lag that a competitor makes up for after it could not run
_LOOK_S = 0.4  # how long a core is measured
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29  # linux/prctl.h


def problem_of(shares: Mapping[int, float], ranks: int, cores: int) -> str | None:
    """Return what is wrong with the shares that slow ranks are to keep, or None."""
    for rank, share in shares.items():
        if not 0 <= rank < ranks or not LEAST <= share <= 1:
            return (
                f"expected ranks from 0 to {ranks - 1} with shares from {LEAST} to 1 of their cores, received rank "
                f"{rank} "
                f"with {share:g}"
            )
    if shares and cores < ranks:
        return f"expected a core for each of {ranks} ranks if some are slow, received {cores} core(s)"
    return None


def slow_down(cores: Mapping[int, int], shares: Mapping[int, float]) -> list[str]:
    """Start competitors, and measure the shares that they leave.

    Parameters
    ----------
    cores, shares : dict
        Each slow rank's core, and the share of it that the rank keeps.

    Returns
    -------
    list of str
        A line about each rank.
    """
    before = _measured(cores)
    competitors = []
    for rank, share in shares.items():
        taken = 1.0 - share
        count = math.floor(taken / share) + 1 if taken else 0
        competitors += [_started("compete", cores[rank], taken / count) for _ in range(count)]
    for competitor in competitors:
        assert competitor.stdout is not None  # a pipe
        competitor.stdout.readline()  # the competitor has begun
    after = _measured(cores)
    return [
        f"rank {rank} keeps {share:.3f} of core {cores[rank]}: measured {after[rank] / before[rank]:.3f}"
        for rank, share in shares.items()
    ]


def _measured(cores: Mapping[int, int]) -> dict[int, float]:
    """Measure the share of each core that one more process gets, on all cores at the same time."""
    looking = {rank: _started("look", core, _LOOK_S) for rank, core in cores.items()}
    return {rank: float(process.communicate()[0]) for rank, process in looking.items()}


def _started(what: str, core: int, number: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-IS", __file__, what, str(core), repr(number), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )


# ---- the processes ----------------------------------------------------------------------------


def _compete(taken: float) -> None:
    """Take a share of the core's time until the process is killed."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    print(flush=True)
    started, used = time.perf_counter(), time.process_time()
    while True:
        behind_s = taken * (time.perf_counter() - started) - (time.process_time() - used)
        if behind_s > _MOST_BEHIND_S:
            started += (behind_s - _MOST_BEHIND_S) / taken
            behind_s = _MOST_BEHIND_S
        if behind_s > 0:
            until_s = time.process_time() + behind_s
            while time.process_time() < until_s:
                pass
        time.sleep(_PERIOD_S * (1.0 - taken))


def _look(seconds: float) -> None:
    """Print the share of the core's time that this process gets."""
    started, used = time.perf_counter(), time.process_time()
    while (elapsed_s := time.perf_counter() - started) < seconds:
        pass
    print((time.process_time() - used) / elapsed_s)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # without this, each pause is up to 50 us longer
    if os.getppid() != int(sys.argv[4]):
        sys.exit(1)  # the parent has died already
    os.sched_setaffinity(0, [int(sys.argv[2])])
    {"compete": _compete, "look": _look}[sys.argv[1]](float(sys.argv[3]))
