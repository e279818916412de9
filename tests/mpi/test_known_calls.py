"""What the tests of plans run on several ranks: calls that are made again, and that fail in MPI."""

from contextlib import nullcontext
from itertools import product
from unittest import mock

import numpy as np
import pytest
from everywhere import raised, same_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI
from step_cases import mpi_functions
from test_errors import check_slice_error
from truth import random, same_bits

import overlap

WAITS = ("off", "block", "poll")
ONE = {"depth": 1, "chunk": 1000, "in_flight": 1, "effort": "estimate"}  # one slice


@on_ranks
@pytest.mark.parametrize("comm, every", [(2, 5), exhaustive(2, 1), exhaustive(3, 1)])
def test_known_calls(comm, every):
    """As the first call, with results that are held or not, in every way; of `every` so many plans."""
    rng = np.random.default_rng(12 + comm.rank)
    cases = [
        (overlap.FFT2, shape, {"order": order})
        for shape, order in product(((1, 9, 8), (3, 6, 10), (1, 32, 48)), ("natural", "transposed"))
    ]
    cases += [
        (overlap.FFT3, shape, layout)
        for shape, layout in product(
            ((7, 6, 10), (2, 4, 6, 9)),
            ({"order": "transposed"}, {"dealias": "3/2"}, {"grid": (comm.size, 1)}, {"grid": (1, comm.size)}),
        )
    ]
    for (make, shape, layout), dtype, wait, chunk in [*product(cases, ("f4", "c16"), WAITS, (1, 1000))][::every]:
        settings = {"wait": wait, **ONE, "chunk": chunk}
        with make(comm, shape, dtype, layout=layout, settings=settings) as plan:
            u = random(rng, plan.real.shape, dtype)
            spectrum = np.array(plan.forward(u))
            back = np.array(plan.backward(spectrum))
            for transform, given, expected in ((plan.forward, u, spectrum), (plan.backward, spectrum, back)):
                out, calls = np.empty_like(expected), transform.load.calls
                for _ in range(4):
                    assert same_bits(transform(given, out=out), expected)
                    held = transform(given)
                    assert same_bits(held, expected) and same_bits(transform(given), expected)
                    assert same_bits(held, expected)
                assert transform.load.calls == calls + 12


@on_ranks(2, 3)
def test_known_calls_that_fail(comm):
    """An operation that MPI refuses on one rank, begun or not: one error on all, and the next call is right."""
    for wait, rank, (code, begun), chunk in product(
        WAITS, {0, comm.size - 1}, ((MPI.ERR_COUNT, False), (MPI.ERR_OTHER, True)), (1, 1000)
    ):
        if wait == "poll" and begun:
            continue  # nobody would wait for it

        def refused(name, real, *words, code=code, begun=begun):
            return real(*words) * 0 + code if begun else code

        settings = {"wait": wait, **ONE, "chunk": chunk, "depth": 2}
        with overlap.FFT2(comm, (5, 12, 10), settings=settings) as plan:
            u = random(np.random.default_rng(comm.rank), plan.real.shape, "c16")
            expected = np.array(plan.forward(u))
            out = np.empty_like(expected)
            with mpi_functions(refused, plan.forward) if comm.rank == rank else nullcontext():
                for _ in range(2):
                    caught = raised(overlap.SliceError, plan.forward, u, out=out)
                    check_slice_error(comm, caught, rank, plan.forward.configuration.parts[0], MPI.Exception)
            for _ in range(2):
                assert same_bits(plan.forward(u, out=out), expected)


@on_ranks(2)
def test_other_arrays_at_a_known_place(comm):
    """Arrays with the address and the distribution of a known one, but other strides or another type."""
    n = 4 * comm.size
    with overlap.FFT2(comm, (2, n, n)) as plan:
        memory = random(np.random.default_rng(comm.rank), plan.real.shape[::-1], "c16")
        u, out = memory.reshape(plan.real.shape), plan.spectrum.empty()
        turned = memory.transpose(2, 1, 0)
        for _ in range(3):
            for array in (u, turned):
                expected = np.fft.fft2(np.concatenate(comm.allgather(array), axis=1))[plan.spectrum.local_slice]
                np.testing.assert_allclose(plan.forward(plan.real.wrap(array), out=out), expected, atol=1e-12)
        singles = plan.real.wrap(memory.reshape(-1).view("c8")[: memory.size].reshape(u.shape))
        assert "complex64" in str(raised(overlap.InputError, plan.forward, singles, out=out))


@on_ranks(2)
def test_different_known_calls(comm, compared=True):
    """Ranks that call different transforms of equal settings: one error on all; `compared`: their headers differ."""
    with (
        overlap.Runtime(comm, deadline_s=20) as runtime,
        nullcontext() if compared else mock.patch.object(overlap.FFT2, "_compared", return_value="FFT2"),
        nullcontext() if compared else mock.patch.object(type(runtime.coordinator), "next_number", return_value=0),
    ):
        plans = [overlap.FFT2(runtime, (1, n, n), settings={"wait": "off", **ONE}) for n in (8, 12)]
        arrays = [(plan.real.empty(), plan.spectrum.empty()) for plan in plans]
        for plan, (u, out) in zip(plans, arrays):
            u[...] = 1.0
            for _ in range(2):
                plan.forward(u, out=out)
        which = 0 if comm.rank == 0 else 1
        u, out = arrays[which]
        if compared:
            caught = raised(overlap.InputError, plans[which].forward, u, out=out)
            assert all(f"FFT2 (1, {n}, {n})" in str(caught) for n in (8, 12))
        else:
            caught = raised(overlap.SliceError, plans[which].forward, u, out=out)
        same_everywhere(comm, str(caught))
        u, out = arrays[0]
        for _ in range(2):
            plans[0].forward(u, out=out)
            total = comm.allreduce(out.sum())  # of a constant, all of which is in one mode
            assert total == 64.0, total


@on_ranks(2, fresh=True)
def test_different_known_calls_that_are_not_compared(comm):
    # This one leaves a communicator behind.
    test_different_known_calls(comm, compared=False)
