"""Reductions, filling, spectral operators and time steppers."""

import jobs
import pytest


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_reductions_and_filling(ranks):
    jobs.run_job("spectral_cases:reductions,reductions_of_all_kinds,filling", ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_operators(ranks):
    for order, dtype in (("natural", "f8"), ("transposed", "c16")):
        jobs.run_job("spectral_cases:operators_in_2d", ranks, args={"order": order, "dtype": dtype})
    jobs.run_job("spectral_cases:operators_in_3d,spectra_of_which_some_rank_holds_nothing", ranks)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [4, 5])
def test_some_rank_holds_nothing(ranks):
    jobs.run_job("spectral_cases:spectra_of_which_some_rank_holds_nothing", ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_time_steppers(ranks):
    jobs.run_job("spectral_cases:time_steppers,time_steppers_of_any_use", ranks)


def test_under_open_mpi():
    jobs.run_job("spectral_cases:reductions,filling,operators_in_3d", 2, mpi="openmpi")
