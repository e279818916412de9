"""Beside one busy process per core, and with twice as many ranks as cores: slower, but no deadline is hit."""

import functools
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager

import commands

from .harness import Part

FACTOR = 4  # of the time without other work
DEMO = ("demo", "--slices", "8", "--rates", "2gbit")


@contextmanager
def busy(count):
    """Processes that compute for as long as the block takes."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def timed(*arguments):
    """Seconds that a demo takes; it must succeed."""
    with tempfile.TemporaryDirectory(prefix="overlap-busy-") as folder:
        start = time.monotonic()
        status, _, said = commands.overlap(*DEMO, "--out", folder, *arguments)
        assert status == 0, f"the demo ended with status {status}: {said}"
        return time.monotonic() - start


@functools.cache
def quiet_s():
    """Seconds without other work."""
    return timed()


def compare(loops, *arguments, factor=FACTOR):
    """A demo beside some busy processes, against one without."""
    with busy(loops):
        loaded_s = timed(*arguments)
    print(
        f"demo {' '.join(map(str, arguments))} beside {loops} busy processes: {loaded_s:.1f} s, without "
        f"{quiet_s():.1f} s"
    )
    assert loaded_s <= factor * quiet_s(), f"took {loaded_s:.1f} s, and {quiet_s():.1f} s without other work"


def run(seed):
    """Busy processes, or too many ranks, in turn."""
    cores = len(os.sched_getaffinity(0))
    if seed % 2 == 0:
        compare(cores)
    else:
        compare(0, "--ranks", 2 * cores)


def defect():
    """A demo that takes too long is found."""
    compare(0, factor=0.01)


PART = Part(
    "busy",
    f"`overlap demo` of few planes beside one busy process per core, or with two ranks per core: it ends well, no "
    f"deadline is hit, and it takes no more than {FACTOR} times as long as without",
    10,
    run,
    defect,
    "without other work",
)
