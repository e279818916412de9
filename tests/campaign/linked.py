"""`overlap links`, killed at random moments, also two at once, by root and by nobody: nothing of it is left after a
second.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import nobody
import processes

from overlap.tools import links

from .draw import Drawn
from .harness import Part

AFTER_S = 1.0  # by then all is gone
OWN = 200  # seeds of the user who runs the campaign; the following ones are of an unprivileged user
PROGRAM = "from overlap.tools import links; raise SystemExit(links.run(['sleep', '1000'], hosts={hosts}))"
SENT = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")


def _host():
    """What must stay as it was: interfaces, addresses, routes, mounts."""
    return (
        socket.if_nameindex(),
        Path("/proc/net/fib_trie").read_text(),
        Path("/proc/net/route").read_text(),
        sorted(Path("/proc/self/mountinfo").read_text().splitlines()),
    )


def kill(moments, sent, hosts, spared=0, privileged=True):
    """Start as many jobs as there are moments, and end each at its own."""
    python, environ = ([sys.executable], {}) if privileged else nobody.interpreter()
    before, mark = _host(), uuid.uuid4().hex
    with ExitStack() as stack:
        jobs = []
        for _ in moments:
            job = subprocess.Popen(
                [*python, "-c", PROGRAM.format(hosts=hosts)],
                start_new_session=True,
                env=os.environ | environ | {processes.MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(job.wait)
            stack.callback(job.kill)
            jobs.append(job)
        stack.callback(processes.end_all, mark, 0)
        start = time.monotonic()
        for moment, job in sorted(zip(moments, jobs), key=lambda pair: pair[0])[: len(jobs) - spared]:
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
    kill(list(drawn.uniform(0, 3, 1 + seed % 2)), SENT[seed // 2 % len(SENT)], drawn.ranks(2, 3), privileged=seed < OWN)


def defect():
    """A job that goes on is found."""
    kill([0.5, 0.6], "SIGKILL", 2, spared=1)


PART = Part(
    "links",
    f"`links.run`, alone or two at once, ended by a signal at a random moment, {OWN} times as "
    f"the user who runs the campaign (root, in this report) and {OWN} times as one without privileges: no process is "
    "left "
    f"after {AFTER_S:.0f} s, the host's interfaces, addresses, routes and mounts are as they were",
    2 * OWN,
    run,
    defect,
    "left behind",
    unavailable=links.unavailable_reason,
)
