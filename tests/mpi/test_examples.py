"""The examples run, and the answers they assert hold, on any number of ranks."""

import importlib.util
import io
import subprocess
import sys

import jobs
import numpy as np
import processes
import pytest
from marks import exhaustive

EXAMPLES = processes.REPOSITORY / "examples"
SMALL = "--points 32 --members 3 --steps 40 --time 2"


def run_example(comm, name, arguments, missing=()):
    """Run the file as a user would (a case: this module is imported on the ranks too)."""
    sys.modules.update(dict.fromkeys(missing))  # None: importing it fails
    sys.argv = [name, *arguments]
    if (folder := str((EXAMPLES / name).parent)) not in sys.path:
        sys.path.append(folder)
    specification = importlib.util.spec_from_file_location("__main__", EXAMPLES / name)
    specification.loader.exec_module(importlib.util.module_from_spec(specification))


def run(name, ranks, *arguments, mpi="mpich", missing=(), picture=None, **options):
    """Run an example, which draws a picture if it is told to; texts are several arguments, paths one.

    Where modules are missing, it runs in processes that have never imported them.
    """
    given = [part for one in arguments for part in (one.split() if isinstance(one, str) else [str(one)])]
    if picture is not None:
        given += ["--picture", str(picture)]
    args = {"name": name, "arguments": given, "missing": missing}
    result = jobs.run_job("test_examples:run_example", ranks, mpi=mpi, fresh=bool(missing), args=args, **options)
    if picture:
        assert picture.read_bytes().startswith(b"\x89PNG")
    return result


@pytest.mark.parametrize("ranks", [1, exhaustive(2), 3])
def test_quickstart(ranks):
    result = run("quickstart.py", ranks)
    assert result.out == f"quickstart: all answers are right on {ranks} rank(s)\n"
    assert result.err == ""


def test_quickstart_fits_on_a_page():
    assert len((EXAMPLES / "quickstart.py").read_text().splitlines()) <= 60


@pytest.mark.parametrize("numbers", [(1, 2), exhaustive((1, 2, 3))])
def test_navier_stokes_is_the_same_on_any_number_of_ranks(numbers, tmp_path):
    answers = []
    for ranks in numbers:
        result = run("navier_stokes_2d.py", ranks, SMALL, picture=tmp_path / f"vorticity{ranks}.png")
        assert result.out.count("Taylor-Green") == 2 and result.out.count("order") == 2
        answers.append([line for line in result.out.splitlines() if "kept" in line])
    assert len(answers[0]) == 2 and answers == answers[:1] * len(numbers)


def test_conjugate_gradients(tmp_path):
    """The last of three ranks has fewer rows of its own; of one matrix as many entries as a published one has, of one a
    file.
    """
    import scipy.io

    path = tmp_path / "mine.mtx"
    whole = scipy.sparse.diags_array([-np.ones(99), np.full(100, 2.5), -np.ones(99)], offsets=[-1, 0, 1])
    scipy.io.mmwrite(path, whole.tocoo())
    result = run("conjugate_gradients.py", 3, "nasa2910", path, "--iterations 10")
    assert "nasa2910: 2910 rows, 174296 entries, 3 ranks: " in result.out
    assert "mine: 100 rows, 298 entries, 3 ranks: " in result.out


@pytest.mark.parametrize("ranks", [exhaustive(1), 2, exhaustive(3)])
@pytest.mark.parametrize("name, points", [("poisson.py", "8 12 24"), ("poisson_walls.py", "8 12 15")])
def test_poisson(name, points, ranks, tmp_path):
    result = run(name, ranks, f"--points {points}", picture=tmp_path / "poisson.png")
    assert result.out.count("points per direction: largest error") == 3


@pytest.mark.parametrize("ranks", [exhaustive(1), 2, exhaustive(4)])
def test_heat(ranks, tmp_path):
    result = run("heat.py", ranks, "--points 31 --steps 60", picture=tmp_path / "heat.png")
    assert f"31 x 31 points on {ranks} rank(s), 60 steps" in result.out


@pytest.mark.parametrize("ranks", [exhaustive(1), 2, 3])
def test_unequal_ranks(ranks, tmp_path):
    result = run("unequal_ranks.py", ranks, "--planes 4 --measure", picture=tmp_path / "unequal_ranks.png")
    assert result.out.startswith("balance: speeds")
    gain = {1: "1.000", 2: "1.375", 3: "1.500"}[ranks]  # p / sum(P) beside 1 / min(P)
    assert f"by the model {gain}" in result.out


def test_short_examples_fit_on_two_pages():
    for name in ("poisson.py", "poisson_walls.py", "heat.py", "unequal_ranks.py"):
        assert len((EXAMPLES / name).read_text().splitlines()) <= 120


@pytest.mark.exhaustive
@pytest.mark.parametrize("overlap", ["off", "block", "poll"])
def test_navier_stokes_with_overlap(overlap):
    run("navier_stokes_2d.py", 2, SMALL, f"--wait {overlap} --workers 2", picture="")


@pytest.mark.exhaustive
def test_examples_on_more_ranks_than_rows():
    run("navier_stokes_2d.py", 5, "--points 4 --members 2 --steps 20 --time 1 --wait off", picture="")
    run("taylor_green_3d.py", 5, "--points 4 --steps 2 --wait poll --workers 2", missing=["matplotlib"], picture="")


@pytest.mark.exhaustive
def test_navier_stokes_without_optional_packages():
    result = run("navier_stokes_2d.py", 2, SMALL, missing=["rich", "matplotlib"])
    assert "no picture: matplotlib is not installed" in result.out


def test_quickstart_under_open_mpi(openmpi):
    run("quickstart.py", 2, mpi="openmpi")


def flow(ranks, restart, *arguments, steps, **options):
    settings = f"--points 15 --steps {steps} --dt 0.05 --viscosity 0.05"
    return run("taylor_green_3d.py", ranks, settings, "--restart", restart, *arguments, picture="", **options)


def reference_flow(points, steps, dt, viscosity):
    """The velocity's Fourier series ``(3, nz, ny, nx // 2 + 1)``, from u . grad u."""
    k = np.array(np.meshgrid(*[np.fft.fftfreq(points, 1 / points)] * 3, indexing="ij"))[::-1]
    k2 = (k**2).sum(0)
    z, y, x = np.meshgrid(*[2 * np.pi / points * np.arange(points)] * 3, indexing="ij")
    start = [np.sin(x) * np.cos(y) * np.cos(z), -np.cos(x) * np.sin(y) * np.cos(z), 0 * x]
    u = np.fft.fftn(start, axes=(1, 2, 3), norm="forward")

    def derivative(u):
        velocity = np.fft.ifftn(u, axes=(1, 2, 3), norm="forward").real
        gradient = np.fft.ifftn(1j * k[:, None] * u, axes=(2, 3, 4), norm="forward").real
        n = -np.fft.fftn(np.einsum("j...,ji...->i...", velocity, gradient), axes=(1, 2, 3), norm="forward")
        n -= k * (k * n).sum(0) / np.where(k2, k2, 1)
        return (abs(k) < points / 3).all(0) * n - viscosity * k2 * u

    for _ in range(steps):
        d1 = derivative(u)
        d2 = derivative(u + dt / 2 * d1)
        d3 = derivative(u + dt / 2 * d2)
        d4 = derivative(u + dt * d3)
        u = u + dt / 6 * (d1 + 2 * d2 + 2 * d3 + d4)
    return u[..., : points // 2 + 1]


@pytest.mark.parametrize("ranks", [exhaustive(1), 2, exhaustive(3)])
def test_taylor_green_continues_bit_for_bit(ranks, tmp_path):
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    flow(ranks, straight, "--every 3", steps=5)
    flow(ranks, broken, steps=2, missing=["rich"])
    assert broken.read_bytes() != straight.read_bytes()
    result = flow(ranks, broken, steps=5)
    assert f"continued from {broken}, step 2" in result.out
    assert broken.read_bytes() == straight.read_bytes()
    assert sorted(tmp_path.iterdir()) == [broken, straight]
    velocity = np.load(io.BytesIO(straight.read_bytes()[32:]))["velocity"]
    assert abs(velocity[2]).max() > 1e-3  # the third component is not zero any more
    assert np.allclose(velocity, reference_flow(15, 5, 0.05, 0.05), rtol=0, atol=1e-14)


def test_taylor_green_has_the_published_energy(tmp_path):
    result = run("taylor_green_3d.py", 2, picture=tmp_path / "vorticity.png")
    assert "energy 0.124953117517" in result.out and "published" in result.out
    assert "differs from Taylor and Green's series by" in result.out


@pytest.mark.parametrize("damage", ["bit", exhaustive("cut"), exhaustive("empty")])
def test_taylor_green_finds_a_damaged_restart_file(damage, tmp_path):
    path = tmp_path / "restart"
    flow(1, path, steps=1)
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes({"bit": data, "cut": path.read_bytes()[:-1], "empty": b""}[damage])
    result = flow(2, path, steps=2, expect_failure=True)
    assert result.err.count(f"expected {path} as this program wrote it") == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--points 3", "--points: expected a number >= 4, received 3"),
        exhaustive("--viscosity nan", "--viscosity: expected a number >= 0.0, received nan"),
        exhaustive("--dt soon", "--dt: invalid float value: 'soon'"),
        exhaustive("--picture /nowhere/at.png", "--picture: expected a file in a folder that is there"),
    ],
)
def test_taylor_green_names_a_bad_argument_once(arguments, message):
    result = run("taylor_green_3d.py", 2, arguments, expect_failure=True)
    assert result.err.count(message) == 1


@pytest.mark.exhaustive
def test_taylor_green_names_what_differs_from_the_restart_file(tmp_path):
    flow(2, tmp_path / "restart", steps=1)
    result = flow(2, tmp_path / "restart", "--dt 0.1", steps=2, expect_failure=True)
    assert result.err.count("expected --dt 0.05, as of ") == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name, arguments, told",
    [
        ("elasticity/run.py", "--elements 7", "1536 unknowns, 2 ranks: "),
        ("groundwater/run.py", "--cells 16 --switch all --rtol 1e-8", "switching level  iterations"),
    ],
)
def test_sparse_solvers(name, arguments, told, tmp_path):
    assert told in run(name, 2, arguments, picture=tmp_path / "solution.png").out
    command = [sys.executable, EXAMPLES / name, "--help"]
    helped = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert helped.returncode == 0 and "--picture FILE" in helped.stdout, helped
