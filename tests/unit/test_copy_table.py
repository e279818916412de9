"""Copy tables against numpy: boxes and positions of items of any size, between arrays of any strides."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import exhaustive

from overlap import InputError
from overlap.arrays.exchange import Overflow
from overlap.compiled.copy_table import ArrayRegion, CopyTable
from overlap.compiled.execute import execute
from overlap.compiled.memory import address_of
from overlap.fft.engine.program import CompiledProgram, View

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


@pytest.mark.parametrize("numbers", [1, 2, 3, 6])
@pytest.mark.parametrize("precisions", [(8, 4), (4, 8), (8, 8)])
@pytest.mark.parametrize("picked, put", [(False, False), (True, False), (False, True), (True, True)])
def test_items_are_converted(numbers, precisions, picked, put):
    """Boxes and positions of items of some real numbers; one that is too large is told."""
    rng = np.random.default_rng(1)
    source = rng.standard_normal((6, 7, numbers)).astype(f"f{precisions[0]}")
    found = np.zeros((6, 7, numbers), f"f{precisions[1]}")
    overflow = Overflow()

    def regions(here, there):
        for base, array, where in ((0, source, here), (1, found, there)):
            item = array.itemsize * numbers
            part = array[where] if isinstance(where, tuple) else array
            box = part.shape[:2], part.strides[:2]
            positions = None
            if not isinstance(where, tuple):
                box, positions = ((len(where),), (item,)), where
            offset = address_of(part) - address_of(array)
            yield ArrayRegion(0, offset, *box, item, positions, array.itemsize, overflow.address if base else 0)

    box = slice(1, 5), slice(2, 6)
    inside = np.arange(42).reshape(6, 7)[box].ravel()
    some = rng.permutation(42)[:16]
    if picked or put:
        here, there = some if picked else np.arange(16), some[::-1] if put else np.arange(16)
        flat = here, there
    else:
        here = there = box
        flat = inside, inside
    bases = np.array([address_of(source)]), np.array([address_of(found)])
    table = CopyTable([tuple(regions(here, there))])
    table.execute(*map(address_of, bases))
    expected = np.zeros_like(found)
    with np.errstate(over="ignore"):
        expected.reshape(42, -1)[flat[1]] = source.reshape(42, -1)[flat[0]].astype("f4")
    np.testing.assert_array_equal(found, expected)
    overflow.check()
    if precisions[0] == 8:
        source.reshape(42, -1)[flat[0][-1], -1] = -1e39
        table.execute(*map(address_of, bases))
        with pytest.raises(InputError, match="single precision"):
            overflow.check()
        overflow.check()


def test_what_is_one_run_is_told():
    array = np.zeros((4, 5, 6))
    whole = region(3, array, slice(1, 3))
    packed = ArrayRegion(0, 64, whole.shape, whole.strides, 8)
    assert CopyTable([(whole, packed)]).run() == ((3, 240), (0, 64), 480)
    assert CopyTable([(region(0, array, np.s_[:, 1:3]), packed)]).run() is None
    assert CopyTable([(whole, packed), (whole, packed)]).run() is None
    assert CopyTable([]).run() is None


@st.composite
def conversions(draw):
    """Real or complex numbers of one precision and of another, and whether doubles are rounded."""
    kind = draw(st.sampled_from("fc"))
    source, target = draw(st.sampled_from([(8, 4), (4, 8), (8, 8)]))
    return [np.dtype(f"{kind}{size * (1 + (kind == 'c'))}") for size in (source, target)]


@pytest.mark.parametrize("count", [60, exhaustive(400)])
def test_numbers_are_converted(count):
    @settings(max_examples=count)
    @given(boxes(), conversions(), st.sampled_from([1.0, 0.3]))
    def check(box, dtypes, scale):
        shape, where, order = box
        given, made = dtypes
        rng = np.random.default_rng(0)
        values = 1j * rng.standard_normal(shape) if given.kind == "c" else 0
        source = (values + rng.standard_normal(shape)).astype(given)
        found = np.zeros([shape[axis] for axis in order], made).transpose(np.argsort(order))
        expected = found.copy()
        wide, single = ("c16", "c8") if given.kind == "c" else ("f8", "f4")
        expected[where] = (scale * source[where].astype(wide)).astype(single)
        assert not converted(source, found, where, scale)
        np.testing.assert_array_equal(found, expected)

    check()


def converted(source, found, where=..., scale=1.0):
    """Convert with a program; whether a number was too large."""
    flag, program = np.zeros(1, np.int64), CompiledProgram()
    views = [View(base, array.shape, array.strides, array.dtype) for base, array in enumerate((source, found))]
    target = replace(views[1], rounding=address_of(flag))
    if where is not ...:
        views[0], target = views[0][where], target[where]
    program.copy(target, views[0], scale)
    execute(program.code, np.array([address_of(source), address_of(found)]))
    return bool(flag[0])


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("made", ["f4", "f8"])
def test_finite_numbers_that_become_infinite_are_told(made, strided):
    largest = float(np.finfo(np.float32).max)
    for value, told in (
        (largest, False),
        (largest * (1 + 2.0**-26), False),  # rounded to the largest
        (largest * (1 + 2.0**-24), True),
        (-1e300, True),
        (np.inf, False),
        (np.nan, False),
        (1e-300, False),
    ):
        for place in range(7):
            source, found = np.ones((7, 7)), np.zeros((7, 7), made)
            source[3, place] = value
            assert converted(source, found.T if strided else found) == told
            with np.errstate(over="ignore"):
                assert np.array_equal(found.T if strided else found, source.astype("f4"), equal_nan=True)


def test_views_of_other_kinds_are_refused():
    views = [View.contiguous(0, (3,), np.dtype(kind)) for kind in ("c16", "f4")]
    with pytest.raises(ValueError, match="one shape and type"):
        CompiledProgram().copy(*views)
