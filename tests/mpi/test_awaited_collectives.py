"""Collectives by remote writes awaited in slice programs."""

import time

import jobs
import numpy as np
import pytest
from everywhere import raised
from marks import exhaustive, on_ranks
from mpi4py import MPI
from test_errors import WAITS

import overlap
from overlap.collectives import Op

SLICES = 7
FEW = 4


def values(rank, z, count=5):
    return np.random.default_rng([rank, z]).integers(-9, 9, count).astype(float)


@on_ranks(exhaustive(1), 2, exhaustive(3))
def test_all_seven(comm):
    """Every collective, every root, learned and with a skeleton, beside exchanges of MPI's."""
    rank, size = comm.rank, comm.size
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait) as rt:
            fast = rt.collectives(max_nbytes=1024)
            found = {}

            async def program(z):
                mine, everyones = values(rank, z), np.array([values(other, z) for other in range(size)])
                root = z % size
                got = found[z] = [np.full(5, -1.0) for _ in range(4)] + [np.full((size, 5), -1.0) for _ in range(2)]
                await rt.comm.Alltoall(np.full(size, rank + 0.5), np.empty(size))
                await fast.Allreduce(mine, got[0])
                await fast.Reduce(mine, got[1] if rank == root else None, Op.MAX, root)
                got[2][:] = mine
                await fast.Bcast(got[2], root=root)
                await fast.Scatter(everyones if rank == root else None, got[3], root)
                await fast.Gather(mine, got[4], root)
                await fast.Allgather(mine, got[5])
                await fast.Barrier()
                got.append(await fast.allreduce(rank + z, MPI.MIN))
                got.append(await fast.allreduce(0.25))

            skeletons = [program] + ["agree"] + [None] * (size == 1)  # roots differ from slice to slice
            for skeleton in skeletons:
                found.clear()
                rt.pipelined(program, skeleton=skeleton)(range(SLICES))
                assert sorted(found) == list(range(SLICES))
                for z, got in found.items():
                    everyones = np.array([values(other, z) for other in range(size)])
                    at_root = rank == z % size
                    expected = [
                        everyones.sum(0),
                        everyones.max(0) if at_root else -np.ones(5),
                        everyones[z % size],
                        everyones[rank],
                        everyones if at_root else -np.ones((size, 5)),
                        everyones,
                        z,
                        0.25 * size,
                    ]
                    for one, other in zip(got, expected, strict=True):
                        np.testing.assert_array_equal(one, other)


@on_ranks(exhaustive(1), 2, exhaustive(3))
def test_learned(comm):
    """Without a skeleton, long messages in pieces, started ahead."""
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=4, wait=wait) as rt:
            fast, sums, more = rt.collectives(max_nbytes=1024), np.zeros((SLICES, 400)), np.zeros(SLICES)

            async def program(z):
                pending = await overlap.start(fast.Allreduce(values(comm.rank, z, 400), sums[z]))
                more[z] = await fast.allreduce(float(z))
                await pending

            rt.pipelined(program)(range(SLICES))
            for z in range(SLICES):
                np.testing.assert_array_equal(sums[z], sum(values(other, z, 400) for other in range(comm.size)))
            np.testing.assert_array_equal(more, comm.size * np.arange(SLICES))


@on_ranks(exhaustive(1), 2, exhaustive(3), fresh=True)
def test_failures(comm):
    """A slice that fails, bad arguments, ranks that differ: one error on all ranks, and the next call is right."""
    last = comm.rank == comm.size - 1
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait) as rt:
            fast, ours = rt.collectives(), np.zeros(4)
            total = np.zeros(FEW)

            async def program(z, fault):
                a, b = np.ones(4), np.zeros(4)
                await fast.Allreduce(a, b)
                if last and z == 2:
                    if fault == "boom":
                        raise ZeroDivisionError("boom")
                    if fault == "strided":
                        a = np.ones(8)[::2]
                    elif fault == "operation":
                        await fast.Allreduce(a, b, Op.BAND)
                    elif fault == "longer":
                        a, b = np.ones(5), np.zeros(5)
                await fast.Allreduce(a, b)
                await rt.comm.Allreduce(MPI.IN_PLACE, ours[:1])
                total[z] = b[0]

            async def skeleton(z, fault):
                await fast.Allreduce(np.ones(4), np.zeros(4))
                await fast.Allreduce(np.ones(4), np.zeros(4))
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

            known, learning = rt.pipelined(program, skeleton=skeleton), rt.pipelined(program)
            faults = (
                (learning, "boom", "boom"),
                (known, "strided", "contiguous"),
                (known, "operation", "SUM, PROD"),
                (known, "longer", ""),
            )
            for pipeline, fault, text in faults if wait == "off" else faults[::3]:
                if comm.size > 1 or fault != "longer":
                    assert text in str(raised(overlap.SliceError, pipeline, range(FEW), fault)), fault
                total[:] = 0
                pipeline(range(FEW), "")
                assert (total == comm.size).all(), (wait, fault, total)


@pytest.mark.exhaustive
@on_ranks(2, env={"MPIR_CVAR_NOLOCAL": "1"}, fresh=True)
def test_failures_between_nodes(comm):
    test_all_seven(comm)
    test_learned(comm)
    test_some_of_the_ranks(comm)
    test_failures(comm)


@on_ranks(exhaustive(1), 2, exhaustive(3))
def test_some_of_the_ranks(comm):
    """On a sub-communicator."""
    with overlap.Runtime(comm, depth=2, wait="poll") as rt:
        part = rt.comm.Split(comm.rank % 2)
        fast, found = rt.collectives(part), np.zeros(SLICES)

        async def program(z):
            found[z] = await fast.allreduce(1)

        rt.pipelined(program)(range(SLICES))
        assert (found == part.size).all()


@on_ranks(2, env={"MPIR_CVAR_NOLOCAL": "1"}, fresh=True)
def test_between_nodes(comm):
    test_all_seven(comm)
    test_learned(comm)
    test_some_of_the_ranks(comm)


def never_comes(comm, wait):
    """The deadline of the runtime watches."""

    async def program(z, fast, last):
        await fast.allreduce(1.0)
        if z == last and comm.rank == 0:
            time.sleep(1000)
        await fast.Barrier()

    for deadline_s, last in ((60, None), (3, 3)):  # the first one compiles
        with overlap.Runtime(comm, depth=2, wait=wait, deadline_s=deadline_s) as rt:
            fast = rt.collectives()
            rt.pipelined(program, skeleton=program)(range(SLICES), fast, last)


@pytest.mark.parametrize("wait", [exhaustive("off"), "poll"])
def test_a_rank_that_never_comes_ends_the_job(wait):
    result = jobs.run_job("test_awaited_collectives:never_comes", 2, expect_failure=True, args={"wait": wait})
    assert "Barrier on communicator 1 of slice" in result.err and "does not take part" in result.err
