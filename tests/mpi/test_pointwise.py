"""`FFT2.pointwise` on 1 to 4 ranks and two MPI libraries; see `pointwise_cases`."""

import jobs
import pytest
from marks import exhaustive


@pytest.mark.parametrize("ranks, dtype", [(1, "f8"), (2, "f8"), (3, "c16"), exhaustive(4, "f8")])
def test_conservation_laws(ranks, dtype):
    jobs.run_job("pointwise_cases:conserved", ranks, args={"dtype": dtype})


@pytest.mark.parametrize(
    "ranks, dtype, mode", [(1, "f8", "auto"), (2, "c16", "poll"), (3, "f8", "block"), exhaustive(4, "f8", "off")]
)
def test_closed_form(ranks, dtype, mode):
    jobs.run_job("pointwise_cases:closed_form", ranks, args={"dtype": dtype, "mode": mode})


@pytest.mark.parametrize(
    "ranks, dtype, order, mode",
    [
        (1, "c16", "natural", "poll"),
        (2, "f8", "natural", "auto"),
        (3, "f8", "transposed", "block"),
        exhaustive(4, "c16", "transposed", "poll"),
        exhaustive(4, "f8", "natural", "off"),
    ],
)
def test_direct_sum_over_modes(ranks, dtype, order, mode):
    jobs.run_job("pointwise_cases:direct_sum", ranks, args={"dtype": dtype, "order": order, "mode": mode})


@pytest.mark.parametrize(
    "ranks, dtype, dealias, mode",
    [
        (1, "f8", "3/2", "block"),
        (2, "f8", "3/2", "poll"),
        (2, "c16", "3/2", "off"),
        exhaustive(3, "c8", "3/2", "poll"),
        (3, "f8", None, "block"),
        exhaustive(4, "f4", "3/2", "poll"),
        exhaustive(4, "c16", None, "poll"),
    ],
)
def test_any_sizes(ranks, dtype, dealias, mode):
    jobs.run_job("pointwise_size_cases:sizes", ranks, args={"dtype": dtype, "dealias": dealias, "mode": mode})


@pytest.mark.parametrize("ranks", [1, 3])
def test_nyquist_modes_are_dropped(ranks):
    jobs.run_job("pointwise_size_cases:nyquist_dropped", ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_points_of_the_finer_grid(ranks):
    jobs.run_job("pointwise_size_cases:finer_grid", ranks)


@pytest.mark.parametrize("ranks, mode", [(1, "off"), (2, "block"), exhaustive(3, "poll")])
def test_ways_to_write_the_function(ranks, mode):
    jobs.run_job("pointwise_cases:parameters", ranks, args={"mode": mode})


@pytest.mark.parametrize(
    "ranks, dtype, dealias, order, workers",
    [
        (1, "f8", "3/2", "natural", [1, 3]),
        (2, "f8", "3/2", "natural", [1, 2]),
        (2, "c8", None, "transposed", [3]),
        exhaustive(3, "c16", "3/2", "natural", [2]),
        exhaustive(4, "f4", None, "natural", [1]),
    ],
)
def test_every_mode_gives_the_same_bits(ranks, dtype, dealias, order, workers):
    jobs.run_job(
        "pointwise_cases:modes_agree",
        ranks,
        args={"dtype": dtype, "dealias": dealias, "order": order, "workers": workers},
    )


@pytest.mark.parametrize("ranks, mode", [(1, "off"), (2, "poll"), (3, "block")])
def test_bad_input_on_one_rank(ranks, mode):
    jobs.run_job("pointwise_error_cases:bad_input", ranks, args={"mode": mode})


@pytest.mark.parametrize(
    "ranks, mode, workers",
    [(1, "off", 1), (2, "poll", 1), (2, "block", 2), exhaustive(3, "poll", 2), exhaustive(3, "off", 1)],
)
def test_bad_results_on_one_rank(ranks, mode, workers):
    jobs.run_job("pointwise_error_cases:bad_results", ranks, args={"mode": mode, "workers": workers})


@pytest.mark.parametrize(
    "ranks, mode, dealias", [(1, "poll", "3/2"), (2, "off", "3/2"), (2, "block", None), exhaustive(3, "poll", "3/2")]
)
def test_failure_at_every_site(ranks, mode, dealias):
    jobs.run_job("pointwise_error_cases:injected", ranks, args={"mode": mode, "dealias": dealias})


@pytest.mark.parametrize("ranks", [1, exhaustive(2)])
def test_functions_that_would_lie(ranks):
    jobs.run_job("pointwise_error_cases:functions_that_would_lie,compiled_functions_that_would_lie", ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_making_one_fails(ranks):
    jobs.run_job("pointwise_error_cases:making_fails_on_one_rank", ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_planning_calls_no_function(ranks):
    jobs.run_job("pointwise_error_cases:planning_calls_no_function", ranks)


@pytest.mark.parametrize("mode", [exhaustive("off"), exhaustive("block"), "poll"])
def test_no_allocation(mode):
    jobs.run_job("pointwise_size_cases:memory", 2, args={"mode": mode})


@pytest.mark.parametrize(
    "case, ranks, args",
    [
        ("pointwise_cases:direct_sum", 2, {"dtype": "f8", "order": "natural", "mode": "poll"}),
        exhaustive("pointwise_size_cases:nyquist_dropped", 2, {}),
        exhaustive("pointwise_error_cases:bad_results", 2, {"mode": "poll", "workers": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_under_open_mpi(openmpi, case, ranks, args):
    jobs.run_job(case, ranks, mpi="openmpi", args=args)
