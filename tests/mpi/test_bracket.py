"""`Bracket` on 1 to 4 ranks and two MPI libraries; see `bracket_cases`."""

import jobs
import pytest
from marks import exhaustive


@pytest.mark.parametrize(
    "ranks, mode, points",
    [(1, "off", None), (2, "poll", None), (3, "block", [25, 26]), exhaustive(4, "auto", [27, 49])],
)
def test_direct_sum_over_modes(ranks, mode, points):
    jobs.run_job("bracket_cases:direct_sum", ranks, args={"mode": mode, "points": points})


@pytest.mark.parametrize("ranks", [1, 3])
def test_invariants(ranks):
    jobs.run_job("bracket_cases:invariants,speed", ranks)


@pytest.mark.parametrize("ranks", [2, exhaustive(4)])
def test_same_bits_on_any_ranks(ranks):
    jobs.run_job("bracket_cases:same_bits", ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_repeated_calls(ranks):
    jobs.run_job("bracket_cases:repeated_calls", ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_in_a_slice_program(ranks):
    jobs.run_job("bracket_cases:own_program,old_argument_of_apply", ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_settings_are_chosen(ranks):
    jobs.run_job("bracket_cases:planned", ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_bad_input(ranks):
    jobs.run_job("bracket_cases:bad_input", ranks)


@pytest.mark.parametrize("ranks, mode", [(1, "off"), (2, "poll"), (3, "block")])
def test_failure_on_one_rank(ranks, mode):
    jobs.run_job("bracket_cases:failure", ranks, args={"mode": mode})


@pytest.mark.parametrize("ranks, cases", [(2, "own_program"), exhaustive(3, "same_bits,own_program")])
def test_under_open_mpi(openmpi, ranks, cases):
    jobs.run_job(f"bracket_cases:{cases}", ranks, mpi="openmpi")
