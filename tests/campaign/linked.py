"""`overlap links`, killed at random moments, also two at once, by root and by nobody: nothing of it is left after a second."""

import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import processes

from overlap.tools import links

from .draw import Drawn
from .harness import Part

AFTER_S = 1.0       # by then all is gone
OWN = 200           # seeds of the user who runs the campaign; the following ones are of an unprivileged user
NOBODY = "65534"
PROGRAM = "from overlap.tools import links; raise SystemExit(links.run(['sleep', '1000'], hosts={hosts}))"
SENT = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")


@functools.cache
def _environment_of_nobody():
    """A virtual environment with these packages that any user may run; the campaign's own may lie in root's home."""
    folder = tempfile.TemporaryDirectory(prefix="overlap-nobody-")
    os.chmod(folder.name, 0o755)
    python = shutil.which("python{}.{}".format(*sys.version_info), path="/usr/bin:/usr/local/bin")
    assert python, "no interpreter of this version that another user may run"
    subprocess.run([python, "-m", "venv", "--without-pip", folder.name], check=True, stdin=subprocess.DEVNULL)
    own = Path(folder.name, "bin")
    for program in Path(sys.executable).parent.glob("*hydra*"):
        Path(own, program.name).symlink_to(program)
    return folder, own / "python"


def _as_nobody():
    """Command and environment of an interpreter without privileges."""
    if os.getuid():
        return [sys.executable], {}
    _, python = _environment_of_nobody()
    path = os.pathsep.join([str(processes.REPOSITORY), sysconfig.get_path("purelib")])
    return (["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", python],
            {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"})


def _host():
    """What must stay as it was: interfaces, addresses, routes, mounts."""
    return (socket.if_nameindex(), Path("/proc/net/fib_trie").read_text(), Path("/proc/net/route").read_text(),
            sorted(Path("/proc/self/mountinfo").read_text().splitlines()))


def kill(moments, sent, hosts, spared=0, nobody=False):
    """Start as many jobs as there are moments, and end each at its own."""
    python, environ = _as_nobody() if nobody else ([sys.executable], {})
    before, mark = _host(), uuid.uuid4().hex
    with ExitStack() as stack:
        jobs = []
        for _ in moments:
            job = subprocess.Popen([*python, "-c", PROGRAM.format(hosts=hosts)], start_new_session=True,
                                   env=os.environ | environ | {processes.MARK: mark}, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(job.wait)
            stack.callback(job.kill)
            jobs.append(job)
        stack.callback(processes.end_all, mark, 0)
        start = time.monotonic()
        for moment, job in sorted(zip(moments, jobs), key=lambda pair: pair[0])[:len(jobs) - spared]:
            time.sleep(max(0, moment - (time.monotonic() - start)))
            assert job.poll() is None, f"ended by itself, with status {job.returncode}"
            job.send_signal(getattr(signal, sent))
            job.wait()
        time.sleep(AFTER_S)
        left = processes.marked(mark)
        assert not left, f"left behind {AFTER_S:.0f} s after {sent}: {left}"
    assert _host() == before, "the host's interfaces, addresses, routes or mounts have changed"


def run(seed):
    """One signal, at random moments from the first on."""
    drawn = Drawn(seed)
    kill(list(drawn.uniform(0, 3, 1 + seed % 2)), SENT[seed // 2 % len(SENT)], drawn.ranks(2, 3),
         nobody=seed >= OWN)


def defect():
    """A job that goes on is found."""
    kill([0.5, 0.6], "SIGKILL", 2, spared=1)


PART = Part("links", f"`links.run`, alone or two at once, ended by a signal at a random moment, {OWN} times as "
            f"the user who runs the campaign (root, in this report) and {OWN} times as one without privileges: no process is left "
            f"after {AFTER_S:.0f} s, the host's interfaces, addresses, routes and mounts are as they were", 2 * OWN, run, defect,
            "left behind", unavailable=links.unavailable_reason)
