"""Solvers, reductions and energies up to the limits of their types; see `extreme_cases` for what is asserted."""

import jobs
import pytest
from extreme_cases import FARTHEST, OF_ROWS, SOLVERS


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_system_at_any_scale_has_its_solution(dtype):
    jobs.run_job("extreme_cases:solvers", 1, args={"dtype": dtype})
    jobs.run_job("extreme_cases:operators", 1, args={"dtype": dtype})


def test_on_several_ranks():
    jobs.run_job("extreme_cases:solvers", 2, args={"dtype": "f4", "solver_names": ["cg", "gmres"]})
    jobs.run_job("extreme_cases:what_does_not_fit,grids,reductions,energies,speeds,boxes", 2)
    jobs.run_job("extreme_cases:reductions", 3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("dtype", list(FARTHEST))
def test_all_solvers_and_preconditioners(dtype, ranks, mpi):
    args = {"dtype": dtype, "solver_names": list(SOLVERS), "preconditioners": ["none", *OF_ROWS]}
    jobs.run_job("extreme_cases:solvers", ranks, mpi=mpi, args=args, deadline_s=1200)
    jobs.run_job("extreme_cases:operators", ranks, mpi=mpi, args={"dtype": dtype})
    jobs.run_job("extreme_cases:what_does_not_fit,grids,reductions,energies,speeds,boxes", ranks, mpi=mpi)
