"""What `test_fft3` runs on every rank: functions of fields on volumes."""

from itertools import product

import numpy as np
from fft2_cases import COMPLEX, raised, random, same_bits, same_everywhere
from fft2_error_cases import Boom
from fft3_cases import assert_close, backward_truth, forward_truth, small_units

import overlap

# ---- pointwise -------------------------------------------------------------------------------


@small_units()
def pointwise(comm, grid, dtype, order, batch, shape, dealias, outputs, shared, use_out, modes):
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
    for mode, workers, depth, chunk in modes:
        with (
            overlap.Runtime(comm, workers=workers) as rt,
            overlap.FFT3(
                rt,
                plan_shape,
                dtype,
                layout={"grid": grid, "order": order},
                settings={"wait": mode, "depth": depth, "chunk": chunk, "effort": "estimate"},
            ) as plan,
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
                        backward_truth(field, (*field.shape[:-3], *shape), dtype, None, order, dealias)
                        for field in spectra
                    ]
                    for found, result in zip(results, product_of(*real)):
                        truth = forward_truth(result, plan_shape, None, order, dealias)
                        assert_close(comm, found, truth, plan.spectrum.local_slice, kept=0.2)
                    off = results
                for found, result in zip(results, off):
                    assert same_bits(found, result), (mode, workers, depth, chunk)
    if not use_out and len(batch) == 1:
        assert indices == 2 * len(modes) * list(range(batch[0]))


@small_units()
def pointwise_failures(comm, mode, grid):
    """A function that raises, on one rank, for one entry: told on all, then all is right."""
    spectrum = random(np.random.default_rng(13), (3, 6, 8, 20), "c16")
    with overlap.FFT3(
        comm,
        spectrum.shape,
        "c16",
        layout={"grid": grid},
        settings={"wait": mode, "depth": 3, "chunk": 1, "effort": "estimate"},
    ) as plan:
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
            error = raised(overlap.SliceError, square, given)
            same_everywhere(comm, str(error))
            assert error.rank == origin and f"apply, entry {entry}" in error.slice, str(error)
            armed.clear()
            assert same_bits(square(given), truth)
        for arguments in ({"dealias": "2/3"}, {"inputs": 0}, {"outputs": 0}, {"shared": 2}):
            error = raised(overlap.InputError, plan.pointwise, lambda u, v: u, **arguments)
            same_everywhere(comm, str(error))
