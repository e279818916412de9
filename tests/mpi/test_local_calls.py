"""What the tests of plans run on one rank: any arrays, several workers, several threads."""

import gc
import threading
import weakref
from itertools import product

import numpy as np
from everywhere import raised
from marks import on_ranks
from truth import random, same_bits

import overlap


@on_ranks(1)
def test_local_calls_give_the_same_bits(comm):
    """Whatever the arrays' strides and alignment, and however many workers: the same bits."""
    rng = np.random.default_rng(11)
    cases = [
        (overlap.FFT2, shape, {"order": order})
        for shape, order in product(((9, 8), (3, 6, 10), (2, 2, 300, 64)), ("natural", "transposed"))
    ]
    cases += [
        (overlap.FFT3, shape, layout)
        for shape, layout in product(
            ((7, 6, 10), (3, 4, 6, 9), (48, 50, 52)), ({"order": "transposed"}, {"dealias": "3/2"})
        )
    ]
    for (make, shape, layout), dtype in product(cases, ("f4", "c16")):
        known = None
        for workers in (1, 2):
            with overlap.Runtime(comm, workers=workers) as runtime, make(runtime, shape, dtype, layout=layout) as plan:
                if known is None:
                    u = random(rng, plan.real.shape, dtype)
                    spectrum = np.array(plan.forward(u))
                    known = spectrum, np.array(plan.backward(spectrum))
                spectrum, back = known
                for transform, given, expected in ((plan.forward, u, spectrum), (plan.backward, spectrum, back)):
                    strided = np.empty((*given.shape[:-1], 2 * given.shape[-1]), given.dtype)[..., ::2]
                    strided[...] = given
                    memory = np.empty(given.nbytes + 68, np.uint8)[4 : 4 + given.nbytes]
                    shifted = memory.view(given.dtype).reshape(given.shape)
                    shifted[...] = given
                    out, calls = np.empty_like(expected), transform.load.calls
                    for array in (given, strided, shifted, given, given.copy(), strided):
                        assert same_bits(transform(array), expected)
                        assert same_bits(transform(array, out=out), expected)
                        assert array.tobytes() == given.tobytes()
                    assert transform.load.calls == calls + 12
                    reversed_out = np.empty_like(expected)[..., ::-1]
                    assert same_bits(transform(given, out=reversed_out), expected)


class Own(np.ndarray):
    """Arrays that may know more than their values."""


@on_ranks(1)
def test_arrays_at_a_known_place(comm):
    """A call is remembered for its arrays, and is not taken for one with others in their memory, nor keeps them."""
    rng = np.random.default_rng(13)
    with overlap.FFT2(comm, (2, 6, 6)) as plan:
        u, out = random(rng, (2, 6, 6), "c16"), np.empty((2, 6, 6), complex)
        for _ in range(3):
            plan.forward(u, out=out)
        for array in (u[:], u[:, ::-1], u.transpose(0, 2, 1), u.view(Own), plan.real.wrap(u), u):
            np.testing.assert_allclose(plan.forward(array, out=out), np.fft.fft2(array), atol=1e-12)
            np.testing.assert_allclose(plan.forward(array), np.fft.fft2(array), atol=1e-12)
        assert type(plan.forward(u, out=out.view(Own))) is Own
        elsewhere = overlap.DistArray(u, comm, (4, 6, 6), (0,), (slice(2, 4), slice(0, 6), slice(0, 6)))
        for array in (u[:1], u.view("c8"), elsewhere, u.tolist(), None):
            raised(overlap.InputError, plan.forward, array, out=out)
        out.flags.writeable = False
        raised(overlap.InputError, plan.forward, u, out=out)
        watched = weakref.ref(u)
        del u, array, elsewhere
        gc.collect()
        assert watched() is None


@on_ranks(1)
def test_memory_of_results(comm):
    """A large result's memory is that of the next one when nobody holds it any more, in any thread and by any view."""
    with overlap.FFT2(comm, (256, 256)) as plan:
        u = random(np.random.default_rng(14), (256, 256), "c16")
        expected = np.fft.fft2(u)
        place = plan.forward(u).ctypes.data
        held = plan.forward(u)
        assert held.ctypes.data == place and held.flags.writeable
        view = np.asarray(held).T[1:, ::2].real.view(Own)
        several = [plan.forward(u), plan.forward(u)]
        del held
        gc.collect()
        for factor in range(2, 6):
            other = plan.forward(factor * u)
            thread = threading.Thread(target=several.pop) if several else threading.Thread(target=gc.collect)
            thread.start()
            thread.join()
            assert not np.shares_memory(other, view)
            np.testing.assert_allclose(other, factor * expected, atol=1e-9)
            np.testing.assert_allclose(view, expected.T[1:, ::2].real, atol=1e-9)
        base = view.base
        del view
        assert not np.shares_memory(plan.forward(u), base)
