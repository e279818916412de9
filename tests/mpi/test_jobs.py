"""The harness: what it must notice, it notices."""

import jobs
import pytest


def test_every_rank_runs_the_case(mpi):
    result = jobs.run_job("jobs_cases:succeed", 3, mpi=mpi, args={"word": "greetings"})
    for rank in range(3):  # the launcher may join lines
        assert result.out.count(f"greetings from rank {rank} of 3") == 1, result


def test_failed_assertion_names_its_rank(mpi):
    with pytest.raises(jobs.JobFailed, match=r"\[rank 1\] AssertionError: this is wrong"):
        jobs.run_job("jobs_cases:fail_an_assertion", 2, mpi=mpi, args={"rank": 1})


@pytest.mark.parametrize("case, shown", [
    ("warn", "UserWarning: careful"),
    ("raise_in_a_thread", "ZeroDivisionError: in a thread"),
    ("raise_where_nobody_sees", "RuntimeWarning: coroutine .* was never awaited"),
    ("end_early", r"finished ranks \(\)"),
])
def test_what_else_fails_a_job(case, shown):
    with pytest.raises(jobs.JobFailed, match=shown):
        jobs.run_job(f"jobs_cases:{case}", 2)


def test_hang_shows_stacks_and_leaves_nobody():
    with pytest.raises(jobs.JobFailed, match=r"(?s)in hang"):
        jobs.run_job("jobs_cases:hang", 2, deadline_s=2)


def test_orphan_is_found_and_ended(monkeypatch):
    monkeypatch.setattr(jobs, "GRACE_S", 0.5)
    with pytest.raises(jobs.JobFailed, match="left processes behind: .*sleep"):
        jobs.run_job("jobs_cases:leave_an_orphan", 2)


def test_success_where_failure_was_expected():
    with pytest.raises(jobs.JobFailed, match="expected to fail"):
        jobs.run_job("jobs_cases:succeed", 1, args={"word": ""}, expect_failure=True)
