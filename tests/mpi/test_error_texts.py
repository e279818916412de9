"""What is printed when an error of one rank ends a program: the user's lines, once, and a line for each other rank."""

import sys
import traceback

import commands
import processes
import pytest
from marks import exhaustive

import overlap

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
COMPILED = """
import numba


@numba.njit
def factor(rank, last):
    if rank == last:
        raise KeyError(2)  # return table[z]
    return 1.0


with overlap.FFT2(comm, (8, 16, 16), dtype="f8") as plan:

    @plan.pointwise
    def scaled(a):
        return a * factor(comm.rank, comm.size - 1)  # the slice

    u = plan.spectrum.empty()
    u[...] = 1.0
    scaled(u)  # the call
"""
OPEN = """
rt = overlap.Runtime(comm)


@rt.pipelined
async def transform(z):
    await rt.comm.Allreduce(np.ones(4), np.empty(4))
    weight(z)  # the slice


transform(range(8))  # the call
"""
SOLVER = """
from overlap.sparse import cg, diffusion

blocks = overlap.Blocks((8 * comm.size, 8, 8), (comm.size, 1, 1))
with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A:
    cg(A, np.ones(512), callback=lambda x: weight(2))  # the slice  # the call
"""


# Programs in which the last rank gives what makes no sense, or all ranks do.
FIRST_MADE = """
def make(dtype):
    return overlap.FFT2(comm, (8, 16, 16), dtype)  # the call


make("i8")
"""
DIFFERENT = """
def make(size):
    return overlap.FFT2(comm, (8, 16, size))  # the call


make(16 + (comm.rank == comm.size - 1))
"""
INPUT = """
def step(plan, u):
    return plan.forward(u[..., : 16 - (comm.rank == comm.size - 1)])  # the call


plan = overlap.FFT2(comm, (8, 16, 16), dtype="f8")
step(plan, plan.real.empty())
"""
IN_A_BLOCK = """
with overlap.FFT2(comm, (8, 16, 16), dtype="f8") as plan:
    plan.forward(plan.real.empty()[..., : 16 - (comm.rank == comm.size - 1)])  # the call
"""
VECTOR = """
from overlap.sparse import cg, diffusion

blocks = overlap.Blocks((8 * comm.size, 8, 8), (comm.size, 1, 1))
with diffusion(comm, blocks, 1.0, fixed=[(0, 0)]) as A:
    cg(A, np.ones(512 - (comm.rank == comm.size - 1)))  # the call
"""
HALO = """
with overlap.Halo(comm, overlap.Blocks((8 * comm.size, 8), (comm.size, 1))) as halo:
    halo.exchange(np.zeros((10, 10 - (comm.rank == comm.size - 1))))  # the call
"""
DROP_IN = """
from overlap.compat.mpi4py_fft import PFFT, newDistArray

fft = PFFT(comm, (8, 16, 16), dtype="d")
fft.forward(newDistArray(fft, False)[..., : 16 - (comm.rank == comm.size - 1)])  # the call
"""


def printed(program, ranks, tmp_path):
    """The lines that a program prints which an error ends; its status."""
    script = tmp_path / "program.py"
    script.write_text(BEGINNING + program)
    launcher, env = processes.launcher_command("mpich", tmp_path)
    with commands.process(*launcher, "-n", ranks, sys.executable, script, env=env) as job:
        _, err = job.communicate(timeout=commands.DEADLINE_S)
    lines = err.splitlines()
    assert len(lines) <= 25 + 2 * max(0, ranks - 2), err
    return lines, job.returncode


@pytest.mark.parametrize(
    "program, ranks",
    [
        (SLICES, 2),
        (POINTWISE, 1),
        (POINTWISE, 3),
        (OPEN, 2),
        *(
            exhaustive(*case)
            for case in [(SLICES, 1), (POINTWISE, 2), (SLICES, 8), (POINTWISE, 8), (COMPILED, 1), (COMPILED, 2)]
        ),
    ],
)
def test_an_error_of_one_rank_is_short(program, ranks, tmp_path):
    lines, status = printed(program, ranks, tmp_path)
    assert status != 0, lines
    for shown in ("return table[z]", "# the slice", "# the call"):
        assert sum(shown in line for line in lines) == 1, lines
    assert sum(line.startswith("KeyError: 2") for line in lines) == 1, lines
    told = [line for line in lines if line.startswith("overlap.errors.SliceError")]
    assert len(told) >= ranks and all(f"failed on rank {ranks - 1}: KeyError: 2" in line for line in told), lines


@pytest.mark.exhaustive
def test_an_error_in_a_callback_is_short(tmp_path):
    lines, status = printed(SOLVER, 2, tmp_path)
    assert status != 0 and sum("return table[z]" in line for line in lines) == 1, lines


@pytest.mark.parametrize(
    "program, ranks",
    [
        (FIRST_MADE, 2),
        *(exhaustive(*case) for case in [(FIRST_MADE, 1), (FIRST_MADE, 3), (INPUT, 1), (INPUT, 2), (INPUT, 3)]),
        *(exhaustive(program, 2) for program in (DIFFERENT, IN_A_BLOCK, VECTOR, HALO, DROP_IN)),
        *(exhaustive(program, 1) for program in (IN_A_BLOCK, VECTOR, HALO, DROP_IN)),
    ],
)
def test_what_makes_no_sense_is_told_shortly(program, ranks, tmp_path):
    """The rank that has called wrongly shows the call, the others say where they were; the library shows nothing."""
    lines, status = printed(program, ranks, tmp_path)
    assert status != 0, lines
    texts = [line.partition(" (the call here: ")[0] for line in lines if line.startswith("overlap.errors.InputError: ")]
    assert len(texts) == ranks and len(set(texts)) == 1, lines
    assert "expected" in texts[0], lines
    assert sum("# the call" in line for line in lines) == 1, lines
    assert sum("(the call here: " in line and "program.py:" in line for line in lines) == ranks - 1, lines
    assert not any("overlap/" in line for line in lines), lines


def test_debuggers_and_traceback_see_all_lines():
    """What is printed shortly keeps its frames, its cause and its text."""
    with pytest.raises(overlap.InputError) as caught:
        overlap.Blocks((8, 8), grid=2)
    assert "blocks.py" in "".join(traceback.format_exception(caught.value))
