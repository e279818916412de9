"""The compiled loop that makes the calls of plans: failures at every step, signals, its crew."""

import jobs
import pytest
from marks import exhaustive


@pytest.mark.parametrize("ranks, workers", [(1, 2), (2, 1), (2, 2), exhaustive(3, 1), exhaustive(3, 3)])
def test_every_step_fails(ranks, workers):
    jobs.run_job("loop_cases:every_step_fails", ranks, args={"workers": workers})


@pytest.mark.parametrize("ranks", [2, exhaustive(3)])
def test_signals_while_it_waits(ranks):
    jobs.run_job("loop_cases:interrupted_while_it_waits", ranks)


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(3)])
def test_crew(ranks):
    jobs.run_job("loop_cases:crew_sleeps,loop_cases:plans_share_a_crew,loop_cases:forked", ranks)
