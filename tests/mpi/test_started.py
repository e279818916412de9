"""Operations that are started now and awaited later, persistent ones, and awaits that were forgotten."""

import gc

import jobs
import numpy as np
import pytest
from everywhere import raised, same_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI

import overlap
from overlap.runtime import all_of, start, wait_for_slices

WAITS = ("off", "block", "poll")


def runtimes(comm, **options):
    """Runtimes of every way to wait, with one worker and with two."""
    for wait in WAITS:
        for workers, depth in ((1, 1), (2, 3)):
            with overlap.Runtime(comm, wait=wait, workers=workers, depth=depth, deadline_s=20, **options) as rt:
                yield rt


def skeletons(skeleton):
    """A program's ways to be known: given, learned, agreed on."""
    return skeleton, None, "agree"


@on_ranks(1, 2, exhaustive(3))
def test_started(comm):
    """Several collectives under way in a slice, awaited late and in another order."""
    rank, size = comm.rank, comm.size

    for rt in runtimes(comm, agree_every=4):

        async def program(z, out):
            row = np.arange(size) + 10.0 * z + 100 * rank
            total, swapped, largest = np.empty(size), np.empty(size), np.empty(size)
            counts = [1] * size
            first = await rt.comm.Ialltoallv([row, counts], [swapped, counts])
            second = await rt.comm.Iallreduce(row, total)
            third = await start(rt.comm.Allreduce(row, largest, MPI.MAX))
            await second
            out[z, 0] = total
            await rt.comm.Bcast(row, root=0)
            await third
            await first
            out[z, 1], out[z, 2], out[z, 3] = swapped, largest, row

        for known in skeletons(program):
            pipeline = rt.pipelined(
                program,
                skeleton=known and ((lambda z, out: program(z, np.empty_like(out))) if known is program else known),
            )
            for slices in (1, 7):
                for _ in range(3):
                    out = np.zeros((slices, 4, size))
                    pipeline(range(slices), out)
                    sent = (
                        np.arange(size) + 10.0 * np.arange(slices)[:, None, None] + 100 * np.arange(size)[:, None]
                    )  # (slices, rank, column)
                    np.testing.assert_array_equal(out[:, 0], sent.sum(1))
                    np.testing.assert_array_equal(out[:, 1], sent[:, :, rank])
                    np.testing.assert_array_equal(out[:, 2], sent.max(1))
                    for z in range(slices):
                        np.testing.assert_array_equal(out[z, 3], sent[z, 0])


@on_ranks(1, 2, exhaustive(3))
def test_messages(comm):
    """Pairs of messages around a ring, by the names that mpi4py has for them, and neighbours' exchanges."""
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    ring = comm.Create_cart([size], periods=[True])

    for rt in runtimes(comm):
        around = rt.wrap(ring)

        async def program(z, out):
            mine = np.array([10.0 * z + rank])
            there, back = np.zeros(1), np.zeros(1)
            receive = await rt.comm.Irecv(there, left, 7)
            send = await rt.comm.Isend(mine, right, 7)
            await send
            await receive
            await all_of(rt.comm.Send(there, left, 8), rt.comm.Recv(back, right, 8))
            both = np.zeros(2)
            pending = await around.Ineighbor_alltoallv([np.repeat(mine, 2), [1, 1]], [both, [1, 1]])
            await pending
            swapped = np.zeros(2)
            types = [MPI.DOUBLE] * 2
            await around.Neighbor_alltoallw([both, [1, 1], [0, 8], types], [swapped, [1, 1], [0, 8], types])
            out[z] = there[0], back[0], *sorted(both), swapped.sum()

        for known in (program, None):
            pipeline = rt.pipelined(program, skeleton=known)
            for slices in (1, 6):
                out = np.zeros((slices, 5))
                pipeline(range(slices), out)
                for z in range(slices):
                    near = sorted((10.0 * z + left, 10.0 * z + right))
                    np.testing.assert_array_equal(out[z, :4], [10.0 * z + left, 10.0 * z + rank, *near])
    ring.Free()


@on_ranks(1, 2, exhaustive(3))
def test_persistent(comm):
    """Requests made once and awaited in every slice and call; freed with the runtime."""
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    for rt in runtimes(comm):
        mine, there = np.zeros(1), np.zeros(1)
        send, receive = rt.comm.Send_init(mine, right, 3), rt.comm.Recv_init(there, left, 3)
        nobody = rt.comm.Send_init(mine, MPI.PROC_NULL, 3), rt.comm.Recv_init(there, MPI.PROC_NULL)
        exchange = total = None
        if hasattr(MPI.Comm, "Alltoallv_init") and MPI.Get_version() >= (4, 0):
            row, swapped, sums = np.zeros(size), np.zeros(size), np.zeros(size)
            exchange = rt.comm.Alltoallv_init([row, [1] * size], [swapped, [1] * size])
            total = rt.comm.Allreduce_init(row, sums)

        async def program(z, seen):
            mine[0] = 10.0 * z + rank
            await all_of(send, receive)
            seen.append(there[0] == 10.0 * z + left)
            await all_of(*nobody)
            none = await start(nobody[1])
            await nobody[0]
            await none
            pending = await start(receive)
            await send
            await pending
            if exchange is not None:
                row[:] = z + np.arange(size) + 100.0 * rank
                await exchange
                seen.append((swapped == z + rank + 100.0 * np.arange(size)).all())
                late = await start(total)
                await late
                seen.append(sums[0] == size * z + 100.0 * sum(range(size)))

        for known in (program, None):
            pipeline = rt.pipelined(program, depth=1, skeleton=known and (lambda z, seen: program(z, [])))
            for slices in (1, 5):
                seen = []
                pipeline(range(slices), seen)
                assert all(seen) and len(seen) >= slices, seen
        refused = rt.comm.Send_init("no buffer", right)

        async def first_await(z):
            await refused

        error = raised(overlap.SliceError, rt.pipelined(first_await, depth=1), range(1))
        same_everywhere(comm, str(error))
        assert "TypeError: message: expecting buffer" in error.summary, error


@on_ranks(2, fresh=True, deadline_s=60)
def test_what_is_started_wakes_nobody(comm):
    """A wait that can never end is an error, too, while a message is under way that no slice awaits yet."""
    for rt in runtimes(comm):

        async def program(z):
            await wait_for_slices(z)
            receive = await rt.comm.Irecv(np.empty(1), comm.rank, z)
            await (await rt.comm.Isend(np.ones(1), comm.rank, z))
            await receive

        pipeline = rt.pipelined(program, depth=2)
        error = raised(overlap.SliceError, pipeline, range(4))
        same_everywhere(comm, str(error))
        assert "for ever" in error.summary, error


@on_ranks(2, exhaustive(3), fresh=True)
def test_pending_at_the_end(comm):
    """A slice that ends with something pending: one error on all ranks, and nothing is left behind."""
    rank, size = comm.rank, comm.size
    for rt in runtimes(comm):

        async def exchange(z):
            await rt.comm.Iallreduce(np.ones(1), np.empty(1))
            if z == 2:
                await rt.comm.Barrier()

        async def message(z):
            await rt.comm.Irecv(np.empty(1), (rank - 1) % size, 5)

        async def twice(z):
            pending = await rt.comm.Iallreduce(np.ones(1), np.empty(1))
            await pending
            await pending

        async def right(z):
            total = np.empty(1)
            pending = await rt.comm.Iallreduce(np.ones(1), total)
            await pending
            assert total[0] == size

        for known in (True, False):
            for program, words in (
                (exchange, "Allreduce on communicator 0 pending"),
                (message, "Recv on communicator 0 pending"),
                (twice, "once"),
            ):
                for slices in (1, 4):
                    error = raised(
                        overlap.SliceError, rt.pipelined(program, skeleton=program if known else None), range(slices)
                    )
                    same_everywhere(comm, str(error))
                    assert words in error.summary, error
                    rt.pipelined(right, skeleton=right if known else None)(range(3))


@on_ranks(1, 2, exhaustive(3))
def test_failing_with_one_pending(comm):
    """A rank that fails between a start and its await meets the others all the same."""
    size = comm.size
    for rt in runtimes(comm, agree_every=3):

        async def program(z, place, bad):
            def step(number):
                if bad and number == place and z == min(1, bad - 1) and comm.rank == size - 1:
                    raise ValueError(f"step {number}")

            total, other = np.empty(2), np.empty(2)
            step(0)
            first = await rt.comm.Iallreduce(np.ones(2), total)
            step(1)
            second = await rt.comm.Iallgather(np.ones(1), np.empty(size))
            step(2)
            await first
            step(3)
            await rt.comm.Allreduce(np.ones(2), other)
            await second
            step(4)
            if bad is not None:
                assert total[0] == other[0] == size

        def skeleton(z, place, bad):
            return program(z, place, None)

        for known in (skeleton, None):
            pipeline = rt.pipelined(program, skeleton=known)
            for slices in (1, 5):
                for place in range(5):
                    error = raised(overlap.SliceError, pipeline, range(slices), place, slices)
                    same_everywhere(comm, str(error))
                    assert f"step {place}" in error.summary and error.rank == size - 1, error
                pipeline(range(slices), 0, 0)


@on_ranks(1, 2, exhaustive(3))
def test_other_than_expected(comm):
    """A slice that awaits an operation in place of a start is drained all the same, and its error told."""
    for rt in runtimes(comm):

        async def other(z):
            await rt.comm.Barrier()
            raise ValueError("after the barrier")

        async def skeleton(z):
            pending = await rt.comm.Ibarrier()
            await pending

        async def mixed(z):
            await (rt.comm.Barrier() if z == 2 else await rt.comm.Ibarrier())

        for program, known, words in (
            (other, skeleton, "after the barrier"),
            (mixed, None, "must await the same in every slice"),
        ):
            error = raised(overlap.SliceError, rt.pipelined(program, skeleton=known), range(4))
            same_everywhere(comm, str(error))
            assert words in error.summary, error
        rt.pipelined(skeleton)(range(4))


@on_ranks(1, 2, exhaustive(3))
def test_forgotten(comm):
    """An await that was forgotten, or an `async`, is an error that names it."""
    for rt in runtimes(comm):
        a, b = np.ones(1), np.ones(1)

        async def no_await(z):
            rt.comm.Allreduce(a, b)

        async def in_between(z):
            await rt.comm.Allreduce(a, b)
            rt.comm.Barrier()
            await rt.comm.Allreduce(a, b)

        async def not_started(z):
            rt.comm.Iallreduce(a, b)

        async def several(z):
            overlap.all_of(rt.comm.Allreduce(a, b))

        async def halo_round(z):
            await rt.comm.Allreduce(a, b)
            halo(u)
            await rt.comm.Allreduce(a, b)

        async def moved(z):
            transpose.forward.apply(a, b, None)

        async def kept(z):  # made before, and awaited later: that is none
            later, staggered = rt.comm.Allreduce(a, b), overlap.stagger(1, 2)
            await rt.comm.Barrier()
            await later
            await staggered

        def no_async(z):
            rt.comm.Allreduce(a, b)

        async def skeleton(z):
            await rt.comm.Allreduce(a, b)
            await rt.comm.Allreduce(a, b)

        async def nothing(z):
            pass

        halo = overlap.Halo(rt.comm, overlap.Blocks((4 * comm.size,), (comm.size,), width=1))
        (u,) = halo.empty()
        transpose = overlap.Transpose(rt, (1, 4, 4), 1, 2)
        for slices in (1, 4):
            for program, known, words in (
                (no_await, nothing, "Allreduce on communicator 0 that was never awaited"),
                (not_started, nothing, "the start of Allreduce on communicator 0"),
                (in_between, skeleton, "Barrier on communicator 0 that was never awaited"),
                (several, nothing, "all_of() that was never awaited"),
                (halo_round, skeleton, "Halo.__call__() that was never awaited"),
                (moved, nothing, "TransposeDirection.apply() that was never awaited"),
            ):
                for skeleton_ in (known, None):
                    error = raised(overlap.SliceError, rt.pipelined(program, skeleton=skeleton_), range(slices))
                    same_everywhere(comm, str(error))
                    assert words in error.summary, error
            rt.pipelined(kept)(range(slices))
        for skeleton_ in (nothing, None):
            error = raised(overlap.InputError, rt.pipelined, no_async, skeleton=skeleton_)
            assert "expected a coroutine function (`async def`)" in str(error), error
        halo.close()
        transpose.close()


@on_ranks(1, 2, exhaustive(3))
def test_left_by_another_slice(comm):
    """What a slice that failed has made and not awaited is no fault of the slice in whose step it is collected."""
    for rt in runtimes(comm):
        left = []

        async def program(z, bad):
            later = rt.comm.Barrier()
            if bad:
                left.append([later])
                left[-1].append(left[-1])  # only the collector of cycles finds it
                del later
                raise ValueError("of the first call")
            left.clear()
            gc.collect()
            await later

        async def skeleton(z, bad):
            await rt.comm.Barrier()

        for known in (skeleton, None):
            pipeline = rt.pipelined(program, skeleton=known)
            for slices in (1, 5):
                error = raised(overlap.SliceError, pipeline, range(slices), True)
                assert "of the first call" in str(error)
                pipeline(range(slices), False)


@on_ranks(1, 2, exhaustive(3), fresh=True)
def test_persistent_of_slots(comm):
    """A slice fails in a program whose slots have requests of their own, made with their buffers."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for rt in runtimes(comm):

        def buffers():
            mine, there, sums = np.zeros(1), np.zeros(1), np.zeros(1)
            kept = [rt.comm.Recv_init(there, left), rt.comm.Send_init(mine, right)]
            if hasattr(MPI.Comm, "Allreduce_init") and MPI.Get_version() >= (4, 0):
                kept.append(rt.comm.Allreduce_init(mine, sums))
            return mine, there, sums, kept

        async def program(z, slot, bad, out):
            mine, there, sums, kept = slot
            mine[0] = 10.0 * z + comm.rank
            await all_of(*kept[:2])
            if z == bad and comm.rank == comm.size - 1:
                raise ValueError("on purpose")
            for total in kept[2:]:
                await total
                assert sums[0] == 10.0 * z * comm.size + sum(range(comm.size))
            out[z] = there[0]

        pipeline = rt.pipelined(program, buffers=buffers, depth=3)
        for bad in (None, 4, 0, 8, None):
            out = np.zeros(9)
            try:
                pipeline(range(9), bad, out)
            except overlap.SliceError as error:
                assert (error.rank, error.slice) == (comm.size - 1, str(bad)), error
            else:
                assert bad is None
                np.testing.assert_array_equal(out, 10.0 * np.arange(9) + left)


def persistent_in_use_for_ever(comm, wait):
    """Two slices start one persistent operation, which nobody answers: the deadline ends the job."""
    with overlap.Runtime(comm, deadline_s=1, wait=wait, depth=2) as rt:
        shared = rt.comm.Recv_init(np.zeros(1), (comm.rank + 1) % comm.size)

        async def program(z):
            pending = await start(shared)
            await rt.comm.Barrier()
            await pending

        rt.pipelined(program)(range(2))


@pytest.mark.parametrize("wait", ["poll", "block", "off"])
def test_the_deadline_covers_the_wait_for_a_persistent_operation(wait):
    failed = jobs.run_job(
        "test_started:persistent_in_use_for_ever", 2, args={"wait": wait}, deadline_s=60, expect_failure=True
    )
    assert "Recv_init" in failed.err and "deadline_s=1)" in failed.err, failed
