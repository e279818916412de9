"""A rank that leaves by an exception between two calls, or ends: nobody waits for it."""

import sys

import commands
import jobs
import processes
import pytest
from marks import exhaustive

CASES = (
    "leaving_cases:told,on_all,inside_a_round,inner_block,both_blocks,caught_by_some,different_ends,in_a_thread,"
    "hooks_are_put_back"
)
MULTIPLE = {"MPI4PY_RC_THREAD_LEVEL": "multiple"}  # then a thread waits for the other ranks
USE = """
import sys
from mpi4py import MPI
import overlap

def use(rt):
    async def program(z):
        await rt.comm.Barrier()
    rt.pipelined(program)([0])
"""
PROGRAM = f"""{USE}
comm, how = MPI.COMM_WORLD, sys.argv[1]
rt = overlap.Runtime(comm, deadline_s=1 if how == "never" else None)
use(rt)
if comm.rank == 0:
    if how == "exit":
        sys.exit(0)
    raise ValueError("on purpose")
if how in ("never", "mpi4py"):
    comm.recv(source=0)
use(rt)
"""

UNDER_PYTEST = f"""{USE}
def test_with():
    with overlap.Runtime(MPI.COMM_WORLD, deadline_s=None) as rt:
        use(rt)
        if MPI.COMM_WORLD.rank == 0:
            raise ValueError("in a with block")
        use(rt)

def test_without():
    rt = overlap.Runtime(MPI.COMM_WORLD, deadline_s=None)
    use(rt)
    if MPI.COMM_WORLD.rank == 0:
        raise ValueError("outside")
    use(rt)
"""


def test_an_exception_between_two_calls_is_told():
    jobs.run_job(CASES, 2, deadline_s=240, fresh=True)  # halos that were left keep their communicators


def test_an_exception_is_told_between_nodes():
    """Without a board, where headers and reports are nonblocking operations of MPI."""
    jobs.run_job("leaving_cases:told,on_all", 2, deadline_s=240, env={"MPIR_CVAR_NOLOCAL": "1"}, fresh=True)


def test_on_three_ranks():
    jobs.run_job("leaving_cases:told,on_all,inside_a_round,both_blocks", 3, fresh=True)


def test_on_one_rank():
    jobs.run_job("leaving_cases:on_all,hooks_are_put_back", 1)


@pytest.mark.parametrize("mpi", [exhaustive("mpich"), "openmpi"])
def test_a_thread_tells_the_others(mpi, request):
    if mpi == "openmpi":
        request.getfixturevalue("openmpi")
    # First, in processes of their own: as long as an object is there that other cases have left, hooks are installed
    # already, and a report that waits for the next call keeps its object.
    cases = "leaving_cases:in_a_thread,told,on_all,inner_block,both_blocks,after_a_while"
    jobs.run_job(cases, 2, mpi=mpi, env=MULTIPLE, fresh=True)


def run_program(tmp_path, how, *options):
    """Run the program, whose rank 0 ends in the middle; (status, output)."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command, env = processes.launcher_command("mpich")
    with commands.process(*command, "-n", 2, sys.executable, *options, script, how, env=env) as job:
        out, err = job.communicate(timeout=commands.DEADLINE_S)
    return job.returncode, out + err  # IPython writes to the former


def test_an_exception_that_ends_the_process_is_told(tmp_path):
    status, err = run_program(tmp_path, "raise")
    assert status != 0 and err.count("ValueError: on purpose") == 2, err  # with its traceback, and in a RankError
    assert "RankError: failed on rank 0: ValueError: on purpose" in err, err


def test_the_end_of_a_process_is_told(tmp_path):
    status, err = run_program(tmp_path, "exit")
    assert status != 0 and "RankError: failed on rank 0: its process has ended without close()" in err, err


def test_ipython_is_told_of(tmp_path):
    status, err = run_program(tmp_path, "raise", "-m", "IPython", "--colors=NoColor")
    assert status != 0
    assert "RankError: failed on rank 0: its process has ended without close(), after ValueError: on purpose" in err, (
        err
    )


def test_pytest_is_told_of(tmp_path):
    script = tmp_path / "test_program.py"
    script.write_text(UNDER_PYTEST)
    command, env = processes.launcher_command("mpich")
    options = "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider"
    env = env | {"PYTEST_ADDOPTS": ""}  # meant for the session
    with commands.process(*command, "-n", 2, sys.executable, *options, script, env=env) as job:
        out, _ = job.communicate(timeout=commands.DEADLINE_S)
    assert job.returncode != 0
    # pytest goes on after a test that has failed, and its process ends well.
    assert "RankError: failed on rank 0: ValueError: in a with block" in out, out
    assert "RankError: failed on rank 0: its process has ended without close(), after ValueError: outside" in out, out


def test_the_deadline_ends_a_job_of_which_a_rank_has_failed(tmp_path):
    status, err = run_program(tmp_path, "never")
    assert status != 0 and "ValueError: on purpose has ended this rank" in err and "within 1 s" in err, err


def test_mpi4py_ends_a_job_of_which_a_rank_has_failed(tmp_path):
    status, err = run_program(tmp_path, "mpi4py", "-m", "mpi4py")
    assert status != 0 and "ValueError: on purpose" in err and "has ended this rank" not in err, err


WITHIN = f"""{USE}
comm = MPI.COMM_WORLD
with overlap.Runtime(comm, deadline_s=None) as outer, overlap.FFT2(outer, (2, 4, 4)) as inner:
    use(outer)
    if comm.rank == 0:
        raise ValueError("on purpose")
    comm.recv(source=0)
"""


@pytest.mark.parametrize("level", ["serialized", "multiple"])
@pytest.mark.parametrize("options", [(), ("-m", "mpi4py")], ids=["python", "mpi4py"])
def test_the_traceback_is_printed_while_the_other_rank_waits_in_mpi(tmp_path, level, options):
    """It is, although no deadline ends the job; mpi4py does."""
    script = tmp_path / "program.py"
    script.write_text(WITHIN)
    command, env = processes.launcher_command("mpich")
    env = env | {"MPI4PY_RC_THREAD_LEVEL": level, "OVERLAP_CACHE": str(tmp_path)}
    with commands.process(*command, "-n", 2, sys.executable, *options, script, env=env) as job:
        if options:
            _, err = job.communicate(timeout=commands.DEADLINE_S)
            assert job.returncode != 0
        else:
            err = ""
            while "ValueError: on purpose" not in err:
                line = job.stderr.readline()
                assert line, err
                err += line
            job.terminate()
            job.communicate(timeout=commands.DEADLINE_S)
    assert "ValueError: on purpose" in err and 'raise ValueError("on purpose")' in err, err


@pytest.mark.parametrize("ranks", [1, 2])
def test_forked_children_are_refused(ranks):
    jobs.run_job("leaving_cases:forked", ranks, deadline_s=240)
