"""Cases that hypothesis draws and shrinks: each is one value that all ranks of a job receive."""

import jobs
from hypothesis import HealthCheck, example, given, settings
from hypothesis import seed as seeded


def check(case, drawn, count, ranks, *, edges=(), mpi="mpich", seed=None, **args):
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
    seed : int, optional
        What is drawn depends on it alone, not on what earlier runs have found.
    args : dict
        Further arguments of the case.
    """
    options = {} if seed is None else {"database": None}

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), **options)
    @given(value=drawn)
    def one(value):
        jobs.run_job(case, ranks, mpi=mpi, args={"case": value, **args})

    if seed is not None:
        one = seeded(seed)(one)
    for value in edges:
        one = example(value=value)(one)
    one()
