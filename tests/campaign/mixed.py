"""Mixed work for minutes beside one busy process per core: right results, no deadline hit, and the process stays as it
was.
"""

import gc
import os
import time

import jobs
import numpy as np
import test_bracket
import test_collectives
import test_distarray
import test_errors
import test_fft
import test_functional
import test_halo
import test_pointwise
import test_sparse
from leftovers import descriptors, duplicates
from test_leaks import resident

from .busy import busy
from .draw import Drawn
from .harness import Part
from .soak import ENVIRONMENT, threads

MINUTES = 3  # of a seed
MOST_NBYTES = 2**20  # by which the second half may grow


def run(seed):
    """All the work, round after round, in one job."""
    with busy(len(os.sched_getaffinity(0))):
        result = jobs.run_job(
            "campaign.mixed:mixed",
            Drawn(seed).ranks(),
            env=ENVIRONMENT,
            deadline_s=60 * MINUTES + 600,
            args={"minutes": MINUTES, "most_nbytes": MOST_NBYTES},
        )
    print(result.out, end="")


def defect():
    """Memory that is kept is found."""
    jobs.run_job(
        "campaign.mixed:mixed",
        1,
        fresh=True,
        args={"minutes": 0.0, "rounds": 3, "most_nbytes": MOST_NBYTES, "leak": 8 << 20},
    )


# Each compares with numpy or scipy, or its bits with those of the mode `off`.
WORK = (
    (
        test_fft.modes_agree,
        {"kind": "FFT2", "shape": (7, 6, 9), "dtype": "f8", "settings": [{"depth": 3, "chunk": 2}]},
    ),
    (
        test_fft.modes_agree,
        {
            "kind": "FFT3",
            "shape": (2, 6, 8, 5),
            "dtype": "c16",
            "settings": [{"depth": 3, "chunk": 1}],
            "workers": (1,),
        },
    ),
    (test_pointwise.parameters, {"mode": "poll"}),
    (test_bracket.direct_sum, {"mode": "block", "shape": (2, 2, 5, 9)}),
    (test_functional.test_like_scipy, {}),
    (test_distarray.test_redistributed, {}),
    (test_halo.blocks, {"transport": "auto", "seeds": (1, 2)}),
    (test_halo.test_in_slice_programs, {}),
    (test_sparse.solvers, {"seeds": (1,)}),
    (test_collectives.all_seven, {"counts": (1, 7, 100)}),
    (test_collectives.many_rounds, {"rounds": 300}),
    (test_errors.injected, {"wait": "poll", "hit": (0, 6)}),
    (test_errors.test_several_ranks_at_once, {}),
)


def mixed(comm, minutes, most_nbytes, rounds=2, leak=0):
    """Rounds of all the work until the time is up; threads, descriptors, communicators and memory stay."""
    sizes, found, kept, slowest = [], [], [], {}
    duplicates()  # are counted from here on
    end = time.monotonic() + 60 * minutes
    while len(sizes) < rounds or comm.bcast(time.monotonic() < end):
        for function, args in WORK:
            start = time.monotonic()
            function(comm, **args)
            name = f"{function.__module__}:{function.__name__}"
            slowest[name] = max(slowest.get(name, 0.0), time.monotonic() - start)
        kept.append(np.ones(leak, np.uint8))
        gc.collect()
        sizes.append(resident())
        found.append((threads(), len(descriptors()), duplicates()[0]))
    grown = sizes[-1] - sizes[len(sizes) // 2]
    print(
        f"rank {comm.rank}: {len(sizes)} rounds of {len(WORK)} kinds of work; resident set grew by {grown} bytes in "
        "the "
        f"second half, of rounds by {np.diff(sizes).tolist()}; slowest, s: "
        + ", ".join(f"{name} {s:.1f}" for name, s in slowest.items())
    )
    assert all(one == found[1] for one in found[1:]), f"threads, descriptors and communicators: {found}"
    assert grown < most_nbytes, f"resident set grew by {grown} bytes"


PART = Part(
    "mixed",
    "minutes of mixed work on 1 to 4 ranks beside one busy process per core: transforms, pointwise functions, "
    "brackets, halos, matrices, solvers, collectives, arrays and errors in turn, each compared with numpy or scipy: no "
    "deadline is hit, threads, descriptors and communicators stay the same, the resident set grows by less than 1 MiB "
    "in the second half",
    30,
    run,
    defect,
    "resident set grew",
    MINUTES,
)
