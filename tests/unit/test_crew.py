"""Which threads run a pipeline's calls: all are tried where calls are short, and the fastest are kept."""

import pytest

from overlap.runtime.threads.crew import ALONE, HELPED, SHORT_S, SHORT_SLICE_S, THREADS, TRIES, Crews


def calls(crews, seconds, number, count=8, wait="poll"):
    """The crews of so many calls, each of which takes as long as `seconds` says of its crew."""
    found = []
    for _ in range(number):
        crew = crews.next(count, wait)
        crews.took(count, wait, crew, seconds[crew])
        found.append(crew)
    return found


@pytest.mark.parametrize("best", [ALONE, HELPED, THREADS])
def test_short_calls_try_all_and_keep_the_best(best):
    seconds = dict.fromkeys((ALONE, HELPED, THREADS), SHORT_S / 10) | {best: SHORT_S / 20}
    assert calls(Crews(2), seconds, 3 * TRIES + 2) == [
        *[THREADS] * TRIES,
        *[HELPED] * TRIES,
        *[ALONE] * TRIES,
        best,
        best,
    ]


def test_one_worker_helps_nobody():
    seconds = {ALONE: SHORT_S / 20, THREADS: SHORT_S / 10}
    assert calls(Crews(1), seconds, 2 * TRIES + 1) == [*[THREADS] * TRIES, *[ALONE] * (TRIES + 1)]


def test_long_calls_wake_all_threads():
    assert set(calls(Crews(3), {THREADS: 2 * SHORT_S}, 20)) == {THREADS}


def test_long_calls_of_tiny_slices_try_all():
    count = 1000
    seconds = {THREADS: 0.9 * SHORT_SLICE_S * count, ALONE: 0.1 * SHORT_SLICE_S * count}
    assert calls(Crews(1), seconds, 2 * TRIES + 1, count) == [*[THREADS] * TRIES, *[ALONE] * (TRIES + 1)]


def test_where_nothing_is_hidden_the_calling_thread_computes():
    assert set(calls(Crews(3, True), {HELPED: 2 * SHORT_S}, 20)) == {HELPED}
    seconds = {HELPED: SHORT_S / 10, ALONE: SHORT_S / 20}
    assert calls(Crews(2, True), seconds, 2 * TRIES + 1) == [*[HELPED] * TRIES, *[ALONE] * (TRIES + 1)]
    assert set(calls(Crews(1, True), {ALONE: 1.0}, 20)) == {ALONE}


def test_each_way_to_wait_is_tried_by_itself():
    crews, seconds = Crews(1), {ALONE: SHORT_S / 20, THREADS: SHORT_S / 10}
    for _ in range(2 * TRIES):
        calls(crews, seconds, 1), calls(crews, seconds, 1, wait="block")
    assert calls(crews, seconds, 1) == calls(crews, seconds, 1, wait="block") == [ALONE]


def test_calls_that_become_longer_are_tried_anew():
    crews, seconds = Crews(1), {ALONE: SHORT_S / 20, THREADS: SHORT_S / 10}
    calls(crews, seconds, 2 * TRIES)
    assert calls(crews, {ALONE: 3 * SHORT_S, THREADS: SHORT_S}, 3) == [ALONE, THREADS, THREADS]
    assert calls(crews, seconds, 1, count=9) == [THREADS]


@pytest.mark.parametrize(
    "workers, wait, count, crew",
    [
        (1, "poll", 1, ALONE),
        (1, "poll", 0, ALONE),
        (2, "poll", 1, HELPED),
        (2, "block", 1, HELPED),
        (2, "off", 1, ALONE),
        (2, "off", 9, ALONE),
    ],
)
def test_calls_that_are_not_tried(workers, wait, count, crew):
    assert Crews(workers).next(count, wait) == crew
