"""Ranks that come late or never."""

import os
import signal
import time

import jobs
import numpy as np
import pytest
from marks import exhaustive, on_ranks
from mpi4py import MPI
from test_edges import Sums

import overlap

BETWEEN_NODES = {"MPIR_CVAR_NOLOCAL": "1"}  # no board: headers and agreements are operations of MPI

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

    comm.Barrier()  # all have imported what they need
    if how == "never opens" and last:
        time.sleep(1000)
    with overlap.Runtime(comm, workers=2, depth=3, wait=wait, deadline_s=deadline_s, entry_deadline_s=deadline_s) as rt:
        pipeline = rt.pipelined(program)
        pipeline(range(10), rt.comm, -1)
        if how == "absent" and last:
            time.sleep(1000)
        pipeline(range(10), rt.comm, 7 if last else -1)


def lost_from_a_plan(comm, wait, how, deadline_s):
    """The last rank makes no call of a plan, or stays in a function of one."""
    last = comm.rank == comm.size - 1

    def product(u, v):
        if last and how == "in a function":
            time.sleep(1000)
        return u * v

    settings = {"wait": wait, "effort": "estimate", "chunk": 1, "depth": 2}
    comm.Barrier()  # all have imported what they need
    with (
        overlap.Runtime(comm, deadline_s=deadline_s, entry_deadline_s=deadline_s) as rt,
        overlap.FFT2(rt, (3, 8, 8), settings=settings) as plan,
    ):
        u = plan.real.empty()
        u[...] = 1
        modes = plan.forward(u)
        plan.forward(u)
        call = plan.pointwise(product, inputs=2) if how == "in a function" else plan.forward
        comm.Barrier()
        if how == "absent" and last:
            time.sleep(1000)
        call(*[modes] * 2) if how == "in a function" else call(u)


# ---- entering --------------------------------------------------------------------------------


@on_ranks(2)
@pytest.mark.parametrize("wait", [exhaustive("off"), exhaustive("block"), "poll"])
def test_deadline_does_not_cover_the_time_between_calls(comm, wait):
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


@pytest.mark.parametrize(
    "wait, how, ranks",
    [
        ("off", "sleeps", 3),
        exhaustive("block", "sleeps", 3),
        exhaustive("poll", "sleeps", 3),
        ("poll", "absent", 2),
        ("block", "stopped", 2),
        exhaustive("poll", "stopped", 3),
        ("poll", "never opens", 2),
    ],
)
def test_deadline_ends_the_job(wait, how, ranks):
    result = jobs.run_job(
        "test_deadlines:lost", ranks, expect_failure=True, args={"wait": wait, "how": how, "deadline_s": 1}
    )
    assert result.finished == ()
    assert "has not completed in 1." in result.err and "deadline_s=1)" in result.err, result
    assert "Thread 0x" in result.err, result
    assert "test_deadlines.py" in result.err, result  # the stacks name the caller's line


@pytest.mark.parametrize(
    "how, waits", [("absent", "a call of the pipeline forward of FFT2"), ("in a function", "Alltoallv on communicator")]
)
@pytest.mark.parametrize(
    "wait, env", [exhaustive("off", {}), ("poll", {}), exhaustive("block", {}), ("poll", BETWEEN_NODES)]
)
def test_deadline_ends_the_job_in_a_call_of_a_plan(wait, how, waits, env):
    args = {"wait": wait, "how": how, "deadline_s": 1}
    result = jobs.run_job("test_deadlines:lost_from_a_plan", 2, expect_failure=True, args=args, env=env)
    assert result.finished == ()
    assert f": {waits}" in result.err, result
    assert "has not completed in 1." in result.err and "deadline_s=1)" in result.err, result


@pytest.mark.parametrize("wait", [exhaustive("off"), exhaustive("block"), "poll"])
def test_killed_rank_ends_the_job(wait):
    result = jobs.run_job(
        "test_deadlines:lost", 3, expect_failure=True, args={"wait": wait, "how": "killed", "deadline_s": 2}
    )
    assert result.finished == (), result


@pytest.mark.parametrize("how", [exhaustive("sleeps"), "killed", exhaustive("stopped")])
def test_lost_rank_under_open_mpi(openmpi, how):
    result = jobs.run_job(
        "test_deadlines:lost", 3, mpi="openmpi", expect_failure=True, args={"wait": "poll", "how": how, "deadline_s": 1}
    )
    assert result.finished == (), result


@pytest.mark.parametrize("how", [exhaustive("sleeps"), "stopped"])
def test_rank_lost_while_a_plan_is_made(how):
    result = jobs.run_job("test_deadlines:lost_together", 3, expect_failure=True, args={"how": how})
    assert result.finished == ()
    assert "has not completed in 1." in result.err and "(deadline_s=1)" in result.err, result
    assert "in lost_together" in result.err, result  # the stacks name the user's line
