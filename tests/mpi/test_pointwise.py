"""`FFT2.pointwise` on 1 to 4 ranks and two MPI libraries."""

import threading
from itertools import product

import numpy as np
import pytest
from marks import exhaustive, on_ranks
from truth import COMPLEX, WAITS, assert_close, backward_truth, forward_truth, laid_out, random, same_bits

import overlap

LAYOUTS = {1: ("strided", "misaligned"), 2: ("reversed",), 3: ("batch swapped", "fortran")}


def bracket(ax, ay, bx, by):
    return ax * by - ay * bx


# ---- truth: sums over modes, no FFT ----------------------------------------------------------


class Modes:
    """A real or complex field as coefficients of all modes |k| <= K of its grid, without Nyquist's.

    Sums over modes in double precision; arrays are (2 Ky + 1, 2 Kx + 1), the mean in the middle.
    """

    def __init__(self, shape, real):
        self.ny, self.nx = shape[-2:]
        self.real = real
        self.my, self.mx = (self.ny - 1) // 2, (self.nx - 1) // 2
        self.ky = np.arange(-self.my, self.my + 1)[:, None]
        self.kx = np.arange(-self.mx, self.mx + 1)[None, :]

    def of_spectrum(self, spectrum):
        """Coefficients of (half) spectra with numpy's default norm."""
        at = (self.ky % self.ny, self.kx % self.nx)
        if self.real:
            positive = spectrum[..., self.ky % self.ny, abs(self.kx)]
            negative = spectrum[..., -self.ky % self.ny, abs(self.kx)].conj()
            # Of column 0 the inverse transform sees the part that belongs to a real field.
            values = np.where(self.kx > 0, positive, negative)
            values[..., self.mx] = (positive + negative)[..., self.mx] / 2
        else:
            values = spectrum[..., *at]
        return values / (self.ny * self.nx)

    def to_spectrum(self, values):
        """The spectrum with numpy's default norm; zero where modes are not resolved."""
        columns = self.nx // 2 + 1 if self.real else self.nx
        spectrum = np.zeros((*values.shape[:-2], self.ny, columns), complex)
        kx = self.kx[:, self.mx :] if self.real else self.kx
        spectrum[..., self.ky % self.ny, kx % self.nx] = values[..., -kx.shape[1] :]
        return spectrum * (self.ny * self.nx)

    def convolve(self, a, b):
        """c_k = sum of a_p b_(k - p) over all pairs of resolved modes, for resolved k."""
        whole = np.zeros((*a.shape[:-2], 4 * self.my + 1, 4 * self.mx + 1), complex)
        rows, columns = a.shape[-2:]
        for i, j in product(range(rows), range(columns)):
            whole[..., i : i + rows, j : j + columns] += a[..., i, j][..., None, None] * b
        return whole[..., self.my : self.my + rows, self.mx : self.mx + columns]


def spectra(rng, count, shape, dtype):
    """Random spectra in natural order: of real fields for real plans."""
    u = random(rng, (count, *shape), dtype)
    return forward_truth(u).astype(COMPLEX[dtype])


def local(plan, spectrum, order):
    return np.array(whole(spectrum, order)[plan.spectrum.local_slice[-spectrum.ndim :]])


def whole(spectrum, order):
    return spectrum.swapaxes(-1, -2) if order == "transposed" else spectrum


def points_of(norm, shape):
    """Factors of the inverse and forward transform of a norm, relative to numpy's default."""
    points = shape[-1] * shape[-2]
    power = {None: 0.0, "backward": 0.0, "ortho": 0.5, "forward": 1.0}[norm]
    return points**power, points**-power


# ---- the bracket -----------------------------------------------------------------------------


@on_ranks
@pytest.mark.parametrize(
    "comm, dtype, order, mode",
    [
        (1, "c16", "natural", "poll"),
        (2, "f8", "natural", "auto"),
        (3, "f8", "transposed", "block"),
        exhaustive(4, "c16", "transposed", "poll"),
        exhaustive(4, "f8", "natural", "off"),
        ("openmpi-2", "f8", "natural", "poll"),
    ],
)
def test_direct_sum_over_modes(comm, dtype, order, mode):
    """Random fields on 16 x 16 points against the sum over all pairs of modes."""
    shape = (5, 16, 16)
    modes = Modes(shape, real=dtype == "f8")
    a, b = spectra(np.random.default_rng(1), 2, shape, dtype)
    with overlap.FFT2(comm, shape, dtype, layout={"order": order}, settings={"wait": mode}) as plan:
        ky, kx = plan.wavenumbers()
        ah, bh = local(plan, a, order), local(plan, b, order)
        acting = plan.pointwise(bracket, inputs=4, outputs=1, dealias="3/2")
        derivatives = 1j * kx * ah, 1j * ky * ah, 1j * kx * bh, 1j * ky * bh
        found = acting(*derivatives)
        ac, bc = modes.of_spectrum(a), modes.of_spectrum(b)
        truth = modes.to_spectrum(
            modes.convolve(1j * modes.kx * ac, 1j * modes.ky * bc)
            - modes.convolve(1j * modes.ky * ac, 1j * modes.kx * bc)
        )
        truth = whole(truth, order)[plan.spectrum.local_slice]
        np.testing.assert_allclose(found, truth, rtol=0, atol=1e-12 * np.abs(truth).max(initial=1))
        assert overlap.DistArray is type(found)
        # The other way round, and with itself.
        opposite = acting(*derivatives[2:], *derivatives[:2])
        np.testing.assert_allclose(opposite, -truth, rtol=0, atol=1e-12 * np.abs(truth).max(initial=1))
        nothing = acting(*derivatives[:2], *derivatives[:2])
        assert np.abs(nothing).max(initial=0) <= 1e-12 * np.abs(truth).max(initial=1)
        plain = plan.pointwise(bracket)(*derivatives)  # aliased: the same only by a mistake
        differ = comm.allreduce(float(np.abs(plain - truth).max(initial=0)))
        assert differ > 1e-3 * comm.allreduce(float(np.abs(truth).max(initial=0)))


# ---- ways to write the function --------------------------------------------------------------


def parameters(comm, mode):
    """`out`, `index`, shared fields and layouts of the arrays, against numpy."""
    shape = (2, 3, 6, 8)
    rng = np.random.default_rng(5)
    a, b = spectra(rng, 2, shape, "f8")
    (c,) = spectra(rng, 1, shape[2:], "f8")
    ar, br, cr = (backward_truth(field, shape, "f8") for field in (a, b, c))
    slices = np.arange(6.0).reshape(2, 3, 1, 1)
    seen = []

    def plain(u, v, w):
        return u * v + w

    def with_out(u, v, w, out):
        np.multiply(u, v, out=out)
        out += w

    def with_default(u, v, w, *, out=None, factor=1):
        assert out is not None and factor == 1
        np.add(u * v, w, out=out)

    def with_index(u, v, w, index):
        seen.append((index, threading.current_thread()))
        return u * v + w * (3 * index[0] + index[1])

    def two(u, v, w):
        return u * w, v

    def two_with_all(u, v, w, out, index):
        first, second = out
        first[...] = u * w
        second[...] = v * (3 * index[0] + index[1])

    def shared_only_one(u, v):
        return u * v

    cases = [
        (plain, 1, 1, (ar * br + cr,)),
        (with_out, 1, 1, (ar * br + cr,)),
        (with_default, 1, 1, (ar * br + cr,)),
        (with_index, 1, 1, (ar * br + cr * slices,)),
        (two, 1, 2, (ar * cr, br)),
        (two_with_all, 1, 2, (ar * cr, br * slices)),
        (shared_only_one, 1, 1, (ar * cr,)),
    ]
    for workers, (chunk, depth) in ((1, (1, 2)), (3, (2, 3)), (2, (None, None))):
        with (
            overlap.Runtime(comm, workers=workers) as rt,
            overlap.FFT2(rt, shape, "f8", settings={"wait": mode, "chunk": chunk, "depth": depth}) as plan,
        ):
            fields = [np.array(field[plan.spectrum.local_slice]) for field in (a, b)]
            flat = np.array(c[plan.spectrum.local_slice[2:]])
            for function, shared, outputs, truths in cases:
                acting = plan.pointwise(function, outputs=outputs, shared=shared)
                given = (*fields, flat) if function is not shared_only_one else (fields[0], flat)
                before = [field.tobytes() for field in given]
                seen.clear()
                results = acting(*given)
                if function is with_index:
                    assert sorted(index for index, _ in seen) == list(np.ndindex(2, 3))
                results = results if outputs > 1 else (results,)
                for found, truth in zip(results, truths, strict=True):
                    assert_close(found, forward_truth(truth), plan.spectrum.local_slice, comm)
                assert [field.tobytes() for field in given] == before
                for layout in LAYOUTS[workers]:
                    outs = [laid_out(np.full(plan.spectrum.shape, 5, "c16"), layout) for _ in range(outputs)]
                    arrays = [laid_out(field, layout)[0] for field in given]
                    out = tuple(array for array, _ in outs) if outputs > 1 else outs[0][0]
                    assert acting(*arrays, out=out) is out
                    for (array, memory), truth in zip(outs, truths):
                        assert_close(array, forward_truth(truth), plan.spectrum.local_slice, comm)
                        array[...] = 7
                        assert layout == "contiguous" or (np.unique(memory) == 7).all()
    one = (4, 6, 8)
    with overlap.FFT2(comm, one, "c16", settings={"wait": mode}) as plan:
        u = random(np.random.default_rng(6), one, "c16")

        @plan.pointwise
        def scaled(u, index):
            assert type(index) is int
            return u * index

        @plan.pointwise(inputs=2, dealias=None)
        def any_number(*fields):
            return fields[0] - fields[1]

        spectrum = plan.forward(u[plan.real.local_slice])
        truth = forward_truth(u * np.arange(4)[:, None, None])
        assert_close(scaled(spectrum), truth, plan.spectrum.local_slice, comm)
        assert np.abs(any_number(spectrum, spectrum)).max(initial=0) == 0
    with overlap.FFT2(comm, (6, 8), "c16", settings={"wait": mode}) as plan:  # no batch axes
        indices = []
        nothing = np.zeros(plan.spectrum.shape, "c16")
        plan.pointwise(lambda u, index: indices.append(index) or u)(nothing)
        assert set(indices) == {()}
    with overlap.FFT2(comm, (0, 6, 8), "c16", settings={"wait": mode}) as plan:  # nothing to do
        acting = plan.pointwise(lambda u, v: u * v, shared=1)
        flat = np.ones(plan.spectrum.shape[1:], complex)
        assert acting(plan.spectrum.empty(), flat).shape == plan.spectrum.shape


@on_ranks
@pytest.mark.parametrize("comm, mode", [(1, "off"), (2, "block"), exhaustive(3, "poll")])
def test_ways_to_write_the_function(comm, mode):
    parameters(comm, mode=mode)


# ---- every mode gives the same bits ----------------------------------------------------------


@on_ranks
@pytest.mark.parametrize(
    "comm, dtype, dealias, order, workers",
    [
        (1, "f8", "3/2", "natural", [1, 3]),
        (2, "f8", "3/2", "natural", [1, 2]),
        (2, "c8", None, "transposed", [3]),
        exhaustive(3, "c16", "3/2", "natural", [2]),
        exhaustive(4, "f4", None, "natural", [1]),
    ],
)
def test_every_mode_gives_the_same_bits(comm, dtype, dealias, order, workers, shape=(11, 10, 12)):
    """Each mode, depth, chunk and number of workers; and each plane as if it were alone."""
    rng = np.random.default_rng(7)
    a, b = spectra(rng, 2, shape, dtype)
    (c,) = spectra(rng, 1, shape[1:], dtype)

    def function(u, v, w):
        return u * v - w, w * u

    options = dict(outputs=2, shared=1, dealias=dealias)
    with overlap.FFT2(comm, shape, dtype, layout={"order": order}, settings={"wait": "off"}) as plan:
        given = [local(plan, field, order) for field in (a, b, c)]
        expected = plan.pointwise(function, **options)(*given)
        single = plan.pointwise(lambda u, v: u * v, dealias=dealias)
        expected_single = single(*given[:2])
    ones = []
    with overlap.FFT2(comm, shape[1:], dtype, layout={"order": order}, settings={"wait": "off"}) as plan:
        acting = plan.pointwise(function, **options)
        for z in range(shape[0]):
            ones.append(acting(given[0][z], given[1][z], given[2]))
    for number in range(2):
        assert same_bits(np.array([pair[number] for pair in ones]), np.asarray(expected[number]))
    for count in workers:
        with overlap.Runtime(comm, workers=count) as rt:
            for mode, (depth, chunk) in product((*WAITS, "auto"), ((None, None), (1, 1), (3, 1), (2, 4))):
                if mode == "auto" and depth is not None:
                    continue
                with overlap.FFT2(
                    rt, shape, dtype, layout={"order": order}, settings={"wait": mode, "depth": depth, "chunk": chunk}
                ) as plan:
                    acting = plan.pointwise(function, **options)
                    single = plan.pointwise(lambda u, v: u * v, dealias=dealias)
                    label = f"{count} worker(s), {mode}: {acting.settings}"
                    for _ in range(2):
                        for found, truth in zip(acting(*given), expected):
                            assert same_bits(found, truth), label
                        assert same_bits(single(*given[:2]), expected_single), label
