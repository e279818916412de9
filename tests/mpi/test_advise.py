"""`overlap advise` on programs that do not know of it, beside what they do by their own account."""

import json
import pickle
import re
from pathlib import Path

import processes
import pytest
from commands import DEADLINE_S, overlap, process
from marks import exhaustive

from overlap.tools import timeline

PROGRAMS = Path(__file__).parent / "advised"
BOTH = [
    ("mpich", 2),
    ("openmpi", 3),
    *(exhaustive(*which) for which in (("mpich", 1), ("mpich", 3), ("openmpi", 1), ("openmpi", 2))),
]


def advised(mpi, ranks, folder, *arguments):
    """Run `overlap advise` with some arguments on some ranks; (status, stdout, stderr)."""
    launcher, environ = processes.launcher_command(mpi, folder)
    return overlap("advise", *arguments, launcher=[*launcher, "-n", str(ranks)], env=environ)


def plain(mpi, ranks, folder, *arguments):
    """Run Python with some arguments on some ranks; (status, stdout, stderr)."""
    import sys

    launcher, environ = processes.launcher_command(mpi, folder)
    with process(*launcher, "-n", str(ranks), sys.executable, *arguments, env=environ) as command:
        out, err = command.communicate(timeout=DEADLINE_S)
    return command.returncode, out, err


def by_mark(program, report):
    """The calls of a report by the comments in the lines of the program; several in one line by operation."""
    lines = program.read_text().splitlines()
    found = {}
    for site in report["sites"]:
        assert site["site"]["file"] == str(program)
        mark = lines[site["site"]["line"] - 1].partition("  # ")[2]
        if mark:
            found[mark, site["site"]["operation"]] = site
    return found


@pytest.mark.parametrize("mpi, ranks", BOTH, indirect=["mpi"])
def test_every_call_is_counted_with_its_bytes(mpi, ranks, tmp_path):
    program, path = PROGRAMS / "every_call.py", tmp_path / "advice.json"
    status, out, err = advised(mpi, ranks, tmp_path, "--json", path, program, "--json", "x")
    assert status == 0, err
    assert out.splitlines() == [f"__main__ {program} {[str(program), '--json', 'x']}"]
    report = json.loads(path.read_text(), parse_constant=pytest.fail)
    sites = by_mark(program, report)
    every = list(range(ranks))
    doubles = 3 * 800  # bytes of three times 100 doubles
    expected = {
        ("allreduce", "Allreduce"): [doubles] * ranks,
        ("in place", "Allreduce"): [doubles] * ranks,
        ("bcast", "Bcast"): [doubles] * ranks,
        ("allgather", "Allgather"): [doubles] * ranks,
        ("scatter", "Scatter"): [doubles * (ranks if rank == 0 else 1) for rank in every],
        ("alltoallv", "Alltoallv"): [3 * 4 * 10 * ranks * (ranks + 1) // 2] * ranks,
        ("alltoallw", "Alltoallw"): [3 * 400 * ranks] * ranks,
        ("sendrecv", "Sendrecv"): [doubles] * ranks,
        ("any source", "Sendrecv"): [doubles] * ranks,
        ("isend", "Isend"): [doubles] * ranks,
        ("isend", "Irecv"): [doubles] * ranks,
        ("waitall", "Waitall"): [0] * ranks,
        ("iallreduce", "Iallreduce"): [doubles] * ranks,
        ("startall", "Startall"): [2 * doubles] * ranks,
        ("half", "Allreduce"): [doubles] * ranks,
        ("neighbours", "Neighbor_allgather"): [doubles] * ranks,
        ("barrier", "Barrier"): [0] * ranks,
        ("graph", "Neighbor_alltoall"): [doubles] * ranks,
        ("pickled bcast", "bcast"): [3 * len(pickle.dumps({"n": list(range(1000))}, -1))] * ranks,
        ("pickled isend", "isend"): [3 * len(pickle.dumps("x" * 1000, -1))] * ranks,
        ("pickled recv", "recv"): [3 * len(pickle.dumps("x" * 1000, -1))] * ranks,
    }
    assert {key: sites[key]["nbytes"] for key in expected} == expected
    calls = {key: [6 if "startall" in key else 3] * ranks for key in expected}
    assert {key: sites[key]["calls"] for key in expected} == calls
    assert sites["pickled allreduce", "allreduce"]["calls"] == [3] * ranks
    for key in expected:  # whom these calls wait for is known
        assert sites[key]["unsplit_s"] == [0] * ranks, key
        for parts in zip(sites[key]["time_s"], sites[key]["waiting_s"], sites[key]["transferring_s"]):
            assert parts[0] == pytest.approx(parts[1] + parts[2])
    assert report["hosts"] and not report["cut"]


@pytest.mark.parametrize("mpi, ranks", [("mpich", 3), exhaustive("openmpi", 2)], indirect=["mpi"])
def test_imbalance_is_told_from_transferring(mpi, ranks, tmp_path):
    """The last rank sleeps 0.1 s before each of 6 reductions, and all ranks 0.1 s while messages are under way."""
    program, path, drawn = PROGRAMS / "uneven.py", tmp_path / "advice.json", tmp_path / "timeline.json"
    status, _, err = advised(mpi, ranks, tmp_path, "--json", path, "--timeline", drawn, "--slices", 8, program)
    assert status == 0, err
    report = json.loads(path.read_text(), parse_constant=pytest.fail)
    sites = by_mark(program, report)
    reduction, waits = sites["allreduce", "Allreduce"], sites["waitall", "Waitall"]
    # The ranks come out of the messages together, so that the others wait as long as the last one sleeps.
    assert min(reduction["waiting_s"][:-1]) > 6 * 0.1 / 2
    assert reduction["waiting_s"][-1] < min(reduction["waiting_s"][:-1]) / 2
    assert max(reduction["transferring_s"]) < 6 * 0.1 / 2
    assert reduction["computing_s"][-1] > 5 * 0.1  # the first call has nothing before it
    assert min(waits["covered_s"]) > 6 * 0.1
    assert "imbalance" in " ".join(report["advice"]) and "hidden already" in " ".join(report["advice"])
    assert "Hiding cannot gain here" in report["advice"][0] and report["advice"][0] in err
    assert "depends on how early the received data is needed" in report["caveat"]
    assert [row["slices"] for row in report["estimates"]] == [8]
    by_rank = timeline.summary(timeline.read_chrome(drawn))
    assert [row.rank for row in by_rank] == list(range(ranks))
    assert by_rank[-1].both_s > 5 * 0.1  # asleep while messages are under way


FAILS = "import sys\nfrom mpi4py import MPI\n\ncomm = MPI.COMM_WORLD\ncomm.Barrier()\nprint('begun', sys.argv[1:])\n"
ENDS = {  # what rank 0 does, so that two ranks do not print at once
    "an exception": "def inner():\n    {}['key']\n\n\nif comm.rank == 0:\n    inner()\n",
    "an error of MPI": "if comm.rank == 0:\n    comm.send(1, dest=77)\n",
    "a status": "sys.exit(3)\n",
    "a status of one rank": "sys.exit(3 * (comm.rank == 0))\n",
    "words": "sys.exit('words' if comm.rank == 0 else None)\n",
    "abort": "comm.Abort(5)\n",
    "a hook": "sys.excepthook = lambda *what: sys.stderr.write(f'{what[0]} {what[2].tb_lineno}\\n')\n1 / comm.rank\n",
    "its own end": "MPI.Finalize()\n",
}
OFTEN = ("an exception", "a status of one rank", "a hook")


@pytest.mark.parametrize(
    "mpi, names",
    [("mpich", OFTEN), exhaustive("mpich", tuple(ENDS)), exhaustive("openmpi", tuple(ENDS))],
    indirect=["mpi"],
)
def test_the_end_of_a_program_is_its_own(mpi, names, tmp_path):
    program = tmp_path / "program.py"
    for name in names:
        program.write_text(FAILS + ENDS[name])
        own, under = (run(mpi, 2, tmp_path, program, "x") for run in (plain, advised))
        assert under[0] == own[0], (name, under)
        if name != "abort":
            assert sorted(under[1]) == sorted(own[1]), name  # letters, as the ranks' lines may mix
            assert told(under[2]) == told(own[2]), name


def told(err):
    """The lines of tracebacks and messages in the standard error of a job, in any order, without addresses and the
    report."""
    lines = re.sub(r"0x[0-9a-f]+", "0x", err).splitlines()
    kept = [line for line in lines if re.match(r"Traceback| +File|\w+(Error|Exception)\b|words|<class|.* 77\b", line)]
    return sorted(kept)


def test_a_module_and_mpi4py_run_as_under_python(tmp_path, monkeypatch):
    """`-m`, also of mpi4py itself, which ends the job after an exception on one rank."""
    (tmp_path / "mine.py").write_text(FAILS + "assert __name__ == '__main__'\nprint(__spec__.name)\n")
    (tmp_path / "stuck.py").write_text(FAILS + "if comm.rank == 1:\n    raise ValueError\ncomm.Barrier()\n")
    monkeypatch.chdir(tmp_path)
    for arguments in (["-m", "mine", "--slices", "x"], ["-m", "mpi4py", "stuck.py"]):
        own, under = (run("mpich", 2, tmp_path, *arguments) for run in (plain, advised))
        assert under[0] == own[0], under
        if "mpi4py" not in arguments:  # which aborts the job: the launcher may then drop what was printed
            assert sorted(under[1]) == sorted(own[1])
    assert "no report: the program failed on rank 1" in under[2] or "ValueError" in under[2]


def test_mpi_is_begun_by_the_program(tmp_path):
    """Its `mpi4py.rc` counts; a library that has imported mpi4py before has names of its own; no MPI is no error."""
    program = tmp_path / "program.py"
    program.write_text(
        "import mpi4py\nmpi4py.rc.initialize = False\nmpi4py.rc.thread_level = 'funneled'\n"
        "from mpi4py import MPI\nfrom mpi4py.MPI import COMM_WORLD\nassert not MPI.Is_initialized()\n"
        "MPI.Init_thread(MPI.THREAD_FUNNELED)\nassert MPI.Query_thread() == MPI.THREAD_FUNNELED\n"
        "for _ in range(4):\n    COMM_WORLD.Barrier()\nrank = COMM_WORLD.rank\n"
        "MPI.Finalize()\nprint('ended' if rank == 0 else '')\n"
    )
    path = tmp_path / "advice.json"
    status, out, err = advised("mpich", 2, tmp_path, "--json", path, program)
    assert (status, out.split()) == (0, ["ended"]), err
    (site,) = json.loads(path.read_text())["sites"]
    assert (site["site"]["operation"], site["calls"]) == ("Barrier", [4, 4])
    program.write_text("print('no MPI')\n")
    status, out, err = overlap("advise", program)
    assert (status, out) == (0, "no MPI\n") and "has not used MPI through mpi4py" in err
    status, _, err = overlap("advise", tmp_path / "missing.py")
    assert status == 2 and "does not exist" in err
    wrong = tmp_path / "machine.toml"
    wrong.write_text("speed = 3\n")
    program.write_text("from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n")
    status, _, err = overlap("advise", "--machine", wrong, program)  # the program has ended well
    assert status == 0 and "speed: unknown" in err
    status, _, err = overlap("advise", "--machine", tmp_path / "missing.toml", program)
    assert status == 2 and "expected a file" in err
    status, _, err = overlap("advise")
    assert status == 2 and "expected a program" in err


def test_libraries_are_named_and_no_more_calls_recorded_than_wanted(tmp_path):
    """A call that an installed library makes belongs to the line of the program; mpi4py's own modules are such ones."""
    program, path = tmp_path / "program.py", tmp_path / "advice.json"
    program.write_text(
        "from mpi4py import MPI\nfrom mpi4py.util import sync\n\ncomm = MPI.COMM_WORLD\n"
        "for _ in range(2):\n    with sync.Sequential(comm):\n        pass\n"
        "for i in range(100):\n    assert comm.allreduce(i) == i * comm.size\n"
    )
    status, _, err = advised("mpich", 2, tmp_path, "--calls", 20, "--json", path, program)
    assert status == 0, err
    report = json.loads(path.read_text())
    named = {site["site"]["line"]: site["site"]["library"] for site in report["sites"]}
    assert set(named) == {6, 9} and "sync.py:" in named[6] and not named[9]
    assert report["cut"] and "Only the first calls are recorded" in err
    assert [sum(calls) for calls in zip(*(site["calls"] for site in report["sites"]))] == [20, 20]
