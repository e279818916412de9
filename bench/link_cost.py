"""What an exchange over a link takes from the cores of its ranks: that part of its time cannot be hidden behind
computing.

    overlap links --rate 1gbit --burst 20000 -- python bench/link_cost.py [--nbytes 131072] [--rounds 300]

Two ranks exchange by sockets of their own, one call to send and one to receive, in which they sleep: no MPI, no polls,
no copies but the kernel's. A process that may have the core only while nobody else wants it counts on the core of each
rank. What it loses in an exchange is the kernel's work for the link: TCP, the shaping of packets, their delivery.
`hideable` is what is left of the time, the most that any library could hide of such an exchange on this machine.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
from collections.abc import Iterator
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np
from mpi4py import MPI

from overlap.tools.bench.pages import Page

_PAUSE_S = 0.004  # between exchanges: the link's bucket fills


def count(words: np.ndarray) -> None:
    """Count until told to stop."""
    number = 0
    while not words[1]:
        number += 1
        words[0] = number


def connected(comm: MPI.Intracomm, nbytes: int) -> socket.socket:
    """A socket to the other rank, which holds a message that is sent."""
    if comm.rank == 0:
        with socket.socket() as listening:
            listening.bind((socket.gethostbyname(socket.gethostname()), 0))
            listening.listen(1)
            comm.send(listening.getsockname(), 1)
            link, _ = listening.accept()
    else:
        link = socket.create_connection(comm.recv(source=0))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * nbytes)
    return link


def exchanges(comm: MPI.Intracomm, nbytes: int, rounds: int, words: np.ndarray) -> tuple[float, float]:
    """Medians of the time of an exchange, and of what the counting process loses in it."""
    link, out, into = connected(comm, nbytes), bytes(nbytes), bytearray(nbytes)
    sleep(0.2)
    begun, before = perf_counter(), int(words[0])
    sleep(0.5)
    rate = (int(words[0]) - before) / (perf_counter() - begun)
    times_s, lost_s = [], []
    for _ in range(rounds):
        sleep(_PAUSE_S)
        comm.Barrier()
        begun, before = perf_counter(), int(words[0])
        link.sendall(out)
        link.recv_into(into, nbytes, socket.MSG_WAITALL)
        time_s = perf_counter() - begun
        times_s.append(time_s)
        lost_s.append(time_s - (int(words[0]) - before) / rate)
    link.close()
    return median(times_s), median(lost_s)


def measure(comm: MPI.Intracomm, given: Any) -> Iterator[dict[str, Any]]:
    """Yield the records of all sizes."""
    if comm.size != 2:
        raise ValueError(f"expected 2 ranks, received {comm.size}")
    words = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.int64)
    counting = os.fork()
    if not counting:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        count(words)
        os._exit(0)
    try:
        for nbytes in given.nbytes:
            time_s, lost_s = (max(each) for each in zip(*comm.allgather(exchanges(comm, nbytes, given.rounds, words))))
            yield {"nbytes": nbytes, "time_s": time_s, "core_s": lost_s, "hideable": 1 - lost_s / time_s}
    finally:
        words[1] = 1
        os.waitpid(counting, 0)


PAGE = Page(__doc__, measure, rounds=300)
PAGE.add("--nbytes", type=int, nargs="+", default=[131072])

if __name__ == "__main__":
    sys.exit(PAGE.run())
