"""Uneven shares on real ranks: equal numbers of messages, equal bits, one error for bad weights."""

import time

import numpy as np
from everywhere import raises_everywhere

import overlap
from overlap import FFT2, FFT3, Blocks, Halo, InputError
from overlap.sparse import Matrix

WEIGHTS = (7, 4, 0.001, 3)


def refused(comm):
    """Weights that are bad, or differ, on one rank or on all, are refused on all in the same words."""
    last = comm.rank == comm.size - 1
    for bad in ((1.0,) * (comm.size - 1) + (0.0,), (1.0,) * (comm.size + 1), ("1",) * comm.size, 3, (np.nan,) * comm.size):
        for given in (bad, bad if last else (1.0,) * comm.size):
            for make in (lambda w: FFT2(comm, (4, 8, 8), layout={"weights": w}),
                         lambda w: FFT3(comm, (4, 8, 8), layout={"weights": w}),
                         lambda w: Matrix.from_stencil(comm, (8,), [(0,)], [1.0], weights=w)):
                raises_everywhere(comm, InputError, "expected weights to be positive finite numbers", lambda: make(given))
    different = tuple(1 + 0.25 * one * (1 + comm.rank) for one in range(comm.size))
    for make in (lambda w: FFT2(comm, (4, 8, 8), layout={"weights": w}), lambda w: FFT3(comm, (4, 8, 8), layout={"weights": w}),
                 lambda w: Halo(comm, Blocks((60,), (comm.size,), weights=w)),
                 lambda w: Matrix.from_stencil(comm, (8,), [(0,)], [1.0], weights=w)):
        raises_everywhere(comm, InputError, "the same on all ranks", lambda: make(different))


def messages(comm):
    """As many operations as with even shares, counted by the trace."""
    for kind, shape, dtype in ((FFT2, (24, 40, 36), "c16"), (FFT3, (2, 64, 72, 40), "f8"), (FFT3, (96, 64, 40), "c16")):
        counted = []
        for weights in (None, WEIGHTS[:comm.size]):
            with overlap.Runtime(comm, trace=True) as rt, \
                    kind(rt, shape, dtype, layout={"weights": weights},
                         settings={"wait": "poll", "chunk": 2, "depth": 4, "in_flight": 4}) as plan:
                rt.trace.clear()
                plan.backward(plan.forward(np.zeros(plan.real.shape, dtype)))
                counted.append([span.kind for span in rt.trace.spans()].count("communicate"))
        assert counted[0] == counted[1] > 4, counted


def loads(comm):
    """What is counted of computing and waiting: by whom, how long, in how many calls."""
    busy_s = 0.05 * (comm.rank == comm.size - 1)

    async def program(number, comm):
        time.sleep(busy_s)
        await comm.Barrier()
        await overlap.parallel(lambda part: time.sleep(busy_s), range(2))

    for wait, workers in (("off", 1), ("poll", 1), ("block", 2), ("poll", 2)):
        with overlap.Runtime(comm, workers=workers, wait=wait) as rt:
            for slices in (3, 1, 1):  # the last ones on the straight path, as far as that goes
                call = rt.pipelined(program, skeleton=skeleton)
                call(range(slices), rt.comm)
                assert call.load.calls == 1 and call.load.computing_s >= slices * 3 * busy_s
            found = rt.loads()
            assert found[comm.rank] == rt.load
            assert {one.calls for one in found} == {3}
            assert all(0 <= one.waiting <= 1 and one.wall_s > 0 for one in found)
            assert found[-1].computing_s >= 15 * busy_s
            assert "waits" in str(rt.load) and "% of the time" in str(rt.load)
            simple = rt.pipelined(straight, skeleton=straight)
            for _ in range(3):
                simple((0,), rt.comm, busy_s)
            assert simple.load.calls == 3 and simple.load.computing_s >= 3 * busy_s
            # Who computes nothing has waited for the one who does, to the end of the call.
            assert simple.load.wall_s >= 3 * 0.05


async def skeleton(number, comm):
    await comm.Barrier()


async def straight(number, comm, busy_s):
    time.sleep(busy_s)
    await comm.Barrier()


def loads_of_plans(comm):
    """A plan tells how long this rank has waited, once it has been called."""
    with FFT2(comm, (8, 16, 16)) as plan:
        assert "waits" not in plan.describe()
        plan.forward(plan.real.empty())
        assert f"rank {comm.rank} waits" in plan.describe().splitlines()[1]
