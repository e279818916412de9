"""The programs of `bench` fit the library: each can be imported, and names what it measures."""

import subprocess
import sys

import pytest
from processes import REPOSITORY

BENCHMARKS = sorted((REPOSITORY / "bench").glob("*.py"))
IMPORTS = """
import importlib.util, sys
sys.path.insert(0, "bench")
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("benchmark", path)
    module = sys.modules["benchmark"] = importlib.util.module_from_spec(spec)
    left, sys.argv = sys.argv, [path]
    spec.loader.exec_module(module)
    sys.argv = left
"""


def test_all_can_be_imported():
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *map(str, BENCHMARKS)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture
def all_tables(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "bench"))
    return __import__("all")


def test_figures_change_where_they_differ_by_more_than_their_spreads(all_tables):
    control = {"additions": 50.0, "copy": 100.0}
    before = {"controls": [control], "rows": {"a": {"t, ms": [10.0, 9.0, 11.0], "gain": [1.5, 1.5, 1.5]}}}

    def changes(t, gain, additions=50.0):
        rows = {"a": {"t, ms": all_tables.Figure.of(t, (t - 1, t + 1)), "gain": all_tables.Figure.of(gain)}}
        return all_tables.changes(before, rows, [{**control, "additions": additions}])

    assert changes(11.5, 1.45) == []  # within the spreads; less than a tenth
    assert changes(14.0, 1.5) == ["a: t, ms 10 -> 14"]
    assert changes(20.0, 1.5, additions=100.0) == []  # the machine takes twice as long for all
    assert changes(10.0, 1.2) == ["a: gain 1.5 -> 1.2"]
