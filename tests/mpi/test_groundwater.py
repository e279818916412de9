"""The example of groundwater."""

import jobs
import pytest
from marks import exhaustive


@pytest.mark.parametrize("ranks", [1, exhaustive(4)])
def test_example(ranks):
    jobs.run_job("groundwater_cases:example", ranks)


def test_a_finer_switching_level_takes_fewer_iterations():
    jobs.run_job("groundwater_cases:many_subdomains", 1)
