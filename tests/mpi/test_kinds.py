"""Plans with cosine and sine transforms on 1 to 4 ranks and two MPI libraries; see `kinds_cases`."""

import jobs
import pytest
from marks import exhaustive

CASES = "kinds_cases:like_scipy,refused,one_mode,operators,in_single_precision"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_kinds(ranks):
    jobs.run_job(CASES if ranks < 3 else "kinds_cases:like_scipy", ranks)


@pytest.mark.parametrize("ranks", [2, exhaustive(1), exhaustive(3)])
def test_same_bits(ranks):
    jobs.run_job("kinds_cases:same_bits_in_all_ways", ranks)


@pytest.mark.parametrize("ranks", [exhaustive(1), exhaustive(2), 3, exhaustive(4)])
def test_drawn(ranks, request):
    every = request.config.getoption("markexpr") == "exhaustive"
    jobs.run_job("kinds_cases:drawn", ranks, args={"seed": ranks, "count": 200 if every else 25}, deadline_s=600)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_kind_norm_and_type(ranks, mpi):
    jobs.run_job("kinds_cases:like_scipy", ranks, mpi=mpi, args={"every": True}, deadline_s=600)


def test_remembered(tmp_path):
    jobs.run_job("kinds_cases:remembered", 2, args={"path": str(tmp_path / "tuning.json")})


def test_under_open_mpi(openmpi):
    jobs.run_job("kinds_cases:like_scipy", 2, mpi="openmpi")
