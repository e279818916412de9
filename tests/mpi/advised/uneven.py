"""A program for `overlap advise` whose last rank is late, by sleeping, and whose messages are under way meanwhile."""

import sys
import time

import numpy as np
from mpi4py import MPI

STEPS, SLEEP_S = 6, 0.1

comm = MPI.COMM_WORLD
late = comm.rank == comm.size - 1
a, b = np.ones(8), np.empty(8)
for _ in range(STEPS):
    time.sleep(SLEEP_S if late else 0)
    comm.Allreduce(a, b)  # allreduce
    receive = comm.Irecv(b, (comm.rank - 1) % comm.size)
    send = comm.Isend(a, (comm.rank + 1) % comm.size)
    time.sleep(SLEEP_S)
    MPI.Request.Waitall([receive, send])  # waitall
sys.exit(0)
