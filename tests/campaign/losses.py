"""A rank that is lost at a random moment: killed, stopped, ended by a signal or by itself."""

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import commands
import processes

from overlap.fft.planning import tuning_file
from overlap.tools import launch, signals

from . import victim
from .draw import Drawn
from .harness import Part

SIGNALS = ("SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT", "SIGHUP", "SIGSEGV")
HOWS = (*SIGNALS, "_exit", "sys.exit")
SHARED = Path("/dev/shm")
START_S = 120.0  # for the ranks to begin, on a machine that has other work
OVER_S = 5.0  # beyond the deadline
FIRST = 600  # seeds of jobs that plan, run and close; the following ones also tune, and write a tuning file


def lose(how, ranks, mpi, delay_s, patience_s=victim.DEADLINE_S + OVER_S, sent=True, tunes=False):
    """Start the job, lose a rank of it, and see how it ends."""
    _compile(mpi)
    before = set(os.listdir(SHARED))
    with tempfile.TemporaryDirectory(prefix="overlap-loss-") as folder:
        tuning = f"{folder}/tuning.json" if tunes else None
        with _job(folder, ranks, mpi, ranks - 1, how if how not in SIGNALS else None, delay_s, tuning) as job:
            pids = _pids(job, folder, ranks)
            time.sleep(delay_s)
            lost = time.monotonic()
            if how in SIGNALS and sent:
                os.kill(pids[-1], getattr(signal, how))
            elif sent:
                lost = _moment(job, folder, ranks)
            time.sleep(0.5)
            if how == "SIGINT" and "Exception ignored" in Path(folder, f"said{ranks - 1}").read_text():
                os.kill(pids[-1], signal.SIGINT)  # Python discards one that comes while it drops an import's lock
            try:
                job.communicate(timeout=lost + patience_s - time.monotonic())
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{how}: still running after {patience_s} s\n{_standing(pids, folder)}") from None
            wall_s = time.monotonic() - lost
            others = _said(folder, ranks - 1)
            if how == "SIGSTOP":  # no launcher notices, and no process ends: the other ranks' deadline ends the job
                _check_stacks(how, others)
            elif how == "sys.exit":  # it leaves a with block, which tells the other ranks
                _check_reports(how, others, f"RankError: failed on rank {ranks - 1}: SystemExit: 3")
            if tuning and Path(tuning).exists():
                tuning_file.read(tuning)  # whole
        assert job.returncode != 0, f"{how}: exit status 0 after {wall_s:.1f} s"
    left = set(os.listdir(SHARED)) - before
    mine = [name for name in left if any(str(pid) in name for pid in pids)]
    assert not mine, f"{how}: left in {SHARED}: {mine}"


def _job(folder, ranks, mpi, rank, own, delay_s, tuning, rounds=None):
    """The job of `victim`, a ``with`` block."""
    launcher, environ = processes.launcher_command(mpi, folder)
    given = {"folder": folder, "rank": rank, "own": own, "delay_s": delay_s, "tuning": tuning, "rounds": rounds}
    return commands.process(
        *launcher,
        "-n",
        ranks,
        sys.executable,
        "-X",
        "faulthandler",
        victim.__file__,
        json.dumps(given),
        env=environ | dict([launch.THREAD_LEVEL]) | signals.UCX_SETTINGS,
    )


@functools.cache
def _compile(mpi):
    """Have numba compile what the jobs call: no rank then waits for another one for seconds."""
    with (
        tempfile.TemporaryDirectory(prefix="overlap-loss-") as folder,
        _job(folder, 2, mpi, 0, None, 0.0, f"{folder}/tuning.json", rounds=1) as job,
    ):
        _, said = job.communicate(timeout=START_S)
        assert job.returncode == 0, said


def _pids(job, folder, ranks):
    """The ranks' process ids, when all of them have begun."""
    end = time.monotonic() + START_S
    files = [Path(folder, f"rank{one}") for one in range(ranks)]
    while not all(file.exists() and file.read_text() for file in files):
        assert job.poll() is None and time.monotonic() < end, "the ranks did not begin"
        time.sleep(0.02)
    return [int(file.read_text()) for file in files]


def _standing(pids, folder):
    """What the ranks have said, and where those stand that can say so."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, victim.SHOW_STACKS)
    time.sleep(0.5)
    return "\n".join(f"rank {rank}: {text}" for rank, text in enumerate(_said(folder, len(pids))))


def _said(folder, ranks):
    """What each of the first ranks has said."""
    return [Path(folder, f"said{rank}").read_text() for rank in range(ranks)]


def _moment(job, folder, ranks):
    """When a rank has ended itself: it cannot while it plans."""
    end, file = time.monotonic() + START_S, Path(folder, "lost")
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < end and job.poll() is None, (
            f"the rank has not ended itself; the ranks said {_said(folder, ranks)}"
        )
        time.sleep(0.02)
    return float(file.read_text())


def _check_stacks(how, said):
    """Whoever ends the job at the deadline has shown where all its threads stand."""
    reports = [text for text in said if "All threads' stacks follow" in text]
    assert reports, f"{how}: no rank has shown its stacks: {said}"
    for text in reports:
        assert re.search(rf'{re.escape(victim.__file__)}", line \d+ in <module>', text), (
            f"{how}: stacks that are not complete: {text}"
        )


def _check_reports(how, said, error):
    """Every rank has raised this error."""
    for text in said:
        assert error in text, f"{how}: a rank has not raised {error!r}: {text}"


def run(seed):
    """One rank lost in one way, at a random moment of planning, running or closing."""
    drawn = Drawn(seed)
    lose(HOWS[seed % len(HOWS)], drawn.ranks(2, 3), drawn.library(), float(drawn.uniform(0, 3)), tunes=seed >= FIRST)


def defect():
    """A job that loses nobody does not end, which is found."""
    lose("SIGTERM", 2, "mpich", 0.1, patience_s=2, sent=False)


PART = Part(
    "losses",
    f"a rank lost by {', '.join(HOWS)} while it plans, runs or closes: the job has ended {OVER_S:.0f} s after "
    f"its deadline of {victim.DEADLINE_S:.0f} s, with a status other than 0, no process and nothing in /dev/shm left; "
    "with complete stacks after SIGSTOP, and the error of sys.exit on every other rank; the last 100 also while it "
    "tunes and writes, and the tuning file is whole",
    700,
    run,
    defect,
    "still running after",
)
