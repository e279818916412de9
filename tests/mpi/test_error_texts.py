"""What is printed when an error of one rank ends a program: the user's lines, once, and a line for each other rank."""

import sys

import commands
import processes
import pytest
from marks import exhaustive

BEGINNING = """
import mpi4py
import numpy as np

mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI

import overlap

comm = MPI.COMM_WORLD
table = {0: 1.0, 1: 2.0}


def weight(z):
    return table[z] if comm.rank == comm.size - 1 else 1.0

"""
SLICES = """
with overlap.Runtime(comm) as rt:

    @rt.pipelined
    async def transform(z):
        a, b = np.ones(4), np.empty(4)
        await rt.comm.Allreduce(a, b)
        b *= weight(z)  # the slice

    transform(range(8))  # the call
"""
POINTWISE = """
with overlap.FFT2(comm, (8, 16, 16), dtype="f8") as plan:

    @plan.pointwise
    def square(a):
        return a * a * weight(2)  # the slice

    u = plan.spectrum.empty()
    u[...] = 1.0
    square(u)  # the call
"""
OPEN = """
rt = overlap.Runtime(comm)


@rt.pipelined
async def transform(z):
    await rt.comm.Allreduce(np.ones(4), np.empty(4))
    weight(z)  # the slice


transform(range(8))  # the call
"""


@pytest.mark.parametrize(
    "program, ranks",
    [(SLICES, 2), (POINTWISE, 3), exhaustive(POINTWISE, 2), exhaustive(SLICES, 8), exhaustive(POINTWISE, 8), (OPEN, 2)],
)
def test_an_error_of_one_rank_is_short(program, ranks, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(BEGINNING + program)
    launcher, env = processes.launcher_command("mpich", tmp_path)
    with commands.process(*launcher, "-n", ranks, sys.executable, script, env=env) as job:
        _, err = job.communicate(timeout=commands.DEADLINE_S)
    assert job.returncode != 0
    lines = err.splitlines()
    assert len(lines) <= 25 + 2 * (ranks - 2), err
    for shown in ("return table[z]", "# the slice", "# the call"):
        assert sum(shown in line for line in lines) == 1, err
    assert sum(line.startswith("KeyError: 2") for line in lines) == 1, err
    told = [line for line in lines if line.startswith("overlap.errors.SliceError")]
    assert len(told) >= ranks and all(f"failed on rank {ranks - 1}: KeyError: 2" in line for line in told), err
