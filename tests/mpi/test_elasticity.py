"""The example of the elastic cube."""

import jobs
import pytest


@pytest.mark.parametrize("ranks", [1, 3])
def test_cubes(ranks):
    jobs.run_job("elasticity_cases:cubes", ranks)
