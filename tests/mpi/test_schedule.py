"""Plans as data: run, traced, printed and simulated by the same code."""

import jobs
import pytest
from marks import exhaustive

CASES = "traced_is_what_runs,printed,other_arrays"


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(3)])
def test_one_schedule_serves_all(ranks):
    jobs.run_job(f"schedule_cases:{CASES}", ranks)
