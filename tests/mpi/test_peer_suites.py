"""Other people's test suites on the drop-in: sources in the folder that OVERLAP_PEERS names, packages installed."""

import os
import subprocess
import sys
from pathlib import Path

import jobs
import processes
import pytest

LIMIT_S = 600
# pylops-mpi marks its tests by rank in a way that pytest 8.4 no longer has.
PROGRAM = """
import mpi4py
mpi4py.rc.thread_level = "serialized"
from overlap.compat.mpi4py_fft import stand_in
stand_in()
import sys, pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def run(ranks, folder, *arguments, **environment):
    """Run pytest on some ranks, with the drop-in in place of mpi4py-fft; what it prints."""
    (folder / "run.py").write_text(PROGRAM)
    launcher, its_environment = processes.launcher_command("mpich", folder)
    ran = subprocess.run(
        [*launcher, "-n", str(ranks), sys.executable, str(folder / "run.py"), *arguments],
        env=os.environ | its_environment | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.peer
@pytest.mark.parametrize("ranks", [2, 3])
def test_pylops_mpi(ranks, tmp_path):
    """`MPIFFT2D` and `MPIFFTND` of pylops-mpi 0.8.0: 48 tests."""
    (file,) = Path(os.environ["OVERLAP_PEERS"]).glob("pylops_mpi-*/tests/test_ffts.py")
    out = run(ranks, tmp_path, "--with-mpi", str(file))
    assert out.count("48 passed") == ranks, out


@pytest.mark.peer
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_pysdc(ranks, tmp_path):
    """Problem classes with MPIFFT of pySDC 5.6: 100 tests; 106 on one rank, which six solvers want."""
    (folder,) = Path(os.environ["OVERLAP_PEERS"]).glob("pySDC-*")
    names = ("generic_MPIFFT", "GrayScottMPIFFT", "NonlinearSchroedinger_MPIFFT")
    files = [str(folder / f"pySDC/tests/test_problems/test_{name}.py") for name in names]
    chosen = ["-k", "derivative or imex_diffusion or imex_linear"] if ranks > 1 else []
    out = run(ranks, tmp_path, *chosen, *files, PYTHONPATH=str(folder))
    assert out.count("100 passed" if ranks > 1 else "106 passed") == ranks, out


@pytest.mark.peer
@pytest.mark.parametrize("ranks", [1, 2])
def test_fluidsim(ranks):
    """The solver of `overlap.compat.fluidsim` beside that of fluidsim 26.10.0."""
    jobs.run_job("fluidsim_cases:same_flows", ranks)
