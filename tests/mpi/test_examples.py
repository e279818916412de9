"""The examples run, and the answers they assert hold, on any number of ranks."""

import importlib.util
import sys

import jobs
import pytest

EXAMPLES = jobs.REPOSITORY / "examples"
SMALL = ["--points", "32", "--members", "3", "--steps", "40", "--time", "2"]


def run_example(comm, name, arguments, missing=()):
    """Run the file as a user would (a case: this module is imported on the ranks too)."""
    sys.modules.update(dict.fromkeys(missing))  # None: importing it fails
    sys.argv = [name, *arguments]
    specification = importlib.util.spec_from_file_location("__main__", EXAMPLES / name)
    specification.loader.exec_module(importlib.util.module_from_spec(specification))


def run(name, ranks, *arguments, mpi="mpich", missing=()):
    return jobs.run_job("test_examples:run_example", ranks, mpi=mpi, deadline_s=60,
                        args={"name": name, "arguments": arguments, "missing": missing})


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_quickstart(ranks):
    result = run("quickstart.py", ranks)
    assert result.out == f"quickstart: all answers are right on {ranks} rank(s)\n"
    assert result.err == ""


def test_quickstart_fits_on_a_page():
    assert len((EXAMPLES / "quickstart.py").read_text().splitlines()) <= 60


def test_navier_stokes_is_the_same_on_any_number_of_ranks(tmp_path):
    answers = []
    for ranks in (1, 2, 3):
        picture = tmp_path / f"vorticity{ranks}.png"
        result = run("navier_stokes_2d.py", ranks, *SMALL, "--picture", str(picture))
        assert result.out.count("Taylor-Green") == 2 and result.out.count("order") == 2
        assert picture.read_bytes().startswith(b"\x89PNG")
        answers.append([line for line in result.out.splitlines() if "kept" in line])
    assert len(answers[0]) == 2 and answers == answers[:1] * 3


@pytest.mark.parametrize("overlap", ["off", "block", "poll"])
def test_navier_stokes_with_overlap(overlap):
    run("navier_stokes_2d.py", 2, *SMALL, "--picture", "", "--overlap", overlap, "--workers", "2")


def test_navier_stokes_on_more_ranks_than_rows():
    run("navier_stokes_2d.py", 5, "--points", "4", "--members", "2", "--steps", "20", "--time", "1",
        "--picture", "", "--overlap", "off")


def test_navier_stokes_without_optional_packages():
    result = run("navier_stokes_2d.py", 2, *SMALL, missing=["rich", "matplotlib"])
    assert "no picture: matplotlib is not installed" in result.out


def test_quickstart_under_open_mpi(openmpi):
    run("quickstart.py", 2, mpi="openmpi")
