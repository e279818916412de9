"""Starts MPI ranks on this machine, in shared memory or on shaped links.

`run_ranks` starts the launcher that belongs to this Python, in a session of its own. It reads the output of the ranks
line by line, and returns when the whole job has ended. Every rank starts as this file (`_enter`), pins itself to its
cores before anything makes a thread, and then becomes the command. Only `run_ranks` handles signals: the ranks do not
get the terminal's Ctrl-C.

Nothing outlives the caller: the launcher asks the kernel for a signal when its parent dies, its proxies end with the
launcher, and each rank asks for a signal when its proxy dies. On shaped links `overlap.tools.links` does the same with
namespaces. Shared memory that aborted ranks leave is removed (`dead_segments`).
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ != "__main__":  # a rank runs this file alone, outside of the package
    from ..ranks.interrupts import held_signals
    from . import links, signals
    from .dead_segments import removing_segments

DEADLINE_PASSED = 124  # the same as timeout(1) and links.run
DEADLINE_S = 600.0
_MARK = "@overlap "  # beginning of a line that contains an event
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_GRACE_S = 5.0  # time that the launcher has to end its ranks
_RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


# The thread level that mpi4py asks MPI for if this library starts MPI and the user has not chosen: one thread talks to
# MPI at a time. mpi4py's default, multiple, makes the latency of MPICH 6 to 10 times as long.
THREAD_LEVEL = "MPI4PY_RC_THREAD_LEVEL", "serialized"


class LaunchError(RuntimeError):
    """Raised if ranks cannot be started; the message says why."""


def under_mpi(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether an MPI launcher started this process.

    Parameters
    ----------
    environ : mapping

    Returns
    -------
    bool
    """
    return launched_rank(environ) is not None


def launched_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the rank that an MPI launcher has given this process, or None without one.

    Parameters
    ----------
    environ : mapping

    Returns
    -------
    int or None
    """
    return next((int(environ[name]) for name in _RANK_VARIABLES if name in environ), None)


def find_mpiexec() -> str:
    """Find the launcher: the one beside this Python, else the first on PATH.

    Returns
    -------
    str

    Raises
    ------
    LaunchError
        There is no launcher.
    """
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise LaunchError(f"no mpiexec beside {sys.executable} nor on PATH: pip install 'overlap-mpi[demo]'")
    return mpiexec


def core_sets(ranks: int, workers: int, available: Iterable[int]) -> list[list[int]]:
    """Divide the cores among the ranks: `workers` each, or fewer if there are not enough.

    Parameters
    ----------
    ranks, workers : int
    available : iterable of int
        Numbers of the cores that may be used.

    Returns
    -------
    list of list of int
        One list per rank; an empty list if there are more ranks than cores, so that no rank is pinned.
    """
    available = sorted(available)
    each = min(workers, len(available) // ranks)
    return [available[rank * each : (rank + 1) * each] for rank in range(ranks if each else 0)]


def run_ranks(
    command: Sequence[str],
    *,
    ranks: int,
    workers: int = 1,
    link: str | None = None,
    burst: int | None = None,
    deadline_s: float | None = None,
    on_line: Callable[[str], None] = print,
) -> int:
    """Run a command as MPI ranks on this machine, each pinned to cores of its own.

    Call it from the main thread. If an exception is raised, KeyboardInterrupt included, the job ends before the
    exception leaves this function. SIGTERM and SIGHUP raise one, too (`signals.ending_by_exception`).

    Parameters
    ----------
    command : list of str
    ranks : int
    workers : int
        Cores per rank.
    link : str, optional
        Rate of shaped links, such as ``"2gbit"``, with one host per rank; without it ranks use shared memory.
    burst : int, optional
        Bytes that an idle link lets through at once (`links.run` has a default).
    deadline_s : float, optional
        Seconds after which the job is ended; `DEADLINE_S` by default.
    on_line : callable
        Called with each line that a rank prints.

    Returns
    -------
    int
        The launcher's exit status; `DEADLINE_PASSED` if the deadline has passed.

    Raises
    ------
    LaunchError
        There is no launcher.
    LinksUnavailable
        `link` is given and links cannot be made here.
    """
    deadline_s = DEADLINE_S if deadline_s is None else deadline_s
    cores = core_sets(ranks, workers, os.sched_getaffinity(0))
    command = [sys.executable, "-IS", __file__, "enter", json.dumps(cores), *command]
    # Pass Python's environment: an MPI library in this process may have changed the C environment.
    environ = signals.UCX_SETTINGS | {
        "PYTHONPATH": os.pathsep.join(
            filter(None, (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")))
        )
    }
    environ.setdefault(THREAD_LEVEL[0], os.environ.get(*THREAD_LEVEL))
    with signals.ending_by_exception(), _reading(on_line) as stdout:
        if link is not None:
            options: Any = {} if burst is None else {"burst": burst}
            return links.run(
                command, hosts=ranks, rate=link, cpus=(), deadline_s=deadline_s, env=environ, stdout=stdout, **options
            )
        with removing_segments():
            process = None
            try:
                with held_signals():  # Python drops exceptions that handlers raise inside its fork functions
                    process = subprocess.Popen(
                        [*_launcher(), "-n", str(ranks), *command],
                        env=os.environ | environ,
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        start_new_session=True,
                        preexec_fn=_die_with_parent,
                    )
                return process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                return DEADLINE_PASSED
            finally:
                if process is not None:
                    _end(process)


# ---- what ranks tell those who started them ----------------------------------------------------


def tell(event: object) -> None:
    """Print an event as JSON, for `listening` in the process that started the ranks."""
    print(_MARK + json.dumps(event), flush=True)


def listening(on_event: Callable[[Any], None]) -> Callable[[str], None]:
    """Make the function that `run_ranks` calls with each line: it passes events to `on_event` and prints other lines to
    standard error."""

    def on_line(line: str) -> None:
        if line.startswith(_MARK):
            on_event(json.loads(line.removeprefix(_MARK)))
        else:
            print(line, file=sys.stderr)

    return on_line


@contextmanager
def aborting() -> Iterator[None]:
    """End all ranks of the job if this one fails in the block: they may be waiting for it."""
    try:
        yield
    except BaseException as error:
        from mpi4py import MPI

        from ..errors import InputError

        ours = isinstance(error, InputError)
        sys.stderr.write(f"overlap: error: {error}\n" if ours else traceback.format_exc())
        sys.stderr.flush()
        time.sleep(0.2)  # the launcher drops what it has not read yet when a rank aborts, also what other ranks said
        MPI.COMM_WORLD.Abort(1)
        raise


# ---- the launcher ------------------------------------------------------------------------------


def _launcher() -> list[str]:
    """Return the launcher with the options that its MPI library needs."""
    mpiexec = find_mpiexec()
    try:
        version = subprocess.run(
            [mpiexec, "--version"],
            capture_output=True,
            text=True,
            timeout=60,
            env=dict(os.environ),
            stdin=subprocess.DEVNULL,
        ).stdout
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{mpiexec} --version: expected an answer within 60 s") from None
    if "HYDRA" in version:  # use this machine alone: no hosts of a job scheduler, no ssh
        return [mpiexec, "-rmk", "user", "-launcher", "fork", "-localhost", "127.0.0.1"]
    if "open-mpi" in version.lower() or "open mpi" in version.lower():
        return [mpiexec, "--oversubscribe", "--bind-to", "none"]
    return [mpiexec]


@contextmanager
def _reading(on_line: Callable[[str], None]) -> Iterator[int]:
    """Return a file descriptor; a thread passes everything written to it to `on_line`, line by line."""
    read_end, write_end = os.pipe()
    raised: list[Exception] = []

    def read() -> None:
        with open(read_end, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    on_line(line.rstrip("\n"))
                except Exception as error:  # read on: ranks would block on a full pipe
                    raised.append(error)

    reader = threading.Thread(target=read, daemon=True, name="reader of the ranks' output")
    reader.start()
    try:
        yield write_end
    finally:
        os.close(write_end)
        reader.join(_GRACE_S)
    if raised:
        raise raised[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the launcher, which ends its ranks, and then all that is left of its process group."""
    if process.returncode is not None:
        return
    process.terminate()
    limit_s = time.monotonic() + _GRACE_S
    # With WNOWAIT the process number is not given to another process before the group has been ended.
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None and time.monotonic() < limit_s:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _enter(cores: list[list[int]], command: list[str]) -> None:
    """Pin this rank and become the command."""
    _die_with_parent()
    if cores:
        os.sched_setaffinity(0, cores[launched_rank() or 0])
    os.execvp(command[0], command)


if __name__ == "__main__":
    _enter(json.loads(sys.argv[2]), sys.argv[3:])
