"""Counts of the all-to-all models by hand; fits against known costs; the paper's table."""

import sys
from pathlib import Path

import pytest

from overlap.timing.alltoall import alltoall_s, fit_costs, node_counts, plain_counts
from overlap.timing.messages import LatencyBandwidth

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import takahashi


@pytest.mark.parametrize("P, Q", [(8, 8), (16, 8), (64, 64)])
def test_plain_model_is_the_papers(P, Q):
    """Equations (4) and (5), as they are printed."""
    N, L, W = 256**3, 1e-5, 1e9
    link = LatencyBandwidth(L, W)
    assert alltoall_s(N, (P * Q,), link) == pytest.approx((P * Q - 1) * (L + 16 * N / ((P * Q) ** 2 * W)))
    assert alltoall_s(N, (P, Q), link) == pytest.approx(
        (P - 1) * (L + 16 * N / (P**2 * Q * W)) + (Q - 1) * (L + 16 * N / (P * Q**2 * W))
    )


def test_plain_model_by_hand():
    # 8 x 8, 256^3 points: 65,536 B per pair, 524,288 B within an axis.
    link = LatencyBandwidth(1e-5, 1e9)
    assert alltoall_s(256**3, (64,), link) == pytest.approx(63 * 75.536e-6)
    assert alltoall_s(256**3, (8, 8), link) == pytest.approx(14 * 534.288e-6)
    # 2 x 3 ranks, 36 points of 8 B, L = 1 s, W = 2 B/s: 5 (1 + 8/2) and (1 + 24/2) + 2 (1 + 16/2).
    link = LatencyBandwidth(1.0, 2.0)
    assert alltoall_s(36, (6,), link, itemsize=8) == 25.0
    assert alltoall_s(36, (2, 3), link, itemsize=8) == 13.0 + 18.0
    # An axis of length 1 sends nothing, so a slab is the same as one all-to-all.
    assert alltoall_s(36, (1, 1), link) == 0
    assert alltoall_s(36, (6, 1), link) == alltoall_s(36, (1, 6), link) == alltoall_s(36, (6,), link)
    assert plain_counts(36, (2, 3), itemsize=8) == (3, 24 + 32)


@pytest.mark.parametrize(
    "points, grid, itemsize, words",
    [
        (-5, (2, 2), 16, "points: expected .* received -5"),
        (5, (2, 0), 16, "grid: expected .* received 0"),
        (5, (2, 2), 0, "itemsize: expected .* received 0"),
    ],
)
def test_plain_model_refuses(points, grid, itemsize, words):
    with pytest.raises(ValueError, match=words):
        plain_counts(points, grid, itemsize)


def test_node_counts_by_hand():
    # 4 x 2 ranks, 64 points of 16 B: 128 B per rank; two nodes of 4 hold one row of the grid each.
    small, large, leaving, copied = node_counts(64, (4, 2), cores=4, large_nbytes=64)
    assert (small, large) == (0, 1)  # along the first axis all partners are near
    assert leaving == 4 * 64
    assert copied == 4 * 128 + 4 * 64
    # One all-to-all among all: 4 partners in the other node, 16 B each.
    assert node_counts(64, (8,), cores=4, large_nbytes=64) == (4, 0, 4 * 64, 4 * 64)
    # A rank alone copies twice.
    assert node_counts(64, (1, 1)) == (0, 0, 0, 2 * 1024)


def test_fit_recovers_known_costs():
    costs = 40e-6, 180e-6, 1 / 2.2e9, 1 / 5e9
    rows = [node_counts(256**3, takahashi.grid(n)) for n in takahashi.MEASURED_S]
    seconds = [sum(a * b for a, b in zip(row, costs)) for row in rows]
    assert fit_costs(rows, seconds) == pytest.approx(costs, rel=1e-6)


def test_fit_keeps_costs_above_zero():
    # Falling times: no cost per second count; the best constant is the geometric mean.
    assert fit_costs([[1, 1], [1, 2], [1, 4]], [4.0, 2.0, 1.0]) == pytest.approx((2.0, 0.0))


@pytest.mark.parametrize(
    "counts, seconds",
    [([[1, 1]], [1.0]), ([[1], [2]], [1.0]), ([[1], [2]], [1.0, 0.0]), ([[1], [2]], [1.0, float("nan")])],
)
def test_fit_refuses(counts, seconds):
    with pytest.raises(ValueError, match="seconds: expected"):
        fit_costs(counts, seconds)


def test_table_of_the_paper():
    """The node-aware model has the paper's crossover, the plain one is a factor of two late."""
    found = takahashi.fitted()
    assert takahashi.first_2d(takahashi.crossover(*found["node-aware"])) == 128
    assert takahashi.first_2d(takahashi.crossover(*found["plain"])) == 256
    counts_of, costs = found["node-aware"]
    for cores, seconds in takahashi.MEASURED_S.items():
        if cores >= 16:
            counts = counts_of(takahashi.POINTS, takahashi.grid(cores))
            assert takahashi.modelled(counts, costs) == pytest.approx(seconds, rel=0.25)
