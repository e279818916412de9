"""Programs, FFTW's plans and sweeps, and the stages of several ranks in one process, against numpy."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import exhaustive

from overlap.arrays import AxisSwap, Layout
from overlap.compiled.execute import execute
from overlap.fft.arguments import kinds_of
from overlap.fft.engine.axis import Axis, axes_of
from overlap.fft.engine.buffers import ArrayReference, Buffers
from overlap.fft.engine.fftw import ALIGNMENT, complex_of, empty, zeros
from overlap.fft.engine.lines import LineTransform
from overlap.fft.engine.program import BASES, SCRATCH, SOURCE, TARGET, CompiledProgram, View
from overlap.fft.engine.route import Direction
from overlap.fft.engine.six_step import next_lengths, two_factors
from overlap.fft.engine.stage import SourceArray
from overlap.fft.engine.staged import StagedTransform
from overlap.fft.engine.steps import Exchange, Run
from overlap.fft.engine.sweep import Sweep
from overlap.fft.engine.sweep_in_place import SweepInPlace

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


@pytest.mark.parametrize("dtype", DTYPES)
def test_plans_transform_other_arrays(dtype):
    rng = np.random.default_rng(2)
    shape, spectral = (6, 10, 5), complex_of(dtype)
    for axis, effort in product(range(3), ("estimate", "measure")):
        modes = list(shape)
        if np.dtype(dtype).kind == "f":
            modes[axis] = shape[axis] // 2 + 1
        physical, spectrum = zeros(shape, dtype), zeros(modes, spectral)
        forward = LineTransform(physical, spectrum, axis, True, effort, keep=True)
        backward = LineTransform(spectrum, physical, axis, False, effort)
        u, uh, back = empty(shape, dtype), empty(modes, spectral), empty(shape, dtype)
        u[...] = random(rng, shape, dtype)
        forward.execute(u, uh)
        truth = (np.fft.rfft if np.dtype(dtype).kind == "f" else np.fft.fft)(u, axis=axis)
        limit = tolerance(dtype, shape[axis]) * np.linalg.norm(truth)
        assert np.linalg.norm(uh - truth) <= limit
        backward.execute(uh, back)
        assert np.linalg.norm(back / shape[axis] - u) <= limit


@pytest.mark.parametrize("shape, dtype", [((3, 5), "f4"), ((0, 4), "c16"), ((2**9, 2**10), "c16")])
def test_what_is_allocated_is_aligned(shape, dtype):
    for array in (empty(shape, dtype), zeros(shape, dtype)):
        assert array.shape == shape and array.dtype == dtype
        assert array.ctypes.data % ALIGNMENT == 0 or not array.size
    assert not zeros(shape, dtype).any()


# ---- stages of several ranks -----------------------------------------------------------------


class Recorder:
    """Stands for a communicator: keeps what one rank would hand to Alltoallv."""


def exchange(calls):
    """What MPI does with every rank's call: piece by piece, checking the counts."""
    for source, ((send, counts, starts, kind), _) in enumerate(calls):
        assert kind.Get_size() == send.itemsize
        for target, (_, (receive, other_counts, other_starts, _)) in enumerate(calls):
            count = counts[target]
            assert count == other_counts[source], (source, target)
            if source == target:
                assert count == 0  # what stays is not sent
            if count == 0:
                continue
            begin, other = starts[target], other_starts[source]
            assert begin + count <= send.size and other + count <= receive.size
            receive[other : other + count] = send[begin : begin + count]


def finer(modes, axis, n, m, half):
    """The modes of a grid of n points on one of m, without the Nyquist mode."""
    modes = np.moveaxis(modes, axis, 0)
    found = np.zeros((m // 2 + 1 if half else m, *modes.shape[1:]), complex)
    for index in range(len(modes)):
        if 2 * index != n or n == m:
            found[index if 2 * index <= n else index - n] = modes[index]
    return np.moveaxis(found, 0, axis)


def physical(modes, points, fine, real):
    """What planes of modes are on a finer grid, unnormalised, in double precision."""
    found = np.fft.ifft(finer(modes, -2, points[0], fine[0], False), axis=-2, norm="forward")
    found = finer(found, -1, points[1], fine[1], real)
    if real:
        return np.fft.irfft(found, fine[1], axis=-1, norm="forward")
    return np.fft.ifft(found, axis=-1, norm="forward")


@pytest.mark.parametrize("turned", [None, Y], ids=["natural", "transposed"])
@pytest.mark.parametrize("ranks, chunk", [(1, 1), (1, 4), (2, 1), (3, 2), (4, 3)])
@pytest.mark.parametrize(
    "points, fine",
    [
        ((6, 8), (6, 8)),
        ((7, 5), (7, 5)),
        ((2, 9), (2, 9)),
        ((1, 4), (1, 4)),
        ((12, 10), (18, 15)),
        ((3, 140), (3, 140)),
        ((5, 8), (8, 12)),
        ((280, 12), (280, 12)),
    ],
)
def test_planes_of_all_ranks(points, fine, ranks, chunk, turned):
    planes = 5
    for dtype in DTYPES:
        real, spectral = np.dtype(dtype).kind == "f", complex_of(dtype)
        axes = axes_of((Y, X), points, fine, kinds_of(None, dtype, 2))
        rng = np.random.default_rng(3)
        grid = [axis.length(False) for axis in axes.values()]
        modes = [axis.length(True) for axis in axes.values()]
        spectrum = random(rng, (planes, *points), "f8")
        spectrum = (np.fft.rfft2 if real else np.fft.fft2)(spectrum)
        if points != fine:
            for axis, n in zip((1, 2), points):
                if n % 2 == 0:
                    np.moveaxis(spectrum, axis, 0)[n // 2] = 0
        u = physical(spectrum, points, fine, real)
        for forward in (True, False):
            given = (u if forward else spectrum).astype(dtype if forward else spectral)
            truth = (spectrum * np.prod(fine) if forward else u) * 0.5
            found = _all_ranks(
                given,
                truth.shape,
                axes,
                grid if forward else modes,
                ranks,
                chunk,
                dtype,
                Direction(forward, "estimate", turned, by_index=True),
            )
            error = np.linalg.norm(found - truth)
            assert error <= tolerance(dtype, np.prod(fine)) * np.linalg.norm(truth), (dtype, forward)


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("length", [300, 512])
def test_long_lines_far_apart_are_the_same_from_any_array(length, scale):
    """Straight from a contiguous array, and copied from others, by one plan."""
    shape, box = (2, length, 37), (slice(0, 1), slice(0, length), slice(0, 37))
    axes = axes_of((Y, X), (length, 37), (length, 37), ("c2c", "c2c"))
    pieces = [(*box[:1], slice(0, 100), box[2]), (*box[:1], slice(100, length), box[2])]
    sweep = Sweep(
        (1, *shape[1:]), {Y: axes[Y]}, np.dtype(complex), Direction(False, "estimate"), [box], pieces, natural=True
    )
    values = random(np.random.default_rng(2), shape, complex)
    strided, shifted = np.zeros((2, length, 74), complex)[..., ::2], zeros((values.size + 1,), "c16").view("f8")[1:-1]
    shifted = shifted.view(complex).reshape(shape)
    found = []
    for source in (zeros(shape, complex), strided, shifted):
        source[...] = values
        target = zeros((1, *shape[1:]), complex)
        scratch = zeros((sweep.scratch_nbytes,), np.uint8)
        program = CompiledProgram()
        given = ArrayReference(source).view(SOURCE)[1:]
        there = View.of(TARGET, target)
        sweep.write(program, [given], [there[piece] for piece in pieces], scale)
        bases = np.zeros(BASES, np.int64)
        bases[SOURCE], bases[TARGET], bases[SCRATCH] = (
            array.__array_interface__["data"][0] for array in (source, target, scratch)
        )
        execute(program.code, bases)
        np.testing.assert_array_equal(source, values)
        found.append(target)
    truth = np.fft.ifft(values[1:], axis=1, norm="forward") * scale
    assert np.linalg.norm(found[0] - truth) <= tolerance(complex, length) * np.linalg.norm(truth)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


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


def _goes_on(steps, way):
    """Take steps up to the next exchange; whether there is one."""
    for step in steps:
        if isinstance(step, Run):
            step.execute(way.scratch[0])
        elif isinstance(step, Exchange):
            operation = step.operation()
            operation.comm.call = operation.args
            return True
    return False


def _all_ranks(given, shape, axes, global_shape, ranks, chunk, dtype, direction):
    """The result of all ranks' staged transforms, with scale 1/2, put together."""
    split = 0 if ranks > 1 else None
    rows, columns = Layout((None, split, None), (ranks,)), Layout((None, None, split), (ranks,))
    forward = direction.forward
    here, there = (rows, columns) if forward else (columns, rows)
    over = AxisSwap(Y, X) if forward else AxisSwap(X, Y)
    first, then = ((X,), (Y,)) if forward else ((Y,), (X,))
    kind = dtype if forward else complex_of(dtype)
    result_kind = complex_of(dtype) if forward else dtype
    found, tasks, calls = np.empty(shape, result_kind), [], []
    for rank in range(ranks):
        way = StagedTransform(
            [first, over if ranks > 1 else None, then],
            axes,
            SourceArray(here, (len(given), *global_shape), (rank,), kind),
            direction,
            1,
            joined=None,
        )
        source = given[here.local_slice(given.shape, (rank,))].copy()
        where = there.local_slice(shape, (rank,))
        part = zeros(found[where].shape, result_kind)
        if direction.turned and forward:
            part = np.moveaxis(zeros(np.moveaxis(part, 1, -1).shape, result_kind), -1, 1)
        parts = way.tasks(chunk)
        slot = Buffers(*(zeros(max(1, length), way.wire.dtype) for length in way.buffer_lengths(chunk)))
        tasks.append((way, parts, slot, way.arrays([ArrayReference(source)], [ArrayReference(part)])))
        calls.append((where, part))
    for number in range(len(tasks[0][1])):
        comms = [Recorder() for _ in tasks]
        steps = [
            way.steps(parts[number], slot, arrays, [comm], 0.5)
            for comm, (way, parts, slot, arrays) in zip(comms, tasks)
        ]
        waiting = [_goes_on(step, way) for step, (way, *_) in zip(steps, tasks)]
        assert waiting == [ranks > 1] * ranks
        if ranks > 1:
            exchange([comm.call for comm in comms])
            assert not any(_goes_on(step, way) for step, (way, *_) in zip(steps, tasks))
    for where, part in calls:
        found[where] = part
    return found


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
