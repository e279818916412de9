"""Functions of fields on volumes."""

from itertools import product

import numpy as np
import pytest
from everywhere import raises_everywhere
from marks import exhaustive, on_ranks
from step_cases import Boom, small_units
from truth import COMPLEX, assert_close, backward_truth, forward_truth, random, same_bits

import overlap


@small_units()
@on_ranks
@pytest.mark.parametrize(
    "comm, grid, dtype, order, batch, dealias, outputs, shared, use_out",
    [
        (1, (1, 1), "f8", "natural", (2,), "3/2", 1, 1, False),
        (2, (1, 2), "f8", "natural", (3,), "3/2", 2, 0, False),
        (2, (2, 1), "c16", "transposed", (), None, 1, 0, True),
        (4, (2, 2), "f8", "natural", (3,), "3/2", 2, 1, True),
        (3, (1, 3), "c8", "natural", (2, 2), None, 1, 1, False),
    ],
)
def test_pointwise(comm, grid, dtype, order, batch, dealias, outputs, shared, use_out, shape=(9, 10, 24)):
    """A function of fields against the same with numpy, for the whole; every mode the same bits."""
    rng = np.random.default_rng(12)
    plan_shape = (*batch, *shape)
    indices = []

    def product_of(u, v, w):
        return tuple(u * v + number * w for number in range(outputs))

    def returned(u, v, w, index):
        indices.append(index)
        results = product_of(u, v, w)
        return results if outputs > 1 else results[0]

    def filled(u, v, w, out):
        for one, result in zip(out if outputs > 1 else (out,), product_of(u, v, w)):
            one[...] = result

    off = None
    modes = ("off", 1, None, None), ("poll", 1, 3, 1), ("block", 2, 4, 2), ("poll", 2, 7, 1), ("auto", 1, None, None)
    for mode, workers, depth, chunk in modes:
        settings = {"wait": mode, "depth": depth, "chunk": chunk, "effort": "estimate"}
        with (
            overlap.Runtime(comm, workers=workers) as rt,
            overlap.FFT3(rt, plan_shape, dtype, layout={"grid": grid, "order": order}, settings=settings) as plan,
        ):
            acting = plan.pointwise(
                filled if use_out else returned, inputs=3, outputs=outputs, shared=shared, dealias=dealias
            )
            if off is None:
                whole = plan.spectrum.global_shape
                spectra = [random(rng, whole, COMPLEX[dtype]) for _ in range(3 - shared)]
                spectra += [random(rng, whole[-3:], COMPLEX[dtype]) for _ in range(shared)]
            given = [np.array(field[plan.spectrum.local_slice[-field.ndim :]]) for field in spectra]
            for _ in range(2):
                results = acting(*given)
                results = results if outputs > 1 else (results,)
                if off is None:
                    real = [
                        backward_truth(field, (*field.shape[:-3], *shape), dtype, None, order, dealias, 3)
                        for field in spectra
                    ]
                    for found, result in zip(results, product_of(*real)):
                        truth = forward_truth(result, None, order, plan_shape, 3)
                        assert_close(found, truth, plan.spectrum.local_slice, comm, 3, kept=0.2)
                    off = results
                for found, result in zip(results, off):
                    assert same_bits(found, result), (mode, workers, depth, chunk)
    if not use_out and len(batch) == 1:
        assert indices == 2 * len(modes) * list(range(batch[0]))


@small_units()
@on_ranks
@pytest.mark.parametrize("comm, grid, mode", [(2, (1, 2), "off"), exhaustive(4, (2, 2), "poll"), (2, (1, 2), "block")])
def test_pointwise_failures(comm, mode, grid):
    """A function that raises, on one rank, for one entry: told on all, then all is right."""
    spectrum = random(np.random.default_rng(13), (3, 6, 8, 20), "c16")
    settings = {"wait": mode, "depth": 3, "chunk": 1, "effort": "estimate"}
    with overlap.FFT3(comm, spectrum.shape, "c16", layout={"grid": grid}, settings=settings) as plan:
        given = np.array(spectrum[plan.spectrum.local_slice])
        armed = []

        @plan.pointwise
        def square(u, index):
            if armed == [index]:
                raise Boom("the function")
            return u * u

        truth = square(given)
        for entry, origin in product(range(3), range(comm.size)):
            armed[:] = [entry] if comm.rank == origin else []
            error = raises_everywhere(comm, overlap.SliceError, "", square, given)
            assert error.rank == origin and f"apply, entry {entry}" in error.slice, str(error)
            armed.clear()
            assert same_bits(square(given), truth)
        for arguments in ({"dealias": "2/3"}, {"inputs": 0}, {"outputs": 0}, {"shared": 2}):
            raises_everywhere(comm, overlap.InputError, "", plan.pointwise, lambda u, v: u, **arguments)
