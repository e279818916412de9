"""Injected errors: kinds of exceptions x sites x ranks x slices, also on several ranks at once."""

import jobs

from .draw import Drawn
from .harness import Part

FAULTS = 15     # of a seed
FIRST = 200     # seeds of `fault_cases`; the following ones are of `site_cases`


def run(seed):
    """Some faults in one job, which leaves nothing behind; `jobs` looks."""
    drawn = Drawn(seed)
    case = "campaign.fault_cases:faults" if seed < FIRST else "campaign.site_cases:sites"
    jobs.run_job(case, drawn.ranks(), mpi=drawn.library(), args={
        "seed": seed, "count": FAULTS, "wait": drawn.mode(), "depth": drawn.pick([1, 2, 3, 8]),
        "workers": drawn.workers()})


def defect():
    """A rank that does not tell its error is found."""
    jobs.run_job("campaign.fault_cases:faults", 2, args={
        "seed": 0, "count": 1, "wait": "poll", "depth": 3, "workers": 1, "mute": True})


PART = Part("errors", "one of 22 kinds of exceptions in a slice program, a transform's steps or planning, on one rank or "
            "several: one exception on all ranks before the deadline of 30 s, the next three transforms bit-right, no thread, "
            "communicator, descriptor or segment left; the last 600 before each of 12 kinds of await, in a part, in functions of "
            "fields, in making buffers, in tuning: the exception comes within 5 s", 3600, run, defect,
            "('NoneType', 'None')", FAULTS)
