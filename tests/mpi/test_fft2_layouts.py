"""Restored and de-aliased layouts, and planes that are few and large."""

import sys
from itertools import product
from unittest import mock

import numpy as np
from marks import exhaustive, on_ranks
from step_cases import small_units
from truth import assert_close, backward_truth, forward_truth, random, same_bits

import overlap

fft2 = sys.modules["overlap.fft.fft2"]  # not the function of that name


def resolved(rng, shape, dtype, dropped):
    """The spectrum of a random field, without the Nyquist modes if these are dropped."""
    spectrum = forward_truth(random(rng, shape, "f8" if dtype.startswith("f") else "c16"))
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
        modes = resolved(rng, shape, dtype, dealias is not None)
        u = backward_truth(modes, shape, dtype, dealias=dealias).astype(dtype)
        squared = forward_truth(u.astype("f8" if dtype == "f4" else dtype) ** 2, None, order, shape)
        modes = modes.swapaxes(-1, -2) if order == "transposed" else modes
        first = None
        with mock.patch.object(fft2, "LARGE_NBYTES", 0 if large else 2**40):
            for wait, late in (("off", 0.0), (("poll", "block")[number % 2], 0.5)):
                layout = {"restore": restore, "dealias": dealias, "order": order}
                settings = {"wait": wait, "late": late, "effort": "estimate", "chunk": 1, "depth": 3}
                with (
                    overlap.Runtime(comm, workers=workers) as runtime,
                    overlap.FFT2(runtime, shape, dtype, layout=layout, settings=settings) as plan,
                ):
                    assert plan.real.global_shape == u.shape
                    assert plan.spectrum.axes == (len(shape) - (1 if restore == (order == "transposed") else 2),)
                    spectrum = plan.forward(u[plan.real.local_slice])
                    assert_close(spectrum, modes, plan.spectrum.local_slice, comm)
                    again = plan.backward(spectrum)
                    assert_close(again, u, plan.real.local_slice, comm)
                    found = [spectrum, again]
                    if dealias is None:
                        found.append(plan.pointwise(lambda v: v * v)(spectrum))
                        assert_close(found[2], squared, plan.spectrum.local_slice, comm)
                    first = first or [np.array(one) for one in found]
                    assert all(map(same_bits, found, first)), (shape, dtype, restore, dealias, order, large, wait)
                    whole = not (dealias or restore) and order == "natural"
                    if large and late and comm.size > 1 and whole and shape[-2] > 30 and dtype != "f4":
                        assert any(task.kind == "late" for task in plan.forward.configuration.parts)


@on_ranks(1, 2, exhaustive(3))
def test_products_without_aliases(comm):
    """A product on a plan's finer grid is exact in the resolved modes, with either order of stages."""
    rng = np.random.default_rng(22)
    shape = (2, 10, 12)
    for dtype, restore in product(("f8", "c16"), (False, True)):
        modes = resolved(rng, shape, dtype, True)
        u = backward_truth(modes, shape, dtype, dealias="3/2")
        expected = forward_truth(u * u, shape=shape)
        with overlap.FFT2(comm, shape, dtype, layout={"restore": restore, "dealias": "3/2"}) as plan:
            for dealias in (None, "3/2"):
                found = plan.pointwise(lambda v: v * v, dealias=dealias)(modes[plan.spectrum.local_slice])
                assert_close(found, expected, plan.spectrum.local_slice, comm)


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
        u, v, w = (random(rng, shape, dtype) for _ in range(3))
        c = w.reshape(-1, *shape[-2:])[0]
        settings = {"wait": mode, "depth": 2, "chunk": 2, "effort": "estimate"}
        with overlap.FFT2(comm, shape, dtype, layout={"restore": True, "order": order}, settings=settings) as plan:

            def local(field, plan=plan, order=order):
                return np.ascontiguousarray(forward_truth(field, order=order)[plan.spectrum.local_slice[-field.ndim :]])

            fields = [local(field) for field in (u, v, w)]
            two, three = plan.pointwise(lambda a, b: a * b), plan.pointwise(lambda a, b, c: a * b - c)
            several = plan.pointwise(lambda a, b: (a + b, a * b, a - b), outputs=3)
            shared = plan.pointwise(lambda a, b, c: a * b * c, shared=1)
            for _ in range(2):
                for found, expected in (
                    (two(*fields[:2]), u * v),
                    (three(*fields), u * v - w),
                    *zip(several(*fields[:2]), (u + v, u * v, u - v)),
                    (shared(*fields[:2], local(c)), u * v * c),
                ):
                    assert_close(found, forward_truth(expected, order=order), plan.spectrum.local_slice, comm)
            np.testing.assert_allclose(plan.backward(fields[0]), u[plan.real.local_slice], atol=1e-12)
