"""Copy tables against numpy: boxes and positions of items of any size, between arrays of any strides."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import exhaustive

from overlap.lowlevel.copy_table import ArrayRegion, CopyTable
from overlap.lowlevel.memory import address_of

ITEMS = (1, 2, 3, 4, 8, 12, 16, 24)  # bytes


@st.composite
def boxes(draw):
    """A shape, a box in it, and the order of the target's axes."""
    shape = tuple(draw(st.lists(st.integers(1, 20 if draw(st.booleans()) else 5), min_size=1, max_size=6)))
    where = tuple(
        slice(start, draw(st.integers(start, length))) for length in shape for start in [draw(st.integers(0, length))]
    )
    return shape, where, draw(st.permutations(range(len(shape))))


def random(shape, nbytes):
    return np.random.default_rng(0).integers(0, 256, (*shape, nbytes), np.uint8).view(f"V{nbytes}")[..., 0]


def region(base, array, where):
    part = array[where]
    return ArrayRegion(base, address_of(part) - address_of(array), part.shape, part.strides, array.itemsize)


@pytest.mark.parametrize("count", [60, exhaustive(400)])
def test_boxes_are_copied(count):
    @settings(max_examples=count)
    @given(boxes(), st.sampled_from(ITEMS))
    def check(box, nbytes):
        shape, where, order = box
        source = random(shape, nbytes)
        found = np.zeros([shape[axis] for axis in order], source.dtype).transpose(np.argsort(order))
        expected = found.copy()
        expected[where] = source[where]
        bases = np.array([address_of(source)]), np.array([address_of(found)])
        CopyTable([(region(0, source, where), region(0, found, where))]).execute(*map(address_of, bases))
        np.testing.assert_array_equal(found, expected)

    check()


@pytest.mark.parametrize("nbytes", ITEMS)
@pytest.mark.parametrize("picked, put", [(True, False), (False, True), (True, True)])
def test_items_at_positions_are_copied(nbytes, picked, put):
    source, found = random((50,), nbytes), random((50,), nbytes)[::-1].copy()
    rng = np.random.default_rng(1)
    here, there = (rng.permutation(50)[:20] if some else np.arange(20) for some in (picked, put))
    expected = found.copy()
    expected[there] = source[here]
    regions = [
        ArrayRegion(0, 0, (20,), (nbytes,), nbytes, positions if some else None)
        for positions, some in ((here, picked), (there, put))
    ]
    bases = np.array([address_of(source)]), np.array([address_of(found)])
    CopyTable([tuple(regions)]).execute(*map(address_of, bases))
    np.testing.assert_array_equal(found, expected)


def test_what_is_one_run_is_told():
    array = np.zeros((4, 5, 6))
    whole = region(3, array, slice(1, 3))
    packed = ArrayRegion(0, 64, whole.shape, whole.strides, 8)
    assert CopyTable([(whole, packed)]).run() == ((3, 240), (0, 64), 480)
    assert CopyTable([(region(0, array, np.s_[:, 1:3]), packed)]).run() is None
    assert CopyTable([(whole, packed), (whole, packed)]).run() is None
    assert CopyTable([]).run() is None
