"""What the tests of plans run on one rank: calls that are made without a pipeline."""

from contextlib import contextmanager
from itertools import product
from unittest import mock

import numpy as np
from fft2_cases import random, same_bits

import overlap
from overlap.fft.transform import LOCAL_NBYTES, SHARED_NBYTES
from overlap.runtime import Pipeline
from overlap.runtime.scheduling.whole_call import BUSY


@contextmanager
def executions():
    """Meanwhile the mock that is given counts the calls that compiled code makes as a whole, and that end well."""
    counted, make = mock.Mock(), Pipeline.make

    def counting(pipeline, call, *given):
        make(pipeline, call, *given)
        counted()

    with mock.patch.object(Pipeline, "make", counting):
        yield counted


@contextmanager
def in_pipelines():
    """Meanwhile calls on one rank are pipelines, as all others are."""
    limits = dict.fromkeys(("LOCAL_NBYTES", "SHARED_NBYTES"), 0)
    with mock.patch.multiple("overlap.fft.transform", **limits):
        yield


def local_calls_give_the_same_bits(comm):
    """With whatever arrays, plans and workers, what compiled code does in one call are a pipeline's bits."""
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
    for (make, shape, layout), dtype, workers in product(cases, ("f4", "c16"), (1, 2)):
        with overlap.Runtime(comm, workers=workers) as runtime, make(runtime, shape, dtype, layout=layout) as plan:
            u = random(rng, plan.real.shape, dtype)
            with in_pipelines():
                spectrum = np.array(plan.forward(u))
                back = np.array(plan.backward(spectrum))
            for transform, given, expected in ((plan.forward, u, spectrum), (plan.backward, spectrum, back)):
                strided = np.empty((*given.shape[:-1], 2 * given.shape[-1]), given.dtype)[..., ::2]
                strided[...] = given
                shifted = (
                    np.empty(given.nbytes + 68, np.uint8)[4 : 4 + given.nbytes].view(given.dtype).reshape(given.shape)
                )
                shifted[...] = given
                small = given.nbytes + expected.nbytes <= (LOCAL_NBYTES if workers == 1 else SHARED_NBYTES)
                out, calls = np.empty_like(expected), transform.load.calls
                with executions() as executed:
                    for array in (given, strided, shifted, given, given.copy(), strided):
                        assert same_bits(transform(array), expected)
                        assert same_bits(transform(array, out=out), expected)
                        assert array.tobytes() == given.tobytes()
                    assert executed.called == small
                assert transform.load.calls == calls + 12
                reversed_out = np.empty_like(expected)[..., ::-1]
                assert same_bits(transform(given, out=reversed_out), expected)


def threads_call_one_at_a_time(comm):
    """A transform that two threads call at once tells one of them so, and is right again afterwards."""
    with overlap.FFT2(comm, (64, 64)) as plan:
        u = random(np.random.default_rng(12), (64, 64), "c16")
        expected, out, errors = np.array(plan.forward(u)), plan.spectrum.empty(), []
        assert same_bits(plan.forward(u, out=out), expected)
        (schedule,) = plan.forward._own_workspace[-1].values()
        call, _ = schedule._call
        call.state[BUSY] = 1  # as if another thread were at it
        for arguments in ({}, {"out": out}):
            try:
                plan.forward(u, **arguments)
            except overlap.BusyError as error:
                errors.append(str(error))
        call.state[BUSY] = 0
        assert len(errors) == 2 and all("one at a time" in error for error in errors)
        assert same_bits(plan.forward(u, out=out), expected) and call.state[BUSY] == 0
