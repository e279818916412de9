"""The commands as a person runs them, as processes that leave nothing behind."""

import os
import subprocess
import sys
import uuid
from contextlib import contextmanager

import processes

from overlap.tools.dead_segments import removing_segments

DEADLINE_S = 300  # generous: it only turns a hang into a failure


@contextmanager
def started(*arguments, launcher=(), env=None):
    """`overlap ...` as a process, whose descendants carry a mark; none may be left behind."""
    with process(*launcher, sys.executable, "-m", "overlap", *arguments, env=env) as command:
        yield command


@contextmanager
def process(*command, env=None, cwd=None):
    """Any command, likewise."""
    mark = uuid.uuid4().hex
    running = subprocess.Popen(
        list(map(str, command)),
        env=os.environ | {processes.MARK: mark} | (env or {}),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    running.mark = mark
    with removing_segments():
        try:
            yield running
        finally:
            left = processes.end_all(mark, 0 if running.poll() is None else processes.GRACE_S)
            running.kill()
            running.communicate()
    assert not left, f"left processes behind: {left}"


def overlap(*arguments, **options):
    """Run a command to its end; (status, stdout, stderr)."""
    with started(*arguments, **options) as command:
        out, err = command.communicate(timeout=DEADLINE_S)
    return command.returncode, out, err


def run(*command, timeout=DEADLINE_S, **options):
    """Run any command to its end, without input; what it printed is text."""
    options |= {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": timeout}
    return subprocess.run(list(map(str, command)), **options)
