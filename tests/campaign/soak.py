"""Soak: many slices, plans made and closed, plans dropped; the process stays as it was."""

import gc
import sys
import threading
import time
import warnings

import jobs
import numpy as np
from leftovers import PATIENCE_S, descriptors, duplicates
from mpi4py import MPI
from test_leaks import in_use, resident

import overlap

from .draw import Drawn
from .harness import Part

ROUNDS = 20  # the first few fill tables and arenas
SLICES, PLANS, DROPPED = 200_000, 14_000, 4_000  # of a seed, a fifth of what the campaign asks for
WORK = {"rounds": ROUNDS, "slices": SLICES // ROUNDS, "plans": PLANS // ROUNDS, "dropped": DROPPED // ROUNDS}
# UCX, below MPI, notes each mapping that is given back, such as the stack of a thread that has ended, and keeps the
# notes until memory is registered, which on one machine is never.
ENVIRONMENT = {"UCX_MEM_EVENTS": "n"}


def run(seed):
    """The work of a seed in one job."""
    result = jobs.run_job("campaign.soak:soak", Drawn(seed).ranks(1, 2), args=WORK, env=ENVIRONMENT, deadline_s=3000)
    print(result.out, end="")


def defect():
    """Memory that is kept is found."""
    jobs.run_job(
        "campaign.soak:soak",
        1,
        fresh=True,
        args={"rounds": 2, "slices": 100, "plans": 2, "dropped": 1, "leak": 8 << 20},
    )


MOST_NBYTES = (
    100 * 2**10
)  # that the second half of the work may keep: 100,000 slices, 7,000 plans and 2,000 dropped ones
MOST_BLOCKS = 1000  # of Python's, likewise: fewer than one for seven plans
MOST_AT_ONCE = 2**20  # by which the second half may raise malloc's heaps, which never shrink, to what was needed once


def _plans(comm, rt, count):
    """Plans on a runtime, made, used and closed."""
    field = np.ones((2, 4, 4), complex)
    for _ in range(count):
        with overlap.FFT2(rt, field.shape, settings={"wait": "off", "effort": "estimate"}) as plan:
            spectrum = plan.forward(field[plan.real.local_slice])
            if 0 in spectrum.shape or comm.rank:
                continue
            assert spectrum[0, 0, 0] == 16


def _dropped(comm, count):
    """Runtimes with a plan that nobody closes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for _ in range(count):
            overlap.FFT2(comm, (2, 4, 4), settings={"wait": "off", "effort": "estimate"})
            gc.collect()


def threads():
    """The names of the threads that stay: those of what was dropped are told to end, and nobody waits for them."""
    end = time.monotonic() + PATIENCE_S
    while threading.active_count() > 1 and time.monotonic() < end:
        time.sleep(0.02)
    return sorted(thread.name for thread in threading.enumerate())


def soak(comm, rounds, slices, plans, dropped, leak=0):
    """The same work over and over: its second half leaves the process as the first one has left it."""
    sizes, used, found = [], [], []
    # CPython's table of interned strings doubles, by 2 MiB, when it is full: now, and not in some round.
    kept = [sys.intern(f"{soak.__name__} {number}") for number in range(60_000)]
    duplicates()  # are counted from here on
    with overlap.Runtime(comm, wait="off") as rt:
        _plans(comm, rt, 1)
    _dropped(comm, 1)
    gc.collect()
    gc.freeze()  # or each look for what was dropped takes 50 ms, for what modules hold
    for _ in range(rounds):
        with overlap.Runtime(comm, workers=1, depth=4, wait="poll") as rt:

            @rt.pipelined
            async def program(z):
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

            program(range(slices))
            _plans(comm, rt, plans)
        _dropped(comm, dropped)
        kept.append(np.ones(leak, np.uint8))
        gc.collect()
        with overlap.Runtime(comm, wait="off"):  # frees what all ranks have dropped
            pass
        found.append((threads(), len(descriptors()), duplicates()[0]))
        used.append(in_use())
        sizes.append(resident())
    half = rounds // 2
    each = np.diff(sizes[half - 1 :])
    steadily, nbytes, blocks = len(each) * np.median(each), *(used[-1] - used[half - 1])
    print(
        f"rank {comm.rank}: second half keeps {nbytes} bytes and {blocks} blocks; resident set grew by "
        f"{sizes[-1] - sizes[0]} bytes, by rounds {np.diff(sizes).tolist()}"
    )
    assert all(one == found[0] for one in found), f"threads, descriptors and communicators: {found}"
    assert steadily < MOST_NBYTES and sum(each) < MOST_AT_ONCE, (
        f"resident set grew by {each.tolist()} bytes in the second half"
    )
    assert nbytes < MOST_NBYTES and blocks < MOST_BLOCKS, (
        f"{nbytes} bytes and {blocks} blocks are kept of the second half"
    )


PART = Part(
    "soak",
    f"slices; with each {SLICES:,} of them {PLANS:,} plans made and closed and {DROPPED:,} dropped: the same "
    f"threads, descriptors and communicators, in their second half ({SLICES // 2:,}) less than 100 KiB are kept, by "
    "malloc's and Python's count, and the resident set grows by as little, but for single steps of malloc's heaps",
    1_000_000,
    run,
    defect,
    "resident set grew",
    SLICES,
)
