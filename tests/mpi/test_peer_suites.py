"""Other people's test suites on the drop-in: sources in the folder that OVERLAP_PEERS names, packages installed."""

import os
import subprocess
import sys
from importlib.util import find_spec
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
# pySDC starts processes for these tests; here they run on the ranks that there are.
SPECTRAL = """
from mpi4py import MPI
import pytest

def pytest_collection_modifyitems(items):
    module = items[0].module

    def run(num_procs, test, **arguments):
        if num_procs != MPI.COMM_WORLD.size:
            pytest.skip("for another number of ranks")
        if "axes" in arguments:
            arguments["axes"] = tuple(map(int, arguments["axes"].split(",")))
        function = {
            "transform": module.test_transform,
            "diff": module.test_differentiation_matrix2D,
            "int": module.test_integration_matrix2D,
            "tau": module.test_tau_method2D,
            "dealias": module._test_transform_dealias,
        }[test]
        function(**{"variant": "T2U", "bc_val": None, "useMPI": True, **arguments})

    module.run_MPI_test = run
"""


# Many of Dedalus' tests compare what ranks have drawn: every run draws the same.
DEDALUS = """
import sys
import mpi4py
import numpy as np
made = np.random.default_rng
np.random.default_rng = lambda seed=None: made(0 if seed is None else seed)
if sys.argv.pop(1) == "overlap":
    import overlap.compat.dedalus
from mpi4py import MPI
import pytest

class Outcomes:
    def __init__(self):
        self.found = {}

    def pytest_runtest_setup(self, item):
        np.random.seed(0)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.found[report.nodeid] = report.outcome

outcomes = Outcomes()
out = sys.stdout
sys.stdout = sys.stderr
pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[outcomes])
comm = MPI.COMM_WORLD
found = comm.gather(outcomes.found)
if comm.rank == 0:
    print("OUTCOMES", [sorted(one.items()) for one in found], file=out)
"""


def run(ranks, folder, *arguments, program=PROGRAM, **environment):
    """Run pytest on some ranks, with the drop-in in place of mpi4py-fft; what it prints."""
    (folder / "run.py").write_text(program)
    launcher, its_environment = processes.launcher_command("mpich", folder)
    ran = subprocess.run(
        [*launcher, "-n", str(ranks), sys.executable, str(folder / "run.py"), *arguments],
        cwd=folder,
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
@pytest.mark.parametrize("ranks, count", [(1, 36), (2, 34)])
def test_pysdc_spectral(ranks, count, tmp_path):
    """Spectral methods of pySDC 5.6, all tests with MPI but the two of each that no SciPy since 1.16 lets run."""
    (folder,) = Path(os.environ["OVERLAP_PEERS"]).glob("pySDC-*")
    (tmp_path / "spectral.py").write_text(SPECTRAL)
    file = str(folder / "pySDC/tests/test_helpers/test_spectral_helper.py")
    path = os.pathsep.join((str(folder), str(tmp_path)))
    out = run(ranks, tmp_path, "-p", "spectral", "-k", "MPI and not integration", file, PYTHONPATH=path)
    assert out.count(f"{count} passed") == ranks, out


@pytest.mark.peer
@pytest.mark.parametrize("ranks", [1, 2])
def test_fluidsim(ranks):
    """The solver of `overlap.compat.fluidsim` beside that of fluidsim 26.10.0."""
    jobs.run_job("fluidsim_cases:same_flows", ranks)


@pytest.mark.peer
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_dedalus_beside_itself(ranks):
    """Fields and flows of Dedalus 3.0.5 on pipelines beside its own; on four ranks with a mesh of 2 x 2."""
    cases = "same_fields,values_by_formula,curvilinear_fields,same_flows,one_climb_up_one_down,after_a_failure"
    jobs.run_job(f"dedalus_cases:{cases}", ranks, fresh=True)
    if ranks == 4:
        jobs.run_job("dedalus_cases:same_fields", ranks, args={"meshes": [[2, 2]]}, fresh=True)


@pytest.mark.peer
@pytest.mark.parametrize(
    "name",
    ["cartesian_operators", "cfl", "grid_operators", "polar_calculus", "sphere_calculus", "spherical_arithmetic"],
)
def test_dedalus_own_tests(name, tmp_path):
    """The same of Dedalus' own tests pass on two ranks with pipelines as without, and the same fail."""
    file = Path(find_spec("dedalus").submodule_search_locations[0]) / "tests" / f"test_{name}.py"
    found, expected = (
        [
            line
            for line in run(2, tmp_path, who, str(file), program=DEDALUS, OMP_NUM_THREADS="1").splitlines()
            if line.startswith("OUTCOMES")
        ]
        for who in ("overlap", "dedalus")
    )
    assert found == expected
    assert "'passed'" in found[0]
