"""Programs, FFTW's plans and sweeps, against numpy."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import exhaustive

from overlap.compiled.execute import execute
from overlap.fft.engine.axis import Axis, Direction
from overlap.fft.engine.fftw import zeros
from overlap.fft.engine.lines import LineTransform
from overlap.fft.engine.program import CompiledProgram, View
from overlap.fft.engine.six_step import next_lengths, two_factors
from overlap.fft.engine.sweep_in_place import SweepInPlace
from overlap.runtime.loop.words import SOURCE, TARGET

Y, X = 1, 2
DTYPES = ("f4", "f8", "c8", "c16")


def tolerance(dtype, points):
    return 5 * np.finfo(dtype).eps * np.sqrt(np.log2(max(points, 2)))


def random(rng, shape, dtype):
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def run(program, *arrays):
    execute(program.code, np.array([array.ctypes.data for array in arrays], np.int64))


# ---- programs --------------------------------------------------------------------------------


@st.composite
def moves(draw):
    """A shape, which part of it, and the order of the target's axes."""
    shape = tuple(draw(st.lists(st.integers(1, 20 if draw(st.booleans()) else 5), min_size=1, max_size=5)))
    where = tuple(
        slice(start, draw(st.integers(start, length))) for length in shape for start in [draw(st.integers(0, length))]
    )
    return shape, where, draw(st.permutations(range(len(shape))))


@pytest.mark.parametrize("count", [40, exhaustive(150)])
def test_what_programs_move_is_what_numpy_moves(count):
    @settings(max_examples=count)
    @given(moves(), st.sampled_from(DTYPES), st.sampled_from((1.0, 0.3)))
    def check(move, dtype, scale):
        shape, where, order = move
        rng = np.random.default_rng(0)
        source = random(rng, shape, dtype)
        target = random(rng, [shape[axis] for axis in order], dtype).transpose(np.argsort(order))
        for name in ("copy", "add", "zero"):
            expected, found = target.copy(), target.copy(order="K")
            here, there = View.of(SOURCE, source)[where], View.of(TARGET, found)[where]
            program = CompiledProgram()
            if name == "copy":
                program.copy(there, here, scale)
                expected[where] = source[where] * source.real.dtype.type(scale)
            elif name == "add":
                program.add(there, here)
                expected[where] += source[where]
            else:
                program.zero(there)
                expected[where] = 0
            run(program, source, found)
            np.testing.assert_array_equal(found, expected)

    check()


def test_repetitions_move_on_by_their_steps():
    source, target = np.arange(60.0).reshape(5, 3, 4), np.zeros((5, 4, 3))
    body, program = CompiledProgram(), CompiledProgram()
    body.copy(
        View.of(TARGET, target)[1:2].moved_axis(2, 1).stepping(0, 1), View.of(SOURCE, source)[0:1].stepping(0, 1), 2.0
    )
    program.repeat(body, 4)
    run(program, source, target)
    np.testing.assert_array_equal(target[1:], 2 * source[:4].transpose(0, 2, 1))
    assert not target[0].any()


def test_parts_of_complex_numbers():
    array = random(np.random.default_rng(1), (3, 5), "c16")
    expected = array.copy()
    expected.imag[1:2] = 0
    program = CompiledProgram()
    program.zero(View.of(SOURCE, array)[1:2].imag)
    run(program, array)
    np.testing.assert_array_equal(array, expected)


def test_arrays_of_other_shapes_are_refused():
    one = View.contiguous(SOURCE, (2, 3), np.dtype("f8"))
    with pytest.raises(ValueError, match="shape"):
        CompiledProgram().copy(one, one[:1])
    with pytest.raises(ValueError, match="contiguous"):
        one.moved_axis(0, 1).reshaped((6,))


# ---- plans -----------------------------------------------------------------------------------


# ---- long lines ------------------------------------------------------------------------------


def test_long_lines_with_a_patient_plan():
    """FFTW is given many lines of an array at once."""
    values = random(np.random.default_rng(3), (2, 256, 150), complex)
    array = zeros(values.shape, complex)
    sweep = SweepInPlace(values.shape, Y, Axis(256, 256), np.dtype(complex), Direction(True, "patient"))
    assert sweep.scratch_nbytes == 0
    program = CompiledProgram()
    sweep.write(program, [], [View.of(SOURCE, array)])
    array[...] = values
    run(program, array)
    truth = np.fft.fft(values, axis=1)
    assert np.linalg.norm(array - truth) <= tolerance(complex, 256) * np.linalg.norm(truth)


def test_quick_plans_are_right_and_the_same_when_planned_again():
    generator = np.random.default_rng(7)
    for shape, axis in (((60, 130), 0), ((1, 96, 3, 17), 1), ((2, 5, 128), 2), ((37, 74), 0)):
        values = generator.random((*shape, 2)).view(complex)[..., 0]
        found = []
        for _ in range(2):
            source, target = zeros(shape, complex), zeros(shape, complex)
            plan = LineTransform(source, target, axis, True, None)
            source[...] = values
            plan.execute(source, target)
            found.append(target)
        np.testing.assert_allclose(found[0], np.fft.fft(values, axis=axis), rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(*found)


def test_factors_of_a_length():
    assert two_factors(2**24, 2) == (4096, 4096)
    assert two_factors(36, 3) == (6, 6)
    assert two_factors(30, 2) == (2, 15)  # even shares in real space go before factors that are near each other
    assert two_factors(13, 2) is two_factors(8, 3) is two_factors(14, 3) is None
    assert next_lengths(13, 2) == [14, 15, 16] and next_lengths(1, 3) == [9, 12, 15]
    for points, ranks in product(range(1, 300), range(1, 8)):
        pairs = [
            (n, points // n) for n in range(ranks, points // ranks + 1) if points % n == 0 and points // n >= ranks
        ]
        assert two_factors(points, ranks) in (pairs or [None])
