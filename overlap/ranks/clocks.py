"""How far the clocks of ranks differ, which may be on different hosts."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable
from numbers import Integral
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

_TAG = 7701


def clock_offset(comm: Comm, rounds: int = 20, *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Measure how far this rank's clock is ahead of rank 0's, in seconds. Collective.

    Each other rank in turn asks rank 0 for its time, `rounds` times. If the question leaves at a, the answer arrives at
    b (both on this rank's clock) and says r, then the offset is (a + b)/2 - r, wrong by at most (b - a)/2. The round
    with the smallest b - a is taken. Of `comm` only `Get_rank`, `Get_size`, `Send` and `Recv` are used.

    Raises
    ------
    ValueError
        `rounds`, which must be equal on all ranks, is not an integer >= 1.
    """
    if not isinstance(rounds, Integral) or rounds < 1:
        raise ValueError(f"expected rounds to be an integer >= 1, received {rounds!r}")
    rank, size = comm.Get_rank(), comm.Get_size()
    message = array("d", [0.0])
    if rank == 0:
        for other in range(1, size):
            for _ in range(rounds):
                comm.Recv(message, source=other, tag=_TAG)
                message[0] = clock()
                comm.Send(message, dest=other, tag=_TAG)
        return 0.0
    best_round_trip_s, offset_s = math.inf, 0.0
    for _ in range(rounds):
        asked_s = clock()
        comm.Send(message, dest=0, tag=_TAG)
        comm.Recv(message, source=0, tag=_TAG)
        answered_s = clock()
        if answered_s - asked_s < best_round_trip_s:
            best_round_trip_s = answered_s - asked_s
            offset_s = (asked_s + answered_s) / 2 - message[0]
    return offset_s
