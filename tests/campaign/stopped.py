"""Collectives in shared memory while ranks are stopped and go on at random moments."""

import jobs

from .draw import Drawn
from .harness import Part

CALLS = 20_000  # of a seed


def run(seed):
    """Many calls of all kinds in one job."""
    jobs.run_job(
        "campaign.stopped_cases:collectives",
        Drawn(seed).ranks(2, 5),
        fresh=True,
        deadline_s=1200,
        args={"seed": seed, "calls": CALLS},
    )


def defect():
    """A number that is wrong in one of the calls is found."""
    jobs.run_job("campaign.stopped_cases:collectives", 2, fresh=True, args={"seed": 0, "calls": 500, "wrong": True})


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
