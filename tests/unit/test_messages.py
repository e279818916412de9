"""The time of a message over its size: fits against known lines."""

import math
import random

import pytest

from overlap.timing.messages import LatencyBandwidth, fit_message_time

SIZES = [2**k for k in range(8, 25)]


def test_fit_recovers_an_exact_line():
    truth = LatencyBandwidth(35e-6, 2.4e8)
    fit = fit_message_time(SIZES, [truth.time_s(n) for n in SIZES])
    assert fit.latency_s == pytest.approx(truth.latency_s, rel=1e-9)
    assert fit.bandwidth_Bps == pytest.approx(truth.bandwidth_Bps, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_fit_recovers_a_noisy_line(seed):
    noise = random.Random(seed)
    truth = LatencyBandwidth(35e-6, 2.4e8)
    sizes = SIZES * 5
    fit = fit_message_time(sizes, [truth.time_s(n) * noise.uniform(0.95, 1.05) for n in sizes])
    assert fit.latency_s == pytest.approx(truth.latency_s, rel=0.03)
    assert fit.bandwidth_Bps == pytest.approx(truth.bandwidth_Bps, rel=0.03)


def test_fit_keeps_to_sensible_values():
    superlinear = fit_message_time([1, 2, 4], [1.0, 3.0, 9.0])
    assert superlinear.latency_s == 0
    # Minimum of the sum of (n x/t - 1)^2: x = sum(n/t)/sum((n/t)^2).
    shares = [1, 2 / 3, 4 / 9]
    assert 1 / superlinear.bandwidth_Bps == pytest.approx(sum(shares) / sum(share**2 for share in shares))
    falling = fit_message_time([1, 2, 4], [3.0, 2.0, 1.0])
    assert falling.bandwidth_Bps == math.inf
    assert falling.latency_s == pytest.approx((1 / 3 + 1 / 2 + 1) / (1 / 9 + 1 / 4 + 1))
    assert falling.time_s(10**9) == falling.latency_s


def test_fit_accepts_numpy():
    np = pytest.importorskip("numpy")
    fit = fit_message_time(np.array([0, 1000]), np.array([1.0, 3.0]))
    assert (fit.latency_s, fit.bandwidth_Bps) == pytest.approx((1.0, 500.0))


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: LatencyBandwidth(-1, 1), "latency_s: expected .* received -1"),
        (lambda: LatencyBandwidth(1, math.nan), "bandwidth_Bps: expected .* received nan"),
        (lambda: fit_message_time([1, 2], [1.0]), "one time per size, 2, received 1"),
        (lambda: fit_message_time([1, 1], [1.0, 2.0]), "two different sizes, received"),
        (lambda: fit_message_time([1, 2], [1.0, 0.0]), "seconds: expected .* received 0.0"),
        (lambda: fit_message_time([-1, 2], [1.0, 1.0]), "nbytes: expected .* received -1.0"),
    ],
)
def test_refusals_say_what_was_expected(call, words):
    with pytest.raises(ValueError, match=words):
        call()
