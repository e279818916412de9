"""Collectives by remote writes awaited in slice programs."""

import jobs
import pytest
from marks import exhaustive

CASES = ",".join(f"awaited_collectives_cases:{name}" for name in ("all_seven", "learned", "some_of_the_ranks"))
FAILURES = "awaited_collectives_cases:failures"  # MPI's communicators are left behind by design: new processes


@pytest.mark.parametrize("ranks", [exhaustive(1), 2, exhaustive(3)])
def test_on_any_number_of_ranks(ranks):
    jobs.run_job(CASES, ranks)


@pytest.mark.parametrize("ranks", [exhaustive(1), 2, exhaustive(3)])
def test_failures(ranks):
    jobs.run_job(FAILURES, ranks, fresh=True)


@pytest.mark.parametrize("cases", [CASES, exhaustive(f"{CASES},{FAILURES}")])
def test_between_nodes(cases):
    jobs.run_job(cases, 2, env={"MPIR_CVAR_NOLOCAL": "1"}, fresh=True)


@pytest.mark.parametrize("wait", [exhaustive("off"), "poll"])
def test_a_rank_that_never_comes_ends_the_job(wait):
    result = jobs.run_job("awaited_collectives_cases:never_comes", 2, expect_failure=True, args={"wait": wait})
    assert "Barrier on communicator 1 of slice" in result.err and "does not take part" in result.err
