"""The functions with scipy.fft's names on 1 to 3 ranks; see `functional_cases`."""

import jobs
import pytest


@pytest.mark.parametrize("ranks", [1, 2])
def test_functions(ranks):
    jobs.run_job(
        "functional_cases:like_scipy,any_axes,of_one_axis,other_lengths,refused,inverse_of_a_plain_array,"
        "threads_are_agreed,asked_differently,served_differently,served_alike,"
        "plans_are_kept_and_bounded,freed_beside_other_attributes,numpy_counts",
        ranks,
    )


def test_backend_of_scipy():
    jobs.run_job("functional_cases:scipy_backend", 1)
