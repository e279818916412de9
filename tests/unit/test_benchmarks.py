"""The programs of `bench` fit the library: each can be imported, and is a page that runs on ranks and keeps records."""

import json
import sys

import commands
import pytest
from processes import REPOSITORY

from overlap.tools import launch

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
    done = commands.run(sys.executable, "-c", IMPORTS, *map(str, BENCHMARKS), cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr[-2000:]


PAGE = """
import sys
from overlap.tools.bench.pages import Page
from overlap.tools.bench.rounds import seconds_of

def measure(comm, given):
    for n in given.n:
        if n > 8 and comm.rank == 1:
            raise ValueError("too many")
        calls = {"a": 0, "b": 0}
        def count(name):
            calls[name] += 1
        runs = {name: lambda name=name: count(name) for name in calls}
        seconds = seconds_of(comm, runs, given.rounds, calls={"a": 1, "b": 3})
        yield {"n": n, "calls": calls, "rounds": {name: len(values) for name, values in seconds.items()}}

page = Page("Counts.", measure, row=lambda record: (record["n"], record["link"]), head="n | link", rounds=4,
            quick={"n": [2]})
page.add("--n", type=int, nargs="+", default=[3, 5])
if __name__ == "__main__":
    sys.exit(page.run())
"""


def run_page(tmp_path, *arguments):
    (tmp_path / "counting.py").write_text(PAGE)
    command = [sys.executable, tmp_path / "counting.py", "--json", tmp_path / "found.json", *arguments]
    return commands.run(*command, timeout=100)


def test_a_page_measures_on_ranks_of_its_own_and_keeps_its_records(tmp_path):
    done = run_page(tmp_path, "--rounds", "2", "--out", tmp_path / "sub" / "page.md")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 | shm\n5 | shm\n")
    table = "| n | link |\n| --- | --- |\n| 3 | shm |\n| 5 | shm |\n"
    assert (tmp_path / "sub" / "page.md").read_text() == table and table in done.stdout
    content = json.loads((tmp_path / "found.json").read_text())
    assert content["rounds"] == 2 and content["machine"]["cores"] and "--rounds 2" in content["command"]
    counted = {"calls": {"a": 3, "b": 9}, "rounds": {"a": 2, "b": 2}}  # with one round that warms up
    assert content["cases"] == [{"link": "shm", "ranks": 2, "n": n, **counted} for n in (3, 5)]


def test_a_page_whose_ranks_a_launcher_has_started(tmp_path):
    (tmp_path / "counting.py").write_text(PAGE)
    command = [launch.find_mpiexec(), "-n", "3", sys.executable, tmp_path / "counting.py", "--json", tmp_path / "found"]
    done = commands.run(*command, timeout=100)
    assert done.returncode == 0 and done.stdout.startswith("3 | mpiexec\n5 | mpiexec\n|"), done.stderr
    cases = json.loads((tmp_path / "found").read_text())["cases"]
    assert [(one["n"], one["link"], one["ranks"]) for one in cases] == [(3, "mpiexec", 3), (5, "mpiexec", 3)]


def test_a_page_whose_rank_fails_ends_and_keeps_nothing(tmp_path):
    done = run_page(tmp_path, "--n", "3", "9", "--quick")
    assert done.returncode == 0 and done.stdout.startswith("2 | shm\n"), done.stderr
    (tmp_path / "found.json").unlink()
    done = run_page(tmp_path, "--n", "3", "9")
    assert done.returncode == 1 and "too many" in done.stderr and "the ranks ended with status" in done.stderr
    assert not (tmp_path / "found.json").exists()


@pytest.fixture
def all_tables(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "bench"))
    return __import__("all")


def test_figures_change_where_they_differ_by_more_than_their_spreads(all_tables):
    control = {"additions": 50.0, "copy": 100.0}
    before = {"controls": [control], "rows": {"a": {"t, ms": [10.0, 9.0, 11.0], "gain": [1.5, 1.5, 1.5]}}}

    def changes(t, gain, additions=50.0):
        rows = {"a": {"t, ms": all_tables.figure(t, (t - 1, t + 1)), "gain": all_tables.figure(gain)}}
        return all_tables.changes(before, rows, [{**control, "additions": additions}])

    assert changes(11.5, 1.45) == []  # within the spreads; less than a twentieth
    assert changes(14.0, 1.5) == [("a", "t, ms", "10.0", "14.0")]
    assert changes(20.0, 1.5, additions=100.0) == []  # the machine takes twice as long for all
    assert changes(10.0, 1.5, additions=100.0) == []  # a link takes as long as before
    assert changes(10.0, 1.2) == [("a", "gain", "1.50", "1.20")]
