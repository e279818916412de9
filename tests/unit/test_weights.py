"""Weighted shares against exact fractions, and what is refused as weights."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.arrays import Layout, block, checked, checked_shares, combined, coordinates, length_of, shares
from overlap.arrays.weights import LEAST_GAIN, ROUNDS, speeds_of, weights_of

NUMBERS = (
    st.integers(1, 30)
    | st.integers(1, 10**40)
    | st.fractions(Fraction(1, 10**6), 10**6)
    | st.floats(min_value=5e-324, allow_infinity=False, exclude_min=False)
)


@settings(max_examples=300)
@given(st.integers(0, 2000) | st.integers(0, 2**70), st.lists(NUMBERS, min_size=1, max_size=9))
def test_shares_add_up_and_are_less_than_one_off(total, weights):
    found = shares(total, tuple(weights))
    assert sum(found) == total and min(found) >= 0
    whole = sum(map(Fraction, weights))
    off = [share - total * Fraction(weight) / whole for share, weight in zip(found, weights)]
    assert all(abs(one) < 1 for one in off)
    # Who weighs more has no less; of equals, the first have one more.
    for one, share in enumerate(found):
        for other in range(len(found)):
            assert Fraction(weights[one]) <= Fraction(weights[other]) or share >= found[other]
            assert weights[one] != weights[other] or other < one or found[other] <= share


@settings(max_examples=100)
@given(st.integers(0, 500), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 10**6))
def test_only_proportions_count(total, weights, factor):
    assert shares(total, tuple(weights)) == shares(total, tuple(factor * weight for weight in weights))


@settings(max_examples=100)
@given(st.integers(0, 500), st.integers(1, 20), NUMBERS)
def test_equal_weights_are_the_even_split(length, parts, weight):
    assert block(length, parts, (weight,) * parts) == block(length, parts)


def test_shares_by_hand():
    """Batches of NAS EP, class B and larger, on nodes of speeds 7 and 4."""
    assert shares(2**30, (7, 4)) == (683290252, 390451572)
    assert shares(16384, (7,) * 15 + (4,)) == (1053,) * 2 + (1052,) * 13 + (602,)
    assert shares(1000, (7, 7, 4)) == (389, 389, 222)
    assert shares(3, (1, 1e9, 1)) == (0, 3, 0)
    assert block(5, 3, (2, 2, 1)) == [slice(0, 2), slice(2, 4), slice(4, 5)]


def test_a_coordinate_weighs_what_its_ranks_weigh_together():
    layout = Layout((0, 1), (2, 2), (1, 2, 3, 4))  # ranks p + 2 q
    assert [coordinates(rank, (2, 2)) for rank in range(4)] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [length_of(part) for part in layout.parts((20, 20), 0)] == [8, 12]
    assert [length_of(part) for part in layout.parts((20, 20), 1)] == [6, 14]
    assert combined((1, 2, 3, 4), (0, 1, 0, 1)) == (4, 6)
    assert [length_of(part) for part in layout.even.parts((20, 20), 1)] == [10, 10]


@pytest.mark.parametrize(
    "given_, expected",
    [
        (None, None),
        ([7, 4], (7, 4)),
        (np.array([7, 4], "i1"), (7, 4)),
        (np.array([0.5, 2], "f4"), (0.5, 2)),
        ((3, 3.0), None),
        ((Fraction(1, 3), 1), (Fraction(1, 3), 1)),
        (iter([1.0, 2]), (1, 2)),
    ],
)
def test_weights_become_numbers_of_python(given_, expected):
    found, problem = checked(given_, 2)
    assert problem is None and found == expected
    assert found is None or all(type(one) in (int, float, Fraction) for one in found)


@pytest.mark.parametrize(
    "given_",
    [
        (1, 0),
        (1, -2),
        (1, float("nan")),
        (1, float("inf")),
        (1,),
        (1, 2, 3),
        "74",
        ("7", "4"),
        (True, 2),
        7,
        (1, None),
        np.ones((2, 2)),
        (1, 2j),
        b"ab",
    ],
)
def test_bad_weights_are_refused(given_):
    found, problem = checked(given_, 2)
    assert found is None
    assert "positive finite numbers, one for each rank, 2 in all, received" in problem


@settings(max_examples=50)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.lists(st.integers(1, 20), min_size=6, max_size=6))
def test_speeds_are_shares_over_times(speeds, some):
    """Any speeds, found from any shares; new shares pay where the even ones lose more than measuring errs."""
    parts = [one / sum(some[: len(speeds)]) for one in some[: len(speeds)]]
    times = [[share / speed] * ROUNDS for share, speed in zip(parts, speeds)]
    found, pays = speeds_of(times, parts)
    np.testing.assert_allclose(found, np.array(speeds) / max(speeds), rtol=1e-12)
    gain = max(each[0] for each in times) * sum(speeds)
    assert pays == (gain >= LEAST_GAIN) or abs(gain - LEAST_GAIN) < 1e-9
    assert all(
        abs(weight - 1000 * speed / max(speeds)) <= 0.5 or weight == 1
        for weight, speed in zip(weights_of(found), speeds)
    )


def test_a_disturbed_round_balances_nothing():
    times = np.ones((2, ROUNDS))
    times[1, : ROUNDS // 2] = 3.0
    assert not speeds_of(times, (0.5, 0.5))[1]
    assert speeds_of(np.array([[1.0], [2.0]]) * np.ones(ROUNDS), (0.5, 0.5))[1]
    found, pays = speeds_of([[1.0] * ROUNDS, [0.0] * ROUNDS, [1.0] * ROUNDS], (0.5, 0.0, 0.5))
    assert found == (1, 1, 1) and pays  # who has no work gets some


def test_equal_ranks_stay_equal():
    """Noise of any size is no difference in speed; one that is larger than the noise is."""
    chance = np.random.default_rng(0)
    for ranks in (2, 4, 8):
        for deviation in (0.002, 0.02, 0.05, 0.1):
            changed = [
                speeds_of(1 + deviation * chance.standard_normal((ranks, ROUNDS)), (1 / ranks,) * ranks)[1]
                for _ in range(200)
            ]
            assert sum(changed) <= 2, (ranks, deviation)
        slow = np.ones(ranks)
        slow[-1] = 4 / 7
        times = (1 + 0.03 * chance.standard_normal((ranks, ROUNDS))) / slow[:, None]
        found, pays = speeds_of(times, (1 / ranks,) * ranks)
        assert pays
        np.testing.assert_allclose(found[-1], 4 / 7, rtol=0.1)


def test_what_differs_from_half_to_half_is_no_speed():
    times = np.ones((2, ROUNDS))
    times[0, : ROUNDS // 2] = 2.0
    times[1, ROUNDS // 2 :] = 2.0
    assert not speeds_of(times, (0.5, 0.5))[1]


def test_given_shares_are_the_parts():
    """They go before weights, hold for one axis of one dimension, and are weights on finer grids."""
    given_ = (((0, 1), (8, 0, 3)), ((2, 0), (4, 1)))
    layout = Layout((1, None, 0), (2, 3), (7, 4, 1, 1, 1, 1), shares=given_)
    assert [length_of(part) for part in layout.parts((11, 9, 5), 0)] == [8, 0, 3]
    assert [length_of(part) for part in layout.parts((22, 9, 10), 0)] == [16, 0, 6]
    assert [length_of(part) for part in layout.parts((11, 9, 5), 2)] == [4, 1]
    other = Layout((None, 1, 0), (2, 3), shares=given_)
    assert [length_of(part) for part in other.parts((11, 9, 5), 1)] == [3, 3, 3]
    assert [length_of(part) for part in layout.even.parts((11, 9, 5), 0)] == [4, 4, 3]
    assert shares(0, (0, 0)) == (0, 0)


@pytest.mark.parametrize(
    "bad", [{0: (8, 2)}, {0: (11, -1, 1)}, {0: (11, 0)}, {0: (11.0, 0, 0)}, {3: (1,)}, {1: (4, 5)}, 3]
)
def test_bad_shares(bad):
    assert checked_shares({-3: np.array([8, 0, 3])}, (11, 9, 5), (3, 1, 1)) == ({0: (8, 0, 3)}, None)
    found, problem = checked_shares(bad, (11, 9, 5), (3, 1, 1))
    assert found == {} and "expected shares" in problem and "received" in problem
