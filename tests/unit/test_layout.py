"""Layouts, crossings and legs against the globally known data: every rank played here, no MPI."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.arrays import (
    Crossing,
    Layout,
    Remainder,
    Swap,
    chunks,
    contiguous,
    legs,
    length_of,
    offset,
)


def ranks(layout):
    return list(product(*map(range, layout.grid)))


def local_parts(layout, whole):
    return {rank: np.array(whole[layout.local_slice(whole.shape, rank)]) for rank in ranks(layout)}


@st.composite
def problems(draw):
    """A layout, a swap, a shape and an axis to cut along; any lengths, also too few for the ranks."""
    axes = draw(st.integers(2, 4))
    grid = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    order = draw(st.permutations(range(axes)))
    joined, split = order[:2]
    splits = [None] * axes
    splits[joined] = 0
    if len(grid) == 2 and axes > 2:
        splits[order[2]] = 1
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=axes, max_size=axes)))
    along = draw(st.sampled_from([axis for axis in range(axes) if axis != split]))
    return Layout(tuple(splits), grid), Swap(joined, split), shape, along


def exchanged(crossings, layout, swap, before, after, message_of):
    """Move the boxes of one message from `before` to `wait_for_slices`, on all ranks."""
    dimension = layout.splits[swap.joined]
    for rank in ranks(layout):
        message = message_of(crossings[rank])
        for there, box in enumerate(message.sent):
            peer = (*rank[:dimension], there, *rank[dimension + 1:])
            target = message_of(crossings[peer]).received[rank[dimension]]
            assert after[peer][target].shape == before[rank][box].shape
            after[peer][target] += before[rank][box]


@settings(max_examples=200, deadline=None)
@given(problems(), st.integers(1, 5), st.integers(1, 3))
def test_messages_carry_the_array_to_its_new_layout(problem, units, chunk):
    layout, swap, shape, along = problem
    whole = np.arange(1, np.prod(shape) + 1).reshape(shape)
    before = local_parts(layout, whole)
    after = {rank: np.zeros_like(part)
             for rank, part in local_parts(layout.swapped(swap), whole).items()}
    crossings = {rank: Crossing(layout, swap, shape, rank, along, units) for rank in ranks(layout)}
    assert len({crossing.units for crossing in crossings.values()}) == 1
    for part in chunks(crossings[ranks(layout)[0]].units, chunk):
        exchanged(crossings, layout, swap, before, after, lambda one: one.message(part))
    for rank, part in local_parts(layout.swapped(swap), whole).items():
        np.testing.assert_array_equal(after[rank], part)


@settings(max_examples=100, deadline=None)
@given(problems(), st.integers(1, 5), st.integers(0, 5), st.integers(1, 5), st.integers(1, 3))
def test_a_remainder_carries_what_the_first_units_did_not(problem, units, done, late, chunk):
    layout, swap, shape, _ = problem
    whole = np.arange(1, np.prod(shape) + 1).reshape(shape)
    before = local_parts(layout, whole)
    expected = local_parts(layout.swapped(swap), whole)
    after = {rank: np.zeros_like(part) for rank, part in expected.items()}
    crossings = {rank: Crossing(layout, swap, shape, rank, swap.joined, units)
                 for rank in ranks(layout)}
    count = crossings[ranks(layout)[0]].units
    done = min(done, count - 1)
    for part in chunks(done, chunk):
        exchanged(crossings, layout, swap, before, after, lambda one: one.message(part))
    left, remainders = {}, {}
    for rank, crossing in crossings.items():
        where = [slice(None)] * len(shape)
        where[swap.joined] = slice(crossing.unit(done).start, None)
        left[rank] = before[rank][tuple(where)]
        remainders[rank] = Remainder(crossing, done, late)
        assert remainders[rank].before == left[rank].shape
    for part in chunks(remainders[ranks(layout)[0]].units, chunk):
        exchanged(remainders, layout, swap, left, after, lambda one: one.message(part))
        for rank in after:  # these units are complete
            for number in range(part.start, part.stop):
                where = [slice(None)] * len(shape)
                where[swap.split] = remainders[rank].unit(number)
                np.testing.assert_array_equal(after[rank][tuple(where)],
                                              expected[rank][tuple(where)])
    for rank, part in expected.items():
        np.testing.assert_array_equal(after[rank], part)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), min_size=1,
                max_size=4))
def test_contiguous_boxes(bounds):
    shape = tuple(max(bound) for bound in bounds)
    box = tuple(slice(*sorted(bound[:2])) for bound in bounds)
    positions = np.arange(np.prod(shape)).reshape(shape)[box].ravel()
    assert contiguous(box, shape) == bool((np.diff(positions) == 1).all())
    if positions.size:
        assert offset(box, shape) == positions[0]


def test_layout_swaps():
    layout = Layout((None, 1, 0, None), (3, 2))
    after = layout.swapped(Swap(2, 3)).swapped(Swap(1, 2))
    assert after.splits == (None, None, 1, 0)
    assert after.swapped(Swap(2, 1)).swapped(Swap(3, 2)) == layout
    assert layout.local_shape((5, 7, 8, 9), (0, 1)) == (5, 3, 3, 9)
    assert Swap(2, 3).reversed() == Swap(3, 2)
    for swap in (Swap(3, 2), Swap(2, 1), Swap(0, 3)):
        with pytest.raises(ValueError, match="expected"):
            layout.swapped(swap)


ROUTES = [
    [(3,), Swap(2, 3), (2,), Swap(1, 2), (1,)], [(3, 2), Swap(1, 2), (1,)],
    [(3,), Swap(2, 3), (2, 1)], [(3, 2), None, (1,)], [(1,), None, (2,), Swap(3, 2), (3,)],
    [(1,), Swap(2, 1), (2,), Swap(3, 2), (3,)], [(1,), Swap(2, 1), (2, 3)],
    [(1,), None, (2, 3)], [(2,), Swap(3, 2), (3, 1)],
    [(3,), Swap(2, 3), (2,), Swap(1, 2), (1,), Swap(2, 1), (), Swap(3, 2), ()]]


@pytest.mark.parametrize("route", ROUTES, ids=str)
@pytest.mark.parametrize("axes", [(1, 2, 3), (3, 2, 1), (0,)])
@pytest.mark.parametrize("last", [None, 3])
def test_legs_transform_every_axis_once_and_never_the_cut_one(route, axes, last):
    if last is not None and route[-1][-1:] != (last,):
        return
    found, rest = legs(route, axes, last)
    done = [axis for leg in found for axis in (*leg.first, *leg.then)] + list(rest)
    assert sorted(done) == [1, 2, 3]
    if last is not None:
        assert done[-1] == last
    assert [leg.swap for leg in found] == route[1::2]
    # What is transformed before an exchange is what the route has before it, or earlier.
    for number, leg in enumerate(found):
        assert leg.along not in leg.first and leg.along not in leg.then
        before = {axis for group in route[0:2 * number + 1:2] for axis in group}
        assert set(leg.first) <= before
        assert set(leg.then) <= before | set(route[2 * number + 2])
        if leg.swap is not None:
            assert leg.along != leg.swap.split
            assert leg.along != leg.swap.joined or not leg.then
            # The split axis must be complete when it leaves.
            later = [axis for other in found[number:] for axis in other.then] + list(rest)
            assert leg.swap.split not in [*later, *(
                axis for other in found[number + 1:] for axis in other.first)]


def test_units_divide_the_longest_part():
    layout, swap = Layout((0, None, None), (3,)), Swap(0, 1)
    for rank in range(3):
        crossing = Crossing(layout, swap, (7, 4, 5), (rank,), 0, 100)
        assert crossing.units == 3
        assert sum(length_of(crossing.unit(number)) for number in range(3)) == (3, 2, 2)[rank]
