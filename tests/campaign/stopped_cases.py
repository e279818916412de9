"""What `stopped` runs on every rank: collectives whose results are known, while a process stops the ranks."""

import os
import signal
import subprocess
import sys

import numpy as np
from test_collectives_drawn import KINDS, good

from overlap.collectives import Collectives

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
