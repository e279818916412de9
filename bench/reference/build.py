"""Builds the C + OpenMP yardstick, `gkv_fft2`, with the compiler wrapper of the MPI in this environment.

python bench/reference/build.py
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "gkv_fft2.c"
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


if __name__ == "__main__":
    try:
        print(build())
    except CannotBuild as error:
        sys.exit(f"cannot build gkv_fft2: {error}")
