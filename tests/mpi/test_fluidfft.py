"""The classes for fluidfft, by its own tests and against numpy."""

import jobs
import pytest
from marks import exhaustive


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(3), exhaustive(4)])
def test_fluidfft_on_our_classes(ranks):
    jobs.run_job("fluidfft_cases:suites,against_numpy", ranks)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [1, 2])
def test_fluidfft_under_open_mpi(ranks, openmpi):
    jobs.run_job("fluidfft_cases:suites,against_numpy", ranks, mpi="openmpi")
