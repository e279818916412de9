"""`DistArray` on 1 to 4 ranks; see `distarray_cases` for what is asserted."""

import jobs
import pytest
from marks import exhaustive

ALL = ",".join(
    (
        "views",
        "without_a_place",
        "in_place",
        "arithmetic",
        "two_communicators",
        "other_arguments_on_one_rank",
        "of_plans",
        "of_other_plans",
        "parts",
        "pickles",
        "redistributed",
        "different_arrays",
        "masked",
        "shown",
        "files",
        "bad_files",
        "written_cases:broadcasting",
        "written",
        "gathered_cases:in_pieces",
        "what_cannot_be_saved",
        "empty_axes",
    )
)


@pytest.mark.parametrize("ranks", [1, exhaustive(2), 3, exhaustive(4)])
def test_arrays_that_know_where_they_belong(ranks):
    jobs.run_job("distarray_cases:" + ALL, ranks)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_ways_to_write_into_an_array(ranks):
    jobs.run_job("written_cases:written", ranks, args={"every": True}, deadline_s=1500)


@pytest.mark.parametrize("cases", ["arithmetic,of_plans,parts,redistributed,files", exhaustive(ALL)])
def test_under_open_mpi(openmpi, cases):
    jobs.run_job(f"distarray_cases:{cases}", 2, mpi="openmpi")
