"""Random fields, and transforms of them by numpy, to which plans are compared."""

import numpy as np

import overlap

WAITS = ("off", "block", "poll")
COMPLEX = {"f4": "c8", "f8": "c16", "c8": "c8", "c16": "c16"}


def random(rng, shape, dtype):
    """The same random array on every rank."""
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def wide(array):
    """In double precision: numpy transforms single precision in single precision."""
    return np.asarray(array).astype("c16" if array.dtype.kind == "c" else "f8")


def forward_truth(u, norm=None, order="natural"):
    spectrum = (np.fft.fft2 if u.dtype.kind == "c" else np.fft.rfft2)(wide(u), norm=norm)
    return spectrum.swapaxes(-1, -2) if order == "transposed" else spectrum


def backward_truth(spectrum, shape, dtype, norm=None, order="natural"):
    spectrum = wide(spectrum.swapaxes(-1, -2) if order == "transposed" else spectrum)
    if np.dtype(dtype).kind == "c":
        return np.fft.ifft2(spectrum, norm=norm)
    return np.fft.irfft2(spectrum, s=shape[-2:], norm=norm)


def assert_close(found, truth, local_slice, comm=None):
    """The local part of `truth`, in relative l2 norm; of all ranks together if `comm` is given."""
    local = truth[local_slice]
    assert found.shape == local.shape, (found.shape, local.shape)
    points = truth.shape[-1] * truth.shape[-2]
    tolerance = 5 * np.finfo(found.dtype).eps * np.sqrt(np.log2(max(points, 2)))
    squared = float(np.sum(np.abs(wide(found) - local) ** 2))
    if comm is not None:
        squared = comm.allreduce(squared)
    error = np.sqrt(squared)
    assert error <= tolerance * np.linalg.norm(np.ravel(truth)), (error / np.linalg.norm(np.ravel(truth)), tolerance)


def same_bits(found, truth):
    return (
        found.shape == truth.shape
        and found.dtype == truth.dtype
        and (np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(truth).tobytes())
    )


def laid_out(values, layout):
    """The values in memory of some layout: the array, and all memory that belongs to it."""
    shape, dtype = values.shape, values.dtype
    if layout == "contiguous":
        whole = np.full(shape, 7, dtype)
        array = whole
    elif layout == "strided":
        whole = np.full([2 * length + 1 for length in shape], 7, dtype)
        array = whole[(slice(1, None, 2),) * len(shape)]
    elif layout == "misaligned":  # by an element
        whole = np.full(values.size + 1, 7, dtype)
        array = whole[1:].reshape(shape)
    elif layout == "unaligned":  # by a byte
        whole = np.full(values.nbytes + 1, 7, "u1")
        array = whole[1:].view(dtype).reshape(shape)
    elif layout == "fortran":
        whole = np.full(shape, 7, dtype, order="F")
        array = whole
    elif layout == "reversed":
        whole = np.full(shape, 7, dtype)
        array = whole[(slice(None, None, -1),) * len(shape)]
    elif layout == "batch last":
        batch, plane = shape[:-2], shape[-2:]
        whole = np.full((*plane, *batch), 7, dtype)
        array = np.moveaxis(whole, (0, 1), (-2, -1))
    elif layout == "batch swapped":  # two batch axes of it can't be joined without a copy
        batch, plane = shape[:-2], shape[-2:]
        whole = np.full((*batch[::-1], *plane), 7, dtype)
        array = whole.transpose(*range(len(batch))[::-1], len(batch), len(batch) + 1)
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
