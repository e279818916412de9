"""Random fields, and transforms of them by numpy, to which plans are compared."""

from itertools import product

import numpy as np

import overlap
from overlap.arrays import mode_segments

WAITS = ("off", "block", "poll")
COMPLEX = {"f4": "c8", "f8": "c16", "c8": "c8", "c16": "c16"}


def random(rng, shape, dtype):
    """The same random array on every rank, of a generator or of its seed."""
    rng = np.random.default_rng(rng)
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def wide(array):
    """In double precision: numpy transforms single precision in single precision."""
    return np.asarray(array).astype("c16" if array.dtype.kind == "c" else "f8")


def fine_lengths(shape, dealias):
    """The points of a plan's grid in real space along the last axes, as its layout has it."""
    if isinstance(dealias, tuple | list):
        return list(dealias)
    return [-(-3 * n // 2) for n in shape] if dealias else list(shape)


def _of_modes(shape, fine, real):
    """Pairs of the same modes in spectra of two grids, as indices."""
    segments = [
        mode_segments(n, m, half=real and axis == len(fine) - 1) for axis, (n, m) in enumerate(zip(shape, fine))
    ]
    for pairs in product(*segments):
        yield tuple((..., *one) for one in zip(*pairs))


def _factor(norm, points, power):
    return {None: 1, "backward": 1, "ortho": points ** (power / 2), "forward": points**power}[norm]


def forward_truth(u, norm=None, order="natural", shape=None, dimensions=2):
    """The spectrum, on the grid of a plan's `shape`, of values on that grid or on a finer one."""
    shape, fine, real = u.shape if shape is None else shape, u.shape[-dimensions:], u.dtype.kind == "f"
    full = (np.fft.rfftn if real else np.fft.fftn)(wide(u), axes=range(-dimensions, 0))
    spectrum = np.zeros([*shape[:-1], shape[-1] // 2 + 1] if real else shape, full.dtype)
    for here, there in _of_modes(shape[-dimensions:], fine, real):
        spectrum[here] = full[there]
    points = np.prod(shape[-dimensions:])
    spectrum *= points / np.prod(fine) * _factor(norm, points, -1.0)
    return np.moveaxis(spectrum, -dimensions, -1) if order == "transposed" else spectrum


def backward_truth(spectrum, shape, dtype, norm=None, order="natural", dealias=None, dimensions=2):
    """Values on the grid of a plan in real space of a spectrum on that of its `shape`."""
    real = np.dtype(dtype).kind == "f"
    spectrum = wide(np.moveaxis(spectrum, -1, -dimensions) if order == "transposed" else spectrum)
    coarse = shape[-dimensions:]
    fine = fine_lengths(coarse, dealias)
    full = np.zeros((*spectrum.shape[:-dimensions], *fine[:-1], fine[-1] // 2 + 1 if real else fine[-1]), complex)
    for here, there in _of_modes(coarse, fine, real):
        full[there] = spectrum[here]
    # One axis after the other: numpy's irfftn does the same.
    full = np.fft.ifftn(full, axes=range(-dimensions, -1))
    u = np.fft.irfft(full, n=fine[-1]) if real else np.fft.ifft(full)
    points = np.prod(coarse)
    return u * (np.prod(fine) / points * _factor(norm, points, 1.0))


def assert_close(found, truth, local_slice, comm=None, dimensions=2, kept=1.0):
    """The local part of `truth`, in relative l2 norm; of all ranks together if `comm` is given.

    `kept` is how much of the data's norm the truth still has, where modes were dropped.
    """
    local = truth[local_slice]
    assert found.shape == local.shape, (found.shape, local.shape)
    points = np.prod(truth.shape[-dimensions:])
    tolerance = 5 * np.finfo(found.dtype).eps * np.sqrt(np.log2(max(points, 2)))
    squared = float(np.sum(np.abs(wide(found) - local) ** 2))
    error, norm = np.sqrt(squared if comm is None else comm.allreduce(squared)), np.linalg.norm(np.ravel(truth))
    assert error * kept <= tolerance * norm, (error * kept / norm, tolerance)


def same_bits(found, truth):
    return (
        found.shape == truth.shape
        and found.dtype == truth.dtype
        and (np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(truth).tobytes())
    )


def laid_out(values, layout):
    """The values in memory of some layout: the array, and all memory that belongs to it."""
    shape, dtype = values.shape, values.dtype
    batch, plane = shape[:-2], shape[-2:]

    def filled(shape, kind=dtype, order="C"):
        return np.full(shape, 7, kind, order=order)

    if layout == "strided":
        whole = filled([2 * length + 1 for length in shape])
        array = whole[(slice(1, None, 2),) * len(shape)]
    elif layout == "misaligned":  # by an element
        whole = filled(values.size + 1)
        array = whole[1:].reshape(shape)
    elif layout == "unaligned":  # by a byte
        whole = filled(values.nbytes + 1, "u1")
        array = whole[1:].view(dtype).reshape(shape)
    elif layout == "reversed":
        whole = filled(shape)
        array = whole[(slice(None, None, -1),) * len(shape)]
    elif layout == "batch last":
        whole = filled((*plane, *batch))
        array = np.moveaxis(whole, (0, 1), (-2, -1))
    elif layout == "batch swapped":  # two batch axes of it can't be joined without a copy
        whole = filled((*batch[::-1], *plane))
        array = whole.transpose(*range(len(batch))[::-1], len(batch), len(batch) + 1)
    else:
        whole = array = filled(shape, order={"contiguous": "C", "fortran": "F"}[layout])
    assert array.shape == shape
    array[...] = values
    return array, whole


def compare_transform(transform, given, truth, specs, layouts, close):
    """Compare one transform with the truth; it changes neither its input nor what is around its result."""
    (before, after), (source, target, read_only) = specs, layouts
    assert before.global_shape == given.shape
    assert after.global_shape == truth.shape
    array, memory = laid_out(given[before.local_slice], source)
    array.flags.writeable = not read_only
    content = memory.tobytes()
    out = around = None
    if target is not None:
        nothing = np.full(after.shape, 5, after.dtype)
        out, around = laid_out(nothing, target)
        guard = around.tobytes()
    result = transform(array, out=out)
    assert memory.tobytes() == content, "the input has changed"
    if out is None:
        assert type(result) is overlap.DistArray
        assert result.global_shape == truth.shape
    else:
        assert result is out
    assert result.dtype == after.dtype
    close(result)
    if out is not None:
        out[...] = nothing
        assert around.tobytes() == guard, "memory around `out` has changed"
