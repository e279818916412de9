"""The NAS kernels of examples/npb: class S against NPB's verification values, as a user starts them, bad arguments."""

import contextlib
import importlib.util
import io
import json
import sys
from pathlib import Path
from unittest.mock import patch

import commands
import numpy as np
import processes
import pytest
from marks import exhaustive, on_ranks

RUN = processes.REPOSITORY / "examples" / "npb" / "run.py"
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "npb"


sys.path.insert(0, str(FOLDER))


@on_ranks(exhaustive(1), 2, exhaustive(3))
def test_class_s(comm):
    """Every kernel: even shares, and uneven ones that are moved with as many messages."""
    from nas import suite

    for name in suite.KERNELS:
        weights = (3.0, 1.0, 2.0)[: comm.size]
        runs, kernel = suite.runs(comm, suite.Case(name, "S"), lambda done, total: None, weights=weights, plain=True)
        for run in runs:
            assert run.verified, (name, run)
            assert sum(run.shares) == sum(runs[0].shares) and len(run.shares) == comm.size
        plain, even, uneven = runs
        assert [run.how for run in runs] == ["plain", "even", "weights"]
        assert even.messages == uneven.messages
        assert max(even.shares) - min(even.shares) <= 1
        figures = suite.figures(runs, kernel)
        assert figures["plain_mops"] == plain.mops > 0
        assert figures["even_mops"] == even.mops > 0 and figures["balanced_mops"] == figures["mops"] == uneven.mops


@pytest.mark.exhaustive
@on_ranks(1, 2, 3)
def test_as_between_nodes(comm):
    """IS sends places of keys in their buckets, CG sums once per step."""
    from nas import conjugate_gradient, integer_sort

    with patch.object(integer_sort, "nodes", lambda comm: 2), patch.object(conjugate_gradient, "nodes", lambda comm: 2):
        for kind in (integer_sort.IS, conjugate_gradient.CG):
            with kind(comm, "S", (3.0, 1.0, 2.0)[: comm.size], lambda done, total: None) as kernel:
                kernel.warm_up()
                kernel.run()
                assert all(check.passed for check in kernel.checks()), kernel.checks()


@pytest.mark.exhaustive
@on_ranks(1, 2, 3)
def test_drawn_batches(comm):
    """Every batch of EP is drawn once."""
    from nas import suite

    runs, _ = suite.runs(comm, suite.Case("ep", "S", 2), lambda done, total: None, balance=True)
    for run in runs:
        assert run.verified and sum(run.shares) == 256, run


@pytest.mark.exhaustive
@on_ranks(1, 2, 3)
def test_random_numbers(comm):
    """Numbers from anywhere in the stream, against Python's integers."""
    from nas import random_numbers

    state, expected = 314159265, []
    for _ in range(5000):
        state = state * 5**13 % 2**46
        expected.append(state / 2**46)
    for first, count in ((0, 5000), (1023, 1025), (4999, 1), (17, 0)):
        assert np.array_equal(random_numbers.numbers(314159265, first, count), expected[first : first + count])


BAD = {
    "ep --weights 1": "expected a weight for each of 2 rank(s), received 1",
    "ep --weights 1 0": "expected a positive number, received 0",
    "ep --weights 1 nan": "expected a positive number, received nan",
    "ep --weights 1 2 --balance": "not allowed with argument",
    "ep --repeat 0": "expected --repeat to be at least 1, received 0",
    "ep --class D": "invalid choice: 'D'",
    "lu": "invalid choice: 'lu'",
    "ep --link 2furlongs": "expected a rate above 0",
    "ep --link 2gbit": "expected --ranks and --link without mpiexec",
    "ep --json /nowhere/at.json": "expected --json to be a file in a folder that is there",
}


@on_ranks(2)
def test_bad_arguments(comm):
    """One message, by rank 0, and status 2 on all ranks."""
    specification = importlib.util.spec_from_file_location("npb_run", FOLDER / "run.py")
    run = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(run)
    for line, message in BAD.items():
        told = io.StringIO()
        status = None
        with contextlib.redirect_stderr(told):
            try:
                run.parsed(line.split(), comm.size)
            except SystemExit as end:
                status = end.code
        assert status == 2, line
        assert told.getvalue().count(message) == (comm.rank == 0), (line, told.getvalue())
    assert run.parsed(["ft", "--class", "A", "--weights", "7", "4"], 2).weights == [7.0, 4.0]
    assert run._without(["ep", "--ranks", "2", "--link=1gbit", "--class", "S"], "--ranks", "--link") == [
        "ep",
        "--class",
        "S",
    ]


def test_a_user_starts_ranks(tmp_path):
    figures, picture = tmp_path / "ep.json", tmp_path / "ep.png"
    given = "ep", "--ranks", "2", "--balance", "--json", figures, "--picture", picture
    done = commands.run(sys.executable, RUN, *given, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "SUCCESSFUL" in done.stdout and "12 of 12 checks" in done.stdout and "STREAM" in done.stdout
    found = json.loads(figures.read_text())
    assert (
        found["verified"] and found["ranks"] == 2 and found["balanced_mops"] == found["mops"] > 0 < found["even_mops"]
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
