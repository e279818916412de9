"""Restored and de-aliased layouts, and planes that are few and large."""

import sys
from itertools import product
from unittest import mock

import numpy as np
from marks import exhaustive, on_ranks
from step_cases import small_units
from truth import assert_close, random, same_bits

import overlap

fft2 = sys.modules["overlap.fft.fft2"]  # not the function of that name


def embedded(spectrum, shape, fine):
    """Resolved modes of a plane as modes of a finer grid."""
    real = spectrum.shape[-1] != shape[-1]
    out = np.zeros((*spectrum.shape[:-2], fine[0], fine[1] // 2 + 1 if real else fine[1]), spectrum.dtype)
    ky = np.fft.fftfreq(shape[-2], 1 / shape[-2]).astype(int)
    kx = np.arange(spectrum.shape[-1]) if real else np.fft.fftfreq(shape[-1], 1 / shape[-1]).astype(int)
    out[..., ky[:, None], kx] = spectrum
    return out


def resolved(rng, shape, dtype, dropped):
    """The spectrum of a random field, without the Nyquist modes if these are dropped."""
    real = dtype.startswith("f")
    spectrum = (np.fft.rfft2 if real else np.fft.fft2)(random(rng, shape, "f8" if real else "c16"))
    ny, nx = shape[-2:]
    if dropped and ny % 2 == 0:
        spectrum[..., ny // 2, :] = 0
    if dropped and nx % 2 == 0:
        spectrum[..., nx // 2] = 0
    return spectrum


@small_units(2**9)
@on_ranks(1, 2, exhaustive(3))
def test_layouts(comm, workers=1):
    """Forward, backward and a product, against NumPy, in every mode with the same bits."""
    rng = np.random.default_rng(21)
    cases = product(((3, 16, 10), (2, 33, 24)), ("c16", "f8"), (False, True), (None, "3/2"), (False, True))
    for number, (shape, dtype, restore, dealias, large) in enumerate(cases):
        order = ("natural", "transposed")[number % 3 == 2]
        dtype = "f4" if dtype == "f8" and number % 5 == 4 else dtype
        ny, nx = shape[-2:]
        fine = (ny, nx) if dealias is None else (-(-3 * ny // 2), -(-3 * nx // 2))
        modes = resolved(rng, shape, dtype, dealias is not None)
        back = (lambda one: np.fft.irfft2(one, fine)) if dtype.startswith("f") else np.fft.ifft2
        scale = fine[0] * fine[1] / (ny * nx)
        u = (scale * back(embedded(modes, shape, fine))).astype(dtype)
        squared = (np.fft.rfft2 if dtype.startswith("f") else np.fft.fft2)(
            u.astype("f8" if dtype == "f4" else dtype) ** 2
        ) / scale
        expected = [modes, squared]
        if order == "transposed":
            expected = [one.swapaxes(-1, -2) for one in expected]
        first = None
        with mock.patch.object(fft2, "LARGE_NBYTES", 0 if large else 2**40):
            for wait, late in (("off", 0.0), (("poll", "block")[number % 2], 0.5)):
                with (
                    overlap.Runtime(comm, workers=workers) as runtime,
                    overlap.FFT2(
                        runtime,
                        shape,
                        dtype,
                        layout={"restore": restore, "dealias": dealias, "order": order},
                        settings={"wait": wait, "late": late, "effort": "estimate", "chunk": 1, "depth": 3},
                    ) as plan,
                ):
                    mine = u[plan.real.local_slice]
                    spectrum = plan.forward(mine)
                    assert plan.real.global_shape == (*shape[:-2], *fine)
                    assert plan.spectrum.axes == (len(shape) - (1 if restore == (order == "transposed") else 2),)
                    ky, kx = plan.wavenumbers()
                    assert np.broadcast_shapes(ky.shape, kx.shape) == plan.spectrum.shape[-2:]
                    assert_close(spectrum, expected[0], plan.spectrum.local_slice, comm)
                    again = plan.backward(spectrum)
                    assert_close(again, u, plan.real.local_slice, comm)
                    found = [spectrum, again]
                    if dealias is None:
                        found.append(plan.pointwise(lambda v: v * v)(spectrum))
                        assert_close(found[2], expected[1], plan.spectrum.local_slice, comm)
                    first = first or [np.array(one) for one in found]
                    assert all(map(same_bits, found, first)), (shape, dtype, restore, dealias, order, large, wait)
                    if (
                        large
                        and late
                        and comm.size > 1
                        and not (dealias or restore)
                        and order == "natural"
                        and ny > 30
                        and (dtype != "f4")
                    ):
                        assert any(task.kind == "late" for task in plan.forward.configuration.parts)


@on_ranks(1, 2, exhaustive(3))
def test_products_without_aliases(comm):
    """A product on a plan's finer grid is exact in the resolved modes, with either order of stages."""
    rng = np.random.default_rng(22)
    shape, fine = (2, 10, 12), (15, 18)
    for dtype, restore in product(("f8", "c16"), (False, True)):
        modes = resolved(rng, shape, dtype, True)
        back = (lambda one: np.fft.irfft2(one, fine)) if dtype == "f8" else np.fft.ifft2
        scale = fine[0] * fine[1] / (shape[-2] * shape[-1])
        u = scale * back(embedded(modes, shape, fine))
        whole = (np.fft.rfft2 if dtype == "f8" else np.fft.fft2)(u * u) / scale
        with overlap.FFT2(comm, shape, dtype, layout={"restore": restore, "dealias": "3/2"}) as plan:
            square, explicit = (plan.pointwise(lambda v: v * v, dealias=dealias) for dealias in (None, "3/2"))
            given = modes[plan.spectrum.local_slice]
            kept = resolved(rng, shape, dtype, True) != 0
            ky = np.fft.fftfreq(shape[-2], 1 / shape[-2]).astype(int)
            kx = np.arange(modes.shape[-1]) if dtype == "f8" else np.fft.fftfreq(shape[-1], 1 / shape[-1]).astype(int)
            expected = np.where(kept, whole[..., ky[:, None], kx], 0)
            for transform in (square, explicit):
                assert_close(transform(given), expected, plan.spectrum.local_slice, comm)


@on_ranks(1, 2, exhaustive(3))
def test_products_of_restored(comm):
    """Functions of several fields where the spectrum is split as real space is: small planes, every count of fields."""
    rng = np.random.default_rng(23)
    for shape, dtype, order, mode in (
        ((3, 10, 12), "f8", "natural", "poll"),
        ((2, 3, 7, 6), "c16", "transposed", "block"),
        ((2, 3, 7, 6), "f8", "transposed", "off"),
        ((16, 9), "c16", "natural", "poll"),
    ):
        to_modes, back = (np.fft.rfft2, np.fft.irfft2) if dtype == "f8" else (np.fft.fft2, np.fft.ifft2)
        u, v, w = (random(rng, shape, dtype) for _ in range(3))
        c = w[0, 0] if len(shape) == 4 else w[0] if len(shape) == 3 else w
        with overlap.FFT2(
            comm,
            shape,
            dtype,
            layout={"restore": True, "order": order},
            settings={"wait": mode, "depth": 2, "chunk": 2, "effort": "estimate"},
        ) as plan:

            def spectrum(field, plan=plan, order=order):
                found = to_modes(field)
                found = found.swapaxes(-1, -2) if order == "transposed" else found
                return found, np.ascontiguousarray(found[plan.spectrum.local_slice[-found.ndim :]])

            fields = [spectrum(field)[1] for field in (u, v, w)]
            two, three = plan.pointwise(lambda a, b: a * b), plan.pointwise(lambda a, b, c: a * b - c)
            several = plan.pointwise(lambda a, b: (a + b, a * b, a - b), outputs=3)
            shared = plan.pointwise(lambda a, b, c: a * b * c, shared=1)
            for _ in range(2):
                for found, expected in (
                    (two(*fields[:2]), u * v),
                    (three(*fields), u * v - w),
                    *zip(several(*fields[:2]), (u + v, u * v, u - v)),
                    (shared(*fields[:2], spectrum(c)[1]), u * v * c),
                ):
                    assert_close(found, spectrum(expected)[0], plan.spectrum.local_slice, comm)
            np.testing.assert_allclose(
                plan.backward(fields[0]), back(to_modes(u), shape[-2:])[plan.real.local_slice], atol=1e-12
            )
