"""Sparse matrices and solvers on 1 to 4 ranks."""

import jobs
import pytest
from marks import exhaustive


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(4)])
def test_storages_and_factors(ranks):
    jobs.run_job(
        "sparse_cases:symmetric_blocks,block_diagonals,diagonals,incomplete_factors,factors_by_workers,overlapping,operators,errors",
        ranks,
    )


@pytest.mark.parametrize("ranks, seeds", [(1, 4), (3, 1), exhaustive(3, 4)])
def test_solvers(ranks, seeds):
    jobs.run_job("sparse_cases:solvers", ranks, args={"seeds": list(range(seeds))})


@pytest.mark.parametrize("ranks", [1, 3, exhaustive(2)])
def test_minimal_residuals(ranks):
    jobs.run_job("minimal_residual_cases:gmres_as_scipys,minres_as_scipys,edges", ranks)


@pytest.mark.parametrize(
    "ranks, more", [(1, ""), (2, ",interrupted"), *[exhaustive(ranks, ",interrupted,types") for ranks in (1, 2)]]
)
def test_edges_of_solvers(ranks, more):
    jobs.run_job(f"solver_cases:one_rank,different_preconditioners,freed,truth{more}", ranks)


@pytest.mark.parametrize("where", ["made", exhaustive("summed")])
def test_a_rank_that_is_stopped_ends_the_job_with_stacks(where):
    result = jobs.run_job("sparse_cases:stopped", 2, args={"where": where}, expect_failure=True)
    assert "has not completed in 1." in result.err and "in stopped" in result.err, result
