"""Tuning and tuning files on 1 to 3 ranks; see `tuning_cases` for what is asserted."""

import jobs
import pytest
from marks import exhaustive


@pytest.mark.parametrize("ranks, workers", [(1, 2), (2, 1), exhaustive(3, 2)])
def test_a_tuned_plan_is_found_again(ranks, workers, tmp_path):
    jobs.run_job(
        "tuning_cases:tuned_plan_is_found_again",
        ranks,
        args={"path": str(tmp_path / "tuning.json"), "workers": workers},
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["tuning.json"]


@pytest.mark.parametrize(
    "case",
    [
        "tuned_again",
        "requests_come_first",
        "other_wisdom",
        "ranks_disagree",
        "bad_files",
        "a_file_that_is_not_there_is_said",
        "a_rank_fails_with_the_file",
    ],
)
def test_files(case, tmp_path):
    jobs.run_job(f"tuning_cases:{case}", 2, args={"path": str(tmp_path / "tuning.json")})


@pytest.mark.parametrize("ranks", [1, 3])
def test_without_a_file(ranks):
    jobs.run_job("tuning_cases:without_a_file", ranks)


def test_fields_and_brackets_are_found_again(tmp_path):
    jobs.run_job(
        "tuning_plan_cases:fields_are_found_again,tuning_plan_cases:brackets_are_found_again",
        2,
        args={"path": str(tmp_path / "tuning.json")},
    )


def test_polls():
    jobs.run_job("tuning_cases:polls_of_pipelines", 2)


def test_a_rank_fails_while_planning():
    jobs.run_job("tuning_cases:a_rank_fails_while_planning", 2)


def test_fields_are_tuned():
    jobs.run_job("tuning_cases:fields_are_tuned", 2)


def test_under_open_mpi(openmpi, tmp_path):
    jobs.run_job(
        "tuning_cases:tuned_plan_is_found_again",
        2,
        mpi="openmpi",
        args={"path": str(tmp_path / "tuning.json"), "workers": 1},
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_plans_are_remembered(ranks, tmp_path):
    jobs.run_job("tuning_cases:remembered", ranks, args={"path": str(tmp_path / "cache")})
