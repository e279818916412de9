"""Soak: many slices, plans made and closed, plans dropped; the process stays as it was."""

import jobs

from .draw import Drawn
from .harness import Part

SLICES, PLANS, DROPPED = 10_000, 700, 200       # of a seed, a hundredth of what the campaign asks for
WORK = {"slices": SLICES // 2, "plans": PLANS // 2, "dropped": DROPPED // 2}     # done twice


def run(seed):
    """The work of a seed in one job."""
    jobs.run_job("campaign.soak_cases:soak", Drawn(seed).ranks(1, 2), args=WORK, fresh=True, deadline_s=1200)


def defect():
    """Memory that is kept is found."""
    jobs.run_job("campaign.soak_cases:soak", 1, fresh=True,
                 args={"slices": 100, "plans": 2, "dropped": 1, "leak": 8 << 20})


PART = Part("soak", f"slices; with each {SLICES:,} of them {PLANS} plans made and closed and {DROPPED} dropped: the same "
            "threads and descriptors, the resident set grows by less than 1 MiB in the second half", 1_000_000, run, defect,
            "resident set grew", SLICES)
