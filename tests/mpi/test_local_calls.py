"""What the tests of plans run on one rank: any arrays, several workers, several threads."""

import threading
from itertools import product

import numpy as np
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


@on_ranks(1)
def test_threads_call_one_at_a_time(comm):
    """A call while another thread is in one is refused; the other call ends well, and so does the next one."""
    with overlap.FFT2(comm, (64, 64)) as plan:
        inside, go_on = threading.Event(), threading.Event()

        @plan.pointwise
        def square(a):
            inside.set()
            assert go_on.wait(60)
            return a * a

        u = random(np.random.default_rng(12), (64, 64), "c16")
        expected, out, results = np.array(plan.forward(u)), plan.spectrum.empty(), []
        thread = threading.Thread(target=lambda: results.append(np.array(square(out))))
        plan.forward(u, out=out)
        thread.start()
        assert inside.wait(60)
        for arguments in ({}, {"out": plan.spectrum.empty()}):
            try:
                plan.forward(u, **arguments)
            except overlap.BusyError as error:
                assert "one at a time" in str(error)
            else:
                raise AssertionError("the call was not refused")
        go_on.set()
        thread.join()
        assert np.allclose(results[0], np.fft.fft2(u * u))
        assert same_bits(plan.forward(u, out=out), expected)
