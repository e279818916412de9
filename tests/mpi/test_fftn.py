"""`FFTN` on 1 to 4 ranks and two MPI libraries; see `fftn_cases` for what is asserted."""

import itertools

import jobs
import pytest
from marks import exhaustive

CASES = "fftn_cases:dimensions,splits,staying,real_lines,lengths,lengths_of_kinds,walls,others,refused"


@pytest.mark.parametrize("ranks", [1, 2, 3, exhaustive(4)])
def test_along_any_axes(ranks):
    jobs.run_job(CASES, ranks)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_length_of_an_axis_that_stays_split(ranks):
    jobs.run_job("fftn_cases:lines", ranks)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_kind_of_every_length(ranks):
    jobs.run_job("fftn_cases:lengths_of_kinds", ranks, args={"most": 8})


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_some_modes(ranks):
    jobs.run_job("modes_cases:modes,refused", ranks)


def test_under_open_mpi(openmpi):
    jobs.run_job("fftn_cases:dimensions,splits,staying", 2, mpi="openmpi")


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_order_of_axes(count, dtype, ranks):
    for size in range(1, count + 1):
        for axes in itertools.permutations(range(count), size):
            jobs.run_job(
                "fftn_cases:transformed",
                ranks,
                args={"shape": [5, 6, 4, 7][:count], "dtype": dtype, "axes": list(axes)},
            )
