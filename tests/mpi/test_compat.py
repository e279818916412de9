"""`overlap.compat.mpi4py_fft` on 1 to 6 ranks; see `compat_cases` for what is asserted."""

import jobs
import pytest
from marks import exhaustive

OTHERS = ",".join(
    ("calls", "arrays", "plans_of_arrays", "transfers", "refusals", "names", "few_agreements", "runtimes_are_kept")
)


@pytest.mark.parametrize(
    "ranks, sparse",
    [(1, 11), (2, 23), (3, 41), *[exhaustive(*values) for values in ((1, 5), (2, 3), (3, 7), (4, 5), (6, 11))]],
)
def test_against_numpy(ranks, sparse):
    jobs.run_job("compat_cases:against_numpy", ranks, args={"dimensions": [2, 3, 4], "sparse": sparse})


DROP_IN = ",".join(
    (
        "own_arrays",
        "own_arrays_in_any_order",
        "own_arrays_asked_for_late",
        "masks",
        "cosines_and_sines",
        "other_libraries",
        "parts_of_a_plan",
        "different_serial_plans",
        "files",
        "names_of_the_library",
    )
)


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(4)])
def test_the_rest_of_the_library(ranks):
    jobs.run_job("drop_in_cases:" + DROP_IN, ranks)


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(4)])
def test_libraries_built_on_it(ranks):
    jobs.run_job("derived_cases:derived_plans,derived_arrays,standing_in", ranks)


def test_serial_transforms():
    jobs.run_job("drop_in_cases:serial", 1)


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(3), exhaustive(4)])
def test_arrays_calls_and_refusals(ranks):
    jobs.run_job("compat_cases:" + OTHERS, ranks)


@pytest.mark.parametrize("mpi", ["mpich", exhaustive("openmpi")], indirect=True)
def test_plans_that_nobody_destroys(mpi):
    jobs.run_job("compat_cases:two_plans_and_none_destroyed", 2, mpi=mpi, fresh=True)


def test_calls_under_open_mpi(openmpi):
    jobs.run_job("compat_cases:calls", 2, mpi="openmpi")


@pytest.mark.exhaustive
def test_under_open_mpi(openmpi):
    jobs.run_job("compat_cases:" + OTHERS, 2, mpi="openmpi")


@pytest.mark.peer
@pytest.mark.parametrize("ranks, sparse", [(1, 7), (2, 5), (4, 7)])
def test_against_mpi4py_fft(ranks, sparse):
    jobs.run_job("compat_cases:against_peer", ranks, args={"dimensions": [2, 3, 4], "sparse": sparse})
