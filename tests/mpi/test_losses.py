"""Ranks that are lost, under Open MPI with fault tolerance: who notices, and how the others go on."""

import jobs
import pytest
from marks import exhaustive

pytestmark = pytest.mark.usefixtures("openmpi")
DOINGS = (  # three at a time: of four ranks one is left
    ("planned", "auto"),
    ("planned", "off"),
    ("planned", "block"),
    ("planned", "poll"),
    ("fft3", "poll"),
    ("bracket", "poll"),
    ("slices", "off"),
    ("slices", "block"),
    ("slices", "poll"),
    ("halo", "auto"),
    ("halo_messages", "auto"),
    ("halo_slices", "poll"),
    ("collectives", "auto"),
    ("awaited_collectives", "poll"),
    ("solver", "auto"),
    ("pipelined_solver", "auto"),
    ("planning", "poll"),
    ("making", "poll"),
    ("coordinator", "auto"),
    ("arrays", "auto"),
    ("functions", "auto"),
    ("drop_in", "auto"),
    ("saving", "poll"),
)
BY_DEFAULT = 0, 6, 9


def lose(case, tmp_path, ranks=3, lost=1, **args):
    return jobs.run_job(f"loss_cases:{case}", ranks, mpi="ulfm", lost=lost, args={"folder": str(tmp_path), **args})


@pytest.mark.parametrize(
    "first", [first if first in BY_DEFAULT else exhaustive(first) for first in range(0, len(DOINGS), 3)]
)
def test_ranks_lost_between_calls(first, tmp_path):
    doings = DOINGS[first : first + 3]
    lose("survive", tmp_path, ranks=len(doings) + 1, lost=len(doings), doings=doings)


@pytest.mark.parametrize("wait, workers", [exhaustive("off", 1), exhaustive("block", 2), ("poll", 2)])
def test_a_rank_lost_in_a_step(wait, workers, tmp_path):
    lose("in_a_step", tmp_path, wait=wait, workers=workers)


@pytest.mark.parametrize("after", [exhaustive(1), 2, exhaustive(3)])
def test_a_rank_lost_while_a_runtime_is_made(after, tmp_path):
    lose("while_made", tmp_path, after=after)


@pytest.mark.exhaustive
def test_two_ranks_lost_at_once(tmp_path):
    lose("survive", tmp_path, ranks=4, lost=2, doings=[("planned", "poll")], victims=[1, 3])


@pytest.mark.parametrize("ranks, deaths", [(2, [(0, 70)]), exhaustive(3, [(1, 50), (2, 62)])])
def test_a_solver_goes_on(ranks, deaths, tmp_path):
    lose("navier_stokes", tmp_path, ranks=ranks, lost=len(deaths), deaths=deaths)


@pytest.mark.parametrize("ranks, death, split", [(2, [1, 22], {}), exhaustive(3, [0, 18], {"z": 1})])
def test_a_flux_tube_goes_on(ranks, death, split, tmp_path):
    lose("flux_tube", tmp_path, ranks=ranks, death=death, **split)


def test_blocks_are_left(tmp_path):
    lose("blocks", tmp_path)


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_without_fault_tolerance(mpi):
    jobs.run_job("loss_cases:refused", 2, mpi=mpi)


def test_it_is_the_same_on_all_ranks():
    jobs.run_job("loss_cases:differs", 2, mpi="ulfm", fresh=True)


def test_a_loss_that_another_rank_has_noticed():
    jobs.run_job("loss_cases:several_requests", 2, mpi="ulfm", fresh=True)
