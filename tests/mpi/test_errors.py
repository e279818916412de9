"""Error semantics: no hang, ever, and the same exception on all ranks."""

import jobs
import pytest
from marks import exhaustive

# A call that only some ranks could start leaves communicators behind: new processes.
LEAKY = {"error_cases:bad_start", "error_cases:buffers_after_a_bad_start"}
AGREED = (
    "error_cases:several_ranks_at_once",
    "error_cases:first_cause",
    "error_cases:results_survive",
    "error_cases:different_programs",
    "input_cases:input_errors",
    "error_cases:bad_start",
    "error_cases:skeletons",
    "error_cases:program_that_cannot_be_called,rejected_awaits",
    "error_cases:programs_that_clean_up",
    "error_cases:truncated",
    "error_cases:buffers_after_a_bad_start",
    "input_cases:unformattable",
)


@pytest.mark.parametrize("wait", [exhaustive("off"), exhaustive("block"), "poll"])
def test_failure_at_every_site(wait):
    jobs.run_job("error_cases:injected", 2, args={"wait": wait})


@pytest.mark.parametrize(
    "wait, ranks, hit, agree_every",
    [
        ("off", 1, (0, 6), 64),
        exhaustive("poll", 1, (0, 6), 3),
        ("block", 3, (0, 6), 64),
        exhaustive("poll", 3, (1, 12), 64),
        exhaustive("poll", 4, (6,), 1),
        exhaustive("block", 4, (1,), 3),
    ],
)
def test_failure_on_any_number_of_ranks(wait, ranks, hit, agree_every):
    jobs.run_job(
        "error_cases:injected", ranks, args={"wait": wait, "hit": hit, "agree_every": agree_every}, fresh=ranks == 4
    )


@pytest.mark.parametrize("wait", [exhaustive("block"), exhaustive("poll")])
def test_failure_under_open_mpi(openmpi, wait):
    jobs.run_job("error_cases:injected", 3, mpi="openmpi", args={"wait": wait, "hit": (0, 6)})


@pytest.mark.parametrize("case", AGREED)
def test_errors_are_agreed_on(case):
    jobs.run_job(case, 2, fresh=case in LEAKY)


@pytest.mark.parametrize("ranks", [1, 2])
def test_exceptions_that_cannot_be_asked_are_agreed_on(ranks):
    jobs.run_job("input_cases:unattributable_together,before_the_first_slice", ranks)


@pytest.mark.exhaustive
def test_errors_are_agreed_on_by_three():
    jobs.run_job(",".join(AGREED), 3, fresh=True)


def test_errors_are_agreed_on_under_open_mpi(openmpi):
    # Without `truncated`: Open MPI 5 corrupts its heap there, with or without us.
    jobs.run_job(
        "error_cases:several_ranks_at_once,different_programs,input_cases:input_errors,signal_cases:interrupted",
        2,
        mpi="openmpi",
    )


def test_hundreds_of_errors():
    jobs.run_job("error_cases:every_rank_is_told_once", 2)


@pytest.mark.parametrize(
    "ranks, case",
    [
        (1, "interrupted"),
        (2, "interrupted"),
        (1, "interrupted_at_the_end"),
        (2, "interrupted_at_the_end"),
        (1, "interrupted_while_failing"),
        (1, "interrupted_in_preflight"),
        (2, "interrupted_in_preflight"),
        (2, "interrupted_in_first_calls"),
    ],
)
def test_keyboard_interrupt(ranks, case):
    jobs.run_job(f"signal_cases:{case}", ranks)


@pytest.mark.parametrize(
    "wait, how, ranks",
    [
        ("off", "sleeps", 3),
        exhaustive("block", "sleeps", 3),
        exhaustive("poll", "sleeps", 3),
        ("poll", "absent", 2),
        ("block", "stopped", 2),
        exhaustive("poll", "stopped", 3),
        ("poll", "never opens", 2),
    ],
)
def test_deadline_ends_the_job(wait, how, ranks):
    result = jobs.run_job(
        "deadline_cases:lost", ranks, expect_failure=True, args={"wait": wait, "how": how, "deadline_s": 1}
    )
    assert result.finished == ()
    assert "has not completed in 1." in result.err and "deadline_s=1)" in result.err, result
    assert "Thread 0x" in result.err, result
    assert "deadline_cases.py" in result.err, result  # the stacks name the caller's line


@pytest.mark.parametrize("wait", [exhaustive("off"), exhaustive("block"), "poll"])
def test_killed_rank_ends_the_job(wait):
    result = jobs.run_job(
        "deadline_cases:lost", 3, expect_failure=True, args={"wait": wait, "how": "killed", "deadline_s": 2}
    )
    assert result.finished == (), result


@pytest.mark.parametrize("how", [exhaustive("sleeps"), "killed", exhaustive("stopped")])
def test_lost_rank_under_open_mpi(openmpi, how):
    result = jobs.run_job(
        "deadline_cases:lost", 3, mpi="openmpi", expect_failure=True, args={"wait": "poll", "how": how, "deadline_s": 1}
    )
    assert result.finished == (), result
