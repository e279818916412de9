"""`FFT2` on 1 to 4 ranks and two MPI libraries."""

from dataclasses import replace
from itertools import product

import numpy as np
from marks import exhaustive, on_ranks
from truth import assert_close, forward_truth, random

import overlap


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_outputs_that_look_contiguous(comm):
    """Along an axis of length one any stride is contiguous, for numpy but not for FFTW."""
    for dtype, order, shape in product(
        ("c16", "f8"), ("natural", "transposed"), ((3, 1, 8), (3, 8, comm.size), (1, 8, 8), (3, 8, 1))
    ):
        u = random(np.random.default_rng(2), shape, dtype)
        with overlap.FFT2(comm, shape, dtype, layout={"order": order}, settings={"wait": "poll", "chunk": 1}) as plan:
            for flip in product((1, -1), repeat=3):
                flips = tuple(slice(None, None, step) for step in flip)
                out = plan.spectrum.empty()[flips]
                result = plan.forward(np.asarray(u[plan.real.local_slice]), out=out)
                assert_close(result, forward_truth(u, order=order), plan.spectrum.local_slice, comm)


@on_ranks(1, 3)
def test_round_trips_of_other_plans(comm):
    """Several plans on one runtime, in turns; a sub-communicator; a list as shape."""
    rng = np.random.default_rng(3)
    shapes = ([5, 7, 6], (2, 3, 4, 9), (8, 8))
    with overlap.Runtime(comm, workers=2) as rt:
        plans = [overlap.FFT2(rt, shape, "f8", settings={"wait": "poll"}) for shape in shapes]
        for _ in range(3):
            for plan, shape in zip(plans, shapes):
                u = random(rng, shape, "f8")
                result = plan.forward(u[plan.real.local_slice])
                assert_close(result, forward_truth(u), plan.spectrum.local_slice, comm)
                assert_close(plan.backward(result), u, plan.real.local_slice)
        for plan in plans:
            plan.close()
    part = comm.Split(comm.rank % 2)
    with overlap.FFT2(part, (3, 5, 4), "c16", settings={"wait": "block"}) as plan:
        u = random(rng, (3, 5, 4), "c16") * (1 + comm.rank % 2)
        assert_close(plan.forward(u[plan.real.local_slice]), forward_truth(u), plan.spectrum.local_slice, part)
    part.Free()


@on_ranks(1, exhaustive(2), 3, exhaustive(4))
def test_fewer_slices_than_lanes(comm):
    """Slots are made for what can be in flight only."""
    for slices, depth, chunk, slots in ((3, 16, 1, 3), (0, 16, 1, 1), (10, 4, 5, 2), (10, 4, 1, 4), (7, 16, 100, 1)):
        with overlap.FFT2(comm, (slices, 4, 4), settings={"wait": "poll", "depth": depth, "chunk": chunk}) as plan:
            for transform in (plan.forward, plan.backward):
                all_slots = transform.nbytes_in_flight
                transform.configure(replace(transform.settings, depth=1))
                assert all_slots == slots * transform.nbytes_in_flight
                transform.configure(replace(transform.settings, depth=depth))
            u = random(np.random.default_rng(11), (slices, 4, 4), "c16")
            assert_close(plan.forward(u[plan.real.local_slice]), forward_truth(u), plan.spectrum.local_slice, comm)
