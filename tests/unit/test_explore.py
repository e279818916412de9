"""The runtime under thousands of schedules; the cases that the explorer has found."""

import pytest
from explore.defects import DEFECTS, RARE, schedules_until_found
from explore.programs import Call, Plan
from explore.schedule import explore
from explore.source import load
from marks import exhaustive

pytestmark = pytest.mark.usefixtures("measured_greenlets")

SCHEDULES = 2000


def operation(name="Alltoall", argument=0):
    return "op", name, argument


def found(plan=None, schedules=50):
    """What the first schedules find in a plan; without one, each runs what its seed draws."""
    return [finding for seed in range(schedules) if (finding := explore(seed, plan=plan)) is not None]


@pytest.mark.parametrize("schedules", [SCHEDULES // 10, exhaustive(SCHEDULES)])
def test_schedules_find_nothing(schedules):
    assert not found(schedules=schedules)


def test_a_seed_replays_exactly():
    for seed in range(20):
        assert explore(seed) == explore(seed)


def test_all_defects_fit_the_source():
    for edits in DEFECTS.values():
        load(edits)


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize(
    "name", [exhaustive(name) if number % 5 else name for number, name in enumerate(DEFECTS) if name not in RARE]
)
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
    call = Call("off", 2, 2, True, False, [[operation()], [operation()]], faults=[("after", 1, 0, 0)])
    assert not found(Plan(2, 1, 64, [call]))


def test_agreement_under_way_when_learning_fails():
    """It is waited for: else its buffer is freed while MPI may still write to it."""
    call = Call("poll", 1, 1, False, False, [[operation(), operation()]], faults=[("compute", 1, 0, 1)])
    assert not found(Plan(2, 1, 1, [call]))


def test_several_slices_that_differ_before_the_first_one_is_known():
    """Slice 1 has ended, slice 3 awaits what is different too: some ranks drained it, some did not."""
    table = [[operation("Sendrecv", 1)], [operation("Barrier")], [("parallel", 1)], [operation("Gather")]]
    assert not found(Plan(2, 1, 64, [Call("poll", 2, 1, False, False, table)]), 300)


def test_a_slice_that_awaits_less_than_the_first_one_and_fails():
    """It was drained like the first one, while on other ranks it had ended."""
    table = [[operation()], [("turn",)], [operation("Sendrecv", 1)], []]
    call = Call("block", 2, 3, False, False, table, faults=[("compute", 0, 3, 0)])
    assert not found(Plan(2, 1, 1, [call]), 300)


def test_a_slice_that_ends_before_the_first_one_is_known():
    """It awaits less: an error as for any other slice that differs."""
    call = Call("poll", 2, 2, False, False, [[operation("Gather"), operation()], []])
    assert not found(Plan(1, 1, 1, [call]))


def test_a_signal_while_a_wait_that_can_never_end_is_reported():
    """Its handler fails the job and opens the gate: then there is nothing to report any more."""
    call = Call("off", 1, 1, True, False, [[("barrier",)], [("wait", 0, 1)]], faults=[("signal", 0, 0, 0)])
    assert not found(Plan(1, 1, 64, 30 * [call]), 100)
