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
sys.exit(pytest.main(["-q", "--with-mpi", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


@pytest.mark.peer
@pytest.mark.parametrize("ranks", [2, 3])
def test_pylops_mpi(ranks, tmp_path):
    """`MPIFFT2D` and `MPIFFTND` of pylops-mpi 0.8.0: 48 tests."""
    (file,) = Path(os.environ["OVERLAP_PEERS"]).glob("pylops_mpi-*/tests/test_ffts.py")
    (tmp_path / "run.py").write_text(PROGRAM)
    launcher, environment = processes.launcher_command("mpich", tmp_path)
    command = [*launcher, "-n", str(ranks), sys.executable, str(tmp_path / "run.py"), str(file)]
    ran = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ran.returncode == 0 and ran.stdout.count("48 passed") == ranks, ran.stdout + ran.stderr


@pytest.mark.peer
@pytest.mark.parametrize("ranks", [1, 2])
def test_fluidsim(ranks):
    """The solver of `overlap.compat.fluidsim` beside that of fluidsim 26.10.0."""
    jobs.run_job("fluidsim_cases:same_flows", ranks)
