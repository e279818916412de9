"""What `stopped` runs on every rank: collectives whose results are known, while a process stops the ranks."""

import os
import subprocess
import sys

import numpy as np

from overlap.collectives import Collectives, Op

KINDS = ("Barrier", "allreduce", "Allreduce", "Allgather", "Bcast", "Scatter", "Gather", "Reduce")
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
    drawn, rank, size = np.random.default_rng(seed), comm.rank, comm.size
    pids, stopping = comm.gather(os.getpid()), None
    if rank == 0:
        stopping = subprocess.Popen([sys.executable, "-c", STOPPING, *map(str, (seed, *pids))])
    try:
        with Collectives(comm) as fast:
            for call in range(calls):
                kind, root = KINDS[drawn.integers(len(KINDS))], int(drawn.integers(size))
                count = int(2 ** drawn.uniform(0, 17 if drawn.random() < 0.02 else 10))
                own = call + rank + (wrong and call == calls // 2 and rank == size - 1)
                _call(fast, kind, root, count, own, call + np.arange(size), rank)
    finally:
        if stopping is not None:
            stopping.kill()
            stopping.wait()
        comm.Barrier()


def _call(fast, kind, root, count, own, everybodys, rank):
    """Make a call of `count` numbers, each `own`, and check the result, given those of all ranks."""
    sent, found, pieces = np.full(count, float(own)), np.zeros(count), np.zeros((len(everybodys), count))
    total, at_root, right = everybodys.sum(), rank == root, True
    if kind == "Barrier":
        fast.Barrier()
    elif kind == "allreduce":
        right = fast.allreduce(own) == total
    elif kind == "Allreduce":
        fast.Allreduce(sent, found)
        right = (found == total).all()
    elif kind == "Allgather":
        fast.Allgather(sent, pieces)
        right = (pieces == everybodys[:, None]).all()
    elif kind == "Bcast":
        fast.Bcast(sent, root)
        right = (sent == everybodys[root]).all()
    elif kind == "Scatter":
        pieces[:] = everybodys[:, None] + own - everybodys[rank]
        fast.Scatter(pieces, found, root)
        right = (found == everybodys[rank]).all()
    elif kind == "Gather":
        fast.Gather(sent, pieces, root)
        right = not at_root or (pieces == everybodys[:, None]).all()
    else:
        fast.Reduce(sent, found, Op.SUM, root)
        right = not at_root or (found == total).all()
    assert right, f"a number is wrong: {kind} of {count}, root {root}"
