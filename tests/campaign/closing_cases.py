"""Errors while runtimes and plans are closed, and in skeletons, which `faults` and `site_cases` have not."""

import os
import signal
import time
from contextlib import contextmanager, nullcontext

import numpy as np
from leftovers import descriptors, duplicates
from mpi4py import MPI
from test_edges import handling
from truth import random, same_bits

import overlap
from overlap.fft.transform import Transform
from overlap.ranks.coordinator import Coordinator
from overlap.ranks.watchdog import Watchdog
from overlap.runtime.threads.threads import Threads

from .faults import KINDS
from .soak import threads

LONGEST_S = 5.0
STEPS = (
    (Transform, "release"),
    (overlap.FFT2, "_forget"),
    (Threads, "close"),
    (Coordinator, "free"),
    (Watchdog, "close"),
)
HOWS = ("body", "slice", "step", "signal")


@contextmanager
def spoilt(make, how, owner, name):
    """One step of closing raises when it is done (`how` "step"), or a signal's handler just before it."""

    def raising(*_):
        raise make()

    def step(self, *args):
        setattr(owner, name, whole)
        if how == "signal":
            os.kill(os.getpid(), signal.SIGUSR1)
        whole(self, *args)
        if how == "step":
            raising()

    whole = getattr(owner, name)
    setattr(owner, name, step)
    try:
        with handling(signal.SIGUSR1, raising):
            yield
    finally:
        setattr(owner, name, whole)


def closings(comm, seed, count, wait, depth, workers):
    """Errors in a ``with`` block, in a slice that closes its runtime, and while that is closed: all is closed, each has
    its error, and of one that leaves the block the other ranks hear.
    """
    drawn = np.random.default_rng(seed)
    shape = (4, 2 * comm.size + 1, 2 * comm.size + 2)
    u, before, slowest = random(drawn, shape, "f8"), None, 0.0

    def transformed():
        with overlap.FFT2(comm, shape, "f8", settings={"wait": wait, "depth": depth, "chunk": 1}) as plan:
            return np.array(plan.forward(u[plan.real.local_slice]))

    right = transformed()  # also loads what takes seconds beside other work
    duplicates()  # are counted from here on
    for _ in range(count):
        name, how = list(KINDS)[drawn.integers(len(KINDS))], HOWS[drawn.integers(len(HOWS))]
        owner, method = STEPS[drawn.integers(len(STEPS))]
        owned, z = bool(drawn.integers(2)), int(drawn.integers(4))
        origin = set(map(int, drawn.choice(comm.size, drawn.integers(1, comm.size + 1), replace=False)))
        mine, make = comm.rank in origin, KINDS[name]
        label = (
            f"{name}, {how}, {owner.__name__}.{method}, {'own' if owned else 'shared'} runtime, ranks {sorted(origin)}"
        )
        shared = None if owned else overlap.Runtime(comm, workers=workers, depth=depth, wait=wait, deadline_s=30)
        plan = overlap.FFT2(shared or comm, shape, "f8", settings={"wait": wait, "depth": depth, "chunk": 1})
        rt = plan.runtime

        async def program(number):
            await rt.comm.Barrier()  # called here only
            if mine and number == z and how == "slice":
                rt.close()

        def body():
            with shared or nullcontext(), plan:
                spectrum = np.array(plan.forward(u[plan.real.local_slice]))
                rt.pipelined(program)(range(4))
                if mine and how == "body":
                    raise make()
            return spectrum

        with spoilt(make, how, owner, method) if mine and how in ("step", "signal") else nullcontext():
            start, error = time.monotonic(), None
            try:
                body()
            except BaseException as caught:
                error = caught
            slowest = max(slowest, time.monotonic() - start)
        if how == "slice":
            assert isinstance(error, overlap.SliceError), (label, error)
            assert len(set(comm.allgather(str(error)))) == 1, (label, error)
        else:
            # What leaves the block of a runtime that is open is told; what ends its closing stays with its rank.
            told = how == "body" or (not owned and owner in (Transform, overlap.FFT2))
            others = overlap.RankError if told else type(None)
            assert type(error) is (type(make()) if mine else others), (label, type(error), error)
            assert not isinstance(error, overlap.RankError) or mine or error.rank in origin, (label, error)
        assert plan.closed and rt.closed, label
        assert comm.allreduce(slowest, MPI.MAX) < LONGEST_S, f"{label}: raised after {slowest:.1f} s"
        del plan, shared, rt, error
        assert same_bits(transformed(), right), label  # the next runtime frees what no rank could free alone
        after = threads(), len(descriptors()), duplicates()[0]
        before = before or after
        assert after == before, (label, before, after)
    print(f"rank {comm.rank}: {count} closed, raised after at most {slowest:.2f} s")


def skeleton_fails(comm, kind, rank, point, wait, depth, workers):
    """A slice fails on one rank, and then its skeleton does: the other ranks' operations cannot be met any more."""

    async def program(z):
        await rt.comm.Barrier()
        if comm.rank == rank and z == 3:
            raise ValueError("of the slice")
        await rt.comm.Barrier()

    async def skeleton(z):
        for number in range(2):
            if comm.rank == rank and z >= 3 and number == point:
                print(f"failed at {time.monotonic()}", flush=True)
                raise list(KINDS.values())[kind % len(KINDS)]()
            await rt.comm.Barrier()

    with overlap.Runtime(comm, workers=workers, depth=depth, wait=wait, deadline_s=30) as rt:
        rt.pipelined(program, skeleton=skeleton)(range(9))
