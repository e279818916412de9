"""Other people's test suites, unmodified, on what `overlap` offers in place of their libraries.

Their sources are in the folder that OVERLAP_PEERS names; docs/results/suites.md says which, and how to run all. The
plugins of pytest that put ours in place of theirs are in tests/peers.
"""

import json
import os
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import jobs
import processes
import pytest
from commands import process

from overlap.tools import launch

pytestmark = pytest.mark.peer

LIMIT_S = 1800  # for a suite, on a machine that has other work


def sources(pattern):
    """The only path of the peers' folder that fits a pattern."""
    (path,) = Path(os.environ["OVERLAP_PEERS"]).glob(pattern)
    return path


def run(mpi, ranks, folder, *arguments, plugins=(), refused=None, fails=False, under=(), **environment):
    """Run pytest on some ranks, with plugins from tests/peers; the outcomes of its tests by name, of each rank.

    Parameters
    ----------
    refused : dict, optional
        Tests that are left out: a regular expression of their names, and the reason.
    fails : bool
        Some tests may fail.
    under : sequence of str, optional
        Arguments of Python that run pytest's module under something else.
    """
    command, its_environment = processes.launcher_command(mpi, folder)
    own = dict([launch.THREAD_LEVEL]) | {"OVERLAP_OUTCOMES": str(folder), "OVERLAP_REFUSED": json.dumps(refused or {})}
    own["PYTEST_ADDOPTS"] = ""
    path = [str(processes.REPOSITORY / "tests" / "peers"), environment.pop("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    named = [part for name in ("outcomes", *plugins) for part in ("-p", name)]
    python = [sys.executable, *under, "-m", "pytest", "-q", "-p", "no:cacheprovider", *named, *arguments]
    with process(*command, "-n", ranks, *python, env=its_environment | own | environment, cwd=folder) as job:
        out, err = job.communicate(timeout=LIMIT_S)
    assert fails or job.returncode == 0, out + err
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def counts(outcomes):
    """How many tests have passed, how many the suite has skipped, and so on: the same on all ranks."""
    assert all(one == outcomes[0] for one in outcomes)
    return dict(Counter(outcomes[0].values()))


both = pytest.mark.parametrize("mpi", ["mpich", "openmpi"], indirect=True)

NO_CALL, NO_TYPES = "`Collectives` has no such call", "`Collectives` takes arrays without MPI's types"
NO_COMMUNICATOR = "tests no call of a communicator"
LOCAL = {f"refused: {NO_COMMUNICATOR}": 2}


@both
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_mpi4py_on_collectives(mpi, ranks, tmp_path):
    """mpi4py's tests of blocking collectives on `Collectives`."""
    refused = {"Alltoall|ReduceScatter|testScan|testExscan": NO_CALL, "TypeIndexed": NO_TYPES, "Local": NO_COMMUNICATOR}
    file = sources("mpi4py-*/test/test_cco_buf.py")
    found = run(mpi, ranks, tmp_path, file, plugins=["mpi4py_calls"], refused=refused, OVERLAP_CALLS="collectives")
    assert counts(found) == {"passed": 38, f"refused: {NO_CALL}": 28, f"refused: {NO_TYPES}": 4} | LOCAL


@both
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "wait, names", [("block", ("buf", "vec")), ("poll", ("nb_buf", "nb_vec")), ("poll", ("pr_buf", "pr_vec"))]
)
def test_mpi4py_on_slice_programs(mpi, ranks, wait, names, tmp_path):
    """mpi4py's tests of collectives, each call awaited by a slice program of one slice."""
    files = [sources(f"mpi4py-*/test/test_cco_{name}.py") for name in names]
    refused = {"Local": NO_COMMUNICATOR}
    found = run(mpi, ranks, tmp_path, *files, plugins=["mpi4py_calls"], refused=refused, OVERLAP_CALLS=wait)
    assert counts(found) == {"passed": 132} | (LOCAL if "buf" in names else {})


SAME_TYPE = "demands mpi4py's own class of an object that `overlap advise` has replaced"


@pytest.mark.parametrize("mpi", ["mpich"], indirect=True)
@pytest.mark.parametrize("ranks", [1, 2])
def test_mpi4py_under_advise(mpi, ranks, tmp_path):
    """mpi4py's tests of everything but I/O and spawning pass under `overlap advise` as they do without it."""
    left_out = ("spawn", "dynproc", "mpiabi", "toplevel", "package", "ulfm", "util_pool", "util_dtlib", "io", "file")
    files = [
        path
        for path in sorted(sources("mpi4py-*/test").glob("test_*.py"))
        if path.stem.removeprefix("test_") not in (*left_out, "datatype", "p2p_buf_part")
    ]
    refused = {"TestObjModel::(testCAPI|testReduce)$": SAME_TYPE}
    found = []
    for name, under in (("without", ()), ("under", ("-m", "overlap.advise"))):
        folder = tmp_path / name
        folder.mkdir()
        found.append(run(mpi, ranks, folder, *files, plugins=["host_arrays"], refused=refused, fails=True, under=under))
    assert found[0] == found[1]
    assert counts(found[1])["passed"] > 1000


OTHERS, LEGACY, NO_ARRAY = "other solvers", "gmres's callbacks as scipy's legacy", "a text for x0"
ONE_MORE = "counts products: gmres and bicgstab make one more, for the result's residual"


@both
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_scipy_solvers(mpi, ranks, tmp_path):
    """scipy's tests of iterative solvers on `cg`, `bicgstab`, `gmres` and `minres`."""
    (folder,) = find_spec("scipy.sparse.linalg._isolve").submodule_search_locations
    others = "(bicg|cgs|gcrotmk|lgmres|qmr|tfqmr)"
    refused = {
        rf"[-[]{others}\]|test_show|TestQMR": OTHERS,
        r"test_maxiter\[.*gmres\]|TestGMRES::test_callback(_type)?$": LEGACY,
        "test_x0_equals_Mb": NO_ARRAY,
        "test_precond_inverse": ONE_MORE,
    }
    file = f"{folder}/tests/test_iterative.py"
    found = run(mpi, ranks, tmp_path, file, plugins=["scipy_solvers"], refused=refused)
    left_out = {OTHERS: 580, LEGACY: 25, NO_ARRAY: 62, ONE_MORE: 2}
    expected = {f"refused: {reason}": count for reason, count in left_out.items()}
    assert counts(found) == expected | {"passed": 214, "skipped": 9}


TIMED = "demands that FFTW's planner keeps a time limit to 10 ms"


@both
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_mpi4py_fft(mpi, ranks, tmp_path):
    """mpi4py-fft's six files of tests on the drop-in."""
    names = ("darray", "fftw", "io", "libfft", "mpifft", "pencil")
    files = [sources(f"mpi4py_fft-*/tests/test_{name}.py") for name in names]
    refused = {"netcdf4": "NCFile", "test_timelimit": TIMED}
    found = run(mpi, ranks, tmp_path, *files, plugins=["drop_in", "files_of_mpi4py_fft"], refused=refused)
    assert counts(found) == {"passed": 16, "refused: NCFile": 3, f"refused: {TIMED}": 1}


@both
@pytest.mark.parametrize("ranks", [1])
def test_shenfun(mpi, ranks, tmp_path):
    """shenfun's tests on the drop-in beside the same on mpi4py-fft, which writes files by parallel HDF5 alone."""
    folder = sources("shenfun-*/tests")
    files = [folder / f"test_{name}.py" for name in ("curl", "dot", "fourier", "lagrangian_particles", "io")]
    found = run(mpi, ranks, tmp_path, *files, plugins=["drop_in", "same_draws"], fails=True)
    expected = run(mpi, ranks, tmp_path, *files[:-1], plugins=["same_draws"], fails=True)
    for ours, theirs in zip(found, expected):
        assert {name: ours[name] for name in theirs} == theirs
    assert counts(found) == {"passed": 34}


@both
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_pylops_mpi(mpi, ranks, tmp_path):
    """`MPIFFT2D` and `MPIFFTND` of pylops-mpi."""
    file = sources("pylops_mpi-*/tests/test_ffts.py")
    found = run(mpi, ranks, tmp_path, "--noconftest", file, plugins=["drop_in"])
    assert counts(found) == {"passed": 48}


@both
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_pysdc(mpi, ranks, tmp_path):
    """Problem classes with MPIFFT of pySDC; six of their tests want one rank."""
    folder = sources("pySDC-*")
    names = ("generic_MPIFFT", "GrayScottMPIFFT", "NonlinearSchroedinger_MPIFFT")
    files = [folder / f"pySDC/tests/test_problems/test_{name}.py" for name in names]
    chosen = ["-k", "derivative or imex_diffusion or imex_linear"] if ranks > 1 else []
    found = run(mpi, ranks, tmp_path, *chosen, *files, plugins=["drop_in"], PYTHONPATH=str(folder))
    assert counts(found) == {"passed": 100 if ranks > 1 else 106}


@both
@pytest.mark.parametrize("ranks, count", [(1, 36), (2, 34)])
def test_pysdc_spectral(mpi, ranks, count, tmp_path):
    """Spectral methods of pySDC, all tests with MPI but the two of each that no SciPy since 1.16 lets run."""
    folder = sources("pySDC-*")
    file = folder / "pySDC/tests/test_helpers/test_spectral_helper.py"
    plugins, chosen = ["drop_in", "spectral_helper"], ["-k", "MPI and not integration"]
    found = run(mpi, ranks, tmp_path, *chosen, file, plugins=plugins, PYTHONPATH=str(folder))
    assert counts(found)["passed"] == count


@both
@pytest.mark.parametrize("ranks", [1, 2])
def test_fluidsim(mpi, ranks):
    """The solver of `overlap.compat.fluidsim` beside that of fluidsim 26.10.0."""
    jobs.run_job("fluidsim_cases:same_flows", ranks, mpi=mpi)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_dedalus_beside_itself(ranks):
    """Fields and flows of Dedalus 3.0.5 on pipelines beside its own; on four ranks with a mesh of 2 x 2."""
    cases = "same_fields,values_by_formula,curvilinear_fields,same_flows,one_climb_up_one_down,after_a_failure"
    jobs.run_job(f"dedalus_cases:{cases}", ranks, fresh=True)
    if ranks == 4:
        jobs.run_job("dedalus_cases:same_fields", ranks, args={"meshes": [[2, 2]]}, fresh=True)


@pytest.mark.parametrize(
    "name",
    ["cartesian_operators", "cfl", "grid_operators", "polar_calculus", "sphere_calculus", "spherical_arithmetic"],
)
def test_dedalus_own_tests(name, tmp_path):
    """The same of Dedalus' own tests pass on two ranks with pipelines as without, and the same fail."""
    file = Path(find_spec("dedalus").submodule_search_locations[0]) / "tests" / f"test_{name}.py"
    found, expected = (
        run("mpich", 2, tmp_path, file, plugins=["same_draws", *ours], fails=True, OMP_NUM_THREADS="1")
        for ours in (["overlap.compat.dedalus"], [])
    )
    assert found == expected
    assert "passed" in found[0].values()
