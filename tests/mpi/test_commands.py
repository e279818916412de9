"""The commands as a person runs them: with ranks of their own, under mpiexec, interrupted."""

import json
import math
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import processes
import pytest
from commands import DEADLINE_S, overlap, process, started
from marks import exhaustive

from overlap.timing.simulate import Machine
from overlap.tools import launch

PLANES = "--slices 6 --shape 24 20"
SMALL = f"{PLANES} --rounds 2"


def succeed(*arguments, **options):
    """What a command that succeeds prints; its first argument may have blanks in it."""
    first, *rest = arguments
    status, out, err = overlap(*first.split(), *rest, **options)
    assert status == 0, err
    return out


def checked(path, expected):
    """A report and its only case, which has what is expected; every number is one."""
    report = json.loads(path.read_text(), parse_constant=pytest.fail)
    (record,) = report["cases"]
    assert {name: record[name] for name in expected} == expected
    for name in ("C_s", "T_s", "off_s", "block_s", "poll_s", "auto_s", "bare_fft_s"):
        assert name in expected or record[name] > 0, name
    assert record["model_poll_s"] == max(record["C_s"], record["T_s"])
    assert record["max_rel_error"] < 1e-5
    assert set(record["auto_choice"]) == {"wait", "depth", "chunk", "in_flight"}
    return report, record


def benched(folder, arguments, expected, **options):
    """What `overlap bench` reports and prints: report, its only case, text."""
    path = folder / "report.json"
    out = succeed(f"bench {arguments}", "--json", path, **options)
    return *checked(path, expected), out


@pytest.mark.parametrize(
    "workload, dtype",
    [("fft2", "c16"), exhaustive("fft2", "f4"), exhaustive("operation", "f8"), exhaustive("operation", "f4")],
)
def test_bench_starts_its_ranks_and_writes_a_report(workload, dtype, tmp_path):
    expected = {"ranks": 2, "slices": 6, "shape": [24, 20], "link": "shm", "control_hidden": None, "rounds": 2}
    expected |= {"workload": workload, "dtype": dtype, "workers": 1}
    report, _, out = benched(tmp_path, f"{workload} --dtype {dtype} {SMALL}", expected)
    assert "MPI" in report["mpi"]["library"] or "MPICH" in report["mpi"]["library"]
    assert "shared memory" in out and "24 x 20" in out


@pytest.mark.parametrize("dtype, order, grid", [exhaustive("c16", "natural", [2, 1]), ("f4", "transposed", [1, 2])])
def test_bench_of_volumes(dtype, order, grid, tmp_path):
    shape = "--shape 8 10 12 --slices 2 --rounds 2 --calls 2"
    expected = {"workload": "fft3", "dtype": dtype, "shape": [8, 10, 12], "slices": 2, "rounds": 2, "calls": 2}
    expected |= {"order": order, "grid": grid}
    arguments = f"fft3 --dtype {dtype} {shape} --order {order} --grid {grid[0]} {grid[1]}"
    _, record, out = benched(tmp_path, arguments, expected)
    transform = (5 if dtype == "c16" else 2.5) * 960 * math.log2(960)
    assert record["gflops"] == pytest.approx(2 * transform * 1e-9 / record["auto_s"])
    assert "2 forward 3-D transforms of 8 x 10 x 12" in out


def test_bench_of_the_nonlinear_term(tmp_path):
    expected = {"workload": "nonlinear", "dtype": "f8", "shape": [6, 4, 7], "slices": 3, "rounds": 2}
    _, record, out = benched(tmp_path, "nonlinear --slices 3 --shape 6 4 7 --rounds 2", expected)
    assert record["max_rel_error"] < 1e-14
    transform = 2.5 * 100 * math.log2(100)  # on 10 x 10 points
    assert record["gflops"] == pytest.approx(3 * 6 * 3 * transform * 1e-9 / record["auto_s"])
    assert "3 nonlinear terms" in out


@pytest.mark.parametrize("workloads", [["fft2"], exhaustive(["operation", "fft2"])])
def test_tune_writes_a_file_that_plans_read(workloads, tmp_path):
    path = tmp_path / "tuning.json"
    for workload in workloads:
        out = succeed(f"tune {workload} --dtype f8 {PLANES} --budget 0.5 --file", path)
        assert "x the speed of the default" in " ".join(out.split())  # its line is long, and may be broken anywhere
        assert f"written: {path}" in out
    succeed("tune fft3 --shape 12 10 16 --budget 0.5 --file", path)
    entry, fields = json.loads(path.read_text())["entries"]
    assert fields["plan"]["kind"] == "FFT3" and sorted(fields["grid"]) == [1, 2]
    assert set(fields["transforms"]) == {"forward", "backward"}
    assert entry["plan"]["shape"] == [6, 24, 20] and entry["machine"]["link"] == ""
    tuned = {"forward", "backward", "pointwise"} if "operation" in workloads else {"forward", "backward"}
    assert {name.split(":")[0] for name in entry["transforms"]} == tuned
    forward = entry["transforms"]["forward"]
    chosen = {name: forward[name] for name in ("wait", "depth", "chunk", "in_flight")}
    benched(tmp_path, f"fft2 --dtype f8 {SMALL}", {"auto_choice": chosen}, env={"OVERLAP_TUNING": str(path)})


@pytest.mark.exhaustive
def test_tune_balances_first(tmp_path):
    """Whatever the speeds of the moment are: they are told, and the file serves plans that ask for measured weights."""
    path = tmp_path / "tuning.json"
    out = succeed(f"tune fft2 --balance {PLANES} --budget 1 --file", path)
    speeds = re.search(
        r"balance: speeds (\S+) : (\S+); (nothing to gain, shares stay|\S+x as fast with weights)",
        " ".join(out.split()),
    )
    assert max(map(float, speeds.groups()[:2])) == 1 and "layout={'weights': 'measure'}" in " ".join(out.split())
    assert json.loads(path.read_text())["entries"] and f"written: {path}" in out
    succeed(f"bench fft2 {SMALL}", env={"OVERLAP_TUNING": str(path)})


@pytest.mark.exhaustive
def test_tune_refuses_a_file_that_is_none(tmp_path):
    path = tmp_path / "tuning.json"
    path.write_text("{")
    status, _, err = overlap("tune", "fft2", *PLANES.split(), "--budget", "1", "--file", path)
    assert status == 1 and "expected a whole tuning file" in err
    assert path.read_text() == "{"


@pytest.mark.parametrize(
    "options, expected",
    [
        ("--ranks 1", {"ranks": 1}),  # one rank has nothing to hide
        exhaustive(
            "--wait poll --depth 3 --chunk 2 --in-flight 2 --workers 2",
            {"workers": 2, "auto_choice": {"wait": "poll", "depth": 3, "chunk": 2, "in_flight": 2}},
        ),
    ],
)
def test_bench_does_as_told(options, expected, tmp_path):
    benched(tmp_path, f"fft2 {SMALL} {options}", expected)


@pytest.mark.parametrize("mpi", ["mpich", exhaustive("openmpi")], indirect=True)
def test_bench_under_mpiexec(mpi, tmp_path):
    launcher, environ = processes.launcher_command(mpi, tmp_path)
    expected = {"ranks": 3, "link": "mpiexec"}
    *_, out = benched(tmp_path, f"fft2 {SMALL}", expected, launcher=[*launcher, "-n", "3"], env=environ)
    assert out.count("mpiexec's ranks") == 1  # one rank prints


def test_links_cannot_be_made_under_mpiexec():
    launcher, environ = processes.launcher_command("mpich")
    arguments = f"bench fft2 {SMALL} --link 2gbit".split()
    status, _, err = overlap(*arguments, launcher=[*launcher, "-n", "2"], env=environ)
    assert status == 1
    assert err.count("leave out one of the two") == 1


VOLUME = "fft3 --shape 8 12 10 --rounds 2"


@pytest.mark.peer
@pytest.mark.parametrize("job", [f"fft2 {SMALL}", VOLUME, f"{VOLUME} --dtype f8"])
def test_peer(job, tmp_path):
    _, record, _ = benched(tmp_path, f"{job} --peer mpi4py-fft", {"peer_skipped": None})
    assert record["peer_mpi4py_fft_s"] > 0 and record["peer_mpi4py_fft_default_s"] > 0
    assert record["peer_mpi4py_fft_setting"]


@pytest.mark.exhaustive
def test_peer_that_is_not_installed_is_said(tmp_path):
    (tmp_path / "mpi4py_fft.py").write_text("raise ImportError('not here')")
    expected, env = {"peer_mpi4py_fft_s": None}, {"PYTHONPATH": str(tmp_path)}
    _, record, out = benched(tmp_path, f"fft2 {SMALL} --peer mpi4py-fft", expected, env=env)
    assert "not installed" in record["peer_skipped"] and "was not timed" in out


def test_info(tmp_path):
    for kind in ("", "f"):
        (tmp_path / f"libfftw3{kind}.so.3").write_bytes(b"\0fftw-9.10.2-sse2-avx512\0")
    out = succeed("info --ranks 3", env={"LD_LIBRARY_PATH": str(tmp_path)})
    for words in ("overlap-mpi", "FFTW", "thread level", "rank 2", "shaped links"):
        assert words in out
    assert f"9.10.2 in {tmp_path}; OVERLAP_FFTW={tmp_path}" in out


@pytest.mark.exhaustive
def test_demo_without_links_says_why(tmp_path):
    """As where the kernel or a container refuses namespaces."""
    made = tmp_path / "made" / "here"
    env = {"PYTHONPATH": str(without_links(tmp_path))}
    out = succeed("demo --slices 3 --shape 32 32 --out", made, env=env)
    assert "no shaped links: no namespaces today" in out and "shared memory" in out
    assert sorted(path.name for path in made.iterdir()) == ["report.json", "timeline.json", "timeline.png"]
    report, _ = checked(made / "report.json", {"workload": "operation", "block_s": None, "poll_s": None})
    assert report["notes"] == ["no shaped links: no namespaces today"]


def without_links(folder):
    """A folder for PYTHONPATH in which links cannot be made."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "if not sys.flags.safe_path:\n"  # the command, not its ranks
        "    import overlap.tools.links\n"
        "    overlap.tools.links.unavailable_reason = lambda: 'no namespaces today'\n"
    )
    return folder


# ---- every way to end --------------------------------------------------------------------------

LONG = ["bench", "fft2", "--slices", "16", "--shape", "256", "256", "--rounds", "100000"]


def ranks_of(process, words="overlap.tools.bench"):
    """The processes of a job's rank programs."""
    return [
        pid
        for pid, line in processes.marked(process.mark).items()
        if words in line.replace("\0", " ") and not any(other in line for other in ("enter", "mpiexec", "proxy"))
    ]


def wait_for_ranks(process, words="overlap.tools.bench"):
    """Until both rank programs have loaded MPI, and then some: they plan or compute."""
    end = time.monotonic() + DEADLINE_S
    while sum(map(has_mpi, ranks_of(process, words))) < 2:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    time.sleep(1)


def has_mpi(pid):
    try:
        return "libmpi" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # it has ended
        return False


@pytest.mark.parametrize(
    "number, status",
    [
        (signal.SIGINT, 130),
        exhaustive(signal.SIGTERM, 128 + signal.SIGTERM),
        exhaustive(signal.SIGHUP, 128 + signal.SIGHUP),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_signals_end_the_ranks_too(number, status):
    with started(*LONG) as process:
        wait_for_ranks(process)
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == status
        if number == signal.SIGINT:
            assert "interrupted" in process.stderr.read()


@pytest.mark.parametrize(
    "number, times",
    [(signal.SIGTERM, 1), *[exhaustive(sent, 4) for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]],
)
def test_a_signal_at_any_moment_ends_everything(number, times):
    """While Python starts, while modules and MPI are loaded, while ranks start, plan and compute."""
    pick = random.Random(number)
    for _ in range(times):
        delay_s = pick.uniform(0.05, 4)
        with started(*LONG) as process:
            time.sleep(delay_s)
            process.send_signal(number)
            assert process.wait(DEADLINE_S) in (128 + number, -number), delay_s


# Python drops what a handler raises in the functions that it calls after a fork, and in `__del__`.
FORKING = """
import os, signal, sys
from overlap.tools import launch
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.{name}))
launch.run_ranks([sys.executable, "-c", "import time; time.sleep(600)"], ranks=1)
"""
DROPPING = """
import signal, time
from overlap.tools import signals

class Dropping:
    def __del__(self):
        signal.raise_signal(signal.{name})

signals.send_dropped_again()
with signals.ending_by_exception():
    Dropping()
    time.sleep(600)
"""


@pytest.mark.parametrize("program", [FORKING, DROPPING])
@pytest.mark.parametrize("name, status", [("SIGHUP", 129), ("SIGTERM", 143), ("SIGINT", -signal.SIGINT)])
def test_a_signal_where_python_drops_exceptions(program, name, status):
    with process(sys.executable, "-c", program.format(name=name)) as command:
        assert command.wait(60) == status


def test_a_closed_terminal_ends_a_job_of_mpiexec():
    launcher, environ = processes.launcher_command("mpich")
    with started(*LONG, launcher=[*launcher, "-n", "2"], env=environ) as process:
        wait_for_ranks(process, "overlap bench")
        os.kill(ranks_of(process, "overlap bench")[-1], signal.SIGHUP)
        assert process.wait(DEADLINE_S) != 0


ABORTING = """
import sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
segments = {line.split("/dev/shm/")[1] for line in open("/proc/self/maps").read().splitlines()
            if "/dev/shm/" in line and "(deleted)" not in line}
for segments in comm.gather(segments) or ():
    print(*segments, flush=True)
comm.Barrier()
if comm.rank == 1:
    comm.Abort(3)
comm.Barrier()
"""


def test_a_job_that_aborts_leaves_no_shared_memory():
    segments = []
    command = [sys.executable, "-c", ABORTING]
    status = launch.run_ranks(
        command, ranks=2, deadline_s=DEADLINE_S, on_line=lambda line: segments.extend(line.split())
    )
    assert status != 0 and segments
    assert not [name for name in segments if os.path.exists(f"/dev/shm/{name}")]


def test_deadline_ends_the_ranks():
    status, _, err = overlap(*LONG, "--deadline", 3)
    assert status == 1
    assert "did not end within 3.0 s" in err


def test_deadline_under_mpiexec():
    launcher, environ = processes.launcher_command("mpich")
    status, _, err = overlap(*LONG, "--deadline", 5, launcher=[*launcher, "-n", "2"], env=environ)
    assert status != 0
    assert "the task 'case' has not completed in 5 s" in err and "measure.py" in err


@pytest.mark.parametrize("number", [signal.SIGKILL, exhaustive(signal.SIGHUP)])
def test_a_rank_that_dies_ends_the_command(number):
    with started(*LONG) as process:
        wait_for_ranks(process)
        os.kill(ranks_of(process)[-1], number)
        assert process.wait(DEADLINE_S) == 1
        assert "the ranks ended with status" in process.stderr.read()


# ---- info --measure ------------------------------------------------------------------------------


def test_a_machine_is_measured_and_predicted_on(tmp_path):
    path = tmp_path / "machine.toml"
    out = succeed("info --ranks 2 --measure", path)
    machine = Machine.read(path)
    assert machine.ranks_per_node == 2 and machine.text() in out
    assert "simulated" in succeed(f"predict --workload fft2 {PLANES} --ranks 1 2 --machine", path)


def test_one_rank_has_no_network_to_measure(tmp_path):
    status, _, err = overlap("info", "--measure", tmp_path / "machine.toml", "--ranks", 1)
    assert status == 1 and "at least 2 ranks" in err and not list(tmp_path.iterdir())
