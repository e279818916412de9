"""Which arrays are taken as input; see `accepted_cases`, and the page of the documentation with its table."""

import jobs
import pytest
from marks import exhaustive


@pytest.mark.parametrize(
    "ranks, mpi", [(1, "mpich"), (2, "mpich"), exhaustive(3, "mpich"), exhaustive(2, "openmpi")], indirect=["mpi"]
)
def test_inputs_are_taken_as_the_page_says(ranks, mpi):
    jobs.run_job("accepted_cases:as_the_page_says,refused_alike", ranks, mpi=mpi)
