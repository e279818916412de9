"""The runtime under thousands of schedules; the cases that the explorer has found."""

import pytest
from explore.campaign import campaign
from explore.defects import DEFECTS, schedules_until_found
from explore.programs import Call, Plan
from explore.schedule import explore

SCHEDULES = 2000


def operation(name="Alltoall", argument=0):
    return "op", name, argument


def found(plan, schedules=50):
    """What the first schedules find in a plan."""
    return [finding for seed in range(schedules)
            if (finding := explore(seed, plan=plan)) is not None]


def test_schedules_find_nothing():
    assert campaign(range(SCHEDULES)) == []


def test_a_seed_replays_exactly():
    for seed in range(20):
        assert explore(seed) == explore(seed)


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_put_back_is_found(name):
    schedules, _ = schedules_until_found(DEFECTS[name], SCHEDULES)
    assert schedules is not None


@pytest.mark.parametrize("wait", ["off", "block", "poll"])
def test_barrier_and_wait_for_each_other(wait):
    """Slice 1 waits for slice 0, which waits at the barrier for slice 1."""
    call = Call(wait, 2, 2, True, False, [[("barrier",)], [("wait", 0, 1), ("barrier",)]])
    assert not found(Plan(2, 2, 64, [call]))


def test_exception_right_after_an_operation():
    """It is not issued once more."""
    call = Call("off", 2, 2, True, False, [[operation()], [operation()]], [("after", 1, 0, 0)])
    assert not found(Plan(2, 1, 64, [call]))


def test_agreement_under_way_when_learning_fails():
    """It is waited for: else its buffer is freed while MPI may still write to it."""
    call = Call("poll", 1, 1, False, False, [[operation(), operation()]], [("compute", 1, 0, 1)])
    assert not found(Plan(2, 1, 1, [call]))
