"""`overlap.Transpose` on 1 to 4 ranks; see `transpose_cases`."""

import jobs
import pytest
from marks import exhaustive


@pytest.mark.parametrize("ranks", [1, 2, 3, exhaustive(4)])
def test_against_numpy(ranks):
    jobs.run_job("transpose_cases:every_pair,shapes,of_records,in_programs,refused", ranks)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_type(ranks):
    jobs.run_job("transpose_cases:every_pair", ranks, args={"every": True})


def test_under_open_mpi(openmpi):
    jobs.run_job("transpose_cases:every_pair,in_programs", 2, mpi="openmpi")
