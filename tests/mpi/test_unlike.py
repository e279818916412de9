"""Slices that differ, with what they await told as data; see `unlike_cases`."""

import jobs
import pytest
from marks import exhaustive


@pytest.mark.parametrize("ranks", [1, 2, 3, exhaustive(4)])
def test_slices_that_differ(ranks):
    # Slices that fail leave communicators behind, by design.
    jobs.run_job("unlike_cases:scalars_and_vectors,everything", ranks, fresh=True)


def test_under_open_mpi(openmpi):
    jobs.run_job("unlike_cases:scalars_and_vectors", 2, mpi="openmpi", fresh=True)
