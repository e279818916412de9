"""Failing calls, and programs whose first call fails, by the thousand in one job: memory does not grow."""

import jobs

from .draw import Drawn
from .harness import Part

COUNT = 10_000  # of either kind


def run(seed):
    """All of them in one job."""
    drawn = Drawn(seed)
    jobs.run_job(
        "test_leaks:failing_calls_without_end",
        drawn.ranks(1, 2),
        fresh=True,
        deadline_s=3000,
        args={"count": COUNT, "wait": drawn.mode()},
    )


def defect():
    """Memory that is kept is found."""
    jobs.run_job(
        "test_leaks:failing_calls_without_end", 1, fresh=True, args={"count": 10, "wait": "off", "leak": 8 << 20}
    )


PART = Part(
    "failures",
    f"{COUNT:,} calls that fail and {COUNT:,} programs whose first call fails, in one job: one error on all "
    "ranks each time, the next call works, the resident set grows by less than 1 MiB",
    2 * COUNT,
    run,
    defect,
    "resident set grew",
    2 * COUNT,
)
