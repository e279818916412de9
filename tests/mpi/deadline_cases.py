"""Ranks that come late or never."""

import os
import signal
import time

import numpy as np
from edge_cases import Sums
from mpi4py import MPI

import overlap

# ---- a rank that is lost ---------------------------------------------------------------------


def lost(comm, wait, how, deadline_s):
    """The last rank stops taking part in some way; nobody may wait for it for ever."""
    last = comm.rank == comm.size - 1

    def vanish():
        if how == "sleeps":
            time.sleep(1000)
        os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[how])

    async def program(z, target, bad):
        await target.Allreduce(MPI.IN_PLACE, np.ones(1))
        if z == bad:
            vanish()
        await target.Allreduce(MPI.IN_PLACE, np.ones(1))

    if how == "never opens" and last:
        time.sleep(1000)
    with overlap.Runtime(comm, workers=2, depth=3, wait=wait, deadline_s=deadline_s, entry_deadline_s=deadline_s) as rt:
        pipeline = rt.pipelined(program)
        pipeline(range(10), rt.comm, -1)
        if how == "absent" and last:
            time.sleep(1000)
        pipeline(range(10), rt.comm, 7 if last else -1)


# ---- entering --------------------------------------------------------------------------------


def late_entry(comm, wait):
    """A rank that computes for longer than the deadline between calls is no fault."""
    with overlap.Runtime(comm, depth=2, wait=wait, deadline_s=0.5) as rt:
        sums = Sums(rt)
        sums.check()
        if comm.rank == 0:
            time.sleep(1.5)
        sums.check()
        if comm.rank == 0:
            time.sleep(1.5)
        with rt.collective_section("planning"):
            rt.coordinator.barrier()
        if comm.rank == 0:
            time.sleep(1.5)
        with overlap.Runtime(comm, deadline_s=0.5):
            pass


def lost_together(comm, how):
    """A rank that is lost while a plan is made ends the job."""
    with overlap.Runtime(comm, deadline_s=1) as rt, rt.collective_section("planning"):
        rt.coordinator.barrier()
        if comm.rank == comm.size - 1:
            if how == "sleeps":
                time.sleep(1000)
            os.kill(os.getpid(), signal.SIGSTOP)
        rt.coordinator.maximum(1)
