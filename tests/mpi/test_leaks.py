"""Work that is done over and over leaves nothing in the process; see `memory_cases`, which counts."""

import jobs
import pytest
from marks import exhaustive


@pytest.mark.parametrize(
    "ranks, cases",
    [
        exhaustive(1, "closed_plans,destroyed_plans,resident_set_of_plans,calls_of_a_plan,failing_calls"),
        (2, "calls_of_a_plan"),
    ],
)
def test_nothing_is_kept(ranks, cases):
    jobs.run_job(f"memory_cases:{cases}", ranks, fresh=True, deadline_s=600)
