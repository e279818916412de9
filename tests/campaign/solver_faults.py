"""Exceptions on one rank in what a solver calls, and in a halo's round."""

import jobs

from .draw import Drawn
from .harness import Part

FAULTS = 30  # of a seed


def run(seed):
    """Some faults in one job."""
    drawn = Drawn(seed)
    jobs.run_job(
        "campaign.solver_fault_cases:faults",
        drawn.ranks(2),
        mpi=drawn.library(),
        fresh=True,
        args={"seed": seed, "count": FAULTS},
    )


def defect():
    """A rank that leaves a halo's block without its error is found."""
    jobs.run_job("campaign.solver_fault_cases:faults", 2, fresh=True, args={"seed": 0, "count": 10, "mute": True})


PART = Part(
    "solvers",
    "one of 22 kinds of exceptions on one rank of 2 to 4, or several, in the operator, the preconditioner or the "
    "callback of one of five solvers, or in a halo's round: all ranks raise within 5 s, those that have not failed the "
    "same; the next solution is the same to the last bit, the next halo right",
    3000,
    run,
    defect,
    "('NoneType', '')",
    FAULTS,
)
