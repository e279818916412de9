"""The flux tube killed at a random moment and started again: one interval is lost at most, and no bit of the result."""

import functools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import commands
import h5py
import numpy as np
import processes

from overlap.tools import launch

from .draw import Drawn
from .harness import Part

RUN = processes.REPOSITORY / "examples" / "gkv" / "run.py"
EVERY, DEADLINE_S = 4, 600.0
CONFIG = f"""
[grid]
nx = 4
ny = 3
nz = 8
nv = 12
nmu = 5
[time]
end = 3.0
sample_every = 2
checkpoint_every = {EVERY}
"""


def _start(folder, ranks, *more):
    config = Path(folder, "run.toml")
    config.write_text(CONFIG)
    launcher, environ = processes.launcher_command("mpich")
    return commands.process(*launcher, "-n", ranks, sys.executable, RUN, "turbulence", "--config", config, "--out",
                            Path(folder, "out"), *more, env=environ | dict([launch.THREAD_LEVEL]))


def _finish(folder, ranks, *more):
    """Run to the end; returns the step at the end and how many were made now."""
    with _start(folder, ranks, *more) as job:
        _, said = job.communicate(timeout=DEADLINE_S)
        assert job.returncode == 0, said
    newest = _checkpoints(folder)[-1]
    return newest, json.loads(Path(folder, "out", "figures.json").read_text())["cost"]["steps"]


def _checkpoints(folder):
    return sorted(Path(folder, "out").glob("checkpoint-*.h5"))


def _step(path):
    return int(path.stem.split("-")[1])


def _state(path):
    with h5py.File(path) as file:
        return {"f": np.array(file["f"]), **{name: np.array(values) for name, values in file["history"].items()}}


@functools.cache
def undisturbed(ranks):
    """The state at the end of a run that nobody kills, its step, and how long it took."""
    with tempfile.TemporaryDirectory(prefix="overlap-gkv-") as folder:
        start = time.monotonic()
        newest, _ = _finish(folder, ranks)
        return _state(newest), _step(newest), time.monotonic() - start


def kill(ranks, share, other=0.0):
    """Kill a run after a share of the time that it takes, start it again, and compare."""
    expected, end, wall_s = undisturbed(ranks)
    with tempfile.TemporaryDirectory(prefix="overlap-gkv-") as folder:
        with _start(folder, ranks) as job:
            try:
                job.wait(share * wall_s)
            except subprocess.TimeoutExpired:
                processes.end_all(job.mark, 0)
        before = _checkpoints(folder)
        kept = _step(before[-1]) if before else 0
        newest, made = _finish(folder, ranks, *["--restart"] * bool(before))
        assert _step(newest) == end, f"ended at step {_step(newest)}, not {end}"
        assert made == end - kept, f"made {made} steps after step {kept}: the newest checkpoint was not used"
        assert len(before) < 2 or _step(before[-1]) - _step(before[-2]) <= EVERY, "an interval was lost"
        for name, values in _state(newest).items():
            assert np.array_equal(values + other, expected[name]), f"{name} differs from that of a run without a kill"


def run(seed):
    """One kill at a random moment."""
    drawn = Drawn(seed)
    kill(drawn.ranks(1, 3), float(drawn.uniform(0, 1)))


def defect():
    """Another result is found."""
    kill(1, 0.8, other=1e-12)


PART = Part("restarts", "the flux tube on 1 to 3 ranks, killed (SIGKILL, all ranks) at a random moment and started again: it goes "
            "on from the newest checkpoint, intervals are complete, and the end is bit-equal to that of a run without a kill",
            100, run, defect, "differs from that of a run without a kill")
