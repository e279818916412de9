"""MPI jobs for the tests: launched here, ended here, and nothing left behind.

A test with the mark `on_ranks` runs on ranks, and `comm` is their communicator::

    from marks import exhaustive, on_ranks

    @on_ranks(1, 2, exhaustive(3), "openmpi-2")
    @pytest.mark.parametrize("dtype", ["f8", "c16"])
    def test_my_plan(comm, dtype):
        assert comm.size < 4

It is a test for each number of ranks, ``test_my_plan[f8-openmpi-2]`` the last one. Its module is imported on the ranks,
where the function is called; parameters and results of fixtures travel as JSON, or as paths. What else the mark is
given, `run_job` receives: ``fresh=True``, ``env``, ``deadline_s``. A mark without numbers leaves `comm` to
``parametrize("comm, dtype", ...)``.

A test that asserts something of a job from outside (its output, its end, files) calls `run_job` itself. What it runs
is a plain function ``case(comm, **args)``, in any module of ``tests/mpi``.

Cases take turns on the same processes: one launcher is kept for each number of ranks and MPI
library, and only a case that fails takes its processes with it. What a case leaves behind on a rank
fails it by name; `leftovers` says what that is, and what is put back silently. A case runs in a job
of its own where it is expected to fail, gets another environment, or asks for it with ``fresh=True``:
because its ranks die, leave communicators behind by design or look at the whole process (memory,
thread pools), or because the interpreter's end belongs to what is tested.

On every rank warnings are errors. A failed assertion on any rank, an exception in any of its
threads and anything Python would merely print (an unraisable exception) fail the case. Processes
carry a mark in their environment and are looked up in /proc by it: whoever is left after a job, or
has been added by a case, is killed, and the test fails.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import processes
import rank
from launchers import launcher_of
from processes import MARK, JobFailed, Result, end_all, start, text_of

from overlap.tools.dead_segments import removing_segments


def run_job(
    case,
    ranks,
    *,
    mpi="mpich",
    args=None,
    deadline_s=300,
    env=None,
    expect_failure=False,
    fresh=False,
    lost=0,
    small_shm=False,
):
    """Run ``"module:function"``, or several joined by commas in turn, on `ranks` ranks.

    Parameters
    ----------
    case : str
        Functions in modules of ``tests/mpi``; one without a module is in the same as that before it.
    ranks : int
    mpi : {"mpich", "openmpi", "ulfm"}
        The latter is Open MPI with fault tolerance.
    args : dict, optional
        Keyword arguments of the case; they travel as JSON.
    deadline_s : float
        Then all is killed and the test fails, with all stacks of every rank.
    env : dict, optional
        Environment variables to add.
    expect_failure : bool
        Demand a non-zero exit status instead of success on every rank.
    fresh : bool, optional
        Start a job for this case alone, as `env`, `expect_failure` and `lost` do.
    lost : int, optional
        How many ranks do not come to the end, because the case has killed them.
    small_shm : bool, optional
        Start the job alone, with a small /dev/shm of its own: see `small_shm`.

    Returns
    -------
    Result

    Raises
    ------
    JobFailed
        With the output of all ranks.
    """
    __tracebackhide__ = True
    if fresh or env or expect_failure or lost or small_shm:
        before = (sys.executable, str(Path(__file__).with_name("small_shm.py"))) if small_shm else ()
        return _run_alone(case, ranks, mpi, args or {}, deadline_s, env or {}, expect_failure, lost, before)
    return launcher_of(ranks, mpi).run(case, args or {}, deadline_s)


def _wait(process, mark, deadline_s, lost, finished):
    """Wait for a launcher. One that has lost ranks does not always end: Open MPI's (5.0.11) then uses freed memory."""
    end = time.monotonic() + deadline_s
    while lost and process.poll() is None and time.monotonic() < end:
        time.sleep(0.2)
        if finished() and not any(line.startswith(sys.executable) for line in processes.marked(mark).values()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(processes.GRACE_S)
            process.kill()
    process.wait(max(0.1, end - time.monotonic()))


def _run_alone(case, ranks, mpi, args, deadline_s, env, expect_failure, lost, before):
    """A job for one case; its launcher's status and output count."""
    __tracebackhide__ = True
    mark = uuid.uuid4().hex
    with removing_segments(), tempfile.TemporaryDirectory(prefix="overlap-job-") as folder:
        started = time.monotonic()
        process = start(
            ranks,
            mpi,
            folder,
            {MARK: mark, rank.FOLDER: folder} | env,
            ["run", case, rank.encoded(args), str(time.monotonic() + deadline_s)],
            before,
        )
        try:
            _wait(process, mark, deadline_s, lost, lambda: len(list(Path(folder).glob("rank*"))) == ranks - lost)
            late = False
        except subprocess.TimeoutExpired:
            late = True
        finally:
            wall_s = time.monotonic() - started
            left = end_all(mark, 0 if process.poll() is None else processes.GRACE_S)
            process.kill()
            process.wait()
        result = Result(
            process.returncode,
            text_of(folder, "out"),
            text_of(folder, "err"),
            tuple(one for one in range(ranks) if Path(folder, f"rank{one}").exists()),
            wall_s,
        )
    if late:
        raise JobFailed(f"{case}: still running after {deadline_s} s; {result}")
    if left:
        raise JobFailed(f"{case}: left processes behind: {left}; {result}")
    if expect_failure and result.status == 0:
        raise JobFailed(f"{case}: expected to fail; {result}")
    if not expect_failure and ((result.status != 0 and not lost) or len(result.finished) != ranks - lost):
        raise JobFailed(f"{case}: failed; {result}")
    return result
