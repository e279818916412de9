"""Cases that hypothesis draws and shrinks: each is one value that all ranks of a job receive."""

import jobs
from hypothesis import HealthCheck, example, given, settings


def check(case, drawn, count, ranks, *, edges=(), mpi="mpich", **args):
    """Run a case on some values by hand, then on `count` that a strategy draws.

    Parameters
    ----------
    case : str
        ``"module:function"``, called as ``function(comm, case=value, **args)``.
    drawn : hypothesis strategy
        A strategy for values that can travel as JSON.
    count : int
    ranks : int
    edges : sequence
        Values that are always tried.
    mpi : {"mpich", "openmpi"}
    args : dict
        Further arguments of the case.
    """
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(value=drawn)
    def one(value):
        jobs.run_job(case, ranks, mpi=mpi, args={"case": value, **args})

    for value in edges:
        one = example(value=value)(one)
    one()
