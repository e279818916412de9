"""The runtime at its edges: signals, user threads, a rank that fails or is lost, dropped runtimes."""

import jobs
import pytest
from marks import exhaustive

SERIALIZED = {"MPI4PY_RC_THREAD_LEVEL": "serialized"}


@pytest.mark.parametrize(
    "wait, ranks", [("off", 1), ("block", 1), ("poll", 1), exhaustive("off", 3), exhaustive("block", 3), ("poll", 3)]
)
def test_signals_and_arguments(wait, ranks):
    jobs.run_job(
        "signal_cases:alarms,terminated,quiet_handlers,input_cases:keywords,bad_input_of_one_rank",
        ranks,
        args={"wait": wait},
    )


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_all_ranks_do_together(ranks):
    jobs.run_job(
        "edge_cases:collectives,collective_section,pickled_errors,signal_cases:interrupted_together,"
        "input_cases:what_compares_equal",
        ranks,
    )


def test_different_calls():
    jobs.run_job("edge_cases:different_calls", 2)


def test_under_open_mpi(openmpi):
    jobs.run_job("edge_cases:collectives,collective_section,signal_cases:interrupted_together", 3, mpi="openmpi")
    jobs.run_job("signal_cases:alarms,terminated", 3, mpi="openmpi", args={"wait": "poll"})


@pytest.mark.parametrize("level", ["serialized", "multiple"])
def test_user_threads(level):
    jobs.run_job("edge_cases:user_threads", 2, env={"MPI4PY_RC_THREAD_LEVEL": level})


@pytest.mark.parametrize("wait", [exhaustive("off"), exhaustive("block"), "poll"])
def test_deadline_does_not_cover_the_time_between_calls(wait):
    jobs.run_job("deadline_cases:late_entry", 2, args={"wait": wait})


@pytest.mark.parametrize("how", [exhaustive("sleeps"), "stopped"])
def test_rank_lost_while_a_plan_is_made(how):
    result = jobs.run_job("deadline_cases:lost_together", 3, expect_failure=True, args={"how": how})
    assert result.finished == ()
    assert "has not completed in 1." in result.err and "(deadline_s=1)" in result.err, result
    assert "in lost_together" in result.err, result  # the stacks name the user's line


def test_plans_that_fail_on_one_rank():
    jobs.run_job("edge_cases:plans", 2, fresh=True)


def test_dropped_runtimes():
    jobs.run_job("edge_cases:dropped", 2, args={"count": 30})
    jobs.run_job("edge_cases:dropped_on_some_ranks", 3, args={"count": 200}, fresh=True)


def test_more_dropped_runtimes_than_mpi_has_communicators():
    jobs.run_job("edge_cases:dropped_on_some_ranks", 1, args={"count": 1200}, fresh=True)


def test_too_many_open_runtimes():
    jobs.run_job("edge_cases:too_many_runtimes", 2)
