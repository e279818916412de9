"""The NAS kernels of examples/npb: class S against NPB's verification values, as a user starts them, bad arguments."""

import json
import subprocess
import sys

import jobs
import processes
import pytest
from marks import exhaustive

RUN = processes.REPOSITORY / "examples" / "npb" / "run.py"


ALL = "random_numbers,class_s,drawn_batches,as_between_nodes"


@pytest.mark.parametrize("ranks, cases", [(2, "class_s"), *[exhaustive(ranks, ALL) for ranks in (1, 2, 3)]])
def test_class_s(ranks, cases):
    jobs.run_job(f"npb_cases:{cases}", ranks)


def test_bad_arguments():
    jobs.run_job("npb_cases:bad_arguments", 2)


def test_a_user_starts_ranks(tmp_path):
    figures, picture = tmp_path / "ep.json", tmp_path / "ep.png"
    done = subprocess.run(
        [sys.executable, RUN, "ep", "--ranks", "2", "--balance", "--json", figures, "--picture", picture],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "SUCCESSFUL" in done.stdout and "12 of 12 checks" in done.stdout and "STREAM" in done.stdout
    found = json.loads(figures.read_text())
    assert (
        found["verified"] and found["ranks"] == 2 and found["balanced_mops"] == found["mops"] > 0 < found["even_mops"]
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
