"""Latency of the collectives by remote writes beside MPI's: from Python, inside compiled code, through mpi4py.

    mpiexec -n 2 python bench/collectives.py [--json FILE] [--thread-level serialized] [--nbytes 8 1024]

Microseconds per call, the best of several rounds, the slowest rank's. A collective with a root takes each rank in
turn. With ``--thread-level`` mpi4py starts MPI at that level; two runs give both columns.
"""

import argparse
import json
import platform
from time import perf_counter

import mpi4py

COLLECTIVES = ("Barrier", "Bcast", "Scatter", "Gather", "Allgather", "Reduce", "Allreduce", "allreduce")


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the cases to it")
    parser.add_argument("--thread-level", choices=("serialized", "multiple"), default="serialized")
    parser.add_argument("--nbytes", type=int, nargs="+", default=[8, 1024, 8192, 65536, 2**20])
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
    parser.add_argument("--max-nbytes", type=int, default=2**16, help="of a slot in the window")
    parser.add_argument("--round-s", type=float, default=0.01, help="seconds of one round")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


OPTIONS = options()
mpi4py.rc.thread_level = OPTIONS.thread_level  # before MPI is imported, which starts it

import numba  # noqa: E402
import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

from overlap.collectives import Collectives  # noqa: E402


@numba.njit(nogil=True)
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


def python_calls(target, name, size, block, other, pieces):
    """A function that makes so many calls of a method, of ours or of mpi4py's."""
    if name == "allreduce" and not isinstance(target, Collectives):
        name = "Allreduce"
    method = getattr(target, name)
    arguments = {"Barrier": (), "Bcast": (block,), "Scatter": (pieces, block), "Gather": (block, pieces),
                 "Allgather": (block, pieces), "Reduce": (block, other), "Allreduce": (block, other),
                 "allreduce": (1.0,)}[name]
    if name in ("Bcast", "Scatter", "Gather", "Reduce"):
        def run(calls):
            for number in range(calls):
                method(*arguments, root=number % size)
    else:
        def run(calls):
            for _ in range(calls):
                method(*arguments)
    return run


def measured_us(comm, run):
    """Microseconds per call: the best round of the slowest rank, after a first round that sets their length."""
    calls = 20
    comm.Barrier()
    started = perf_counter()
    run(calls)
    calls = max(20, int(calls * OPTIONS.round_s / max(perf_counter() - started, 1e-6)))
    calls = comm.bcast(calls)
    best = float("inf")
    for _ in range(OPTIONS.rounds):
        comm.Barrier()
        started = perf_counter()
        run(calls)
        best = min(best, comm.allreduce((perf_counter() - started) / calls, MPI.MAX))
    return 1e6 * best


def case(comm, fast, name, nbytes):
    """One line of the table."""
    size = comm.size
    block = np.zeros(max(1, nbytes // 8))
    arrays = block, np.zeros_like(block), np.zeros((size, block.size))
    run_compiled = (lambda calls: compiled(fast, COLLECTIVES.index(name), calls, size, *arrays))
    return {"collective": name, "nbytes": nbytes, "ranks": size,
            "python_us": measured_us(comm, python_calls(fast, name, size, *arrays)),
            "njit_us": measured_us(comm, run_compiled),
            f"mpi4py_{OPTIONS.thread_level}_us": measured_us(comm, python_calls(comm, name, size, *arrays))}


def main():
    comm = MPI.COMM_WORLD
    cases = []
    with Collectives(comm, max_nbytes=OPTIONS.max_nbytes) as fast:
        for name in OPTIONS.collectives:
            for nbytes in OPTIONS.nbytes[:1] if name in ("Barrier", "allreduce") else OPTIONS.nbytes:
                cases.append(case(comm, fast, name, nbytes))
                if comm.rank == 0:
                    print("  ".join(f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}"
                                    for key, value in cases[-1].items()), flush=True)
    if OPTIONS.json and comm.rank == 0:
        with open(OPTIONS.json, "w") as file:
            json.dump({"machine": platform.processor() or platform.machine(), "mpi": MPI.Get_library_version(),
                       "cases": cases}, file, indent=1)


if __name__ == "__main__":
    main()
