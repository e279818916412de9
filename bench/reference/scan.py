"""Runs the C + OpenMP yardstick over a few thread and chunk counts; `overlap bench --reference` shows its best.

All cases run in one job with interleaved rounds.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from overlap.tools import launch

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "gkv_fft2.c"
COMBINATIONS = "--threads 1,2 --per-step 1,2,4 --message both --planner patient"
FLAGS = ["-O3", "-march=native", "-fopenmp", "-Wall", "-Wextra"]


class CannotBuild(RuntimeError):
    """Something the build needs is not on this machine."""


def build() -> Path:
    """Compile `gkv_fft2` where the source is newer than the program.

    Returns
    -------
    Path
        The program.

    Raises
    ------
    CannotBuild
        If there is no MPI compiler wrapper, no C compiler behind it, or no FFTW; says which.
    """
    program = HERE / "build" / "gkv_fft2"
    if program.exists() and program.stat().st_mtime > SOURCE.stat().st_mtime:
        return program
    beside = Path(sys.executable).parent / "mpicc"
    mpicc = str(beside) if beside.exists() else shutil.which("mpicc")
    if not mpicc:
        raise CannotBuild(f"no mpicc beside {sys.executable} nor on PATH; the `mpich` wheel brings one")
    program.parent.mkdir(exist_ok=True)
    # Several ranks or benchmarks may build at once: whoever finishes replaces the program in one step.
    unfinished = program.with_suffix(f".{os.getpid()}")
    try:
        made = subprocess.run(
            [mpicc, *FLAGS, "-o", unfinished, SOURCE, "-lfftw3", "-lm"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if made.returncode:
            raise CannotBuild(_reason(made.stderr, mpicc))
        unfinished.replace(program)
    finally:
        unfinished.unlink(missing_ok=True)
    return program


def _reason(stderr, mpicc):
    if "fftw3.h" in stderr or "-lfftw3" in stderr:
        return "FFTW's header or library is missing (Debian: apt-get install libfftw3-dev)"
    if "omp.h" in stderr or "-lgomp" in stderr or "-fopenmp" in stderr:
        return "the C compiler has no OpenMP (Debian: apt-get install gcc)"
    if "not found" in stderr and "error:" not in stderr:
        return f"{mpicc} finds no C compiler (Debian: apt-get install gcc libc6-dev)"
    return f"{mpicc} failed:\n{stderr.strip()}"


def scan(*, link, ranks, workload, slices, shape, rounds):
    """Time `gkv_fft2` with one and two threads, 1, 2 and 4 slices per step, and both sizes of messages.

    Parameters
    ----------
    link : str or None
        Rate of a shaped link between the ranks, such as ``"2gbit"``; None: shared memory.
    ranks : int
        One core each, which the threads of a rank share.
    workload : {"fft2", "operation"}
        The bare forward transform, or four inverse transforms, a product, one forward transform.
    slices, shape
        How many slices of how many points ``(ny, nx)``.
    rounds : int

    Returns
    -------
    dict
        The program's report: ``C_s``, ``T_s``, ``off_s``, ``overlap_s``, ``best``, ``cases``, ``max_rel_error``.

    Raises
    ------
    CannotBuild
        If the program cannot be built here.
    RuntimeError
        If the run fails.
    """
    ny, nx = shape
    command = f"--json --workload {workload} --slices {slices} --ny {ny} --nx {nx} --rounds {rounds} {COMBINATIONS}"
    lines = []
    status = launch.run_ranks([str(build()), *command.split()], ranks=ranks, link=link, on_line=lines.append)
    text = "\n".join(lines)
    if status:
        raise RuntimeError(f"gkv_fft2 ended with status {status}:\n{text}")
    return json.loads(text[text.index("{") :])
