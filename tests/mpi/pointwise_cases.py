"""What `test_pointwise` runs on every rank: products of fields against direct sums over modes."""

import threading
from itertools import product

import numpy as np
import pytest
from fft2_cases import (
    COMPLEX,
    WAITS,
    Boom,
    assert_close,
    backward_truth,
    failing,
    forward_truth,
    laid_out,
    nothing_fails,
    raised,
    random,
    same_bits,
    same_everywhere,
    wide,
)

import overlap
from overlap.arrays.exchange import Exchange
from overlap.fft.engine.kernels import ColumnSweep, RowSweep
from overlap.fft.pointwise import Pointwise
from overlap.fft.volume_pointwise import VolumePointwise


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
        kx = self.kx[:, self.mx:] if self.real else self.kx
        spectrum[..., self.ky % self.ny, kx % self.nx] = values[..., -kx.shape[1]:]
        return spectrum * (self.ny * self.nx)

    def convolve(self, a, b):
        """c_k = sum of a_p b_(k - p) over all pairs of resolved modes, for resolved k."""
        whole = np.zeros((*a.shape[:-2], 4 * self.my + 1, 4 * self.mx + 1), complex)
        rows, columns = a.shape[-2:]
        for i, j in product(range(rows), range(columns)):
            whole[..., i:i + rows, j:j + columns] += a[..., i, j][..., None, None] * b
        return whole[..., self.my:self.my + rows, self.mx:self.mx + columns]


def spectra(rng, count, shape, dtype):
    """Random spectra in natural order: of real fields for real plans."""
    u = random(rng, (count, *shape), dtype)
    return forward_truth(u).astype(COMPLEX[dtype])


def local(plan, spectrum, order):
    return np.array(whole(spectrum, order)[plan.spectrum.local_slice[-spectrum.ndim:]])


def whole(spectrum, order):
    return spectrum.swapaxes(-1, -2) if order == "transposed" else spectrum


def points_of(norm, shape):
    """Factors of the inverse and forward transform of a norm, relative to numpy's default."""
    points = shape[-1] * shape[-2]
    power = {None: 0.0, "backward": 0.0, "ortho": 0.5, "forward": 1.0}[norm]
    return points**power, points**-power


# ---- the bracket -----------------------------------------------------------------------------

def closed_form(comm, dtype, mode, shape=(24, 20)):
    """{sin(p.x), sin(r.x)} = (p x r) / 2 [cos((p + r).x) + cos((p - r).x)], all slices at once."""
    waves = [((1, 2), (3, -1)), ((2, 0), (0, 3)), ((1, 1), (2, 2)), ((-3, 1), (1, 4)),
             ((4, 3), (5, 1)), ((0, 1), (1, 0)), ((2, -3), (2, 3))]
    ny, nx = shape
    y, x = np.mgrid[:ny, :nx] * 2 * np.pi / np.array([ny, nx])[:, None, None]
    a, b, truth = (np.empty((len(waves), ny, nx)) for _ in range(3))
    for z, ((px, py), (rx, ry)) in enumerate(waves):
        a[z], b[z] = np.sin(px * x + py * y), np.sin(rx * x + ry * y)
        truth[z] = (px * ry - py * rx) / 2 * (np.cos((px + rx) * x + (py + ry) * y)
                                              + np.cos((px - rx) * x + (py - ry) * y))
    real_shape = len(waves), ny, nx
    with overlap.FFT2(comm, real_shape, dtype, settings={"wait": mode}) as plan:
        ky, kx = plan.wavenumbers()
        ah = plan.forward(a[plan.real.local_slice].astype(dtype))
        bh = plan.forward(b[plan.real.local_slice].astype(dtype))
        derivatives = 1j * kx * ah, 1j * ky * ah, 1j * kx * bh, 1j * ky * bh
        for dealias in (None, "3/2"):
            acting = plan.pointwise(bracket, dealias=dealias)
            found = plan.backward(acting(*derivatives))
            np.testing.assert_allclose(found, truth[plan.real.local_slice], atol=2e-12)


def direct_sum(comm, dtype, order, mode):
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
            - modes.convolve(1j * modes.ky * ac, 1j * modes.kx * bc))
        truth = whole(truth, order)[plan.spectrum.local_slice]
        np.testing.assert_allclose(found, truth, rtol=0, atol=1e-12 * np.abs(truth).max(
            initial=1))
        assert overlap.DistArray is type(found)
        # The other way round, and with itself.
        opposite = acting(*derivatives[2:], *derivatives[:2])
        np.testing.assert_allclose(opposite, -truth, rtol=0, atol=1e-12 * np.abs(truth).max(
            initial=1))
        nothing = acting(*derivatives[:2], *derivatives[:2])
        assert np.abs(nothing).max(initial=0) <= 1e-12 * np.abs(truth).max(initial=1)
        plain = plan.pointwise(bracket)(*derivatives)  # aliased: the same only by a mistake
        differ = comm.allreduce(float(np.abs(plain - truth).max(initial=0)))
        assert differ > 1e-3 * comm.allreduce(float(np.abs(truth).max(initial=0)))


def conserved(comm, dtype, shape=(3, 18, 16)):
    """mean {a,b}, mean a{a,b} and mean b{a,b} vanish; the last two only when de-aliased."""
    modes = Modes(shape, real=dtype == "f8")
    a, b = (modes.to_spectrum(modes.of_spectrum(field))
            for field in spectra(np.random.default_rng(2), 2, shape, dtype))
    points = shape[1] * shape[2]
    with overlap.FFT2(comm, shape, dtype, settings={"wait": "poll"}) as plan:
        ky, kx = plan.wavenumbers()
        ah, bh = local(plan, a, "natural"), local(plan, b, "natural")
        if dtype == "f8":
            twice = np.where(kx > 0, 2.0, 1.0)  # and the modes of -kx; Nyquist's are zero
        else:
            twice = np.ones(kx.shape)

        def mean_product(first, second):
            """The mean of conj(first) * second over space, per slice."""
            part = np.sum(twice * (first.conj() * second), axis=(1, 2)) / points**2
            return comm.allreduce(np.asarray(part))

        for dealias, aliased in (("3/2", False), (None, True)):
            result = plan.pointwise(bracket, dealias=dealias)(
                1j * kx * ah, 1j * ky * ah, 1j * kx * bh, 1j * ky * bh)
            size = np.sqrt(mean_product(result, result).real * mean_product(ah, ah).real)
            mean = np.where((ky == 0) & (kx == 0), result, 0)
            mean = np.abs(comm.allreduce(np.asarray(mean.sum(axis=(1, 2))))) / points
            if dealias:
                assert (mean < 1e-13 * size).all(), mean / size
            for field in (ah, bh):
                # sum over k of conj(a_k) c_k is the mean of conj(a) c; that of a c needs a real.
                if dtype == "c16":
                    continue
                found = np.abs(mean_product(field, result).real) / size
                if aliased:
                    assert (found > 1e-4).all(), found
                else:
                    assert (found < 1e-13).all(), found


# ---- any sizes -------------------------------------------------------------------------------

LAYOUTS = {1: ("strided", "misaligned"), 2: ("reversed",), 3: ("batch swapped", "fortran")}
SIZES = [(1, 1), (1, 6), (7, 1), (2, 2), (3, 4), (4, 3), (5, 7), (6, 8), (9, 6), (8, 11)]


def sizes(comm, dtype, dealias, mode):
    """Products and copies of fields on grids of odd and even sizes, every norm and order."""
    with overlap.Runtime(comm, workers=2) as rt:
        for number, (shape, order, norm) in enumerate(product(
                SIZES, ("natural", "transposed"), (None, "ortho", "forward"))):
            if norm is not None and number % 3:
                continue
            _sizes(comm, rt, (3, *shape), dtype, dealias, mode, order, norm)


def _sizes(comm, rt, shape, dtype, dealias, mode, order, norm):
    real = dtype.startswith("f")
    a, b = spectra(np.random.default_rng(3), 2, shape, dtype)
    up, down = points_of(norm, shape)
    if dealias:
        modes = Modes(shape, real)
        ac, bc = up * modes.of_spectrum(wide(a)), up * modes.of_spectrum(wide(b))
        products = modes.to_spectrum(modes.convolve(ac, bc)), modes.to_spectrum(
            modes.convolve(ac, ac)), modes.to_spectrum(ac - 2 * bc)
        products = tuple(down * truth for truth in products)
    else:
        ur, vr = (backward_truth(field, shape, dtype, norm) for field in (a, b))
        products = tuple(forward_truth(field, norm) for field in (ur * vr, ur * ur, ur - 2 * vr))
    with overlap.FFT2(rt, shape, dtype, norm=norm, layout={"order": order},
                      settings={"wait": mode, "depth": 2, "effort": "estimate"}) as plan:
        acting = plan.pointwise(lambda u, v: (u * v, u * u, u - 2 * v), outputs=3, dealias=dealias)
        results = acting(local(plan, a, order), local(plan, b, order))
        assert isinstance(results, tuple) and len(results) == 3
        size = max(np.linalg.norm(truth.ravel()) for truth in products)
        for found, truth in zip(results, products):
            truth = whole(truth, order)
            assert type(found) is overlap.DistArray and found.global_shape == truth.shape
            error = np.linalg.norm((wide(found) - truth[plan.spectrum.local_slice]).ravel())
            eps = np.finfo(dtype).eps
            assert error <= 5 * eps * np.sqrt(np.log2(max(4, 9 * shape[-1] * shape[-2]))) * size, (
                shape, order, norm, error / size)


def nyquist_dropped(comm):
    """With de-aliasing, Nyquist modes neither enter nor leave."""
    shape = (2, 8, 6)
    for dtype in ("f8", "c16"):
        (a,) = spectra(np.random.default_rng(4), 1, shape, dtype)
        nyquist = np.zeros_like(a)
        nyquist[:, 4], nyquist[:, :, 3] = a[:, 4], a[:, :, 3]
        with overlap.FFT2(comm, shape, dtype, settings={"wait": "poll"}) as plan:
            same = plan.pointwise(lambda u: u, dealias="3/2")
            assert (same(local(plan, nyquist, "natural")) == 0).all()
            kept = same(local(plan, a, "natural"))
            assert_close(kept, a - nyquist, plan.spectrum.local_slice, comm)
            ky, kx = plan.wavenumbers()
            assert (kept[np.broadcast_to((abs(ky) == 4) | (abs(kx) == 3), kept.shape)] == 0).all()
            # Without, they stay.
            same = plan.pointwise(lambda u: u)
            assert_close(same(local(plan, a, "natural")), a, plan.spectrum.local_slice, comm)


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

    cases = [(plain, 1, 1, (ar * br + cr,)), (with_out, 1, 1, (ar * br + cr,)),
             (with_default, 1, 1, (ar * br + cr,)), (with_index, 1, 1, (ar * br + cr * slices,)),
             (two, 1, 2, (ar * cr, br)), (two_with_all, 1, 2, (ar * cr, br * slices)),
             (shared_only_one, 1, 1, (ar * cr,))]
    for workers, (chunk, depth) in ((1, (1, 2)), (3, (2, 3)), (2, (None, None))):
        with overlap.Runtime(comm, workers=workers) as rt, \
                overlap.FFT2(rt, shape, "f8",
                             settings={"wait": mode, "chunk": chunk, "depth": depth}) as plan:
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
                    outs = [laid_out(np.full(plan.spectrum.shape, 5, "c16"), layout)
                            for _ in range(outputs)]
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


# ---- every mode gives the same bits ----------------------------------------------------------

def modes_agree(comm, dtype, dealias, order="natural", shape=(11, 10, 12), workers=(1, 2, 3)):
    """Each mode, depth, chunk and number of workers; and each plane as if it were alone."""
    rng = np.random.default_rng(7)
    a, b = spectra(rng, 2, shape, dtype)
    (c,) = spectra(rng, 1, shape[1:], dtype)

    def function(u, v, w):
        return u * v - w, w * u

    options = dict(outputs=2, shared=1, dealias=dealias)
    with overlap.FFT2(comm, shape, dtype, layout={"order": order},
                      settings={"wait": "off"}) as plan:
        given = [local(plan, field, order) for field in (a, b, c)]
        expected = plan.pointwise(function, **options)(*given)
        single = plan.pointwise(lambda u, v: u * v, dealias=dealias)
        expected_single = single(*given[:2])
    ones = []
    with overlap.FFT2(comm, shape[1:], dtype, layout={"order": order},
                      settings={"wait": "off"}) as plan:
        acting = plan.pointwise(function, **options)
        for z in range(shape[0]):
            ones.append(acting(given[0][z], given[1][z], given[2]))
    for number in range(2):
        assert same_bits(np.array([pair[number] for pair in ones]), np.asarray(expected[number]))
    for count in workers:
        with overlap.Runtime(comm, workers=count) as rt:
            for mode, (depth, chunk) in product(
                    (*WAITS, "auto"), ((None, None), (1, 1), (3, 1), (2, 4))):
                if mode == "auto" and depth is not None:
                    continue
                with overlap.FFT2(rt, shape, dtype, layout={"order": order},
                                  settings={"wait": mode, "depth": depth, "chunk": chunk}) as plan:
                    acting = plan.pointwise(function, **options)
                    single = plan.pointwise(lambda u, v: u * v, dealias=dealias)
                    label = f"{count} worker(s), {mode}: {acting.settings}"
                    for _ in range(2):
                        for found, truth in zip(acting(*given), expected):
                            assert same_bits(found, truth), label
                        assert same_bits(single(*given[:2]), expected_single), label


# ---- errors ----------------------------------------------------------------------------------

def bad_input(comm, mode):
    shape = (3, 6, 8)
    (a,) = spectra(np.random.default_rng(8), 1, shape, "f8")
    with overlap.FFT2(comm, shape, "f8", settings={"wait": mode}) as plan:
        field = local(plan, a, "natural")
        flat = np.array(field[0])
        acting = plan.pointwise(lambda u, v: (u * v, u), outputs=2, shared=1)
        expected = acting(field, flat)

        def bad_calls(outs):
            yield "no input", (), outs
            yield "one input", (field,), outs
            yield "three inputs", (field, flat, flat), outs
            yield "shared field with a batch", (field, field), outs
            yield "field without a batch", (flat, flat), outs
            yield "dtype", (field.astype("c8"), flat), outs
            yield "byte order", (field, flat.astype(">c16")), outs
            yield "one out", (field, flat), outs[0]
            yield "tuple of one", (field, flat), outs[:1]
            yield "tuple of three", (field, flat), (*outs, outs[0])
            yield "list", (field, flat), list(outs)
            yield "out holds None", (field, flat), (outs[0], None)
            yield "out is an input", (field, flat), (outs[0], field)
            yield "one array for both", (field, flat), (outs[0], outs[0])
            yield "outs overlap", (field, flat), (outs[0], outs[0][::-1])

        count = len(list(bad_calls((field, field))))
        for bad, number in product(range(comm.size), range(count)):
            outs = tuple(np.full(plan.spectrum.shape, 5, "c16") for _ in range(2))
            given, target = (field, flat), outs
            label = ""
            if comm.rank == bad:
                label, given, target = list(bad_calls(outs))[number]
            error = raised(overlap.InputError, acting, *given, out=target)
            same_everywhere(comm, str(error))
            assert f"rank {bad}: " in str(error) and "received" in str(error), (label, str(error))
            assert all((out == 5).all() for out in outs), label
        for found, truth in zip(acting(field, flat, out=outs), expected):
            assert same_bits(found, truth)
        bad_arguments = ({"inputs": 0}, {"inputs": 2, "shared": 2}, {"outputs": 0},
                         {"dealias": "2/3"}, {"inputs": 1.0}, {"shared": -1}, {"dealias": 1.5})
        for bad, arguments in product({0, comm.size - 1}, bad_arguments):
            arguments = arguments if comm.rank == bad else {"inputs": 2}
            error = raised(overlap.InputError, plan.pointwise, lambda u, v: u, **arguments)
            same_everywhere(comm, str(error))
        if comm.size > 1:
            for arguments in ({"inputs": 3}, {"outputs": 2}, {"dealias": "3/2"}, {"shared": 1}):
                arguments = {"inputs": 2} | (arguments if comm.rank == 1 else {})
                error = raised(overlap.InputError, plan.pointwise, lambda u, v: u, **arguments)
                same_everywhere(comm, str(error))
                assert "rank 1" in str(error)
        for found, truth in zip(acting(field, flat), expected):
            assert same_bits(found, truth)


def bad_results(comm, mode, workers):
    """What the function returns on one rank does not fit: SliceError on all, naming it."""
    shape = (4, 6, 2 * comm.size + 4)
    (a,) = spectra(np.random.default_rng(9), 1, shape, "f8")
    wrong = {}

    def function(u, v, index):
        how = wrong.get(index)
        if how == "raise":
            raise Boom("in the function")
        if how == "interrupt":
            raise SystemExit("in the function")
        good = u * v, u
        return {None: good, "one": u, "three": (*good, u), "shape": (u[:, :-1], u),
                "row": (u[0], u), "scalar": (1.0, u), "None": None, "complex": (1j * u, u),
                "text": ("text", u), "objects": (u, np.full(u.shape, None)),
                "list": list(good)}[how]

    with overlap.Runtime(comm, workers=workers) as rt, \
            overlap.FFT2(rt, shape, "f8",
                         settings={"wait": mode, "depth": 2, "chunk": 1}) as plan:
        field = local(plan, a, "natural")
        acting = plan.pointwise(function, inputs=2, outputs=2)
        expected = acting(field, field)
        for number, how in enumerate(("raise", "one", "three", "shape", "row", "scalar", "None",
                                      "complex", "text", "objects", "list", "interrupt")):
            for origin, z in ((number % comm.size, number % 4), (comm.size - 1, 3)):
                if comm.rank == origin:
                    wrong[z] = how
                error = raised(overlap.SliceError, acting, field, field)
                same_everywhere(comm, (str(error), error.rank, error.slice))
                assert error.rank == origin, (how, str(error))
                assert error.slice == str(z), (how, str(error))
                assert "in the function" in error.summary or how not in ("raise", "interrupt")
                wrong.clear()
                for found, truth in zip(acting(field, field), expected):
                    assert same_bits(found, truth), how


def injected(comm, mode, dealias="3/2"):
    """A failure of each sweep and each exchange on each rank, shared fields included."""
    shape = (5, 2 * comm.size + 2, 2 * comm.size + 4)
    a, b = spectra(np.random.default_rng(10), 2, shape, "f8")
    with overlap.FFT2(comm, shape, "f8", settings={"wait": mode, "depth": 2, "chunk": 1}) as plan:
        fields = local(plan, a, "natural"), local(plan, b, "natural")
        flat = np.array(fields[0][1])
        acting = plan.pointwise(lambda u, v, w: u * v * w, shared=1, dealias=dealias)
        expected = acting(*fields, flat)
        sites = [(ColumnSweep, "backward_in", 2), (RowSweep, "backward", 2),
                 (RowSweep, "forward", 1), (ColumnSweep, "forward", 1),
                 (Exchange, "backward", 1), (Exchange, "forward", 1)]
        for (owner, name, per_slice), origin in product(sites, range(comm.size)):
            shared = 0 if name == "forward" else 1  # calls for the shared field come first
            for place in (0, shared, shared + per_slice * 3):
                label = f"{owner}.{name}, call {place}, rank {origin}"
                with (failing(owner, name, lambda number, *_: number == place)
                      if comm.rank == origin else nothing_fails()) as state:
                    error = raised(overlap.SliceError, acting, *fields, flat)
                assert state["raised"] == (comm.rank == origin), label
                same_everywhere(comm, (error.rank, error.slice, str(error)))
                assert error.rank == origin and "Boom" in str(error), label
                assert same_bits(acting(*fields, flat), expected), label


def making_fails_on_one_rank(comm):
    """A rank without memory for a function's planes: none on any rank, and the plans go on alike."""
    shape = (3, 6, 8, 10)
    last = comm.size - 1
    for make, kind, axes in ((overlap.FFT2, Pointwise, (-2, -1)),
                             (overlap.FFT3, VolumePointwise, (-3, -2, -1))):
        with make(comm, shape, "f8", settings={"wait": "poll"}) as plan:
            kept = plan.pointwise(lambda u: u)
            with failing(kind, "configure", lambda *_: True) if (
                    comm.rank == last) else nothing_fails():
                error = raised(overlap.RankError, plan.pointwise, lambda u: u * u)
            same_everywhere(comm, str(error))
            assert error.rank == last and "Boom" in error.summary
            again = plan.pointwise(lambda u: u * u)
            assert plan.tune(0.2).keys() == {"forward", "backward", kept.name, again.name}
            u = random(np.random.default_rng(2), shape, "f8")
            spectrum = plan.forward(u[plan.real.local_slice])
            assert_close(kept(spectrum), np.fft.rfftn(u, axes=axes), plan.spectrum.local_slice, comm)


def planning_calls_no_function(comm):
    """Planning runs on zeros, which the function may not bear; C and T are measured with it."""
    shape = (40, 8, 8)
    calls = []

    def inverse(u):
        calls.append(1)
        assert (u != 0).all(), "called on zeros"
        return 1 / u

    u = 1 + random(np.random.default_rng(11), shape, "f8") ** 2
    with overlap.FFT2(comm, shape, "f8", settings={"wait": "auto"}) as plan:
        acting = plan.pointwise(inverse)
        assert calls == []
        assert acting.trials or comm.size == 1
        spectrum = plan.forward(u[plan.real.local_slice])
        expected = acting(spectrum)
        assert len(calls) == shape[0]
        assert_close(expected, forward_truth(1 / u), plan.spectrum.local_slice, comm)
        product = plan.pointwise(lambda u, v: u * v, shared=1)
        given = spectrum, np.array(spectrum[0])
        expected = product(*given)
        product.compute(*given, out=plan.spectrum.empty())
        product.communicate(*given, out=plan.spectrum.empty())
        assert same_bits(product(*given), expected)
        assert str(product.settings) in product.describe()


def memory(comm, mode):
    """Nothing is allocated by a call with `out` if the function allocates nothing."""
    import gc
    import tracemalloc
    shape = (16, 96, 128)

    def function(u, v, out):
        np.multiply(u, v, out=out)

    for dealias in (None, "3/2"):
        with overlap.FFT2(comm, shape, "f8",
                          settings={"wait": mode, "depth": 3, "chunk": 2,
                                    "effort": "measure"}) as plan:
            acting = plan.pointwise(function, dealias=dealias, shared=1)
            field, out = plan.spectrum.empty(), plan.spectrum.empty()
            field[...] = 1
            flat = np.array(field[0])
            acting(field, flat, out=out)
            gc.collect()
            tracemalloc.start()
            acting(field, flat, out=out)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            acting(field, flat, out=out)
            grown = tracemalloc.get_traced_memory()[1] - before
            tracemalloc.stop()
            assert grown < 64 * 1024 + 4096 * shape[0], grown
            assert f"{acting.nbytes_in_flight / 2**20:.1f} MiB in flight" in acting.describe()
            assert acting.settings.depth == (1 if mode == "off" else 3)


def finer_grid(comm):
    """De-aliased products do not depend on how fine the grid is; the points can be given."""
    for make, shape, points in ((overlap.FFT2, (3, 7, 9), (12, 15)),
                                (overlap.FFT3, (2, 5, 6, 7), (8, 10, 12))):
        found = []
        with make(comm, shape, dtype="f8", settings={"wait": "poll"}) as plan:
            field = plan.real.empty()
            field[...] = np.random.default_rng(1).random(shape)[plan.real.local_slice]
            spectrum = plan.forward(field)
            for dealias in ("3/2", points):
                @plan.pointwise(dealias=dealias)
                def square(u):
                    assert u.shape[-1] == (points[-1] if dealias != "3/2" else
                                           -(-3 * shape[-1] // 2))
                    return u * u
                found.append(np.array(square(spectrum)))
            largest = max(comm.allgather(abs(found[0]).max(initial=0)))
            assert abs(found[0] - found[1]).max(initial=0) <= 1e-13 * largest
            for bad in ((2,) * len(points), points[1:], "2/3", 1.5):
                with pytest.raises(overlap.InputError, match="expected dealias to be None, '3/2' or "
                                   "at least"):
                    plan.pointwise(lambda u: u, dealias=bad)
