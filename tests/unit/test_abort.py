"""The end of a job in which nothing can be agreed on any more."""

import sys

import commands

STUCK = """
import ctypes
from types import SimpleNamespace
from overlap.ranks import watchdog

def never_returns(status):
    ctypes.PyDLL(None).sleep(600)      # with the interpreter's lock

watchdog.ABORT_GRACE_S = 600
watchdog.MPI = SimpleNamespace(COMM_WORLD=SimpleNamespace(rank=3, Abort=never_returns))
watchdog.abort("nobody answers")
"""


def test_the_job_ends_if_mpi_cannot_abort_it():
    done = commands.run(sys.executable, "-c", STUCK, timeout=60)
    assert done.returncode == 1
    assert "overlap: rank 3" in done.stderr and "nobody answers" in done.stderr and "never_returns" in done.stderr
