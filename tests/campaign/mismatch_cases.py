"""What `mismatches` runs on every rank: the last one differs from the others in one thing."""

import os

import numpy as np
from error_cases import raised, same_message
from fft2_error_cases import OTHER_ARGUMENTS, grouped
from mpi4py import MPI

import overlap
from overlap.fft.planning import tuning_file

SLICES = 9
DEADLINE_S = 4.0
ALIKE = {"call": "Allreduce", "op": MPI.SUM, "root": 0, "tag": 3, "dtype": "f8", "count": 6, "slices": SLICES}


def _program(rt, given, peers):
    """A slice program of the operations in which ranks can differ."""
    dest, source = peers

    async def run(z):
        data = np.ones(given["count"], given["dtype"])
        if given["call"] == "Barrier":
            await rt.comm.Barrier()
        else:
            await rt.comm.Allreduce(MPI.IN_PLACE, data, op=given["op"])
        await rt.comm.Bcast(data, root=given["root"])
        await rt.comm.Sendrecv(data, dest, given["tag"], np.empty_like(data), source, given["tag"])

    return run


OTHER = {"call": "Barrier", "op": MPI.MAX, "root": 1, "tag": 4, "dtype": "f4", "count": 5, "slices": SLICES + 1}


def program(comm, name, wait, depth, first, mute=False):
    """Ranks that differ in one argument of an operation, from the first call or after one that was alike."""
    last = comm.rank == comm.size - 1
    given = ALIKE | ({name: OTHER[name]} if last else {})
    peers = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with overlap.Runtime(comm, wait=wait, depth=depth, deadline_s=DEADLINE_S, entry_deadline_s=DEADLINE_S) as rt:
        usual = rt.pipelined(_program(rt, ALIKE, peers))
        if not first:
            usual(range(SLICES))
        found = raised(
            (overlap.InputError, overlap.SliceError), rt.pipelined(_program(rt, given, peers)), range(given["slices"])
        )
        same_message(comm, str(found) + "mute" * (mute and last))
        usual(range(SLICES))


def arguments(comm, number):
    """Ranks that differ in an argument of a plan."""
    change = OTHER_ARGUMENTS[number % len(OTHER_ARGUMENTS)]
    good = {"shape": (2, 4, 4), "dtype": "c16", "wait": "off", "effort": "measure"}
    error = raised(
        overlap.InputError, overlap.FFT2, comm, **grouped(good | (change if comm.rank == comm.size - 1 else {}))
    )
    same_message(comm, error)


def tuning(comm, folder, by_environment):
    """Ranks that name other tuning files, as an argument or in the environment."""
    path = f"{folder}/{comm.rank}.json"
    with open(path, "w") as file:
        file.write(tuning_file.text_of([]))
    if by_environment:
        os.environ["OVERLAP_TUNING"] = path
    error = raised(overlap.InputError, overlap.FFT2, comm, (2, 4, 4), **{} if by_environment else {"tuning": path})
    same_message(comm, error)
