"""Collectives in shared memory while ranks are stopped and go on at random moments."""

import os
import signal
import subprocess
import sys

import jobs
import numpy as np
from test_collectives_drawn import KINDS, good

from overlap.collectives import Collectives

from .draw import Drawn
from .harness import Part

CALLS = 20_000  # of a seed


def run(seed):
    """Many calls of all kinds in one job."""
    jobs.run_job(
        "campaign.stopped:collectives",
        Drawn(seed).ranks(2, 5),
        fresh=True,
        deadline_s=1200,
        args={"seed": seed, "calls": CALLS},
    )


def defect():
    """A number that is wrong in one of the calls is found."""
    jobs.run_job("campaign.stopped:collectives", 2, fresh=True, args={"seed": 0, "calls": 500, "wrong": True})


STOPPING = """
import os, random, signal, sys, time
seed, *pids = map(int, sys.argv[1:])
drawn = random.Random(seed)
while True:
    time.sleep(drawn.uniform(0.001, 0.05))
    stopped = drawn.sample(pids, drawn.randint(1, min(2, len(pids))))
    for number, wait_s in (signal.SIGSTOP, drawn.uniform(0.001, 0.05)), (signal.SIGCONT, 0):
        for pid in stopped:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                sys.exit()
        time.sleep(wait_s)
    if os.getppid() not in pids:
        sys.exit()
"""


def collectives(comm, seed, calls, wrong=False):
    """Draw the calls, the same on all ranks; with `wrong` one rank gives another number in one of them."""
    drawn = np.random.default_rng(seed)
    pids, stopping = comm.gather(os.getpid()), None
    if comm.rank == 0:
        stopping = subprocess.Popen([sys.executable, "-c", STOPPING, *map(str, (seed, *pids))])
    try:
        with Collectives(comm) as fast:
            for call in range(calls):
                kind, root = KINDS[drawn.integers(len(KINDS))], int(drawn.integers(comm.size))
                count = int(2 ** drawn.uniform(0, 17 if drawn.random() < 0.02 else 10))
                place = call + (wrong and call == calls // 2 and comm.rank == comm.size - 1)
                try:
                    good(comm, kind, root, place, count)(fast)
                except AssertionError:
                    raise AssertionError(f"a number is wrong: {kind} of {count}, root {root}") from None
    finally:
        if stopping is not None:
            stopping.kill()
            stopping.wait()
            for pid in pids:  # it may have been between stopping a rank and letting it go on
                os.kill(pid, signal.SIGCONT)
        comm.Barrier()


PART = Part(
    "collectives",
    "Barrier, Allreduce, Allgather, Bcast, Scatter, Gather, Reduce and allreduce of 8 bytes to 1 MiB on 2 to 5 "
    "ranks, of which one or two at a time are stopped (SIGSTOP) for 1 to 50 ms: every number is right",
    1_000_000,
    run,
    defect,
    "a number is wrong",
    CALLS,
)
