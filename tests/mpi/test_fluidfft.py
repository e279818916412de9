"""The classes for fluidfft, by its own tests and against numpy."""

import jobs
import pytest


@pytest.mark.parametrize("ranks", [1, 2])
def test_fluidfft_on_our_classes(ranks):
    jobs.run_job("fluidfft_cases:suites,against_numpy", ranks)
