"""What `mixed` runs on every rank: a bit of everything in turn, for minutes, in one process."""

import gc
import time

import bracket_cases
import collectives_cases
import distarray_cases
import error_cases
import fft2_cases
import fft3_cases
import functional_cases
import halo_cases
import numpy as np
import pointwise_cases
import sparse_cases
from leftovers import descriptors, duplicates
from memory_cases import resident

from .soak_cases import threads

# Each compares with numpy or scipy, or its bits with those of the mode `off`.
WORK = (
    (
        fft2_cases.modes_agree,
        {
            "shape": (7, 6, 9),
            "dtype": "f8",
            "order": "natural",
            "settings": [(3, 2, None)],
            "workers": (1, 2),
            "effort": "estimate",
        },
    ),
    (
        fft3_cases.modes_agree,
        {
            "shape": (2, 6, 8, 5),
            "dtype": "c16",
            "grid": None,
            "settings": [(3, 1, None)],
            "workers": (1,),
            "effort": "estimate",
        },
    ),
    (pointwise_cases.parameters, {"mode": "poll"}),
    (bracket_cases.direct_sum, {"mode": "block", "shape": (2, 2, 5, 9)}),
    (functional_cases.like_scipy, {}),
    (distarray_cases.redistributed, {}),
    (halo_cases.blocks, {"transport": "auto", "seeds": (1, 2)}),
    (halo_cases.in_slices, {}),
    (sparse_cases.solvers, {"seeds": (1,)}),
    (collectives_cases.all_seven, {"counts": (1, 7, 100)}),
    (collectives_cases.many_rounds, {"rounds": 300}),
    (error_cases.injected, {"wait": "poll", "hit": (0, 6)}),
    (error_cases.several_ranks_at_once, {}),
)


def mixed(comm, minutes, most_nbytes, rounds=2, leak=0):
    """Rounds of all the work, at least so many, until the time is up; threads, descriptors, communicators and memory
    stay.
    """
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
