"""Ctrl-C on one rank at moments drawn among the bytecodes of every public call."""

import jobs

from .draw import AREAS, Drawn
from .harness import Part

CALLS = 40  # of a seed


def run(seed):
    """Some interrupted calls of an area."""
    drawn = Drawn(seed)
    jobs.run_job(
        "test_interrupts:interrupts",
        drawn.ranks(2),
        fresh=True,
        deadline_s=900,
        args={"area": AREAS[seed % len(AREAS)], "seed": seed, "count": CALLS},
    )


def defect():
    """A call whose synchronizations do not belong together is found."""
    jobs.run_job("test_interrupts:divided", 2, fresh=True, args={"row_s": 5.0})


PART = Part(
    "interrupts",
    "every public call of the library, interrupted on one rank of 2 to 4 at a moment drawn among those at which Python "
    "runs signal handlers: the other ranks end the call, all alike; the interrupted rank raises KeyboardInterrupt, or "
    "has called nothing and calls again; the next call is right",
    2000,
    run,
    defect,
    "row hangs: divided",
    CALLS,
)
