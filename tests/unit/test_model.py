"""Closed forms against hand-computed values and an event simulation; fits against known lines."""

import heapq
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap.timing import model
from overlap.timing.model import LatencyBandwidth

times = st.floats(1e-6, 1e3)
counts = st.integers(1, 64)


# --- overlap ------------------------------------------------------------------------------------

@pytest.mark.parametrize("C, T, N, expected", [
    (1.0, 0.8, 4, 1.2),             # C + T/N
    (3.0, 4.0, 4, 4.0),             # the boundary T = N C/(N - 1): C + T/N = T
    (1.0, 5.0, 4, 5.0),             # beyond it: T
    (1.0, 0.5, 1, 1.5),             # one thread hides nothing
    (1.0, 50.0, 1, 51.0),
    (2.0, 0.0, 3, 2.0),
])
def test_blocking_overlap(C, T, N, expected):
    assert model.block_s(C, T, N) == pytest.approx(expected, rel=1e-14)


@given(times, st.integers(2, 64))
def test_blocking_branches_meet_at_the_boundary(C, N):
    T = model.best_speedup_at(C, N)
    assert C + T / N == pytest.approx(T, rel=1e-12)
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
            (model.poll_s(C, T), model.poll_s(C, T, slices=slices, workers=N),
             model.poll_s(C, T, slices=1, workers=N)),
            (model.block_s(C, T, N), model.block_s(C, T, N, slices=slices),
             model.block_s(C, T, N, slices=1))):
        assert endless * (1 - 1e-12) <= finite <= both * (1 + 1e-12)
        assert one == pytest.approx(both)
        assert finite <= endless + both * N / slices * (1 + 1e-12) + 1e-12
    assert model.block_s(C, T, 1, slices=slices) == pytest.approx(both)


def simulate(slices, workers, before, exchange, after):
    """Greedy schedule with one link, workers that never wait, and arrivals served first."""
    idle, started, now, link_free = workers, 0, 0.0, 0.0
    arrived, events = 0, []
    done = 0
    while done < slices:
        while idle and (arrived or started < slices):
            idle -= 1
            if arrived:
                arrived -= 1
                heapq.heappush(events, (now + after, "after"))
            else:
                started += 1
                heapq.heappush(events, (now + before, "before"))
        now, what = heapq.heappop(events)
        if what == "before":
            idle += 1
            link_free = max(link_free, now) + exchange
            heapq.heappush(events, (link_free, "arrived"))
        elif what == "after":
            idle += 1
            done += 1
        else:
            arrived += 1
    return now


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("ratio", [0.2, 0.7, 1.0, 1.4, 5.0])
@pytest.mark.parametrize("slices", [4, 16, 64, 256])
def test_polling_form_against_a_simulation(slices, workers, ratio):
    C, T = 1.0, ratio
    slice_s = C * workers / slices
    simulated = simulate(slices, workers, 0.6 * slice_s, T / slices, 0.4 * slice_s)
    predicted = model.poll_s(C, T, slices=slices, workers=workers)
    # The form leaves out what the workers wait for each other: less than one slice's compute.
    assert abs(simulated - predicted) <= slice_s + T / slices
    if workers == 1 and ratio >= 1.4:
        assert simulated == pytest.approx(predicted)


# --- all-to-all ---------------------------------------------------------------------------------

# Takahashi's model for 256^3 points, L = 1e-5 s, W = 1e9 B/s, in the forms for many ranks.
GRIDS = [
    (8, 8, 4.834e-3, 8.549e-3, 1.92e6),
    (16, 8, 3.377e-3, 4.434e-3, 8.32e6),
    (16, 16, 3.609e-3, 2.417e-3, 3.584e7),
    (64, 64, 41.03e-3, 1.411e-3, 1.0158e10),
]


@pytest.mark.parametrize("P, Q, one_s, two_s, limit", GRIDS)
def test_all_to_all_values(P, Q, one_s, two_s, limit):
    arguments = 256**3, P, Q, 1e-5, 1e9
    assert model.alltoall_1d_s(*arguments, approximate=True) == pytest.approx(one_s, rel=2e-4)
    assert model.alltoall_2d_s(*arguments, approximate=True) == pytest.approx(two_s, rel=4e-4)
    assert model.crossover_points(P, Q, 1e-5, 1e9) == pytest.approx(limit, rel=1e-4)


def test_all_to_all_by_hand():
    # 8 x 8, 256^3 points: 65,536 B per pair, 524,288 B within an axis.
    assert model.alltoall_1d_s(256**3, 8, 8, 1e-5, 1e9) == pytest.approx(63 * 75.536e-6)
    assert model.alltoall_2d_s(256**3, 8, 8, 1e-5, 1e9) == pytest.approx(14 * 534.288e-6)
    # 2 x 3 ranks, 36 points of 8 B, L = 1 s, W = 2 B/s: 5 (1 + 8/2) and (1 + 24/2) + 2 (1 + 16/2).
    assert model.alltoall_1d_s(36, 2, 3, 1.0, 2.0, itemsize=8) == 25.0
    assert model.alltoall_2d_s(36, 2, 3, 1.0, 2.0, itemsize=8) == 13.0 + 18.0
    assert model.alltoall_1d_s(36, 2, 3, 1.0, 2.0, itemsize=8, approximate=True) == 6 + 24
    assert model.alltoall_2d_s(36, 2, 3, 1.0, 2.0, itemsize=8, approximate=True) == 5 + 48
    assert model.alltoall_1d_s(36, 1, 1, 1.0, 2.0) == model.alltoall_2d_s(36, 1, 1, 1.0, 2.0) == 0


@given(st.integers(3, 64), st.integers(3, 64), times, st.floats(1e3, 1e12))
def test_approximate_forms_meet_at_the_crossover(P, Q, latency_s, bandwidth_Bps):
    points = model.crossover_points(P, Q, latency_s, bandwidth_Bps)
    one, two = (form(points, P, Q, latency_s, bandwidth_Bps, approximate=True)
                for form in (model.alltoall_1d_s, model.alltoall_2d_s))
    assert one == pytest.approx(two, rel=1e-9)


# --- fits ---------------------------------------------------------------------------------------

SIZES = [2**k for k in range(8, 25)]


def test_fit_recovers_an_exact_line():
    truth = LatencyBandwidth(35e-6, 2.4e8)
    fit = model.fit_message_time(SIZES, [truth.time_s(n) for n in SIZES])
    assert fit.latency_s == pytest.approx(truth.latency_s, rel=1e-9)
    assert fit.bandwidth_Bps == pytest.approx(truth.bandwidth_Bps, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_fit_recovers_a_noisy_line(seed):
    noise = random.Random(seed)
    truth = LatencyBandwidth(35e-6, 2.4e8)
    sizes = SIZES * 5
    fit = model.fit_message_time(
        sizes, [truth.time_s(n) * noise.uniform(0.95, 1.05) for n in sizes])
    assert fit.latency_s == pytest.approx(truth.latency_s, rel=0.03)
    assert fit.bandwidth_Bps == pytest.approx(truth.bandwidth_Bps, rel=0.03)


def test_fit_keeps_to_sensible_values():
    superlinear = model.fit_message_time([1, 2, 4], [1.0, 3.0, 9.0])
    assert superlinear.latency_s == 0
    # Minimum of the sum of (n x/t - 1)^2: x = sum(n/t)/sum((n/t)^2).
    shares = [1, 2 / 3, 4 / 9]
    assert 1 / superlinear.bandwidth_Bps == pytest.approx(
        sum(shares) / sum(share**2 for share in shares))
    falling = model.fit_message_time([1, 2, 4], [3.0, 2.0, 1.0])
    assert falling.bandwidth_Bps == math.inf
    assert falling.latency_s == pytest.approx((1 / 3 + 1 / 2 + 1) / (1 / 9 + 1 / 4 + 1))
    assert falling.time_s(10**9) == falling.latency_s


def test_fit_accepts_numpy():
    np = pytest.importorskip("numpy")
    fit = model.fit_message_time(np.array([0, 1000]), np.array([1.0, 3.0]))
    assert (fit.latency_s, fit.bandwidth_Bps) == pytest.approx((1.0, 500.0))


# --- chunks -------------------------------------------------------------------------------------

LINK = LatencyBandwidth(1.0, 10.0)


def test_pipeline_by_hand():
    # 8 slices, 40 B, 2 per message: T = 4 * 1 + 4 = 8; c = 8/4 + 0.5 = 2.5, C' = 10 on one thread.
    options = dict(slices=8, chunk=2, message_overhead_s=0.5)
    assert model.pipeline_s(8.0, 40, LINK, wait="off", **options) == 18.0
    assert model.pipeline_s(8.0, 40, LINK, wait="poll", **options) == 12.0      # C' + T/4
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


@pytest.mark.parametrize("wait", model.WAITS)
def test_best_chunk_is_the_best(wait):
    link = LatencyBandwidth(1e-4, 2.5e8)
    arguments = 0.05, 67_000_000, link
    options = dict(slices=1024, workers=2, wait=wait, message_overhead_s=2e-5)
    best = model.best_chunk(*arguments, candidates=range(1, 129), **options)
    least = min(model.pipeline_s(*arguments, chunk=chunk, **options) for chunk in range(1, 129))
    assert model.pipeline_s(*arguments, chunk=best, **options) == least
    assert 1 < best
    if wait != "off":
        assert best < 128               # larger chunks only prolong fill and drain


def test_best_chunk_prefers_the_smaller_lane():
    free = LatencyBandwidth(0.0, math.inf)
    assert model.best_chunk(1.0, 100, free, slices=64, wait="off") == 1
    assert model.best_chunk(1.0, 100, free, slices=64, candidates=[8, 4], wait="off") == 4


def test_default_chunks():
    assert model.default_chunks(1) == [1]
    assert model.default_chunks(6) == [1, 2, 4, 6]
    assert model.default_chunks(8) == [1, 2, 4, 8]


# --- refusals -----------------------------------------------------------------------------------

@pytest.mark.parametrize("call, words", [
    (lambda: model.no_overlap_s(-1.0, 1.0), "compute_s: expected .* got -1.0"),
    (lambda: model.no_overlap_s(1.0, math.nan), "communication_s: expected .* got nan"),
    (lambda: model.block_s(1.0, 1.0, 0), "workers: expected an integer >= 1, got 0"),
    (lambda: model.block_s(1.0, 1.0, 2, slices=0), "slices: expected .* got 0"),
    (lambda: model.poll_s(1.0, math.inf), "communication_s: expected .* got inf"),
    (lambda: model.best_speedup(1.5), "workers: expected .* got 1.5"),
    (lambda: model.best_speedup_at(1.0, math.inf), "workers: expected .* got inf"),
    (lambda: model.hidden(1.0, 1.0, -2.0), "measured_s: expected .* got -2.0"),
    (lambda: model.alltoall_1d_s(-5, 2, 2, 0, 1), "points: expected .* got -5"),
    (lambda: model.alltoall_2d_s(5, 2, 0, 0, 1), "Q: expected .* got 0"),
    (lambda: model.crossover_points(2, 2, 0, 0), "bandwidth_Bps: expected .* got 0"),
    (lambda: LatencyBandwidth(-1, 1), "latency_s: expected .* got -1"),
    (lambda: LatencyBandwidth(1, math.nan), "bandwidth_Bps: expected .* got nan"),
    (lambda: model.fit_message_time([1, 2], [1.0]), "one time per size, 2, got 1"),
    (lambda: model.fit_message_time([1, 1], [1.0, 2.0]), "two different sizes, got"),
    (lambda: model.fit_message_time([1, 2], [1.0, 0.0]), "seconds: expected .* got 0.0"),
    (lambda: model.fit_message_time([-1, 2], [1.0, 1.0]), "nbytes: expected .* got -1.0"),
    (lambda: model.pipeline_s(1, 1, LINK, slices=4, wait="auto"),
     "wait: expected one of off, block, poll, got 'auto'"),
    (lambda: model.pipeline_s(1, -1, LINK, slices=4), "nbytes: expected .* got -1"),
    (lambda: model.pipeline_s(1, 1, LINK, slices=4, depth=0), "depth: expected .* got 0"),
    (lambda: model.best_chunk(1, 1, LINK, slices=4, candidates=[]), "at least one chunk"),
    (lambda: model.best_chunk(1, 1, LINK, slices=4, candidates=3), "an iterable .* got 3"),
    (lambda: model.best_chunk(1, 1, LINK, slices=4, candidates=[0]), "candidates: .* got 0"),
])
def test_refusals_say_what_was_expected(call, words):
    with pytest.raises(ValueError, match=words):
        call()
