"""Layouts, transposes and stages against the globally known data: every rank played here, no MPI."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.arrays import (
    AxisSwap,
    LateBlocks,
    Layout,
    TransposeBlocks,
    axis_names,
    chunks,
    contiguous,
    ffts_along,
    length_of,
    offset,
    stages,
)


def ranks(layout):
    return list(product(*map(range, layout.grid)))


def local_parts(layout, whole):
    return {rank: np.array(whole[layout.local_slice(whole.shape, rank)]) for rank in ranks(layout)}


@st.composite
def problems(draw):
    """A layout, a transpose, a shape and an axis to cut along; any lengths, also too few for the ranks."""
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
    weights = draw(st.none() | st.lists(st.integers(1, 9), min_size=int(np.prod(grid)), max_size=int(np.prod(grid))))
    collective_section = draw(st.just([]) | st.lists(st.integers(1, 3), min_size=axes, max_size=axes))
    return (
        Layout(tuple(splits), grid, weights and tuple(weights), tuple(collective_section)),
        AxisSwap(joined, split),
        shape,
        along,
    )


def exchanged(blocks, layout, transpose, before, after, message_of):
    """Move the boxes of one message from `before` to `wait_for_slices`, on all ranks."""
    dimension = layout.splits[transpose.joined]
    for rank in ranks(layout):
        message = message_of(blocks[rank])
        for there, box in enumerate(message.sent):
            peer = (*rank[:dimension], there, *rank[dimension + 1 :])
            target = message_of(blocks[peer]).received[rank[dimension]]
            assert after[peer][target].shape == before[rank][box].shape
            after[peer][target] += before[rank][box]


@settings(max_examples=200)
@given(problems(), st.integers(1, 5), st.integers(1, 3))
def test_messages_carry_the_array_to_its_new_layout(problem, units, chunk):
    layout, transpose, shape, along = problem
    whole = np.arange(1, np.prod(shape) + 1).reshape(shape)
    before = local_parts(layout, whole)
    after = {rank: np.zeros_like(part) for rank, part in local_parts(layout.transposed(transpose), whole).items()}
    blocks = {rank: TransposeBlocks(layout, transpose, shape, rank, along, units) for rank in ranks(layout)}
    even = TransposeBlocks(layout.even, transpose, shape, ranks(layout)[0], along, units)
    assert {one.units for one in blocks.values()} == {even.units}  # as many messages as with even shares
    for part in chunks(blocks[ranks(layout)[0]].units, chunk):
        exchanged(blocks, layout, transpose, before, after, lambda each: each.message(part))
    for rank, part in local_parts(layout.transposed(transpose), whole).items():
        np.testing.assert_array_equal(after[rank], part)


@settings(max_examples=100)
@given(problems(), st.integers(1, 5), st.integers(0, 5), st.integers(1, 5), st.integers(1, 3))
def test_a_remainder_carries_what_the_first_units_did_not(problem, units, done, late, chunk):
    layout, transpose, shape, along = problem
    whole = np.arange(1, np.prod(shape) + 1).reshape(shape)
    before = local_parts(layout, whole)
    expected = local_parts(layout.transposed(transpose), whole)
    after = {rank: np.zeros_like(part) for rank, part in expected.items()}
    blocks = {rank: TransposeBlocks(layout, transpose, shape, rank, along, units) for rank in ranks(layout)}
    count = blocks[ranks(layout)[0]].units
    done = min(done, count - 1)
    for part in chunks(done, chunk):
        exchanged(blocks, layout, transpose, before, after, lambda each: each.message(part))
    left, deferred = {}, {}
    for rank, one in blocks.items():
        where = [slice(None)] * len(shape)
        where[along] = slice(one.unit(done).start, None)
        left[rank] = before[rank][tuple(where)]
        deferred[rank] = LateBlocks(one, done, late)
        assert deferred[rank].before == left[rank].shape
    for part in chunks(deferred[ranks(layout)[0]].units, chunk):
        exchanged(deferred, layout, transpose, left, after, lambda each: each.message(part))
        for rank in after:  # these units are complete
            for number in range(part.start, part.stop):
                where = [slice(None)] * len(shape)
                where[transpose.split] = deferred[rank].unit(number)
                np.testing.assert_array_equal(after[rank][tuple(where)], expected[rank][tuple(where)])
    for rank, part in expected.items():
        np.testing.assert_array_equal(after[rank], part)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4))
def test_contiguous_boxes(bounds):
    shape = tuple(max(bound) for bound in bounds)
    box = tuple(slice(*sorted(bound[:2])) for bound in bounds)
    positions = np.arange(np.prod(shape)).reshape(shape)[box].ravel()
    assert contiguous(box, shape) == bool((np.diff(positions) == 1).all())
    if positions.size:
        assert offset(box, shape) == positions[0]


def test_indices_that_stay_together():
    layout = Layout((0, None), (3,), multiples=(2, 1))
    assert layout.parts((9, 4), 0) == [slice(0, 4), slice(4, 8), slice(8, 9)]
    assert layout.transposed(AxisSwap(0, 1)).parts((9, 4), 1) == [slice(0, 2), slice(2, 3), slice(3, 4)]
    assert replace(layout, weights=(1, 3, 1)).parts((9, 4), 0) == [slice(0, 2), slice(2, 8), slice(8, 9)]
    assert Layout((0, None), (4,), multiples=(2, 1)).parts((5, 4), 0) == [
        slice(0, 2),
        slice(2, 4),
        slice(4, 5),
        slice(5, 5),
    ]


def test_layout_swaps():
    layout = Layout((None, 1, 0, None), (3, 2))
    after = layout.transposed(AxisSwap(2, 3)).transposed(AxisSwap(1, 2))
    assert after.splits == (None, None, 1, 0)
    assert after.transposed(AxisSwap(2, 1)).transposed(AxisSwap(3, 2)) == layout
    assert layout.local_shape((5, 7, 8, 9), (0, 1)) == (5, 3, 3, 9)
    assert AxisSwap(2, 3).reversed() == AxisSwap(3, 2)
    for transpose in (AxisSwap(3, 2), AxisSwap(2, 1), AxisSwap(0, 3)):
        with pytest.raises(ValueError, match="expected"):
            layout.transposed(transpose)


def test_units_divide_the_longest_part():
    layout, transpose = Layout((0, None, None), (3,)), AxisSwap(0, 1)
    for rank in range(3):
        one = TransposeBlocks(layout, transpose, (7, 4, 5), (rank,), 0, 100)
        assert one.units == 3
        assert sum(length_of(one.unit(number)) for number in range(3)) == (3, 2, 2)[rank]


def test_stages_are_told_in_words():
    found, rest = stages([(3,), AxisSwap(2, 3), (2,), AxisSwap(1, 2), (1,)], (1, 2, 3))
    names = axis_names(3)
    assert [stage.in_words(names) for stage in found] == [
        "FFTs along x, exchange that makes y whole and splits x, FFTs along y",
        "exchange that makes z whole and splits y, FFTs along z",
    ]
    assert ffts_along(rest, names) == [] and ffts_along((3, 1), names) == ["FFTs along x and z"]
    (stage,), _ = stages([(3, 2), None, (1,)], (0,))
    assert stage.in_words(axis_names(4)) == "FFTs along axis 2 and axis 1, FFTs along axis 0"
