"""The flux tube killed at random moments, again and again: an interval is lost at most each time, and no bit of the
result.
"""

import functools
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import commands
import h5py
import numpy as np
import processes
from test_gkv import SHORT

from overlap.tools import launch

from . import stepping
from .draw import Drawn
from .harness import Part

KILLS, EVERY, DEADLINE_S = 4, 4, 300.0
CONFIG = SHORT.format(end=3.0)  # a checkpoint every `EVERY` steps


class Run:
    """A folder in which the flux tube runs, ends or is killed, and goes on.

    Attributes
    ----------
    notes : list of (int, float)
        The steps made by the last start, and when.
    """

    def __init__(self, folder, ranks, mpi):
        self.folder, self.ranks, self.mpi = Path(folder), ranks, mpi
        self.config, self.out, self._notes = (self.folder / name for name in ("run.toml", "out", "notes"))
        self.config.write_text(CONFIG)

    def start(self):
        """A process that goes on from the newest checkpoint, if there is one."""
        self._notes.write_text("")
        launcher, environ = processes.launcher_command(self.mpi, self.folder)
        return commands.process(
            *launcher,
            "-n",
            self.ranks,
            sys.executable,
            stepping.__file__,
            self._notes,
            "turbulence",
            "--config",
            self.config,
            "--out",
            self.out,
            *["--restart"] * bool(self.checkpoints()),
            env=environ | dict([launch.THREAD_LEVEL]),
        )

    @property
    def notes(self):
        *lines, _ = self._notes.read_text().split("\n")
        return [(int(step), float(moment)) for step, moment in map(str.split, lines)]

    def checkpoints(self):
        """Steps of the checkpoints, the newest last."""
        return [int(path.stem.split("-")[1]) for path in self._paths()]

    def _paths(self):
        return sorted(self.out.glob("checkpoint-*.h5"))

    def kept(self):
        """The step from which the next start goes on."""
        return max(self.checkpoints(), default=0)

    def end(self, job):
        """Wait for a start to end well."""
        _, said = job.communicate(timeout=DEADLINE_S)
        assert job.returncode == 0, said

    def kill(self, job, steps, later_s):
        """Kill all ranks some time after so many steps; True if they were still running."""
        end = time.monotonic() + DEADLINE_S
        while len(self.notes) < steps and job.poll() is None:
            assert time.monotonic() < end, f"{steps} steps were not made in {DEADLINE_S:.0f} s"
            time.sleep(0.005)
        try:
            job.wait(later_s)
        except subprocess.TimeoutExpired:
            processes.end_all(job.mark, 0)
            return True
        assert job.returncode == 0, job.stderr.read()
        return False

    def result(self):
        """The state at the end and all that the output holds, as arrays by name."""
        found = {}
        for path in (self._paths()[-1], self.out / "output.h5"):
            with h5py.File(path) as file:
                file.visititems(
                    lambda name, data: (
                        found.update({f"{path.name}: {name}": np.array(data)})
                        if isinstance(data, h5py.Dataset)
                        else None
                    )
                )
        return found


@dataclass(frozen=True)
class Undisturbed:
    """A run that nobody kills: its result, its number of steps, and seconds before them, of one, and after them."""

    result: dict
    steps: int
    before_s: float
    step_s: float
    after_s: float


@functools.cache
def undisturbed(ranks, mpi):
    """The run with which killed ones are compared."""
    with tempfile.TemporaryDirectory(prefix="overlap-gkv-") as folder:
        run, start = Run(folder, ranks, mpi), time.monotonic()
        with run.start() as job:
            run.end(job)
        moments = [moment for _, moment in run.notes]
        return Undisturbed(
            run.result(),
            len(moments),
            moments[0] - start,
            (moments[-1] - moments[0]) / (len(moments) - 1),
            time.monotonic() - moments[-1],
        )


def kill(drawn, ranks, mpi, kills=KILLS, other=0.0):
    """Kill a run so often, at moments of its start, of its steps or of its end, and compare what it comes to."""
    expected = undisturbed(ranks, mpi)
    with tempfile.TemporaryDirectory(prefix="overlap-gkv-") as folder:
        run = Run(folder, ranks, mpi)
        while kills:
            kept = run.kept()
            steps = int(drawn.integers(0, expected.steps - kept + 1))
            longest_s = (
                expected.before_s
                if steps == 0
                else expected.after_s
                if steps == expected.steps - kept
                else 2 * expected.step_s
            )
            with run.start() as job:
                kills -= run.kill(job, steps, float(drawn.uniform(0, longest_s)))
            _check(run, kept)
        kept = run.kept()
        with run.start() as job:
            run.end(job)
        _check(run, kept)
        assert run.kept() == expected.steps, f"ended at step {run.kept()}, not {expected.steps}"
        made = json.loads((run.out / "figures.json").read_text())["cost"]["steps"]
        assert made == expected.steps - kept, f"made {made} steps after step {kept}"
        result = run.result()
        assert result.keys() == expected.result.keys()
        for name, values in result.items():
            assert np.array_equal(values + other, expected.result[name]), (
                f"{name} differs from that of a run without a kill"
            )


def _check(run, kept):
    """The last start went on from the newest checkpoint, and less than an interval of its steps is lost."""
    made = [step for step, _ in run.notes]
    assert made == list(range(kept + 1, kept + 1 + len(made))), f"after step {kept}: {made}"
    reached = kept + len(made)
    assert 0 <= reached - run.kept() <= EVERY, (
        f"step {run.kept()} was kept, and {reached} reached: an interval was lost"
    )


def run(seed):
    """One run, killed several times."""
    drawn = Drawn(seed)
    kill(drawn, drawn.ranks(1, 3), drawn.library())


def defect():
    """Another result is found."""
    kill(Drawn(0), 1, "mpich", kills=1, other=1e-12)


PART = Part(
    "restarts",
    f"the flux tube on 1 to 3 ranks, killed (SIGKILL, all ranks) {KILLS} times one after the other, at random "
    "moments of its start, its steps, its checkpoints and its end: each time it goes on from the newest checkpoint, "
    "which "
    f"is no more than one interval ({EVERY} steps) behind the last step made; and the end is bit-equal to that of a "
    "run without a kill",
    100,
    run,
    defect,
    "differs from that of a run without a kill",
    KILLS,
)
