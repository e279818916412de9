"""Shapes, types, layouts and settings against numpy: FFT2, FFT3, Bracket, Halo and the drop-in."""

import drawing
import jobs
import numpy as np
from test_compat import FAST, OPTIONS, _against_numpy
from test_drawn_sparse import GRAPH
from test_fft import CASES
from truth import assert_close, forward_truth, random

import overlap
from overlap import InputError
from overlap.compat.mpi4py_fft import PFFT

from .draw import Drawn
from .harness import Part

EXAMPLES = 20  # of a seed, drawn and shrunk by hypothesis
FIRST = 150  # seeds on 1 to 4 ranks; the following ones are on 5 and 6


def _fft(dimensions):
    def check(drawn, ranks, mpi):
        options = {"mpi": mpi, "seed": drawn.seed, "workers": drawn.workers(), "dimensions": dimensions}
        drawing.check("test_fft:drawn", CASES[dimensions], EXAMPLES, ranks, **options)

    return check


def _bracket(drawn, ranks, mpi):
    for _ in range(EXAMPLES):  # a single row or column of modes has no bracket but 0
        slices, planes, nky, half = (int(drawn.integers(low, high)) for low, high in ((1, 4), (1, 4), (2, 7), (1, 7)))
        jobs.run_job(
            "test_bracket:direct_sum",
            ranks,
            mpi=mpi,
            args={"mode": drawn.mode(), "shape": [slices, planes, nky, 2 * half + 1]},
        )


def _halo(drawn, ranks, mpi):
    seeds = [int(one) for one in drawn.integers(2**31, size=EXAMPLES // 2)]
    jobs.run_job(
        "test_halo:blocks",
        ranks,
        mpi=mpi,
        args={"transport": drawn.pick(["window", "messages", "auto"]), "seeds": seeds},
    )
    drawing.check("test_drawn_sparse:graph", GRAPH, EXAMPLES // 2, ranks, mpi=mpi, seed=drawn.seed)


def _drop_in(drawn, ranks, mpi):
    jobs.run_job("campaign.shapes:drop_in", ranks, mpi=mpi, args={"seed": drawn.seed, "count": EXAMPLES})


SUBJECTS = (_fft(2), _fft(3), _bracket, _halo, _drop_in)


def run(seed):
    """One subject on some ranks, all drawn."""
    drawn = Drawn(seed)
    ranks = drawn.ranks() if seed < FIRST else drawn.ranks(5, 6)
    SUBJECTS[seed % len(SUBJECTS)](drawn, ranks, drawn.library())


def defect():
    """A rank that does not unpack a slice is found by the comparison with numpy."""
    jobs.run_job("campaign.shapes:spoilt", 2)


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


PART = Part(
    "shapes",
    "FFT2, FFT3, Bracket, Halo and the drop-in in any shape, type, layout, mode, on 1 to 4 ranks, the last 500 on 5 "
    "and 6: numpy's values within 5 eps sqrt(log2 N)",
    3500,
    run,
    defect,
    "in assert_close",
    EXAMPLES,
)
