"""Which threads run a pipeline's calls: all are tried where calls are short, and the fastest are kept."""

import pytest

from overlap.runtime.threads.threads import (
    COMMUNICATOR_THREAD,
    INLINE,
    INLINE_WITH_WORKERS,
    SHORT_S,
    SHORT_SLICE_S,
    TRIES,
    PlacementChoice,
)


def calls(placements, seconds, number, count=8, wait="poll"):
    """The placements of so many calls, each of which takes as long as `seconds` says of its placement."""
    found = []
    for _ in range(number):
        placement = placements.next(count, wait)
        placements.took(count, wait, placement, seconds[placement])
        found.append(placement)
    return found


@pytest.mark.parametrize("best", [INLINE, INLINE_WITH_WORKERS, COMMUNICATOR_THREAD])
def test_short_calls_try_all_and_keep_the_best(best):
    seconds = dict.fromkeys((INLINE, INLINE_WITH_WORKERS, COMMUNICATOR_THREAD), SHORT_S / 10) | {best: SHORT_S / 20}
    assert calls(PlacementChoice(2), seconds, 3 * TRIES + 2) == [
        *[COMMUNICATOR_THREAD] * TRIES,
        *[INLINE_WITH_WORKERS] * TRIES,
        *[INLINE] * TRIES,
        best,
        best,
    ]


def test_one_worker_helps_nobody():
    seconds = {INLINE: SHORT_S / 20, COMMUNICATOR_THREAD: SHORT_S / 10}
    assert calls(PlacementChoice(1), seconds, 2 * TRIES + 1) == [
        *[COMMUNICATOR_THREAD] * TRIES,
        *[INLINE] * (TRIES + 1),
    ]


def test_long_calls_wake_all_threads():
    assert set(calls(PlacementChoice(3), {COMMUNICATOR_THREAD: 2 * SHORT_S}, 20)) == {COMMUNICATOR_THREAD}


def test_long_calls_of_tiny_slices_try_all():
    count = 1000
    seconds = {COMMUNICATOR_THREAD: 0.9 * SHORT_SLICE_S * count, INLINE: 0.1 * SHORT_SLICE_S * count}
    assert calls(PlacementChoice(1), seconds, 2 * TRIES + 1, count) == [
        *[COMMUNICATOR_THREAD] * TRIES,
        *[INLINE] * (TRIES + 1),
    ]


def test_where_nothing_is_hidden_the_calling_thread_computes():
    assert set(calls(PlacementChoice(3, True), {INLINE_WITH_WORKERS: 2 * SHORT_S}, 20)) == {INLINE_WITH_WORKERS}
    seconds = {INLINE_WITH_WORKERS: SHORT_S / 10, INLINE: SHORT_S / 20}
    assert calls(PlacementChoice(2, True), seconds, 2 * TRIES + 1) == [
        *[INLINE_WITH_WORKERS] * TRIES,
        *[INLINE] * (TRIES + 1),
    ]
    assert set(calls(PlacementChoice(1, True), {INLINE: 1.0}, 20)) == {INLINE}


def test_each_way_to_wait_is_tried_by_itself():
    placements, seconds = PlacementChoice(1), {INLINE: SHORT_S / 20, COMMUNICATOR_THREAD: SHORT_S / 10}
    for _ in range(2 * TRIES):
        calls(placements, seconds, 1), calls(placements, seconds, 1, wait="block")
    assert calls(placements, seconds, 1) == calls(placements, seconds, 1, wait="block") == [INLINE]


def test_calls_that_become_longer_are_tried_anew():
    placements, seconds = PlacementChoice(1), {INLINE: SHORT_S / 20, COMMUNICATOR_THREAD: SHORT_S / 10}
    calls(placements, seconds, 2 * TRIES)
    assert calls(placements, {INLINE: 3 * SHORT_S, COMMUNICATOR_THREAD: SHORT_S}, 3) == [
        INLINE,
        COMMUNICATOR_THREAD,
        COMMUNICATOR_THREAD,
    ]
    assert calls(placements, seconds, 1, count=9) == [COMMUNICATOR_THREAD]


@pytest.mark.parametrize(
    "workers, wait, count, placement",
    [
        (1, "poll", 1, INLINE),
        (1, "poll", 0, INLINE),
        (2, "poll", 1, INLINE_WITH_WORKERS),
        (2, "block", 1, INLINE_WITH_WORKERS),
        (2, "off", 1, INLINE),
        (2, "off", 9, INLINE),
    ],
)
def test_calls_that_are_not_tried(workers, wait, count, placement):
    assert PlacementChoice(workers).next(count, wait) == placement
