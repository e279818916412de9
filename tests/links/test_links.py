"""Shaped links: real hosts, a real rate, and nothing left behind however a run ends."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import commands
import nobody
import pytest
from marks import exhaustive

from overlap.errors import LinksUnavailable
from overlap.tools import links

DEADLINE_S = 300  # generous: it only turns a hang into a failure

needs_links = pytest.mark.skipif(links.unavailable_reason() is not None, reason=str(links.unavailable_reason()))


class Job:
    """A Python program in a session of its own that calls `links.run`."""

    def __init__(self, program, **environ):
        path = os.pathsep.join([*environ.pop("first", []), str(Path(links.__file__).parents[2])])
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from overlap import errors\nfrom overlap.tools import links\n"
                "import mpi4py\nmpi4py.rc.initialize = False\nfrom mpi4py import MPI\n" + program,  # as in the command
            ],
            env=os.environ | {"PYTHONPATH": path} | environ,
            start_new_session=True,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()  # and so everything below it, which the tests below prove
        self.process.communicate(timeout=DEADLINE_S)

    def finish(self):
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, err


def launch(command, **options):
    """Run a command on links to its end; return its exit status and what it printed."""
    options = {"deadline_s": DEADLINE_S / 2} | options
    with Job(f"raise SystemExit(links.run({command!r}, **{options!r}))") as job:
        return job.finish()


def processes():
    """Map each process to its command line and its pid namespace."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # gone, or another user's
                found[int(entry.name)] = ((entry / "cmdline").read_bytes(), os.readlink(entry / "ns" / "pid"))
    return found


def until(condition):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


# ---- rates and arguments ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, rate",
    [
        ("2gbit", 2e9),
        ("500mbit", 5e8),
        ("1.5gbit", 1.5e9),
        ("2e9", 2e9),
        (" 10 Gbit ", 1e10),
        ("64kbit", 64e3),
        ("9600bit", 9600),
        ("9600", 9600),
        (1e9, 1e9),
    ],
)
def test_parse_rate(text, rate):
    assert links.parse_rate(text) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "fast", "gbit", "-1gbit", "0", "2gbyte", "1..5gbit", "nan", "inf", "1e999", "2 g bit", None]
)
def test_parse_rate_says_what_it_expected_and_received(text):
    with pytest.raises(ValueError, match="expected a rate.*received") as caught:
        links.parse_rate(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"hosts": 0}, {"hosts": 2, "ranks": 3}, {"ranks": 0}, {"burst": 1000}, {"mtu": 10}, {"rate": "100gbit"}]
)
def test_bad_arguments_are_refused(options):
    with pytest.raises(ValueError, match="expected .* received"):
        links.run(["true"], **options)


@needs_links
def test_pyroute2_that_cannot_be_imported_is_the_reason(tmp_path):
    (tmp_path / "pyroute2.py").write_text("raise ImportError('not installed')")
    with Job("print(links.unavailable_reason())", first=[str(tmp_path)]) as job:
        status, out, err = job.finish()
    assert status == 0, err
    assert "pyroute2 cannot be imported: not installed" in out


def test_missing_mpich_is_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(LinksUnavailable, match="MPICH's launcher is missing"):
        links.run(["true"])


# ---- hosts -----------------------------------------------------------------------------------

HELLO = """
import os, socket, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
local = comm.Split_type(MPI.COMM_TYPE_SHARED)
name = socket.gethostname()
lines = comm.gather(
    f"{comm.rank} of {comm.size} on {name} {socket.gethostbyname(name)} "
    f"with {local.size} cores {sorted(os.sched_getaffinity(0))} "
    f"links {sorted(name for _, name in socket.if_nameindex())}"
)
if comm.rank == 0:
    print(*lines, sep="\\n")
"""

# The launcher may mix what two commands write at the same time, so each writes to a file of its own in a folder.
OWN_FILE = """
import os, socket, sys, tempfile

def say(text):
    with open(tempfile.mkstemp(dir=sys.argv[1])[0], "w") as file:
        file.write(text)

"""


@needs_links
@pytest.mark.parametrize("hosts, ranks", [(2, 2), exhaustive(3, 3), exhaustive(2, 4)])
def test_each_rank_has_its_host_and_core(hosts, ranks):
    cpus = sorted(os.sched_getaffinity(0))
    status, out, err = launch([sys.executable, "-c", HELLO], hosts=hosts, ranks=ranks)
    assert status == 0, err
    per_host = ranks // hosts
    assert out.splitlines() == [
        f"{rank} of {ranks} on h{rank // per_host} 10.77.0.{rank // per_host + 1} "
        f"with {per_host} cores {[cpus[rank % len(cpus)]]} links ['eth0', 'lo']"
        for rank in range(ranks)
    ]


@needs_links
def test_cores_and_environment_can_be_chosen(tmp_path):
    cpus = sorted(os.sched_getaffinity(0))
    program = OWN_FILE + "say(f\"{sorted(os.sched_getaffinity(0))} {os.environ['COLOUR']}\")"
    for name, chosen, seen in (("one", cpus[-1:], cpus[-1:]), ("all", [], cpus)):
        folder = tmp_path / name
        folder.mkdir()
        status, _, err = launch([sys.executable, "-c", program, str(folder)], cpus=chosen, env={"COLOUR": "red"})
        assert status == 0, err
        assert [path.read_text() for path in folder.iterdir()] == [f"{seen} red"] * 2


# ---- rate ------------------------------------------------------------------------------------

FUNNEL = """
import sys, time
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
def receive_from_all(nbytes):       # no byte leaves before the clock has started
    data = np.zeros(nbytes // (comm.size - 1), "u1")
    if comm.rank:
        comm.recv(source=0)
        comm.Send(data, 0)
        return
    start = time.perf_counter()
    for source in range(1, comm.size):
        comm.send("go", source)
    requests = [comm.Irecv(data.copy(), source) for source in range(1, comm.size)]
    MPI.Request.Waitall(requests)
    print(time.perf_counter() - start)
receive_from_all(10_000_000)
time.sleep(0.3)                     # the bucket fills up
receive_from_all(1_000_000)
"""


@needs_links
@pytest.mark.parametrize("hosts", [2, exhaustive(3)])  # 3: two senders share the receiver's link
def test_no_message_is_faster_than_its_link(hosts):
    burst = 96 * 1024
    status, out, err = launch([sys.executable, "-c", FUNNEL], hosts=hosts, rate="100mbit", burst=burst)
    assert status == 0, err
    for nbytes, wall_s in zip((10e6, 1e6), map(float, out.split()), strict=True):
        assert wall_s >= 8 * (nbytes - burst) / 100e6


# ---- every way to end ------------------------------------------------------------------------


@needs_links
def test_exit_status_is_the_commands():
    assert launch(["sh", "-c", "exit 3"])[0] == 3
    status, _, err = launch(["no-such-command"])
    assert status == 127
    assert "no-such-command" in err


@pytest.fixture
def sleeper(tmp_path):
    """A command that says it is there and sleeps; afterwards nothing of it may be left."""
    interfaces = socket.if_nameindex()
    mark = str(tmp_path)  # in the command line of every process that we name
    yield [
        "sh",
        "-c",
        'touch "$0/$PMI_RANK"; if [ -e "$0/crash" ] && [ $PMI_RANK = 1 ]; then kill -KILL $$; fi; sleep 1000',
        mark,
    ]
    until(lambda: not any(mark.encode() in line for line, _ in processes().values()))
    assert socket.if_nameindex() == interfaces


@needs_links
@pytest.mark.parametrize("sent", [signal.SIGINT, exhaustive(signal.SIGTERM), exhaustive(signal.SIGHUP), signal.SIGKILL])
def test_a_signal_to_the_caller_ends_everything(sleeper, tmp_path, sent):
    shares = {1: 0.5} if len(os.sched_getaffinity(0)) > 1 else {}  # with competitors: they end, too
    with Job(f"links.run({sleeper!r}, shares={shares})") as job:
        until(lambda: {"0", "1"} <= {path.name for path in tmp_path.iterdir()})
        here = os.readlink("/proc/self/ns/pid")
        inside = {namespace for line, namespace in processes().values() if str(tmp_path).encode() in line} - {here}
        before = [pid for pid, (_, namespace) in processes().items() if namespace in inside]
        assert len(inside) == 1
        assert len(before) >= 6 + 2 * len(shares)  # process 1, launcher, two proxies, two commands, competitors
        competitors = [
            line for line, namespace in processes().values() if namespace in inside and b"\0compete\0" in line
        ]
        assert len(competitors) == 2 * len(shares)
        job.process.send_signal(sent)
        job.finish()
        if sent != signal.SIGKILL:  # an exception: everything is gone before it arrives
            assert not any(namespace in inside for _, namespace in processes().values())
    until(lambda: not any(namespace in inside for _, namespace in processes().values()))


@needs_links
def test_a_user_without_privileges_has_them_and_the_host_sees_nothing():
    try:
        python, environ = nobody.interpreter()
    except OSError as error:
        pytest.skip(str(error))
    before = socket.if_nameindex()
    program = f"""
import os, sys, tempfile
from pathlib import Path
from overlap.tools import links

assert os.getuid() != 0
with tempfile.TemporaryDirectory() as folder:
    program = {OWN_FILE!r} + "say(socket.if_nameindex()[-1][1])"
    status = links.run([sys.executable, "-c", program, folder], deadline_s=100)
    print(status, *(path.read_text() for path in Path(folder).iterdir()))
"""
    done = commands.run(*python, "-c", program, env=os.environ | environ)
    assert done.returncode == 0 and done.stdout.split() == ["0", "eth0", "eth0"], done
    assert socket.if_nameindex() == before


@needs_links
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_what_a_slow_rank_keeps_is_measured_and_told():
    status, out, err = launch(["true"], shares={1: 0.75})
    assert (status, out) == (0, "")
    found = re.search(r"^rank 1 keeps 0.750 of core \d+: measured (\S+)$", err, re.MULTILINE)
    assert float(found[1]) > 0  # what it is depends on who else is there


@needs_links
def test_a_deadline_ends_everything(sleeper):
    status, _, err = launch(sleeper, deadline_s=2)
    assert status == 124, err


@needs_links
def test_a_killed_rank_ends_everything(sleeper, tmp_path):
    (tmp_path / "crash").touch()
    status, _, err = launch(sleeper)
    assert status not in (0, 124), err
