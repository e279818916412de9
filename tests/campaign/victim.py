"""A job that plans, may tune and write, runs and closes for as long as it lives; one rank of it is lost.

See `losses`.
"""

import faulthandler
import itertools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import scipy.linalg  # noqa: F401  # else by the first compiled call, for seconds on a busy machine
from mpi4py import MPI

import overlap

DEADLINE_S = 3.0
SHOW_STACKS = signal.SIGUSR2


def work(comm, folder, own, delay_s, tuning, rounds):
    """Phases without end, or so many `rounds` of them; each rank says in a file that it has begun, and `own` is the way
    in which it ends itself.

    That is when its planning allows for it: so it says when it does.
    """
    shape = (6, 16, 16)
    deadline_s = DEADLINE_S if rounds is None else None  # rounds are made to compile, for which ranks wait
    end = time.monotonic() + delay_s

    def lose(way):
        Path(folder, "lost").write_text(str(time.monotonic()))
        way(3)

    if own == "_exit":
        timer = threading.Timer(delay_s, lose, [os._exit])
        timer.daemon = True
        timer.start()
    Path(folder, f"rank{comm.rank}").write_text(str(os.getpid()))
    for _ in itertools.count() if rounds is None else range(rounds):
        with (
            overlap.Runtime(comm, workers=2, deadline_s=deadline_s, entry_deadline_s=deadline_s) as rt,
            overlap.FFT2(rt, shape, settings={"effort": "estimate", "wait": "auto"}, tuning=tuning) as plan,
        ):
            if tuning:
                plan.tune(0.2)
            field = plan.real.empty()
            field[...] = 1
            for _ in range(20):
                plan.backward(plan.forward(field), out=field)
                if own == "sys.exit" and time.monotonic() > end:
                    lose(sys.exit)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    with open(f"{given['folder']}/said{MPI.COMM_WORLD.rank}", "w") as file:  # of each rank alone, whatever ends the job
        os.dup2(file.fileno(), 2)
    faulthandler.register(SHOW_STACKS)
    mine = MPI.COMM_WORLD.rank == given["rank"]
    work(
        MPI.COMM_WORLD,
        given["folder"],
        given["own"] if mine else None,
        given["delay_s"],
        given["tuning"],
        given["rounds"],
    )
