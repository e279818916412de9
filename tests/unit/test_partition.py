"""Partition arithmetic and the geometry of a slab, against counting mode by mode."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.arrays import block, chunks, complement, intersect, length_of, mode_segments
from overlap.arrays.distribution import parts_problem

quick = settings(deadline=None, max_examples=200, database=None)
lengths = st.integers(1, 40)


def indices(parts):
    return [index for part in parts for index in range(part.start, part.stop)]


def modes(length, half):
    """The mode number at each index, and whether it is the Nyquist mode of an even length."""
    numbers = np.rint((np.fft.rfftfreq if half else np.fft.fftfreq)(length, 1 / length)).astype(int)
    return {index: int(abs(mode) if half else mode) for index, mode in enumerate(numbers) if 2 * abs(mode) != length}


@quick
@given(st.lists(st.integers(0, 3), min_size=1, max_size=3), st.data())
def test_parts_that_make_up_an_array(shape, data):
    """By painting: every element is in one part, where equal parts count once."""
    bounds = [st.tuples(st.integers(0, n), st.integers(0, n)).map(sorted) for n in shape]
    some = [tuple(slice(*each) for each in box) for box in data.draw(st.lists(st.tuples(*bounds), max_size=4))]
    if data.draw(st.booleans()):  # cut the whole in two, and the second half again, along any axes
        some, last = [], [slice(0, n) for n in shape]
        for _ in range(2):
            axis = data.draw(st.integers(0, len(shape) - 1))
            cut = data.draw(st.integers(last[axis].start, last[axis].stop))
            some.append(tuple(slice(p.start, cut) if n == axis else p for n, p in enumerate(last)))
            last[axis] = slice(cut, last[axis].stop)
        some += 2 * [tuple(last)]
    painted = np.zeros(shape, int)
    for box in {tuple((part.start, part.stop) for part in box): box for box in some}.values():
        painted[box] += 1
    assert (parts_problem(some, shape) is None) == bool((painted == 1).all())


@quick
@given(st.integers(0, 100), st.integers(1, 20))
def test_block_tiles_the_range_evenly(length, parts):
    found = block(length, parts)
    assert len(found) == parts
    assert indices(found) == list(range(length))
    sizes = [length_of(part) for part in found]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@quick
@given(st.integers(0, 100), st.integers(1, 120))
def test_chunks_are_few_even_and_small_enough(length, size):
    found = chunks(length, size)
    assert indices(found) == list(range(length))
    assert len(found) == -(-length // size)
    sizes = {length_of(part) for part in found}
    assert all(1 <= count <= size for count in sizes)
    assert not sizes or max(sizes) - min(sizes) <= 1


@quick
@given(st.lists(st.integers(0, 30), max_size=8), st.integers(0, 5))
def test_complement_is_what_is_left(bounds, more):
    bounds = sorted(bounds)
    segments = [slice(*pair) for pair in zip(bounds[::2], bounds[1::2])]
    length = (bounds[-1] if bounds else 0) + more
    gaps = complement(segments, length)
    assert sorted(indices(gaps) + indices(segments)) == sorted(set(indices(segments)) | set(range(length)))
    assert all(length_of(gap) > 0 for gap in gaps)


@quick
@given(lengths, st.integers(0, 30), st.booleans())
def test_segments_pair_the_same_modes(resolved, more, half):
    padded = resolved + more
    segments = mode_segments(resolved, padded, half)
    pairs = list(zip(indices(pair[0] for pair in segments), indices(pair[1] for pair in segments), strict=True))
    assert pairs == sorted(pairs)
    if more == 0:
        columns = resolved // 2 + 1 if half else resolved
        assert pairs == [(index, index) for index in range(columns)]
        return
    fine = {mode: index for index, mode in modes(padded, half).items()}
    assert dict(pairs) == {index: fine[mode] for index, mode in modes(resolved, half).items()}


@quick
@given(lengths, st.integers(0, 20), st.booleans(), st.integers(1, 6))
def test_intersections_add_up_to_the_whole(resolved, more, half, parts):
    segments = mode_segments(resolved, resolved + more, half)
    columns = resolved // 2 + 1 if half else resolved
    pairs = []
    for part in block(columns, parts):
        for own, fine in intersect(part, segments):
            assert 0 <= own.start < own.stop <= length_of(part)
            assert length_of(own) == length_of(fine)
            pairs += zip(range(part.start + own.start, part.start + own.stop), range(fine.start, fine.stop))
    assert pairs == list(zip(indices(pair[0] for pair in segments), indices(pair[1] for pair in segments)))


@pytest.mark.parametrize("n", range(1, 40))
def test_three_halves_rule_keeps_products_apart(n):
    """No alias of a product of two resolved modes falls on a resolved mode."""
    fine = -(-3 * n // 2)
    resolved = set(modes(n, half=False).values())
    products = {p + q for p in resolved for q in resolved}
    assert not any((product - mode) % fine == 0 and product != mode for product in products for mode in resolved)
