"""The scheduler at its edges: waits without end, single issues, irregular programs, leftovers."""

import jobs
import pytest
from marks import exhaustive

# What these cases test leaves communicators behind: new processes.
CASES = (
    "wait_without_end",
    "issued_once",
    "error_of_none_in_particular",
    "nothing_is_kept",
    "first_of_parallel",
    "irregular_without_skeleton",
    "one_rank_is_irregular",
    "ranks_await_otherwise",
    "nothing_is_left_behind",
)


@pytest.mark.parametrize("ranks", [exhaustive(1), 2, exhaustive(3)])
def test_on_any_number_of_ranks(ranks):
    jobs.run_job(f"scheduler_cases:{','.join(CASES)}", ranks, fresh=True)


def test_messages_between_slices():
    jobs.run_job("scheduler_cases:left_behind", 2, fresh=True)


def test_more_failures_than_mpi_has_communicators():
    jobs.run_job("exhaustion_cases:more_failures_than_communicators", 2, fresh=True)
