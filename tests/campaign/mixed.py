"""Mixed work for minutes beside one busy process per core: right results, no deadline hit, and the process stays as it
was.
"""

import os

import jobs

from .busy import busy
from .draw import Drawn
from .harness import Part
from .soak import ENVIRONMENT

MINUTES = 3  # of a seed
MOST_NBYTES = 2**20  # by which the second half may grow


def run(seed):
    """All the work, round after round, in one job."""
    with busy(len(os.sched_getaffinity(0))):
        result = jobs.run_job(
            "campaign.mixed_cases:mixed",
            Drawn(seed).ranks(),
            env=ENVIRONMENT,
            deadline_s=60 * MINUTES + 600,
            args={"minutes": MINUTES, "most_nbytes": MOST_NBYTES},
        )
    print(result.out, end="")


def defect():
    """Memory that is kept is found."""
    jobs.run_job(
        "campaign.mixed_cases:mixed",
        1,
        fresh=True,
        args={"minutes": 0.0, "rounds": 3, "most_nbytes": MOST_NBYTES, "leak": 8 << 20},
    )


PART = Part(
    "mixed",
    "minutes of mixed work on 1 to 4 ranks beside one busy process per core: transforms, pointwise functions, "
    "brackets, halos, matrices, solvers, collectives, arrays and errors in turn, each compared with numpy or scipy: no "
    "deadline is hit, threads, descriptors and communicators stay the same, the resident set grows by less than 1 MiB "
    "in "
    "the second half",
    30,
    run,
    defect,
    "resident set grew",
    MINUTES,
)
