"""`FFTN` on 1 to 4 ranks and two MPI libraries."""

import itertools

import numpy as np
import pytest
from marks import exhaustive, on_ranks
from test_kinds import along, assert_close
from truth import random, wide

import overlap
from overlap import FFTN, InputError
from overlap.fft.engine.axis import KINDS
from overlap.fft.engine.six_step import next_lengths, two_factors

QUICK = {"effort": "estimate"}


def modes_of(whole, axes, norm=None, s=None):
    return (np.fft.rfftn if whole.dtype.kind == "f" else np.fft.fftn)(whole, axes=axes, norm=norm, s=s)


def transformed(comm, shape, dtype="c16", axes=None, norm=None, wait="off", loss=1, **options):
    """A plan's transforms are numpy's; the backward one brings back what was given."""
    axes = (axes,) if isinstance(axes, int) else axes
    whole = random(5, shape, dtype)
    with FFTN(comm, shape, dtype, axes=axes, norm=norm, settings=QUICK | {"wait": wait}, **options) as plan:
        u = plan.real.empty()
        u[...] = whole[plan.real.local_slice]
        given = u.copy()
        spectrum = plan.forward(u)
        order = range(len(shape)) if axes is None else axes
        s = options.get("s")
        right = modes_of(whole, order, norm, s)[np.ix_(*places_of_modes(plan, order))]
        eps = np.finfo(dtype).eps * (loss if comm.size > 1 else 1)
        bound = 20 * eps * max(1.0, abs(right).max(initial=0))
        assert plan.spectrum.global_shape == modes_of(whole, order, norm, s).shape
        np.testing.assert_allclose(np.asarray(spectrum), right, rtol=0, atol=bound)
        back = plan.real.empty()
        back[...] = np.nan
        plan.backward(spectrum, out=back)
        for axis, length in zip(order, s or ()):
            whole[(slice(None),) * axis + (slice(length, None),)] = 0  # what was cut off
        np.testing.assert_allclose(np.asarray(back), whole[plan.real.local_slice], rtol=0, atol=50 * eps)
        assert (np.asarray(u) == np.asarray(given)).all()
        return plan.real.axes, plan.spectrum.axes


def places_of_modes(plan, axes):
    """Where a rank's part of the spectrum lies in numpy's, as `wavenumbers` has it."""
    places = [np.arange(part.start, part.stop) for part in plan.spectrum.local_slice]
    for axis, modes in zip(axes, plan.wavenumbers()):
        places[axis] = modes.astype(int).ravel()
    return places


@on_ranks(1, exhaustive(2), 3, exhaustive(4), "openmpi-2")
def test_dimensions(comm):
    """One to six dimensions, subsets of axes in any order."""
    transformed(comm, (4, 6), axes=(1,), dtype="f8")
    transformed(comm, (4, 6), axes=(0,), dtype="f4")
    transformed(comm, (5, 6, 7), axes=(2, 0), dtype="f8")
    transformed(comm, (5, 6, 7), axes=(-2,), dtype="c8", split=1)
    transformed(comm, (3, 4, 5, 6), axes=(3, 1, 0), norm="ortho", wait="poll")
    transformed(comm, (3, 4, 2, 3, 5), axes=(4, 2, 0, 1, 3), dtype="f8", norm="forward", wait="block")
    transformed(comm, (3, 2, 4, 2, 3, 2), axes=(0, 2, 3, 5), dtype="c16", wait="poll")
    if comm.size == 1:
        transformed(comm, (11,))
        transformed(comm, (11,), dtype="f8")


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_splits(comm):
    """Where the arrays are split, over one axis or two, with weights and restored."""
    size = comm.size
    spare = transformed(comm, (2 * size, 6, 5), axes=(1, 2))
    assert spare == ((0,), (0,))  # nothing is exchanged
    assert transformed(comm, (6, 2 * size, 5), axes=(0, 2), split=0) == ((0,), (2,) if size > 1 else (0,))
    transformed(comm, (6, 7, 5), split=1, dtype="f8", layout={"restore": True}, wait="poll")
    transformed(comm, (6, 7, 5), split=(1, 0), dtype="f8", layout={"grid": (size, 1)})
    transformed(comm, (6, 7, 5, 4), split=(0, 1), axes=(0, 1, 3, 2), layout={"grid": (1, size)}, wait="poll")
    transformed(comm, (6, 7, 5, 4), split=(3, 1), axes=(3, 0, 1), wait="poll")
    transformed(comm, (9, 7, 5), layout={"weights": [1 + 2 * rank for rank in range(size)]}, wait="poll")
    transformed(comm, (2, 3, 1), axes=(1, 0, 2))  # more ranks than indices


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_staying(comm):
    """An axis that stays split while it is transformed, in both orders of its modes."""
    size = comm.size
    for order in ("natural", "transposed"):
        layout = {"order": order}
        for number, points in enumerate((36, 135, 4096 if size == 2 else 81 * 5 * 7)):
            wait = ("off", "poll", "block")[number]
            assert transformed(comm, (points,), wait=wait, layout=layout) == ((0,), (0,))
        transformed(comm, (144,), "c8", norm="ortho", layout=layout)
        transformed(comm, (120,), layout=layout | {"weights": [1 + 2 * rank for rank in range(size)]}, wait="poll")
        transformed(comm, (size - 1 or 1, 45), axes=1, split=1, layout=layout, wait="poll")  # a batch
        transformed(comm, (45, 1), "f8", split=0, axes=(0, 1), norm="forward", layout=layout)
        transformed(comm, (1, 36, 1, 1, 1, 1), axes=1, split=1, layout=layout)
        grid = {"grid": (size, 1)}
        transformed(comm, (36, 15), split=(0, 1), axes=(1, 0), layout=layout | grid)
        transformed(
            comm, (15, 36, 2), split=(1, 0), axes=(2, 1, 0), layout=layout | grid, wait="poll"
        ) if size > 2 else 0
        if size > 2:
            transformed(comm, (2, 36, 2, 2, 2), axes=1, split=1, layout=layout)
    transformed(comm, (48,), exchange="f4", loss=2**29)  # singles
    with FFTN(comm, (45,), settings=QUICK) as plan:
        whole = random(5, (45,), "c16")
        modes = plan.spectrum.scatter(np.fft.fft(whole) if comm.rank == 0 else None)
        squared = plan.pointwise(lambda a: a * a)(modes)
        right = np.fft.fft(whole**2)[plan.spectrum.local_slice]
        np.testing.assert_allclose(np.asarray(squared), right, rtol=0, atol=1e-12)
        u = plan.real.from_function(lambda x: np.exp(3j * x))
        np.testing.assert_allclose(plan.forward(u), 45.0 * (plan.wavenumbers()[0] == 3), rtol=0, atol=1e-12)
        reversed_memory = np.asarray(plan.real.scatter(whole if comm.rank == 0 else None))[::-1].copy()[::-1]
        strided = np.zeros((*plan.spectrum.shape, 2), complex)[..., 0]
        plan.forward(reversed_memory, out=strided)
        right = np.fft.fft(whole)[plan.spectrum.local_slice]
        np.testing.assert_allclose(strided, right, rtol=0, atol=1e-12)
        if size > 1:
            with pytest.raises(InputError, match="stays split"):
                plan.operators()
            with pytest.raises(InputError, match="no finer grid"):
                plan.pointwise(lambda a: a, dealias="3/2")


@pytest.mark.exhaustive
@on_ranks(2, 3, 4)
def test_every_length_of_an_axis_that_stays_split(comm):
    """All lengths up to 100: transformed, or refused with the next ones."""
    for points in range(1, 101):
        if two_factors(points, comm.size) is None:
            with pytest.raises(InputError, match=", ".join(map(str, next_lengths(points, comm.size)))):
                FFTN(comm, (points,))
            continue
        for order in ("natural", "transposed"):
            transformed(comm, (points,), ("c8", "c16")[points % 2], layout={"order": order})


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_real_lines(comm):
    """Modes up to n/2 of a split real line are numpy's rfft; these modes alone, weighted, bring numpy's irfft."""
    for n, norm in ((36, None), (45, "ortho"), (144, "forward")):
        whole, half = random(5, (n,), "f8"), random(5, (n // 2 + 1,), "c16")
        with FFTN(comm, (n,), norm=norm, settings=QUICK) as plan:
            number = np.arange(n)[plan.spectrum.local_slice]
            inside = number <= n // 2
            found = plan.forward(plan.real.scatter(whole.astype(complex) if comm.rank == 0 else None))
            right = np.fft.rfft(whole, norm=norm)[number[inside]]
            np.testing.assert_allclose(np.asarray(found)[inside], right, rtol=0, atol=1e-12)
            modes = plan.spectrum.empty()
            modes[...] = np.where(inside, half[np.minimum(number, n // 2)], 0)
            modes *= np.where((number == 0) | (2 * number == n), 1, 2)
            right = np.fft.irfft(half, n, norm=norm)[plan.real.local_slice]
            np.testing.assert_allclose(plan.backward(modes).real, right, rtol=0, atol=1e-12)


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_lengths(comm):
    """Zeros are added and ends cut, along whole and split axes, of complex and real data."""
    transformed(comm, (6, 7, 5), "c16", s=(9, 5, 6), wait="poll")
    transformed(comm, (6, 7, 5), "f8", s=(4, 8, 3), norm="ortho")
    transformed(comm, (6, 7, 5), "f4", s=(13, 2, 11), norm="forward")
    transformed(comm, (6, 7, 5), axes=(2, 0), s=(8, 3), split=0, wait="poll", layout={"restore": True})
    transformed(comm, (6, 7, 4 * comm.size), "f8", axes=(1, 0), s=(8, 3))  # nothing is exchanged
    transformed(comm, (6, 300, 5), axes=(1,), s=(512,), split=1, wait="poll")
    transformed(comm, (300, 6), "c8", axes=(0,), s=(128,), split=1)
    transformed(comm, (8, 6, 4, 5), split=(0, 1), s=(3, 9, 5, 6), layout={"grid": (comm.size, 1)}, wait="poll")
    if comm.size > 1:
        transformed(comm, (1, 36), axes=(1, 0), split=1, s=(36, 2))
    with FFTN(comm, (5, 6), s=(8, 9), settings=QUICK) as plan:
        modes = plan.spectrum.scatter(np.fft.fft2(random(5, (5, 6), "c16"), (8, 9)) if comm.rank == 0 else None)
        found = plan.pointwise(lambda a: a * a)(modes)
        right = np.fft.fft2(random(5, (5, 6), "c16") ** 2, (8, 9))[plan.spectrum.local_slice]
        np.testing.assert_allclose(np.asarray(found), right, rtol=0, atol=1e-11)


def of_kinds(comm, shape, dtype, axes, kinds, norm=None, s=None, **options):
    """Mixed transforms are scipy's, the last axis first; the backward one brings back what was given."""
    whole = random(5, shape, dtype)
    right = wide(whole)
    for number, axis in reversed(list(enumerate(axes))):
        length = shape[axis] if s is None else s[number]
        missing = [(0, max(0, length - right.shape[other]) if other == axis else 0) for other in range(right.ndim)]
        right = along(np.pad(right, missing).take(range(length), axis), axis, kinds[number], norm)
    with FFTN(comm, shape, dtype, axes=axes, kinds=kinds, norm=norm, s=s, settings=QUICK, **options) as plan:
        u = plan.real.empty()
        u[...] = whole[plan.real.local_slice]
        spectrum = plan.forward(u)
        assert_close(comm, spectrum, right, plan.spectrum.local_slice, (shape, dtype, kinds))
        given = wide(whole)
        for axis, length in zip(axes, s or ()):
            given[(slice(None),) * axis + (slice(length, None),)] = 0  # what was cut off
        assert_close(comm, plan.backward(spectrum), given, plan.real.local_slice, (shape, dtype, kinds, s))
        with overlap.Runtime(comm) as other, plan.on(other) as again:
            np.testing.assert_array_equal(np.asarray(again.forward(u)), np.asarray(spectrum))


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_walls(comm):
    """Cosine and sine transforms along some axes, FFTs along others, in any order."""
    of_kinds(comm, (6, 7, 5), "f8", (0, 1, 2), ("dct2", "c2c", "r2c"))
    of_kinds(comm, (6, 7, 5), "f8", (2, 0, 1), ("r2c", "dst1", "dct1"), norm="ortho", split=0)
    of_kinds(comm, (6, 7, 5), "f4", (1, 0), ("c2c", "r2c"), split=1)
    of_kinds(comm, (6, 7, 5), "f8", (1, 0), ("dst3", "dct4"), norm="forward", split=0, layout={"restore": True})
    of_kinds(comm, (6, 7, 5, 3), "c16", (3, 1, 0), ("dst4", "c2c", "dct3"), norm="ortho", split=(0, 1))
    of_kinds(comm, (7, 6), "c8", (1,), ("dct2",), split=1)
    of_kinds(comm, (6, 7, 5), "f8", (2, 1, 0), ("c2c", "r2c", "dst2"), s=(7, 9, 4), split=2)
    of_kinds(comm, (1, 36), "c16", (1, 0), ("c2c", "dct2"), split=1)
    with FFTN(comm, (5, 6, 8), "f8", axes=(1, 2, 0), kinds=("dst2", "c2c", "r2c"), settings=QUICK) as plan:
        ky, kx, kz = plan.wavenumbers()
        assert {k.size for k in (ky, kx, kz)} <= {*plan.spectrum.shape, 1} and kz.max(initial=0) <= 2
        u = plan.real.from_function(
            lambda z, y, x: np.cos(z) * np.sin(3 * y) * np.sin(x), (2 * np.pi, np.pi, 2 * np.pi)
        )
        found = plan.backward(plan.forward(u) * (ky == 1.5))
        np.testing.assert_allclose(np.asarray(found), np.asarray(u), rtol=0, atol=1e-14)
    with FFTN(comm, (6, 8), "f8", kinds=("dct2", "r2c"), settings=QUICK) as plan:
        box = np.pi, 2 * np.pi
        u = plan.real.from_function(lambda y, x: np.cos(2 * y) * np.sin(x), box)
        found = plan.backward(plan.operators(box).laplacian(plan.forward(u)))
        np.testing.assert_allclose(np.asarray(found), -5 * np.asarray(u), rtol=0, atol=1e-12)


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
@pytest.mark.parametrize("most", [None, exhaustive(8)])
def test_lengths_of_kinds(comm, most):
    """Every kind of transform of more and fewer points than are given: 1 to `most`, or some."""
    some = ((1, 5), (5, 1), (5, 2), (4, 7))
    pairs = some if most is None else itertools.product(range(1, most + 1), repeat=2)
    for number, (kind, (given, points)) in enumerate(itertools.product(KINDS, pairs)):
        dtype = "f8" if kind == "r2c" or (kind != "c2c" and number % 2) else "c16"
        options = {"s": (points,), "norm": (None, "ortho", "forward")[number % 3], "split": number // 2 % 2}
        if options["split"] == 0 and kind == "r2c":
            options["split"] = 1  # an axis of half the spectrum is whole
        if kind == "dct1" and points < 2:
            with pytest.raises(InputError, match="expected n0 >= 2 points for a 'dct1', received 1"):
                FFTN(comm, (given, 4), dtype, axes=(0,), kinds=(kind,), **options)
        else:
            of_kinds(comm, (given, 4), dtype, (0,), (kind,), **options)
    of_kinds(comm, (13, 1), "f8", (0, 1), ("dct2", "dst1"), s=(13, 8), split=0)
    of_kinds(comm, (36, 1), "c16", (0, 1), ("c2c", "dst1"), s=(40, 8), split=0)  # axis 1 can be split once transformed
    of_kinds(comm, (36, 8), "c16", (0, 1), ("c2c", "dct2"), s=(40, 1), split=0)
    of_kinds(comm, (1, 1, 6), "f8", (1, 0), ("dct1", "dct1"), norm="ortho", s=(5, 2))


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_others(comm):
    """Wavenumbers, derivatives, functions of real-space arrays, another runtime, several calls."""
    shape, axes = (6, 3, 8), (2, 0)
    whole = random(5, shape, "c16")
    with overlap.Runtime(comm) as rt, FFTN(rt, shape, axes=axes, settings=QUICK) as plan:
        u = plan.real.empty()
        u[...] = whole[plan.real.local_slice]
        kx, kz = plan.wavenumbers()
        found = plan.backward(kx * kz**2 * plan.forward(u))
        modes = np.fft.fftn(whole, axes=axes)
        modes *= np.fft.fftfreq(8, 1 / 8) * (np.fft.fftfreq(6, 1 / 6) ** 2)[:, None, None]
        right = np.fft.ifftn(modes, axes=axes)
        np.testing.assert_allclose(np.asarray(found), right[plan.real.local_slice], rtol=0, atol=1e-11)

        @plan.pointwise
        def product(a, b):
            return a * b

        found = product(plan.forward(u), plan.forward(u + 1))
        right = np.fft.fftn(whole * (whole + 1), axes=axes)[plan.spectrum.local_slice]
        np.testing.assert_allclose(np.asarray(found), right, rtol=0, atol=1e-11)
        low = np.fft.fftn(whole, axes=axes)
        low[:, :, 4], low[3] = 0, 0  # no Nyquist modes, which a finer grid drops

        @plan.pointwise(dealias="3/2")
        def square(a):
            return a * a

        modes = plan.spectrum.empty()
        modes[...] = low[plan.spectrum.local_slice]
        kept = np.ix_([0, 1, 2, -2, -1], range(3), [0, 1, 2, 3, -3, -2, -1])
        fine = np.zeros((9, 3, 12), complex)
        fine[kept] = low[kept] * 108 / 48
        right = np.zeros(shape, complex)
        right[kept] = np.fft.fftn(np.fft.ifftn(fine, axes=axes) ** 2, axes=axes)[kept] * 48 / 108
        np.testing.assert_allclose(np.asarray(square(modes)), right[plan.spectrum.local_slice], rtol=0, atol=1e-10)
        for _ in range(3):
            plan.forward(u)
        with overlap.Runtime(comm) as other, plan.on(other) as again:
            assert again.describe().splitlines()[0] == plan.describe().splitlines()[0]
            np.testing.assert_array_equal(np.asarray(again.forward(u)), np.asarray(plan.forward(u)))
        with pytest.raises(InputError, match="expected a plan that transforms all axes"):
            plan.operators()
    with FFTN(comm, (4, 6, 8), "f8", settings=QUICK) as plan:
        u = plan.real.from_function(lambda z, y, x: np.sin(x) * np.cos(2 * y) + 0 * z)
        v = plan.backward(plan.operators().derivative(plan.forward(u), -2))
        right = plan.real.from_function(lambda z, y, x: -2 * np.sin(x) * np.sin(2 * y) + 0 * z)
        np.testing.assert_allclose(np.asarray(v), np.asarray(right), rtol=0, atol=1e-12)


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_refused(comm):
    """What can't be made is one error on all ranks."""

    def no(words, shape=(4, 6), dtype="c16", **options):
        with pytest.raises(InputError, match=words):
            FFTN(comm, shape, dtype, **options)

    no("1 to 6 axes", shape=(2,) * 7)
    no("expected at least one axis, each from -2 to 1", axes=(0, 0))
    no("expected at least one axis, each from -2 to 1", axes=(2,))
    no("expected at least one axis, each from -2 to 1", axes=())
    no("expected split to be one axis or two", split=(0, 1, 1))
    no("expected split to be one axis or two", split=7)
    no("expected grid to be 1 positive integers", layout={"grid": (comm.size, 1)})
    no("dealias=None", layout={"dealias": "3/2"})
    for kinds in (("c2c",), ("dct2", "c2c", "c2c"), ("r2c", "c2c"), "c2c", ("dct9", "c2c")):
        no("expected kinds", kinds=kinds)
    no("kinds with .r2c. along the last axis", dtype="f8", kinds=("r2c", "c2c"))
    for s in ((4,), (4, 0), (4.5, 2), 3, (1, 2, 3)):
        no("expected s to be None or 2 positive integers", s=s)
    if comm.size > 1:
        no("order='natural'", layout={"order": "transposed"})
        no("of half the spectrum, to be whole", dtype="f8", shape=(36,))
        no("expected s to be 36 along axis 0, which stays split", shape=(36,), s=(40,))
        no("of half the spectrum, to be whole", dtype="f8", split=1)
        no({2: "14, 15, 16", 3: "15, 16, 18"}.get(comm.size, "16, 20, 24"), shape=(13,))
        no("expected FFTs along axis 0", shape=(36,), kinds=("dct2",))
        no("two numbers of at least", shape=(5, 5), split=(0, 1), layout={"grid": (comm.size, 1)})
    no("axes: expected the same on all ranks", axes=(0, 1) if comm.rank == 0 else (1, 0)) if comm.size > 1 else None
    transformed(comm, (4, 6))


@pytest.mark.exhaustive
@on_ranks(1, 2, 3, 4)
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_order_of_axes(comm, count, dtype):
    for size in range(1, count + 1):
        for axes in itertools.permutations(range(count), size):
            transformed(comm, (5, 6, 4, 7)[:count], dtype, axes)
