"""Latency of the collectives by remote writes beside MPI's: each from Python and from inside a compiled loop.

    python bench/collectives.py [--json FILE] [--thread-level multiple] [--nbytes 8 1024]
    overlap links --hosts 2 --ranks 4 -- python bench/collectives.py --nbytes 8 1024

Microseconds per call, the slowest rank's, in the median of rounds in which all take turns; and how many times as long
mpi4py takes as we do from Python, and MPI's own functions as we do from compiled code (``mpi4py_x``, ``mpi_c_x``), in
the median of the rounds' quotients. A collective with a root takes each rank in turn. What MPI's own functions take
without Python (``mpi_c_us``) is measured in a compiled loop too, which calls them by their addresses in the library.
"""

import ctypes
import sys
from time import perf_counter

import mpi4py

if "multiple" not in sys.argv:
    mpi4py.rc.thread_level = "serialized"  # before MPI is imported, which starts it

import numba
import numpy as np
from mpi4py import MPI

from overlap.collectives import Collectives
from overlap.compiled import njit
from overlap.tools.bench.pages import Page
from overlap.tools.bench.rounds import turns

COLLECTIVES = ("Barrier", "Bcast", "Scatter", "Gather", "Allgather", "Reduce", "Allreduce", "allreduce")


@njit
def compiled(fast, which, calls, size, block, other, pieces):
    """So many calls inside one compiled function; `which` is the place in `COLLECTIVES`."""
    total = 0.0
    for number in range(calls):
        root = number % size
        if which == 0:
            fast.Barrier()
        elif which == 1:
            fast.Bcast(block, root)
        elif which == 2:
            fast.Scatter(pieces, block, root)
        elif which == 3:
            fast.Gather(block, pieces, root)
        elif which == 4:
            fast.Allgather(block, pieces)
        elif which == 5:
            fast.Reduce(block, other, 0, root)
        elif which == 6:
            fast.Allreduce(block, other, 0)
        else:
            total += fast.allreduce(1.0)
    return total


LIBRARY = ctypes.CDLL(MPI.__file__)  # finds what mpi4py's module is linked with
WORD, INT = ctypes.c_ssize_t, ctypes.c_int  # of addresses and handles; of counts and ranks
SEND, MESSAGE = (WORD, INT, WORD), (WORD, WORD, INT, WORD, WORD)


def mpi_function(name, *arguments):
    """A function of the MPI library that compiled code can call."""
    function = getattr(LIBRARY, f"MPI_{name}")
    function.restype, function.argtypes = INT, arguments
    return function


MPI_BARRIER, MPI_BCAST = mpi_function("Barrier", WORD), mpi_function("Bcast", *SEND, INT, WORD)
MPI_SCATTER = mpi_function("Scatter", *SEND, *SEND, INT, WORD)
MPI_GATHER = mpi_function("Gather", *SEND, *SEND, INT, WORD)
MPI_ALLGATHER = mpi_function("Allgather", *SEND, *SEND, WORD)
MPI_REDUCE, MPI_ALLREDUCE = mpi_function("Reduce", *MESSAGE, INT, WORD), mpi_function("Allreduce", *MESSAGE, WORD)


def handle(value):
    """A handle of MPI's as C has it: an int, or an address, of which a register holds either."""
    kind = INT if MPI._sizeof(value) == ctypes.sizeof(INT) else WORD
    return kind.from_address(MPI._addressof(value)).value


@numba.njit(nogil=True)
def mpi_compiled(comm, double, add, which, calls, size, block, other, pieces):
    """As `compiled`, of the MPI library."""
    one, two, all_, count = block.ctypes.data, other.ctypes.data, pieces.ctypes.data, block.size
    for number in range(calls):
        root = number % size
        if which == 0:
            MPI_BARRIER(comm)
        elif which == 1:
            MPI_BCAST(one, count, double, root, comm)
        elif which == 2:
            MPI_SCATTER(all_, count, double, one, count, double, root, comm)
        elif which == 3:
            MPI_GATHER(one, count, double, all_, count, double, root, comm)
        elif which == 4:
            MPI_ALLGATHER(one, count, double, all_, count, double, comm)
        elif which == 5:
            MPI_REDUCE(one, two, count, double, add, root, comm)
        else:
            MPI_ALLREDUCE(one, two, count, double, add, comm)


def python_calls(target, name, size, block, other, pieces):
    """A function that makes so many calls of a method, of ours or of mpi4py's."""
    if name == "allreduce" and not isinstance(target, Collectives):
        name = "Allreduce"
    method = getattr(target, name)
    arguments = {
        "Barrier": (),
        "Bcast": (block,),
        "Scatter": (pieces, block),
        "Gather": (block, pieces),
        "Allgather": (block, pieces),
        "Reduce": (block, other),
        "Allreduce": (block, other),
        "allreduce": (1.0,),
    }[name]
    if name in ("Bcast", "Scatter", "Gather", "Reduce"):

        def run(calls):
            for number in range(calls):
                method(*arguments, root=number % size)
    else:

        def run(calls):
            for _ in range(calls):
                method(*arguments)

    return run


def rounds_us(comm, fast, runs, given):
    """Microseconds per call of several runs, in turns: for each round those of the slowest rank, after a first one that
    sets its length.
    """

    def seconds(run, calls):
        comm.Barrier()
        # MPI's may spin: where cores are shared, its last rank leaves it milliseconds after the first one
        fast.Barrier()
        started = perf_counter()
        run(calls)
        return (perf_counter() - started) / calls

    def timing(run):
        run(1)  # compiles
        calls = comm.bcast(max(20, int(given.round_s / max(seconds(run, 20), 1e-8))))
        return lambda: 1e6 * comm.allreduce(seconds(run, calls), MPI.MAX)

    return {name: np.array(us) for name, us in turns({k: timing(run) for k, run in runs.items()}, given.rounds).items()}


def record_of(comm, fast, name, nbytes, given):
    """One line of the table."""
    size = comm.size
    block = np.ones(max(1, nbytes // 8))  # no zeros, for which the system has one page until something is written there
    arrays = block, np.ones_like(block), np.ones((size, block.size))
    place, handles = COLLECTIVES.index(name), [handle(one) for one in (comm, MPI.DOUBLE, MPI.SUM)]
    runs = {
        "python": python_calls(fast, name, size, *arrays),
        "njit": lambda calls: compiled(fast, place, calls, size, *arrays),
        "mpi_c": lambda calls: mpi_compiled(*handles, place, calls, size, *arrays),
        "mpi4py": python_calls(comm, name, size, *arrays),
    }
    us = rounds_us(comm, fast, runs, given)
    median = {f"{key}_us": float(np.median(values)) for key, values in us.items()}
    over = {"mpi_c_x": us["mpi_c"] / us["njit"], "mpi4py_x": us["mpi4py"] / us["python"]}
    median |= {key: float(np.median(values)) for key, values in over.items()}
    return {"collective": name, "nbytes": nbytes, "ranks": size} | median


def check(comm):
    """The functions of the MPI library are called rightly."""
    ours, sums = np.full(3, comm.rank + 1.0), np.zeros(3)
    mpi_compiled(
        *map(handle, (comm, MPI.DOUBLE, MPI.SUM)), COLLECTIVES.index("Allreduce"), 1, comm.size, ours, sums, ours[None]
    )
    assert (sums == comm.size * (comm.size + 1) / 2).all(), sums


def measure(comm, given):
    """The records of all collectives and sizes."""
    check(comm)
    with Collectives(comm, max_nbytes=given.max_nbytes) as fast:
        for name in given.collectives:
            for nbytes in given.nbytes[:1] if name in ("Barrier", "allreduce") else given.nbytes:
                yield record_of(comm, fast, name, nbytes, given)


PAGE = Page(__doc__, measure, rounds=15)
PAGE.add("--nbytes", type=int, nargs="+", default=[8, 1024, 8192, 65536, 2**20])
PAGE.add("--collectives", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
PAGE.add("--max-nbytes", type=int, default=2**16, help="of a slot in the window")
PAGE.add("--round-s", type=float, default=0.003, help="seconds of one round")

if __name__ == "__main__":
    sys.exit(PAGE.run())
