"""Slices that differ, with what they await told as data."""

import numpy as np
from everywhere import raises_everywhere
from marks import exhaustive, on_ranks
from test_shares import dealt
from test_started import runtimes

import overlap
from overlap import Runtime, SliceError, Transpose
from overlap.runtime.requests.operations import Start

COMPONENTS = (1, 3, 1, 2, 3, 1, 1)  # of every field: scalars and vectors


def fields_of(shape, every=COMPONENTS):
    rng = np.random.default_rng(7)
    return [rng.standard_normal((count, *shape)) for count in every]


def scalars_and_vectors(comm):
    """Fields of unlike numbers of components are moved in one pipeline; one that fails anywhere fails on all ranks."""
    whole = fields_of((7, 5))
    for wait, workers, depth in (("off", 1, 1), ("poll", 2, 3), ("block", 2, 2)):
        with Runtime(comm, wait=wait, workers=workers, depth=depth) as rt:
            given = {"axes": 1, "shares": {1: dealt(7, comm.size, 1)}}
            with Transpose(rt, (3, 7, 5), given, 2, "f8") as plan:
                here, there = plan.source.local_slice[1], plan.target.local_slice[2]

                async def program(z, slot, u, v, bad):
                    if z == bad and comm.rank == comm.size - 1:
                        raise ZeroDivisionError(f"slice {z}")
                    await plan.forward.apply(u[z], v[z], slot)

                pipeline = rt.pipelined(
                    program,
                    buffers=lambda: plan.buffers(3),
                    skeleton=lambda z, slot, *others: plan.forward.operation(slot, COMPONENTS[z]),
                )
                u = [np.ascontiguousarray(one[:, here]) for one in whole]
                for bad in (None, 0, 4, None):
                    v = [np.full((len(one), 7, there.stop - there.start), -1.0) for one in whole]
                    slices = range(len(whole))
                    if bad is None:
                        pipeline(slices, u, v, bad)
                        for found, one in zip(v, whole):
                            np.testing.assert_array_equal(found, one[:, :, there])
                    else:
                        raises_everywhere(comm, SliceError, f"slice {bad}", lambda: pipeline(slices, u, v, bad))


@on_ranks("openmpi-2", fresh=True)
def test_under_open_mpi(comm):
    scalars_and_vectors(comm)


def everything(comm):
    """Lists of all kinds: what is started and awaited, turns, barriers, nothing at all; a generator, one request."""
    size = comm.size

    for rt in runtimes(comm, agree_every=4):

        def awaited(z, out):
            row, total = np.full(1 + z, 1.0 + z), np.empty(1 + z)
            first = overlap.start(rt.comm.Allreduce(row, out[z][: 1 + z]))
            yield overlap.stagger(z, rt.depth)
            yield first
            if z % 2:
                yield overlap.take_turn()
                yield rt.comm.Allreduce(row, total)
            yield first
            if z % 3 == 2:
                yield rt.comm.Bcast(total, root=z % size)

        async def program(z, out, bad):
            if z == bad and comm.rank == 0:
                raise ZeroDivisionError(f"slice {z}")
            pending = {}
            for request in awaited(z, out):
                if id(request) in pending:
                    await pending[id(request)][1]
                elif isinstance(request, Start):
                    pending[id(request)] = request, await request
                else:
                    await request

        lists = (lambda z, out, bad: awaited(z, out), lambda z, out, bad: tuple(awaited(z, out)))
        for skeleton in lists:
            pipeline = rt.pipelined(program, skeleton=skeleton)
            for bad in (None, 2, 5, None):
                out = np.zeros((8, 8))
                if bad is None:
                    pipeline(range(8), out, bad)
                    np.testing.assert_array_equal(out, np.tril(np.full((8, 8), size) * np.arange(1.0, 9)[:, None]))
                else:
                    raises_everywhere(comm, SliceError, f"slice {bad}", lambda: pipeline(range(8), out, bad))


@on_ranks(1, exhaustive(2), 3, exhaustive(4), fresh=True)
def test_slices_that_differ(comm):
    # Slices that fail leave communicators behind, by design.
    scalars_and_vectors(comm)
    everything(comm)
