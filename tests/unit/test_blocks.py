"""Blocks with ghost cells: every ghost cell is filled with the right cell, by geometry alone."""

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from overlap import Blocks, InputError


@st.composite
def drawn(draw):
    axes = draw(st.integers(1, 3))
    grid = draw(st.lists(st.integers(1, 3), min_size=axes, max_size=axes))
    width = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=axes, max_size=axes))
    shape = [draw(st.integers(2 * parts, 2 * parts + 3)) for parts in grid]
    size = int(np.prod(grid))
    weights = draw(st.none() | st.lists(st.sampled_from((0.01, 1, 2, 3)), min_size=size, max_size=size))
    try:
        return Blocks(
            shape,
            grid,
            width=width,
            corners=draw(st.booleans()),
            weights=weights,
            periodic=draw(st.lists(st.booleans(), min_size=axes, max_size=axes)),
        )
    except InputError as error:  # a block narrower than its ghost cells
        assert weights is not None and "as wide as their ghost cells" in str(error)
        reject()


def local_truth(blocks, rank, cells):
    """The local array with all ghost cells that are to be filled; -1 elsewhere. Of an empty block none is."""
    if not np.prod([part.stop - part.start for part in blocks.part(rank)]):
        return np.full(blocks.local_shape(rank), -1)
    lists = [
        np.arange(part.start - low, part.stop + high) for part, (low, high) in zip(blocks.part(rank), blocks.width)
    ]
    here = cells[np.ix_(*[numbers % len_ for numbers, len_ in zip(lists, blocks.shape)])].copy()
    sides = np.zeros(here.shape, int)
    for axis, (numbers, part, periodic) in enumerate(zip(lists, blocks.part(rank), blocks.periodic)):
        shape = [-1 if one == axis else 1 for one in range(here.ndim)]
        outside = (numbers < 0) | (numbers >= blocks.shape[axis])
        ghost = (numbers < part.start) | (numbers >= part.stop)
        sides = sides + ghost.reshape(shape)
        if not periodic:
            here[np.broadcast_to(outside.reshape(shape), here.shape)] = -1
    if not blocks.corners:
        here[sides > 1] = -1
    return here


@given(drawn())
@settings(max_examples=100)
def test_neighbours_fill_all_ghost_cells(blocks):
    cells = np.arange(np.prod(blocks.shape)).reshape(blocks.shape)
    arrays = [np.full(blocks.local_shape(rank), -1) for rank in range(blocks.size)]
    for rank, array in enumerate(arrays):
        array[blocks.own(rank)] = cells[blocks.part(rank)]
    before = [array.copy() for array in arrays]
    for rank, array in enumerate(arrays):
        for one in blocks.neighbours(rank):
            array[one.receive] = before[one.rank][one.send]
        np.testing.assert_array_equal(array, local_truth(blocks, rank, cells))


@given(drawn(), st.data())
@settings(max_examples=50)
def test_inner_and_outer_cells_are_all_cells(blocks, data):
    rank = data.draw(st.integers(0, blocks.size - 1))
    assume(np.prod(blocks.local_shape(rank)))
    count = np.zeros(blocks.local_shape(rank), int)
    count[blocks.inner(rank)] += 1
    for box in blocks.outer(rank):
        count[box] += 1
    assert (count[blocks.own(rank)] == 1).all() and count.sum() == count[blocks.own(rank)].size
    for (low, high), inner, own in zip(blocks.width, blocks.inner(rank), blocks.own(rank)):
        assert inner.start == inner.stop or (inner.start - low >= own.start and inner.stop + high <= own.stop)


@pytest.mark.parametrize(
    "arguments, text",
    [
        (dict(shape=(4, 4), grid=(2,)), "one number >= 1 for each axis, received shape=.4, 4. and grid=.2,."),
        (dict(shape=(8, 8), grid=2), "one number >= 1 for each axis, received shape=.8, 8. and grid=2"),
        (dict(shape=8, grid=(2,)), "one number >= 1 for each axis, received shape=8 and grid=.2,."),
        (dict(shape=(8.5,), grid=(2,)), "one number >= 1 for each axis, received shape=.8.5,."),
        (dict(shape=(8,), grid=("2",)), "one number >= 1 for each axis"),
        (dict(shape=(8,), grid=None), "one number >= 1 for each axis"),
        (dict(shape=(8,), grid=(True,)), "one number >= 1 for each axis"),
        (dict(shape=(8,), grid=(2,), width=1.5), "a number of cells >= 0.*received 1.5"),
        (dict(shape=(8,), grid=(2,), width=(1.5,)), "a number of cells >= 0.*received .1.5,."),
        (dict(shape=(8,), grid=(2,), periodic=1), "periodic to be one truth value, or 1, received 1"),
        (dict(shape=(4, 4), grid=(2, 1), periodic="no"), "periodic to be one truth value, or 2, received 'no'"),
        (dict(shape=(4,), grid=(2,), width=3), "blocks of at least 3 cells along axis 0.*received 2"),
        (dict(shape=(4,), grid=(2,), width=-1), "a number of cells >= 0.*received -1"),
        (dict(shape=(4,), grid=(2,), width=((1, 2, 3),)), "or for each of 1 axes a number or a pair"),
        (dict(shape=(4, 4), grid=(2, 1), periodic=(True,)), "periodic to be one truth value, or 2"),
        (dict(shape=(2,), grid=(3,)), "received 0 of 2 cells on 3 ranks"),
        (dict(shape=(9,), grid=(3,), weights=(1, 2)), "one for each rank, 3 in all, received .1, 2."),
        (dict(shape=(9,), grid=(2,), weights=(1, 0)), "positive finite numbers"),
        (dict(shape=(9,), grid=(2,), width=2, weights=(8, 1)), "received 1 of 9 cells on 2 ranks"),
    ],
)
def test_what_makes_no_sense(arguments, text):
    with pytest.raises(InputError, match=text):
        Blocks(**arguments)
