"""What `shapes` runs on every rank."""

import numpy as np
from test_compat import FAST, OPTIONS, _against_numpy
from truth import assert_close, forward_truth, random

import overlap
from overlap import InputError
from overlap.compat.mpi4py_fft import PFFT


def drop_in(comm, seed, count):
    """Plans of any dimension, axes, kind and options, forward and backward, against numpy."""
    drawn, made = np.random.default_rng(seed), 0
    while made < count:
        dimensions = int(drawn.integers(2, 5))
        shape = [int(n) for n in drawn.integers(1, 13 if dimensions < 4 else 7, dimensions)]
        axes = tuple((int(axis),) for axis in drawn.permutation(dimensions))
        kind, options = drawn.choice(list("fdFD")), OPTIONS[drawn.integers(len(OPTIONS))]
        try:
            plan = PFFT(comm, shape, axes=axes, dtype=kind, **options, **FAST)
        except InputError:  # one axis must be whole, and every rank says so
            continue
        _against_numpy(comm, plan, shape, kind)
        plan.destroy()
        made += 1


def spoilt(comm):
    """A plan's transform against numpy, in which the last rank leaves out the unpacking of the first slice."""
    u = random(np.random.default_rng(4), (6, 12, 8), "f8")
    with overlap.FFT2(comm, u.shape, "f8", settings={"wait": "block", "effort": "estimate"}) as plan:
        steps_of = plan.forward._steps_of

        def leaving_out(task, *given):
            for step in steps_of(task, *given):
                if getattr(step, "label", None) != "unpack" or task.part.start > 0 or comm.rank < comm.size - 1:
                    yield step

        plan.forward._steps_of = leaving_out
        assert_close(plan.forward(u[plan.real.local_slice]), forward_truth(u), plan.spectrum.local_slice, comm)
