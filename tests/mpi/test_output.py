"""`Output`: steps of fields in one file; see `output_cases` for what is asserted."""

import jobs
import pytest
from marks import exhaustive

ALL = "written,in_small_pieces,bad_input,different_outputs,without_h5py"


@pytest.mark.parametrize("ranks", [1, 2, 3, exhaustive(4)])
def test_output(ranks):
    jobs.run_job("output_cases:" + ALL, ranks)


def test_under_open_mpi(openmpi):
    jobs.run_job("output_cases:written,in_small_pieces", 2, mpi="openmpi")


def test_jobs_go_on_where_others_have_stopped(tmp_path):
    for ranks in (1, 2, 3):
        jobs.run_job("output_cases:gone_on", ranks, args={"path": str(tmp_path / "run.h5"), "ranks": ranks})


def test_full_disk():
    jobs.run_job("output_cases:full_disk", 2, fresh=True)


@pytest.mark.parametrize("calls", [2, 7, *map(exhaustive, (0, 1, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13))])
def test_the_writer_is_killed(calls, tmp_path):
    path = str(tmp_path / "run.h5")
    jobs.run_job("output_cases:writer_dies", 1, args={"path": path, "calls": calls}, expect_failure=True)
    jobs.run_job("output_cases:what_is_left", 2, args={"path": path})


@pytest.mark.parametrize("victim", [0, exhaustive(2)])
def test_a_rank_is_lost(victim, openmpi, tmp_path):
    args = {"path": str(tmp_path / "run.h5"), "victim": victim}
    jobs.run_job("output_cases:rank_lost", 3, mpi="ulfm", lost=1, args=args)
