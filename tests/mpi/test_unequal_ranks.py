"""Uneven shares on 1 to 4 ranks; see `weights_cases`.

Plans, halos and arrays draw weights in tests of their own, too.
"""

import jobs
import pytest
from marks import exhaustive


@pytest.mark.parametrize("ranks", [2, exhaustive(4)])
def test_bad_weights_and_numbers_of_messages(ranks):
    jobs.run_job("weights_cases:refused,messages,fewer_rows_than_units", ranks)


@pytest.mark.parametrize("ranks", [exhaustive(1), 2, exhaustive(3)])
def test_balanced_plans(ranks, tmp_path):
    jobs.run_job("weights_cases:balanced", ranks, args={"path": str(tmp_path / "tuning.json")})
    jobs.run_job("weights_cases:measured,measured_blocks,brackets", ranks)


@pytest.mark.parametrize("ranks", [1, 3, exhaustive(4)])
def test_the_drop_in_takes_weights(ranks):
    jobs.run_job("weights_cases:drop_in", ranks)


@pytest.mark.parametrize("ranks", [exhaustive(1), 2])
def test_computing_and_waiting_are_counted(ranks):
    jobs.run_job("weights_cases:loads,loads_of_plans", ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3, exhaustive(4)])
def test_given_shares(ranks):
    jobs.run_job("shares_cases:planes,fields,axes_apart,blocks_and_arrays,refused", ranks)


@pytest.mark.parametrize("ranks", [exhaustive(1), 2, 3, exhaustive(4)])
def test_shares_and_weights_of_any_axes(ranks):
    jobs.run_job("shares_cases:any_axes", ranks)


def test_given_shares_under_open_mpi(openmpi):
    jobs.run_job("shares_cases:planes,blocks_and_arrays", 2, mpi="openmpi")
