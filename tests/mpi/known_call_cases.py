"""What the tests of plans run on several ranks: short calls with the same arrays, whose steps are known."""

from contextlib import nullcontext
from itertools import product
from unittest import mock

import numpy as np
from error_cases import Boom, check_slice_error, raised, same_message
from fft2_cases import random, same_bits
from local_call_cases import in_pipelines

import overlap
from overlap.fft.engine import staged
from overlap.runtime.scheduling import known_path
from overlap.runtime.scheduling.waiting import NotIssued

WAITS = ("off", "poll")
ONE = {"depth": 1, "chunk": 1000, "in_flight": 1, "effort": "estimate"}  # one slice


def runs(path=known_path.KnownPath):
    """Meanwhile the mock that is given counts the runs of known calls."""
    return mock.patch.object(path, "run", autospec=True, side_effect=path.run)


def known_calls_give_the_same_bits(comm, every=1):
    """As a pipeline's call of the same arrays, also where some ranks come to it through their pipeline; `every` so many
    plans.
    """
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
                single = len(transform._parts) == 1 or wait == "off"
                out, calls = np.empty_like(expected), transform.load.calls
                with runs() as ran:
                    for number in range(6):
                        if number % 2 and comm.rank == 0:
                            out = np.empty_like(expected)  # others have known calls, this rank has not
                        assert same_bits(transform(given, out=out), expected)
                        held = transform(given)
                        assert same_bits(held, expected) and same_bits(transform(given), expected)
                        assert same_bits(held, expected)
                    assert ran.called == (single and 0 not in (given.size, expected.size)), (shape, wait)
                assert transform.load.calls == calls + 18


def known_calls_that_fail(comm):
    """A step that raises, or an operation that MPI refuses, on one rank: one error on all, and the next call is
    right.
    """
    last = comm.size - 1
    for wait in WAITS:
        with overlap.FFT2(comm, (1, 12, 10), settings={"wait": wait, **ONE}) as plan:
            u = random(np.random.default_rng(comm.rank), plan.real.shape, "c16")
            with in_pipelines():
                expected = np.array(plan.forward(u))
            out = np.empty_like(expected)
            unprepared = mock.patch.object(staged.StagedTransform, "known_steps", side_effect=Boom("here"))
            with unprepared if comm.rank == last else nullcontext():  # others have known calls, this rank has not
                assert same_bits(plan.forward(u, out=out), expected)
            out = np.empty_like(expected)
            for _ in range(2):
                plan.forward(u, out=out)
            for module, name, error in ((staged, "execute", Boom("here")), (known_path, "made", None)):
                for rank in {0, last}:
                    broken = mock.Mock(side_effect=error or Refused(known_path.made))
                    with (
                        mock.patch.object(module, name, broken if comm.rank == rank else getattr(module, name)),
                        runs() as ran,
                    ):
                        caught = raised(overlap.SliceError, plan.forward, u, out=out)
                        assert ran.called
                    check_slice_error(comm, caught, rank, plan.forward._parts[0])
                    for _ in range(2):
                        assert same_bits(plan.forward(u, out=out), expected)


class Refused:
    """MPI refuses the first operation that it is asked for."""

    def __init__(self, made):
        self._made, self._refused = made, False

    def __call__(self, operation, blocking=True):
        if self._refused:
            return self._made(operation, blocking)
        self._refused, operation.made = True, []
        raise NotIssued from Boom("refused")


def different_known_calls(comm):
    """Ranks that call different transforms of equal settings: one error on all."""
    with overlap.Runtime(comm, deadline_s=20) as runtime:
        plans = [overlap.FFT2(runtime, (1, n, n), settings={"wait": "off", **ONE}) for n in (8, 12)]
        arrays = [(plan.real.empty(), plan.spectrum.empty()) for plan in plans]
        for plan, (u, out) in zip(plans, arrays):
            u[...] = 1.0
            for _ in range(2):
                plan.forward(u, out=out)
        which = 0 if comm.rank == 0 else 1
        u, out = arrays[which]
        with runs() as ran:
            caught = raised(overlap.SliceError, plans[which].forward, u, out=out)
            assert ran.called
        same_message(comm, caught)
        u, out = arrays[0]
        for _ in range(2):
            plans[0].forward(u, out=out)
            total = comm.allreduce(out.sum())  # of a constant, all of which is in one mode
            assert total == 64.0, total
