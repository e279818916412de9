"""Slots, ready steps, barriers, parallel steps."""

import threading
from functools import partial

import numpy as np
from everywhere import same_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI
from test_runtime import PATIENCE_S, WAITS

import overlap
from overlap.runtime import barrier, parallel, worker_index

# ---- slots, workers, barriers ----------------------------------------------------------------


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_lanes_bound_the_memory(comm):
    """`depth` slots, made once; never two slices in one; never more slices alive than slots."""
    for wait in WAITS:
        for depth, slices in ((1, 5), (3, 14), (8, 3)):
            made, busy, alive, most = [], set(), 0, 0
            lock = threading.Lock()

            def slot():
                made.append(np.zeros(comm.size))
                return made[-1]

            with overlap.Runtime(comm, workers=3, depth=depth, wait=wait) as rt:

                @rt.pipelined(buffers=slot)
                async def program(z, buffer, out):
                    nonlocal alive, most
                    with lock:
                        assert id(buffer) not in busy, "two slices in one slot"
                        busy.add(id(buffer))
                        alive += 1
                        most = max(most, alive)
                    buffer[:] = z
                    received = np.empty_like(buffer)
                    await rt.comm.Alltoall(buffer, received)
                    assert (buffer == z).all(), "another slice wrote into this slot"
                    await rt.comm.Alltoall(buffer, received)
                    out[z] = received[-1]
                    with lock:
                        busy.remove(id(buffer))
                        alive -= 1

                assert len(made) == depth
                for _ in range(3):
                    out = np.zeros(slices)
                    program(range(slices), out)
                    np.testing.assert_array_equal(out, np.arange(slices))
            assert len(made) == depth
            assert {id(buffer) for buffer in program.slots} == {id(buffer) for buffer in made}
            assert most == (1 if depth == 1 else min(depth, slices))


@on_ranks(2)
def test_workers_take_what_is_ready(comm):
    """A slice's long step holds one worker; the other one runs all other slices' steps."""
    for wait in ("block", "poll"):
        with overlap.Runtime(comm, workers=2, depth=6, wait=wait) as rt:
            arrived = threading.Semaphore(0)
            threads = {}

            @rt.pipelined
            async def program(z):
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                threads[z] = worker_index()
                if z == 0:
                    for _ in range(5):
                        assert arrived.acquire(timeout=PATIENCE_S), "the others are held up"
                else:
                    arrived.release()

            program(range(6))
            assert {threads[z] for z in range(1, 6)} == {1 - threads[0]}


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_barriers(comm):
    """Nobody passes a barrier before all slices have arrived or ended; nothing else waits."""
    slices = 11
    for wait in WAITS:
        for depth in (1, 3, 16):
            with overlap.Runtime(comm, workers=2, depth=depth, wait=wait, agree_every=3) as rt:
                arrived = [set(), set()]

                async def skeleton(z):
                    await rt.comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
                    await barrier()
                    await rt.comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
                    if z % 3 != 1:
                        await barrier()

                @rt.pipelined(skeleton=skeleton)
                async def program(z):
                    total = np.array([float(z)])
                    await rt.comm.Allreduce(MPI.IN_PLACE, total)
                    arrived[0].add(z)
                    await barrier()
                    assert len(arrived[0]) == slices
                    await rt.comm.Allreduce(MPI.IN_PLACE, total)
                    if z % 3 == 1:
                        return
                    arrived[1].add(z)
                    await barrier()
                    assert len(arrived[1]) == slices - len(range(1, slices, 3))
                    assert total[0] == z * comm.size**2

                program(range(slices))
                program([])
                assert [len(group) for group in arrived] == [11, 7]

                # Without a barrier the last slice starts only after the first has ended.
                order = []

                @rt.pipelined(depth=2)
                async def unhindered(z):
                    order.append(("start", z))
                    await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                    order.append(("end", z))

                unhindered(range(slices))
                assert order.index(("end", 0)) < order.index(("start", slices - 1))


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_barriers_and_lanes(comm):
    """With slot buffers a barrier needs all slices in flight, and says so otherwise."""
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=4, wait=wait) as rt:

            async def program(z, buffer):
                buffer[0] = z
                await barrier()
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                assert buffer[0] == z

            async def skeleton(z, buffer):
                await barrier()
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

            for known in (None, skeleton):
                pipeline = rt.pipelined(program, buffers=partial(np.zeros, 1), skeleton=known)
                for slices in (4, 3, 0):
                    pipeline(range(slices))
                try:
                    pipeline(range(5))
                except overlap.SliceError as error:
                    message = str(error)
                else:
                    raise AssertionError("a parked slice's buffers were overwritten")
                assert "expected at most 4 slices (the depth), received 5" in message
                same_everywhere(comm, message)
                pipeline(range(4))


@on_ranks(2)
def test_parallel_parts(comm):
    """Parts run on as many workers as there are, in any order, and all before the slice goes on."""
    for wait in WAITS:
        for workers in (1, 3):
            collective_section = threading.Barrier(workers if wait != "off" else 1)
            with overlap.Runtime(comm, workers=workers, depth=3, wait=wait) as rt:
                seen, total = [], np.zeros(1)

                def part(index):
                    if index < collective_section.parties:
                        collective_section.wait(PATIENCE_S)
                    seen.append((index, worker_index()))

                @rt.pipelined
                async def program(z):
                    await parallel(part, range(workers + 4))
                    assert sorted(index for index, _ in seen) == list(range(workers + 4))
                    await rt.comm.Allreduce(np.ones(1), total)
                    await parallel(part, ())
                    await parallel(seen.append, [("last", 0)])

                program([0])
                assert total[0] == comm.size
                assert seen[-1] == ("last", 0)
                if wait != "off":
                    first = {who for index, who in seen[:-1] if index < workers}
                    assert first == set(range(workers)), seen

                # Several slices, each with its own parts.
                sums = np.zeros((10, 5))

                @rt.pipelined
                async def many(z):
                    await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                    await parallel(lambda i: sums.__setitem__((z, i), z + i), range(5))
                    assert (sums[z] == z + np.arange(5)).all()

                many(range(10))

                # The first exception is the slice's; a program may see it on its way.
                shown = []

                @rt.pipelined
                async def failing(z):
                    await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                    try:
                        await parallel(lambda i: 1 // (i - 2), range(5))
                    except ZeroDivisionError:
                        shown.append(z)
                        raise

                try:
                    failing([7])
                except overlap.SliceError as error:
                    assert isinstance(error.__cause__, ZeroDivisionError)
                    assert error.slice == "7"
                else:
                    raise AssertionError("no error")
                assert shown == [7]
