"""Uneven shares on real ranks: equal numbers of messages, equal bits, one error for bad weights."""

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
