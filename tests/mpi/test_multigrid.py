"""Multigrid and polynomial preconditioners on 1 to 8 ranks."""

import jobs
import pytest
from marks import exhaustive


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(4)])
def test_preconditioners(ranks):
    more = ",refused" if ranks > 1 else ""
    jobs.run_job(f"multigrid_cases:matrices,polynomials,cycles,solutions,slabs{more}", ranks)


@pytest.mark.exhaustive
def test_eight_ranks_and_few_cores():
    jobs.run_job("multigrid_cases:matrices,solutions", 8)


def test_a_rank_that_is_stopped_in_a_cycle_ends_the_job_with_stacks():
    result = jobs.run_job("multigrid_cases:stopped", 2, expect_failure=True)
    assert "has not completed in 1." in result.err and "in stopped" in result.err, result
