"""Plans whose spectra keep some modes of all, against numpy on the global array."""

import numpy as np
from everywhere import raises_everywhere
from marks import exhaustive, on_ranks
from truth import random

import overlap
from overlap import FFT2, FFT3, FFTN, InputError

QUICK = {"effort": "estimate"}


def kept_of(points, modes, half):
    """Places of the modes that are kept, in numpy's spectrum; None for those that are zero."""
    if modes == points:
        return [*range(points // 2 + 1 if half else points)]
    numbers = np.fft.rfftfreq(modes, 1 / modes) if half else np.fft.fftfreq(modes, 1 / modes)
    return [None if 2 * abs(k) == modes else int(k) % points for k in numbers]


def pruned(spectrum, points, modes, axes, real):
    """Those modes of numpy's spectrum."""
    for axis, n, m in zip(axes, points, modes):
        places = kept_of(n, m, real and axis == axes[-1])
        dropped = [place is None for place in places]
        spectrum = spectrum.take([place or 0 for place in places], axis)
        spectrum[(slice(None),) * axis + (dropped,)] = 0
    return spectrum


def kept(comm, make, shape, dtype, modes, axes, norm=None, wait="off", **options):
    """Forward gives numpy's modes, backward what they make, and a function of fields acts on these."""
    layout = options.pop("layout", {}) | {"modes": modes}
    whole, real = random(5, shape, dtype), np.dtype(dtype).kind == "f"
    points = options.get("s") or [shape[axis] for axis in axes]
    forward = np.fft.rfftn if real else np.fft.fftn
    settings = QUICK | {"wait": wait}
    if make is FFTN:
        options["axes"] = axes
    with make(comm, shape, dtype, norm=norm, layout=layout, settings=settings, **options) as plan:

        def assert_modes(found, fields, factor=1):
            right = pruned(forward(fields, s=points, axes=axes, norm=norm), points, modes, axes, real)
            turned = np.moveaxis(right, -len(axes), -1) if layout.get("order") == "transposed" else right
            assert plan.spectrum.global_shape == turned.shape
            bound = factor * 20 * np.finfo(dtype).eps * max(1.0, abs(right).max())
            np.testing.assert_allclose(np.asarray(found), turned[plan.spectrum.local_slice], rtol=0, atol=bound)
            return right

        u = plan.real.empty()
        u[...] = whole[plan.real.local_slice]
        spectrum = plan.forward(u)
        right = assert_modes(spectrum, whole)
        full = np.zeros(forward(whole, s=points, axes=axes).shape, complex)
        places = [range(length) for length in full.shape]
        inside = [slice(None)] * full.ndim
        for axis, n, m in zip(axes, points, modes):
            found = kept_of(n, m, real and axis == axes[-1])
            places[axis] = [place for place in found if place is not None]
            inside[axis] = [place is not None for place in found]
            right = right.compress(inside[axis], axis)
        full[np.ix_(*places)] = right
        filtered = (np.fft.irfftn if real else np.fft.ifftn)(full, s=points, axes=axes, norm=norm)
        filtered = np.pad(filtered, [(0, max(0, n - m)) for n, m in zip(shape, filtered.shape)])
        filtered = filtered[tuple(slice(0, length) for length in shape)]
        eps = 50 * np.finfo(dtype).eps
        back = plan.backward(spectrum)
        np.testing.assert_allclose(np.asarray(back), filtered[plan.real.local_slice], rtol=0, atol=eps)
        assert_modes(plan.pointwise(lambda a: a * a - a)(spectrum), filtered**2 - filtered, factor=4)
        return plan.forward.nbytes_per_slice() * plan.forward.slices


@on_ranks(1, exhaustive(2), 3)
def test_modes(comm):
    """Odd and even numbers, all plans, types, norms and orders."""
    kept(comm, FFT2, (2, 12, 15), "c16", (7, 5), (1, 2))
    kept(comm, FFT2, (9, 10), "f8", (6, 10), (0, 1), norm="ortho", wait="poll", layout={"order": "transposed"})
    kept(comm, FFT2, (3, 8, 9), "f4", (8, 1), (1, 2), norm="forward", layout={"restore": True})
    kept(comm, FFT3, (8, 9, 10), "c16", (3, 9, 6), (0, 1, 2), wait="poll", layout={"grid": (1, comm.size)})
    kept(comm, FFT3, (2, 8, 9, 10), "f8", (5, 4, 7), (1, 2, 3), norm="forward", layout={"grid": (comm.size, 1)})
    kept(comm, FFTN, (6, 7, 8), "f8", (5, 3), (2, 0))
    kept(comm, FFTN, (9, 4, 8), "c8", (3, 5), (0, 2), norm="ortho", split=0, wait="poll")
    kept(comm, FFTN, (9, 4, 8), "c16", (3, 7), (0, 2), s=(7, 10), split=2)
    sent = [kept(comm, FFT2, (66, 60), "c16", (66, m), (0, 1)) for m in (60, 30)]
    assert comm.size == 1 or comm.allreduce(sent[1]) * 2 == comm.allreduce(sent[0])  # what is dropped is not sent
    with FFT2(comm, (4, 12, 12), "f8", norm="ortho", layout={"modes": (7, 7)}, settings=QUICK) as plan:
        u = plan.real.from_function(lambda y, x: np.sin(2 * y) * np.cos(3 * x))
        ops = plan.operators()
        np.testing.assert_allclose(ops.energy(plan.forward(u)), [0.125] * 4, rtol=1e-14)
        slope = plan.backward(ops.derivative(plan.forward(u), -1))
        right = plan.real.from_function(lambda y, x: -3 * np.sin(2 * y) * np.sin(3 * x))
        np.testing.assert_allclose(np.asarray(slope), np.asarray(right), rtol=0, atol=1e-14)
        with overlap.Runtime(comm) as other, plan.on(other) as again:
            assert again.spectrum.global_shape == plan.spectrum.global_shape == (4, 7, 4)


@on_ranks(1, exhaustive(2), 3)
def test_modes_refused(comm):
    """What cannot be is one error on all ranks."""

    def no(words, make, shape, **options):
        raises_everywhere(comm, InputError, words, lambda: make(comm, shape, **options))

    for bad in ((7,), (7, 13), (0, 3), (3.5, 3), "ab", 5, (5, 5, 5)):
        no("expected modes", FFT2, (12, 12), layout={"modes": bad})
    no("received both", FFT2, (8, 8), layout={"modes": (3, 3), "dealias": "3/2"})
    no("expected all modes", FFT2, (8, 8), dtype="f8", kinds=("dct2", "r2c"), layout={"modes": (3, 3)})
    if comm.size > 1:
        no("stays split", FFTN, (36,), layout={"modes": (5,)})
