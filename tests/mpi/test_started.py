"""Operations that are started now and awaited later, persistent ones, and awaits that were forgotten."""

import jobs
import pytest
from marks import exhaustive

CASES = (
    "started",
    "messages",
    "persistent",
    "persistent_of_slots",
    "failing_with_one_pending",
    "forgotten",
    "left_by_another_slice",
    "other_than_expected",
)


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(3)])
@pytest.mark.parametrize("case", CASES)
def test_on_ranks(case, ranks):
    # Its first slice fails while the ranks learn: all stop at once, and what only some had started is left behind.
    jobs.run_job(f"started_cases:{case}", ranks, fresh=case == "persistent_of_slots")


def test_what_is_started_wakes_nobody():
    jobs.run_job("started_cases:what_is_started_wakes_nobody", 2, fresh=True, deadline_s=60)


@pytest.mark.parametrize("ranks", [2, exhaustive(3)])
def test_pending_at_the_end(ranks):
    jobs.run_job("started_cases:pending_at_the_end", ranks, fresh=True)


@pytest.mark.parametrize("wait", ["poll", "block", "off"])
def test_the_deadline_covers_the_wait_for_a_persistent_operation(wait):
    failed = jobs.run_job(
        "started_cases:persistent_in_use_for_ever", 2, args={"wait": wait}, deadline_s=60, expect_failure=True
    )
    assert "Recv_init" in failed.err and "deadline_s=1)" in failed.err, failed
