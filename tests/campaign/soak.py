"""Soak: many slices, plans made and closed, plans dropped; the process stays as it was."""

import jobs

from .draw import Drawn
from .harness import Part

ROUNDS = 20  # the first few fill tables and arenas
SLICES, PLANS, DROPPED = 200_000, 14_000, 4_000  # of a seed, a fifth of what the campaign asks for
WORK = {"rounds": ROUNDS, "slices": SLICES // ROUNDS, "plans": PLANS // ROUNDS, "dropped": DROPPED // ROUNDS}
# UCX, below MPI, notes each mapping that is given back, such as the stack of a thread that has ended, and keeps the
# notes until memory is registered, which on one machine is never.
ENVIRONMENT = {"UCX_MEM_EVENTS": "n"}


def run(seed):
    """The work of a seed in one job."""
    result = jobs.run_job(
        "campaign.soak_cases:soak", Drawn(seed).ranks(1, 2), args=WORK, env=ENVIRONMENT, deadline_s=3000
    )
    print(result.out, end="")


def defect():
    """Memory that is kept is found."""
    jobs.run_job(
        "campaign.soak_cases:soak",
        1,
        fresh=True,
        args={"rounds": 2, "slices": 100, "plans": 2, "dropped": 1, "leak": 8 << 20},
    )


PART = Part(
    "soak",
    f"slices; with each {SLICES:,} of them {PLANS:,} plans made and closed and {DROPPED:,} dropped: the same "
    f"threads, descriptors and communicators, in their second half ({SLICES // 2:,}) less than 100 KiB are kept, by "
    "malloc's "
    "and Python's count, and the resident set grows by as little, but for single steps of malloc's heaps",
    1_000_000,
    run,
    defect,
    "resident set grew",
    SLICES,
)
