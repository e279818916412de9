"""Shapes, types, layouts and settings against numpy: FFT2, FFT3, Bracket, Halo and the drop-in."""

import drawing
import jobs
from test_drawn_sparse import GRAPH
from test_fft import CASES

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
    jobs.run_job("campaign.shape_cases:drop_in", ranks, mpi=mpi, args={"seed": drawn.seed, "count": EXAMPLES})


SUBJECTS = (_fft(2), _fft(3), _bracket, _halo, _drop_in)


def run(seed):
    """One subject on some ranks, all drawn."""
    drawn = Drawn(seed)
    ranks = drawn.ranks() if seed < FIRST else drawn.ranks(5, 6)
    SUBJECTS[seed % len(SUBJECTS)](drawn, ranks, drawn.library())


def defect():
    """A rank that does not unpack a slice is found by the comparison with numpy."""
    jobs.run_job("campaign.shape_cases:spoilt", 2)


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
