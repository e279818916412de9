"""Injected errors: kinds of exceptions x sites x ranks x slices, also on several ranks at once."""

import re
import time

import jobs

from .draw import Drawn
from .harness import Part

FAULTS = 15  # of a seed
SITES, CLOSING = 200, 240  # first seeds of `site_cases` and of `closing_cases`
ENDED_S = 5.0


def run(seed):
    """Some faults in one job, which leaves nothing behind; `jobs` looks.

    With failing skeletons each is a job, and ends it.
    """
    drawn = Drawn(seed)
    if seed >= CLOSING and seed % 2:
        for _ in range(FAULTS):
            _skeleton(drawn)
        return
    case = (
        "campaign.fault_cases:faults"
        if seed < SITES
        else "campaign.site_cases:sites"
        if seed < CLOSING
        else "campaign.closing_cases:closings"
    )
    jobs.run_job(
        case,
        drawn.ranks(),
        mpi=drawn.library(),
        args={
            "seed": seed,
            "count": FAULTS,
            "wait": drawn.mode(),
            "depth": drawn.pick([1, 2, 3, 8]),
            "workers": drawn.workers(),
        },
    )


def _skeleton(drawn):
    """A slice and then its skeleton fail on one rank of several: the job ends in time, and says why."""
    ranks = drawn.ranks(2)
    args = {
        "kind": int(drawn.integers(1000)),
        "rank": int(drawn.integers(ranks)),
        "point": int(drawn.integers(2)),
        "wait": drawn.mode(),
        "depth": drawn.pick([1, 2, 3, 8]),
        "workers": drawn.workers(),
    }
    result = jobs.run_job(
        "campaign.closing_cases:skeleton_fails", ranks, mpi=drawn.library(), args=args, expect_failure=True
    )
    failed = re.search(r"failed at ([\d.]+)", result.out)
    assert failed and "in a skeleton" in result.err, (args, result)
    took_s = time.monotonic() - float(failed[1])
    assert took_s < ENDED_S, f"{args}: ended after {took_s:.1f} s"


def defect():
    """A rank that does not tell its error is found."""
    jobs.run_job(
        "campaign.fault_cases:faults",
        2,
        args={"seed": 0, "count": 1, "wait": "poll", "depth": 3, "workers": 1, "mute": True},
    )


PART = Part(
    "errors",
    "one of 22 kinds of exceptions in a slice program, a transform's steps or planning, on one rank or "
    "several: one exception on all ranks before the deadline of 30 s, the next three transforms bit-right, no thread, "
    "communicator, descriptor or segment left; 600 more before each of 12 kinds of await, in a part, in functions of "
    "fields, in making buffers, in tuning: the exception comes within 5 s; 150 more in closing (the others close, and "
    "nothing "
    "is left) and in skeletons (the job ends within 5 s and says why)",
    3750,
    run,
    defect,
    "('NoneType', 'None')",
    FAULTS,
)
