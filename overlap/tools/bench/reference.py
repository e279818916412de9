"""The C + OpenMP program of `bench/reference` on our job: built, run with a few numbers of threads and chunks.

It is a separate process, so it cannot take turns with the other columns: it runs right after the case, on the same kind
of ranks and links. All its combinations run in one job with interleaved rounds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from .. import launch
from .jobs import Case

PROGRAM = Path("bench", "reference", "gkv_fft2.c")  # below the root of a checkout
COMBINATIONS = "--threads 1,2 --per-step 1,2,4 --message both --planner patient"
FLAGS = ["-O3", "-march=native", "-fopenmp", "-Wall", "-Wextra"]


class CannotRun(RuntimeError):
    """Raised if something that the program needs is missing, or if it fails."""


def reference(case: Case, ranks: int, link: str | None) -> dict[str, Any]:
    """Time the C program, and report its fastest combination.

    Parameters
    ----------
    case : Case
    ranks : int
        One core each, which the threads of a rank share.
    link : str or None
        Rate of shaped links; shared memory without.

    Returns
    -------
    dict
        Entries for the case's record: ``reference_s``, ``reference_C_s``, ``reference_T_s`` and
        ``reference_best``, or ``reference_skipped``, the reason.
    """
    try:
        times = _times(case, ranks, link)
    except (CannotRun, ValueError) as error:
        return {"reference_skipped": str(error)}
    return {
        "reference_s": times["overlap_s"],
        "reference_off_s": times["off_s"],
        "reference_C_s": times["C_s"],
        "reference_T_s": times["T_s"],
        "reference_best": times["best"],
    }


def _times(case: Case, ranks: int, link: str | None) -> dict[str, Any]:
    if launch.under_mpi():
        raise CannotRun("mpiexec started this process already")
    if case.dtype != {"fft2": "c16", "operation": "f8"}.get(case.workload):
        raise CannotRun(f"it cannot do {case.workload} of dtype {case.dtype}")
    program = build(find_source())
    ny, nx = case.shape
    size = f"--workload {case.workload} --slices {case.slices} --ny {ny} --nx {nx} --rounds {case.rounds}"
    lines: list[str] = []
    command = [str(program), "--json", *size.split(), *COMBINATIONS.split()]
    status = launch.run_ranks(command, ranks=ranks, link=link, on_line=lines.append)
    text = "\n".join(lines)
    if status:
        raise CannotRun(f"{program.name} ended with status {status}:\n{text}")
    times: dict[str, Any] = json.loads(text[text.index("{") :])
    return times


def find_source() -> Path:
    """Find the source in the checkout that this file is in or, where the package is installed, that one is in."""
    for top in (Path(__file__).resolve().parents[3], Path.cwd()):
        if (top / PROGRAM).is_file():
            return top / PROGRAM
    raise CannotRun(
        f"it comes with a checkout of the sources, and there is no {PROGRAM} beside this package or in the current "
        "folder"
    )


def build(source: Path) -> Path:
    """Compile the program where the source is newer, with the compiler wrapper of the MPI in this environment."""
    program = source.parent / "build" / source.stem
    if program.exists() and program.stat().st_mtime > source.stat().st_mtime:
        return program
    beside = Path(sys.executable).parent / "mpicc"
    mpicc = str(beside) if beside.exists() else shutil.which("mpicc")
    if not mpicc:
        raise CannotRun(f"no mpicc beside {sys.executable} nor on PATH; the `mpich` wheel brings one")
    program.parent.mkdir(exist_ok=True)
    # Several benchmarks may build at once: whoever finishes replaces the program in one step.
    unfinished = program.with_suffix(f".{os.getpid()}")
    try:
        made = subprocess.run(
            [mpicc, *FLAGS, "-o", unfinished, source, "-lfftw3", "-lm"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if made.returncode:
            raise CannotRun(_reason(made.stderr, mpicc))
        unfinished.replace(program)
    finally:
        unfinished.unlink(missing_ok=True)
    return program


def _reason(stderr: str, mpicc: str) -> str:
    if "fftw3.h" in stderr or "-lfftw3" in stderr:
        return "FFTW's header or library is missing (Debian: apt-get install libfftw3-dev)"
    if "omp.h" in stderr or "-lgomp" in stderr or "-fopenmp" in stderr:
        return "the C compiler has no OpenMP (Debian: apt-get install gcc)"
    if "not found" in stderr and "error:" not in stderr:
        return f"{mpicc} finds no C compiler (Debian: apt-get install gcc libc6-dev)"
    return f"{mpicc} failed:\n{stderr.strip()}"
