"""Closed forms against hand-computed values. `test_simulate` holds them against a simulation of events."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap.timing import model
from overlap.timing.messages import LatencyBandwidth

times = st.floats(1e-6, 1e3)
counts = st.integers(1, 64)


# --- overlap ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "C, T, N, expected",
    [
        (1.0, 0.8, 4, 1.2),  # C + T/N
        (3.0, 4.0, 4, 4.0),  # the boundary T = N C/(N - 1): C + T/N = T
        (1.0, 5.0, 4, 5.0),  # beyond it: T
        (1.0, 0.5, 1, 1.5),  # one thread hides nothing
        (1.0, 50.0, 1, 51.0),
        (2.0, 0.0, 3, 2.0),
    ],
)
def test_blocking_overlap(C, T, N, expected):
    assert model.block_s(C, T, N) == pytest.approx(expected, rel=1e-14)


@given(times, st.integers(2, 64))
def test_blocking_branches_meet_at_the_boundary(C, N):
    T = model.best_speedup_at(C, N)
    assert pytest.approx(T, rel=1e-12) == C + T / N
    assert model.block_s(C, T, N) == pytest.approx(T, rel=1e-12)
    below, above = model.block_s(C, T * (1 - 1e-9), N), model.block_s(C, T * (1 + 1e-9), N)
    assert below == pytest.approx(above, rel=1e-8)


@given(times, times, counts)
def test_no_blocking_speedup_exceeds_the_best(C, T, N):
    best = model.best_speedup(N)
    assert model.no_overlap_s(C, T) / model.block_s(C, T, N) <= best * (1 + 1e-12)
    at = model.best_speedup_at(C, N)
    if N > 1:
        assert model.no_overlap_s(C, at) / model.block_s(C, at, N) == pytest.approx(best)


def test_best_speedup_values():
    assert [model.best_speedup(N) for N in (1, 2, 4, 16)] == [1.0, 1.5, 1.75, 1.9375]
    assert model.best_speedup_at(3.0, 4) == 4.0
    assert model.best_speedup_at(3.0, 1) == math.inf


@given(times, times, counts)
def test_core_time_of_communicating(C, T, N):
    """Nothing of it is the sleeping communicator's form; all of T is the blocking one's."""
    assert model.poll_s(C, T, workers=N, core_s=0.0) == model.poll_s(C, T)
    assert model.poll_s(C, T, workers=N, core_s=T) == model.block_s(C, T, N)
    assert model.poll_s(C, 0.5 * C, workers=N, core_s=T) == pytest.approx(C + T / N)


def test_polling_overlap_and_none():
    assert model.no_overlap_s(2.0, 3.0) == 5.0
    assert model.poll_s(2.0, 3.0) == 3.0
    assert model.poll_s(3.0, 2.0) == 3.0


def test_hidden():
    assert model.hidden(2.0, 3.0, 3.0) == 1.0
    assert model.hidden(2.0, 3.0, 5.0) == 0.0
    assert model.hidden(2.0, 3.0, 4.0) == 0.5
    assert model.hidden(2.0, 3.0, 6.0) == -0.5
    assert math.isnan(model.hidden(2.0, 0.0, 2.0))


def test_a_share_that_is_measured_is_one_or_not_known():
    assert model.hidden_share(2.0, 3.0, 4.0) == 0.5
    assert model.hidden_share(2.0, 3.0, 2.6) == 1.0  # 1.2
    assert model.hidden_share(2.0, 3.0, 5.4) == 0.0  # -0.2
    for times in ((2.0, 0.0, 2.0), (10.0, 0.1, 5.3), (10.0, 0.1, 11.0), (2.0, 3.0, 2.4)):  # 48 and -9 times T
        assert math.isnan(model.hidden_share(*times))


# --- fill and drain -----------------------------------------------------------------------------


def test_fill_and_drain_values():
    # Two slices, one thread: 0.5 | 0.5 | wait .5 | 0.5 | wait | 0.5, link busy from 0.5 to 2.5.
    assert model.poll_s(2.0, 2.0, slices=2) == 3.0
    assert model.poll_s(1.0, 10.0, slices=10) == pytest.approx(10.1)
    assert model.poll_s(10.0, 1.0, slices=10) == pytest.approx(10.1)
    assert model.poll_s(1.0, 10.0, slices=10, workers=4) == pytest.approx(10 + 1 / 3)
    assert model.block_s(10.0, 1.0, 4, slices=10) == pytest.approx(10.25 + 0.075)


@given(times, times, counts, st.integers(1, 10**6))
def test_fill_and_drain_limits(C, T, N, slices):
    both = model.no_overlap_s(C, T)
    for endless, finite, one in (
        (model.poll_s(C, T), model.poll_s(C, T, slices=slices, workers=N), model.poll_s(C, T, slices=1, workers=N)),
        (model.block_s(C, T, N), model.block_s(C, T, N, slices=slices), model.block_s(C, T, N, slices=1)),
    ):
        assert endless * (1 - 1e-12) <= finite <= both * (1 + 1e-12)
        assert one == pytest.approx(both)
        assert finite <= endless + both * N / slices * (1 + 1e-12) + 1e-12
    assert model.block_s(C, T, 1, slices=slices) == pytest.approx(both)


# --- chunks -------------------------------------------------------------------------------------

LINK = LatencyBandwidth(1.0, 10.0)


def test_pipeline_by_hand():
    # 8 slices, 40 B, 2 per message: T = 4 * 1 + 4 = 8; c = 8/4 + 0.5 = 2.5, C' = 10 on one thread.
    options = dict(slices=8, chunk=2, message_overhead_s=0.5)
    assert model.pipeline_s(8.0, 40, LINK, wait="off", **options) == 18.0
    assert model.pipeline_s(8.0, 40, LINK, wait="poll", **options) == 12.0  # C' + T/4
    assert model.pipeline_s(8.0, 40, LINK, wait="block", **options) == 18.0
    # Two workers: c = 4.5 in two rounds, C' = 9; block: 9 + 8/2 + (1/2) 8/4.
    assert model.pipeline_s(8.0, 40, LINK, wait="block", workers=2, **options) == 14.0
    # One slot: a chunk at a time.
    assert model.pipeline_s(8.0, 40, LINK, depth=1, **options) == 18.0
    assert model.pipeline_s(8.0, 40, LINK, depth=4, **options) == 12.0
    # Three messages from eight slices: T = 3 + 4, c = 8/3.
    assert model.pipeline_s(8.0, 40, LINK, slices=8, chunk=3, wait="off") == pytest.approx(15.0)


def test_chunks_leave_threads_idle_when_too_few():
    link = LatencyBandwidth(0.0, 1e9)
    assert model.pipeline_s(1.0, 0, link, slices=8, chunk=8, workers=4) == pytest.approx(4.0)
    assert model.pipeline_s(1.0, 0, link, slices=8, chunk=2, workers=4) == pytest.approx(1.0)


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: model.no_overlap_s(-1.0, 1.0), "compute_s: expected .* received -1.0"),
        (lambda: model.no_overlap_s(1.0, math.nan), "communication_s: expected .* received nan"),
        (lambda: model.block_s(1.0, 1.0, 0), "workers: expected an integer >= 1, received 0"),
        (lambda: model.block_s(1.0, 1.0, 2, slices=0), "slices: expected .* received 0"),
        (lambda: model.poll_s(1.0, math.inf), "communication_s: expected .* received inf"),
        (lambda: model.poll_s(1.0, 10**400), "communication_s: expected a finite time"),
        (lambda: model.block_s(1.0, 1.0, 10**400), "workers: expected an integer >= 1"),
        (lambda: model.best_speedup(1.5), "workers: expected .* received 1.5"),
        (lambda: model.best_speedup_at(1.0, math.inf), "workers: expected .* received inf"),
        (lambda: model.hidden(1.0, 1.0, -2.0), "measured_s: expected .* received -2.0"),
        (
            lambda: model.pipeline_s(1, 1, LINK, slices=4, wait="auto"),
            "wait: expected one of off, block, poll, received 'auto'",
        ),
        (lambda: model.pipeline_s(1, -1, LINK, slices=4), "nbytes: expected .* received -1"),
        (lambda: model.pipeline_s(1, 1, LINK, slices=4, depth=0), "depth: expected .* received 0"),
    ],
)
def test_refusals_say_what_was_expected(call, words):
    with pytest.raises(ValueError, match=words):
        call()
