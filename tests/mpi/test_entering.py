"""What all ranks do together is entered by one door: who enters is told, and who waits there says so."""

import re
import sys

import commands
import jobs
import processes
import pytest
from generated_recipes import SUBJECTS
from marks import exhaustive

AREAS = tuple(SUBJECTS)
QUICK = ("output",)  # areas that compile little
MULTIPLE = {"MPI4PY_RC_THREAD_LEVEL": "multiple"}
CALLS = "entering_cases:calls_of_arrays,calls_of_data,data_then_own_messages,caught_and_used_again,reported_once"
PROGRAM = """
import sys
from mpi4py import MPI
import numpy as np
import overlap
from overlap.ranks import watchdog

comm, how = MPI.COMM_WORLD, sys.argv[1]
rt = overlap.Runtime(comm, deadline_s=2, entry_deadline_s=None if how == "ended" else 2)
here = slice(comm.rank, comm.rank + 1)
u = overlap.DistArray(np.ones((1, 4)), comm, (comm.size, 4), (0,), (here, slice(0, 4)))
if how == "opposite":
    watchdog.NOTICE_S = 0.3  # instead of a minute
    other = overlap.Runtime(comm)
    (rt if comm.rank else other).close()
if comm.rank == 1:
    if how == "ended":
        sys.exit(0)
    comm.recv(source=0)
u.global_mean() if how == "alone" else overlap.Runtime(comm, deadline_s=8)
"""


@pytest.mark.parametrize("ranks", [2, exhaustive(3)])
def test_an_exception_is_told_in_any_next_call(ranks):
    jobs.run_job(CALLS, ranks)


@pytest.mark.parametrize("mpi", [exhaustive("mpich"), "openmpi"])
def test_a_thread_tells_it(mpi, request):
    if mpi == "openmpi":
        request.getfixturevalue("openmpi")
    jobs.run_job(CALLS, 2, mpi=mpi, env=MULTIPLE)


def run_program(tmp_path, how):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command, env = processes.launcher_command("mpich")
    with commands.process(*command, "-n", 2, sys.executable, script, how, env=env) as job:
        out, err = job.communicate(timeout=commands.DEADLINE_S)
    assert job.returncode != 0, out + err
    return err


@pytest.mark.parametrize("how, said", [("alone", "reducing an array has not completed"), ("ended", "without close()")])
def test_the_end_of_a_job_in_which_one_rank_calls(tmp_path, how, said):
    err = run_program(tmp_path, how)
    assert said in err, err


def test_two_runtimes_closed_in_opposite_order_say_so(tmp_path):
    err = run_program(tmp_path, "opposite")
    for rank in range(2):
        assert re.search(rf"rank {rank} has waited for \d+ s in closing a runtime for rank {1 - rank}\n", err), err


@pytest.mark.parametrize(
    "area", [area if area in QUICK else pytest.param(area, marks=pytest.mark.exhaustive) for area in AREAS]
)
def test_an_exception_is_told_in_every_public_call(area):
    jobs.run_job("entering_cases:next_call", 2, args={"area": area}, fresh=True, deadline_s=900)


@pytest.mark.parametrize(
    "area", [area if area in QUICK else pytest.param(area, marks=pytest.mark.exhaustive) for area in AREAS]
)
def test_every_public_call_says_for_whom_it_waits(area):
    jobs.run_job("entering_cases:one_caller", 2, args={"area": area}, fresh=True, deadline_s=900)
