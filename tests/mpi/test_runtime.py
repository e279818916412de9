"""The runtime's invariants (design section 3), on 1 to 4 ranks and two MPI libraries."""

import jobs
import pytest

EVERYWHERE = ("forced_order", "one_thread_talks", "lanes_bound_the_memory", "barriers",
              "barriers_and_lanes", "bit_for_bit", "awaitable_calls", "small_batches",
              "auto_settles", "threads_end", "nested_runtimes")
ON_TWO = ("random_order", "workers_take_what_is_ready", "parallel_parts", "seats",
          "second_pipeline_while_running", "thread_pools_restored", "point_to_point")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("case", EVERYWHERE)
def test_on_any_number_of_ranks(case, ranks):
    jobs.run_job(f"runtime_cases:{case}", ranks)


@pytest.mark.parametrize("case", ON_TWO)
def test_on_two_ranks(case):
    jobs.run_job(f"runtime_cases:{case}", 2)


@pytest.mark.parametrize("case, ranks", [("random_order", 4), ("point_to_point", 3)])
def test_on_more_ranks(case, ranks):
    jobs.run_job(f"runtime_cases:{case}", ranks)


@pytest.mark.parametrize("case", ["forced_order", "awaitable_calls", "bit_for_bit", "barriers",
                                  "threads_end", "random_order"])
def test_under_open_mpi(openmpi, case):
    jobs.run_job(f"runtime_cases:{case}", 3, mpi="openmpi")


def test_more_runtimes_than_mpi_has_communicators():
    jobs.run_job("runtime_cases:many_runtimes", 2, args={"count": 3000})


def test_exchanges_in_flight():
    jobs.run_job("runtime_cases:exchanges_in_flight", 2, args={"first": False})


def test_exchanges_in_flight_while_learning():
    jobs.run_job("runtime_cases:exchanges_in_flight", 2)


def test_split_that_leaves_a_rank_out():
    jobs.run_job("runtime_cases:asymmetric_split", 3, deadline_s=15)


def test_input_of_a_pipeline_is_checked():
    jobs.run_job("runtime_cases:input_checked", 2, deadline_s=15)


@pytest.mark.parametrize("already", [0, 5, 18])
def test_workers_are_nicer_than_the_process(already):
    jobs.run_job("runtime_cases:priorities", 1, args={"already": already})
