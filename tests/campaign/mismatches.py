"""Ranks that differ in one thing: a call, an operation, an argument, a tuning file, the environment."""

import tempfile

import jobs

from .draw import Drawn
from .harness import Part

AWAITED = ("call", "op", "root", "tag", "dtype", "count", "slices")
KINDS = (*AWAITED, "arguments", "tuning", "environment", "plan", "array")
OWN = {"tag"}  # of a message between two ranks: MPI alone knows that nobody matches it


def run(seed):
    """One identical error on all ranks, or the deadline with the stacks of those that wait."""
    drawn = Drawn(seed)
    kind, ranks, mpi = KINDS[seed % len(KINDS)], drawn.ranks(2), drawn.library()
    if kind == "arguments":
        jobs.run_job("campaign.mismatch_cases:arguments", ranks, mpi=mpi, args={"number": seed // len(KINDS)})
    elif kind in ("plan", "array"):
        args = {"kind": kind, "seed": seed // len(KINDS)}
        jobs.run_job("campaign.mismatch_cases:objects", ranks, mpi=mpi, args=args)
    elif kind not in AWAITED:
        with tempfile.TemporaryDirectory() as folder:
            jobs.run_job(
                "campaign.mismatch_cases:tuning",
                ranks,
                mpi=mpi,
                args={"folder": folder, "by_environment": kind == "environment"},
            )
    else:
        args = {"name": kind, "wait": drawn.mode(), "depth": drawn.pick([1, 3, 8]), "first": bool(drawn.integers(2))}
        if kind in OWN:
            result = jobs.run_job("campaign.mismatch_cases:program", ranks, mpi=mpi, args=args, expect_failure=True)
            assert "has not completed in" in result.err and "Thread 0x" in result.err, result
        else:
            jobs.run_job("campaign.mismatch_cases:program", ranks, mpi=mpi, args=args, fresh=True)


def defect():
    """A rank that words its error otherwise is found."""
    jobs.run_job(
        "campaign.mismatch_cases:program",
        2,
        fresh=True,
        args={"name": "count", "wait": "poll", "depth": 3, "first": True, "mute": True},
    )


PART = Part(
    "mismatches",
    f"ranks that differ in {', '.join(KINDS)}: one identical InputError or SliceError, and the "
    "runtime goes on; for another tag the deadline, with stacks",
    200,
    run,
    defect,
    "mute",
)
