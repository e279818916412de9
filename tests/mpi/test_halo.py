"""Halos on 1 to 5 ranks, over both transports, and mixed."""

import jobs
import pytest
from marks import exhaustive


@pytest.mark.parametrize("transport", ["window", "messages"])
@pytest.mark.parametrize("ranks", [1, 2, exhaustive(4)])
def test_blocks(ranks, transport):
    jobs.run_job("halo_cases:blocks", ranks, args={"transport": transport, "seeds": list(range(4))})


@pytest.mark.parametrize("transport", ["window", "messages"])
@pytest.mark.parametrize("ranks", [exhaustive(1), 2, exhaustive(3)])
def test_doubles_travel_as_singles(ranks, transport):
    jobs.run_job("halo_cases:singles", ranks, args={"transport": transport})
    jobs.run_job("halo_cases:blocks", ranks, args={"transport": transport, "seeds": [0, 1, 2], "exchange": "f4"})


@pytest.mark.parametrize("ranks", [1, 3])
def test_planes_without_a_copy(ranks):
    jobs.run_job("halo_cases:planes", ranks)


@pytest.mark.parametrize("ranks", [3, exhaustive(4)])
def test_some_neighbours_on_the_node_and_some_not(ranks):
    jobs.run_job("halo_cases:blocks", ranks, args={"transport": "auto", "seeds": list(range(6)), "mixed": True})
    jobs.run_job(
        "halo_cases:blocks", ranks, args={"transport": "auto", "seeds": [0, 1, 2], "mixed": True, "exchange": "f4"}
    )


def test_another_mpi_library():
    jobs.run_job("halo_cases:blocks", 2, mpi="openmpi", args={"transport": "auto", "seeds": [1, 2]})


@pytest.mark.parametrize("ranks", [1, 3])
def test_in_slice_programs(ranks):
    jobs.run_job("halo_cases:in_slices", ranks)


def test_wrong_arguments():
    jobs.run_job("halo_cases:wrong_arguments,apart", 3)


@pytest.mark.parametrize("transport", ["window", "messages"])
def test_one_error_on_all_ranks(transport):
    for case, ranks in (
        ("wrong_arrays", 3),
        ("failed_in_the_next_round", 3),
        ("late_in_recovery", 2),
        ("started_twice", 2),
        ("interrupted", 2),
    ):
        jobs.run_job(f"halo_cases:{case}", ranks, args={"transport": transport})


def test_a_rank_that_never_comes_ends_the_job():
    result = jobs.run_job("halo_cases:never_comes", 2, expect_failure=True)
    assert "a halo exchange has not completed" in result.err and "rank 0 does not take part" in result.err


@pytest.mark.parametrize("transport", ["window", "messages"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_arrays_outlive_a_halo(ranks, transport):
    jobs.run_job("halo_cases:arrays_outlive", ranks, args={"transport": transport})


@pytest.mark.parametrize("what", ["made", exhaustive("freed"), exhaustive("arrays")])
def test_a_rank_that_is_stopped_ends_the_job_with_stacks(what):
    result = jobs.run_job("halo_cases:lost_while_made", 3, args={"what": what}, expect_failure=True)
    assert "has not completed in 1." in result.err and "(deadline_s=1)" in result.err, result
    assert "in lost_while_made" in result.err, result
