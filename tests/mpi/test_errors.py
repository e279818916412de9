"""Error semantics (design section 7): no hang, ever, and the same exception on all ranks."""

import jobs
import pytest


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("wait", ["off", "block", "poll"])
def test_failure_at_every_site(wait, ranks):
    jobs.run_job("error_cases:injected", ranks, args={"wait": wait})


@pytest.mark.parametrize("agree_every", [1, 3])
def test_failure_with_frequent_agreements(agree_every):
    jobs.run_job("error_cases:injected", 4, args={"wait": "poll", "agree_every": agree_every})


@pytest.mark.parametrize("wait", ["block", "poll"])
def test_failure_under_open_mpi(openmpi, wait):
    jobs.run_job("error_cases:injected", 3, mpi="openmpi", args={"wait": wait})


@pytest.mark.parametrize("case", ["several_ranks_at_once", "results_survive", "different_programs",
                                  "input_errors", "skeletons", "program_that_cannot_be_called",
                                  "programs_that_clean_up", "truncated",
                                  "buffers_after_a_bad_start"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_errors_are_agreed_on(case, ranks):
    jobs.run_job(f"error_cases:{case}", ranks, deadline_s=30)


@pytest.mark.parametrize("case", ["several_ranks_at_once", "input_errors", "different_programs",
                                  "truncated", "interrupted"])
def test_errors_are_agreed_on_under_open_mpi(openmpi, case):
    jobs.run_job(f"error_cases:{case}", 2, mpi="openmpi", deadline_s=30)


def test_hundreds_of_errors():
    jobs.run_job("error_cases:every_rank_is_told_once", 2)


@pytest.mark.parametrize("case", ["interrupted", "interrupted_at_the_end",
                                  "interrupted_while_failing", "interrupted_in_preflight"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_keyboard_interrupt(case, ranks):
    jobs.run_job(f"error_cases:{case}", ranks, deadline_s=20)


@pytest.mark.parametrize("wait, how", [("off", "sleeps"), ("block", "sleeps"), ("poll", "sleeps"),
                                       ("poll", "absent"), ("block", "stopped"),
                                       ("poll", "stopped"), ("poll", "raises")])
def test_deadline_ends_the_job(wait, how):
    result = jobs.run_job("error_cases:lost", 3, deadline_s=20, expect_failure=True,
                          args={"wait": wait, "how": how, "deadline_s": 1})
    assert result.finished == ()
    assert result.wall_s < 12, result
    assert "has not completed in 1." in result.err and "(deadline_s=1)" in result.err, result
    assert "Thread 0x" in result.err and "in lost" in result.err, result  # the stacks


@pytest.mark.parametrize("wait", ["off", "block", "poll"])
def test_killed_rank_ends_the_job(wait):
    result = jobs.run_job("error_cases:lost", 3, deadline_s=20, expect_failure=True,
                          args={"wait": wait, "how": "killed", "deadline_s": 2})
    assert result.finished == () and result.wall_s < 12, result


@pytest.mark.parametrize("how", ["sleeps", "killed", "stopped"])
def test_lost_rank_under_open_mpi(openmpi, how):
    result = jobs.run_job("error_cases:lost", 3, mpi="openmpi", deadline_s=30, expect_failure=True,
                          args={"wait": "poll", "how": how, "deadline_s": 1})
    assert result.finished == () and result.wall_s < 20, result
