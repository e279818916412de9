"""What `test_runtime` runs on every rank: the invariants of the runtime, each against a truth."""

import os
import threading
import time
from contextlib import contextmanager
from functools import partial

import numpy as np
import threadpoolctl
from communicators import few_left
from mpi4py import MPI

import overlap
from overlap.runtime import barrier, parallel, worker_index
from overlap.runtime.requests import CALLS, AsyncComm, Operation

WAITS = ("off", "block", "poll")
PATIENCE_S = 20  # for something that must come; only a failing test waits that long


def same_everywhere(comm, value):
    """Assert that all ranks hold the same value, and show all if not."""
    values = comm.allgather(value)
    assert all(other == values[0] for other in values), values


@contextmanager
def issued():
    """Yield a list that grows by every operation issued to MPI, as a pair (operation, thread)."""
    record = []
    original = Operation.call, Operation.start

    def spy(method):
        def issue(operation):
            record.append((operation, threading.current_thread()))
            return method(operation)
        return issue

    Operation.call, Operation.start = spy(original[0]), spy(original[1])
    try:
        yield record
    finally:
        Operation.call, Operation.start = original


class Tagged:
    """Makes the operations of one slice, in different kinds, and remembers which is which."""

    KINDS = ("Alltoall", "Allreduce", "Bcast", "Allgather")

    def __init__(self, comm):
        self.comm = comm
        self.tags = []  # (operation, (slice, position))

    def make(self, z, position):
        kind = self.KINDS[(z + position) % len(self.KINDS)]
        size = self.comm.size
        send = np.full(size, 100.0 * z + 10 * position + self.comm.rank)
        if kind == "Bcast":
            operation, result = self.comm.Bcast(send, root=z % size), send
        else:
            result = np.empty(size * size if kind == "Allgather" else size)
            operation = getattr(self.comm, kind)(send, result)
        self.tags.append((operation, (z, position)))
        return operation, result

    def truth(self, z, position):
        kind = self.KINDS[(z + position) % len(self.KINDS)]
        size = self.comm.size
        sent = 100.0 * z + 10 * position + np.arange(size)
        return {"Bcast": np.full(size, sent[z % size]), "Alltoall": sent,
                "Allreduce": np.full(size, sent.sum()), "Allgather": np.repeat(sent, size)}[kind]

    def skeleton(self, awaits):
        """A skeleton whose slice `z` awaits ``awaits(z)`` operations."""
        async def skeleton(z):
            for position in range(awaits(z)):
                await self.make(z, position)[0]
        return skeleton

    def order(self, record):
        tags = {id(operation): tag for operation, tag in self.tags}
        return [tags[id(operation)] for operation, _ in record]


# ---- issue order -----------------------------------------------------------------------------

class Gates:
    """Lets steps of one slice group pass in a given order, whatever the threads would like."""

    def __init__(self, order):
        self._order = list(order)
        self._events = {z: threading.Event() for z in self._order}
        self.passed = []

    def wait_for_turn(self, z):
        place = self._order.index(z)
        if place:
            assert self._events[self._order[place - 1]].wait(PATIENCE_S), "the schedule is stuck"
        self.passed.append(z)
        self._events[z].set()


def forced_order(comm):
    """Every rank's steps end in an order of their own; the issue order is the same everywhere.

    Four workers and four slots: all four steps that the gates hold back can run at once.
    """
    slots, awaits, slices = 4, 3, 12
    orders = {}
    for wait in WAITS:
        with overlap.Runtime(comm, workers=slots, depth=slots, wait=wait, agree_every=5) as rt:
            tagged = Tagged(rt.comm)
            shuffle = np.random.default_rng(comm.rank)
            gates = {(group, position): Gates(group * slots + shuffle.permutation(slots))
                     for group in range(slices // slots) for position in range(awaits)}

            @rt.pipelined(skeleton="agree" if wait == "off" else tagged.skeleton(lambda z: awaits))
            async def program(z):
                for position in range(awaits):
                    if wait != "off":
                        gates[z // slots, position].wait_for_turn(z)
                    operation, result = tagged.make(z, position)
                    await operation
                    np.testing.assert_array_equal(result, tagged.truth(z, position))

            with issued() as record:
                program(range(slices))
        orders[wait] = tagged.order(record)
        assert len(orders[wait]) == slices * awaits
        same_everywhere(comm, orders[wait])
        if wait != "off" and comm.size > 1:  # the control: the ranks did differ
            passed = comm.allgather([gate.passed for gate in gates.values()])
            assert passed[0] != passed[1], passed
    assert orders["off"] == orders["block"] == orders["poll"]


def random_order(comm):
    """Random delays, different on every rank; uneven numbers of awaits."""
    delay = np.random.default_rng(1000 + comm.rank)
    delays = threading.Lock()
    for workers, depth, in_flight, agree_every in (
            (1, 1, None, 1), (1, 3, 1, 2), (2, 4, None, 64), (3, 8, 2, 3), (2, 5, 5, 7)):
        orders = []
        for wait in WAITS:
            with overlap.Runtime(comm, workers=workers, depth=depth, wait=wait,
                                 in_flight=in_flight, agree_every=agree_every) as rt:
                tagged = Tagged(rt.comm)

                given = tagged.skeleton(lambda z: z % 4)

                @rt.pipelined(skeleton="agree" if depth == 4 else given)
                async def program(z):
                    for position in range(z % 4):
                        with delays:
                            seconds = delay.random() * 1e-3
                        time.sleep(seconds)
                        operation, result = tagged.make(z, position)
                        await operation
                        np.testing.assert_array_equal(result, tagged.truth(z, position))

                with issued() as record:
                    program(range(1, 24))
            orders.append(tagged.order(record))
            same_everywhere(comm, orders[-1])
        assert orders[0] == orders[1] == orders[2]
        assert sorted(orders[0]) == [(z, p) for z in range(1, 24) for p in range(z % 4)]


class Spy:
    """In an MPI communicator's place: notes which threads use it."""

    def __init__(self, handle, threads):
        self._handle = handle
        self._threads = threads

    def __getattr__(self, name):
        self._threads.add(threading.current_thread().name)
        return getattr(self._handle, name)


def one_thread_talks(comm):
    """Everything done to the communicators inside a pipeline comes from the same thread."""
    for wait in WAITS:
        for skeleton in (None, "given"):
            threads = set()
            with overlap.Runtime(comm, workers=3, depth=4, wait=wait, agree_every=2) as rt:
                sub = rt.comm.Split(comm.rank % 2)
                for wrapped in (rt.comm, sub):
                    wrapped._handle = Spy(wrapped._handle, threads)

                async def program(z):
                    buffer = np.ones(4)
                    await rt.comm.Allreduce(MPI.IN_PLACE, buffer)
                    await sub.Allreduce(MPI.IN_PLACE, buffer)
                    assert buffer[0] == comm.size * sub.size

                pipeline = rt.pipelined(program, skeleton=program if skeleton else None)
                rt.enter = lambda *args, **kwargs: None  # the caller's, before the pipeline
                with issued() as record:
                    pipeline(range(10))
                callers = {thread for _, thread in record}
                expected = {"MainThread" if wait == "off" else "communicator"}
                assert {thread.name for thread in callers} == threads == expected, threads
                assert len(callers) == 1


# ---- slots, workers, barriers ----------------------------------------------------------------

def lanes_bound_the_memory(comm):
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


def workers_take_what_is_ready(comm):
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


def barriers(comm):
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


def barriers_and_lanes(comm):
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


def parallel_parts(comm):
    """Parts run on as many workers as there are, in any order, and all before the slice goes on."""
    for wait in WAITS:
        for workers in (1, 3):
            together = threading.Barrier(workers if wait != "off" else 1)
            with overlap.Runtime(comm, workers=workers, depth=3, wait=wait) as rt:
                seen, total = [], np.zeros(1)

                def part(index):
                    if index < together.parties:
                        together.wait(PATIENCE_S)
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


# ---- results ---------------------------------------------------------------------------------

def bit_for_bit(comm):
    """Distributed FFTs in all modes: the same bits as without overlap, and numpy's values."""
    size, n, slices = comm.size, 6 * comm.size, 9
    rows = n // size
    whole = np.random.default_rng(5).standard_normal((slices, n, n, 2)) @ [1, 1j]
    mine = slice(comm.rank * rows, (comm.rank + 1) * rows)
    reference = None
    for wait in WAITS:
        for workers, depth, in_flight in ((1, 1, 1), (1, 4, None), (2, 4, 2), (3, 16, None)):
            with overlap.Runtime(comm, workers=workers, depth=depth, wait=wait,
                                 in_flight=in_flight) as rt:
                out = np.empty((slices, n, rows), complex)

                @rt.pipelined(buffers=lambda: np.empty((2, size, rows, rows), complex))
                async def transform(z, slot):
                    send, recv = slot
                    lines = np.fft.fft(whole[z, mine])
                    send[...] = lines.reshape(rows, size, rows).transpose(1, 0, 2)
                    await rt.comm.Alltoall(send, recv)
                    out[z] = np.fft.fft(recv.reshape(n, rows), axis=0)

                transform(range(slices))
            if reference is None:
                reference = out.tobytes()
                np.testing.assert_allclose(out, np.fft.fft2(whole)[..., mine], atol=1e-11)
            assert out.tobytes() == reference, (wait, workers, depth)


def _array(comm, z, length, rank=None):
    return (np.arange(length) + 1000.0 * (comm.rank if rank is None else rank) + 7 * z)


def calls_against_numpy(comm, topology=False):
    """Every awaitable call, on whatever communicator, with numpy's answer next to it.

    Yields (name, function of the slice that makes the operation and a check).
    """
    size, rank = comm.size, comm.rank
    parts = [partial(_array, comm, rank=r) for r in range(size)]
    counts = np.arange(1, size + 1)
    displs = np.concatenate(([0], np.cumsum(counts)[:-1]))
    root = size - 1
    right, left = (rank + 1) % size, (rank - 1) % size
    equal = np.testing.assert_array_equal

    def expect(operation, pairs):
        return operation, lambda: [equal(got, want) for got, want in pairs]

    def blocks(z, shape=2):  # what this rank receives when all send `shape` to each
        return np.concatenate([parts[r](z, size * shape)[rank * shape:][:shape]
                               for r in range(size)])

    def bcast(z):
        data = _array(comm, z, 5)
        return expect(comm.Bcast(data, root=root), [(data, parts[root](z, 5))])

    def gather(z, name="Gather"):
        out = np.empty((size, 3)) if rank == root else None
        return expect(comm.Gather(_array(comm, z, 3), out, root=root),
                      [(out, [p(z, 3) for p in parts])] if rank == root else [])

    def gatherv(z):
        out = np.empty(counts.sum())
        return expect(
            comm.Gatherv(_array(comm, z, rank + 1), [out, counts, displs, MPI.DOUBLE], root=root),
            [(out, np.concatenate([parts[r](z, r + 1) for r in range(size)]))]
            if rank == root else [])

    def scatter(z):
        out = np.empty(2)
        return expect(comm.Scatter(_array(comm, z, 2 * size), out, root=root),
                      [(out, parts[root](z, 2 * size)[2 * rank:][:2])])

    def scatterv(z):
        out = np.empty(rank + 1)
        send = _array(comm, z, counts.sum())
        return expect(comm.Scatterv([send, counts, displs, MPI.DOUBLE], out, root=root),
                      [(out, parts[root](z, counts.sum())[displs[rank]:][:rank + 1])])

    def allgather(z):
        out = np.empty((size, 3))
        return expect(comm.Allgather(_array(comm, z, 3), out),
                      [(out, [p(z, 3) for p in parts])])

    def allgatherv(z):
        out = np.empty(counts.sum())
        return expect(
            comm.Allgatherv(_array(comm, z, rank + 1), [out, counts, displs, MPI.DOUBLE]),
            [(out, np.concatenate([parts[r](z, r + 1) for r in range(size)]))])

    def alltoall(z):
        out = np.empty(2 * size)
        return expect(comm.Alltoall(_array(comm, z, 2 * size), out), [(out, blocks(z))])

    def vector(z, name):  # rank r sends c + 1 numbers to rank c
        out = np.empty(size * (rank + 1))
        send = _array(comm, z, counts.sum())
        want = np.concatenate([parts[r](z, counts.sum())[displs[rank]:][:rank + 1]
                               for r in range(size)])
        received = np.full(size, rank + 1)
        starts = np.arange(size) * (rank + 1)
        if name == "Alltoallw":
            types = [MPI.DOUBLE] * size
            operation = comm.Alltoallw([send, counts, 8 * displs, types],
                                       [out, received, 8 * starts, types])
        else:
            operation = comm.Alltoallv([send, counts, displs, MPI.DOUBLE],
                                       [out, received, starts, MPI.DOUBLE])
        return expect(operation, [(out, want)])

    def reduce(z):
        out = np.zeros(4)
        return expect(comm.Reduce(_array(comm, z, 4), out, op=MPI.SUM, root=root),
                      [(out, sum(p(z, 4) for p in parts))] if rank == root else [])

    def allreduce(z):
        out = np.empty(4)
        return expect(comm.Allreduce(_array(comm, z, 4), out, op=MPI.MAX),
                      [(out, np.max([p(z, 4) for p in parts], axis=0))])

    def reduce_scatter(z):
        out = np.empty(rank + 1)
        want = sum(p(z, counts.sum()) for p in parts)[displs[rank]:][:rank + 1]
        return expect(comm.Reduce_scatter(_array(comm, z, counts.sum()), out, list(counts)),
                      [(out, want)])

    def reduce_scatter_block(z):
        out = np.empty(2)
        want = sum(p(z, 2 * size) for p in parts)[2 * rank:][:2]
        return expect(comm.Reduce_scatter_block(_array(comm, z, 2 * size), out), [(out, want)])

    def scan(z):
        out = np.empty(3)
        return expect(comm.Scan(_array(comm, z, 3), out),
                      [(out, sum(p(z, 3) for p in parts[:rank + 1]))])

    def exscan(z):
        out = np.zeros(3)
        return expect(comm.Exscan(_array(comm, z, 3), out),
                      [(out, sum((p(z, 3) for p in parts[:rank]), np.zeros(3)))] if rank else [])

    def sendrecv(z):
        out = np.empty(3)
        return expect(comm.Sendrecv(_array(comm, z, 3), right, 7, out, left, 7),
                      [(out, parts[left](z, 3))])

    def sendrecv_replace(z):
        data = _array(comm, z, 3)
        return expect(comm.Sendrecv_replace(data, left, 5, source=right, recvtag=5),
                      [(data, parts[right](z, 3))])

    def neighbor_allgather(z, name):  # a ring: the neighbours are left, then right
        out = np.empty((2, 3))
        buffer = out if name == "Neighbor_allgather" else [out, [3, 3], [0, 3], MPI.DOUBLE]
        return expect(getattr(comm, name)(_array(comm, z, 3), buffer),
                      [(out, [parts[left](z, 3), parts[right](z, 3)])])

    def neighbor_alltoall(z, name):
        send, out = _array(comm, z, 4), np.empty(4)
        layout = {"Neighbor_alltoall": (),
                  "Neighbor_alltoallv": ([2, 2], [0, 2], MPI.DOUBLE),
                  "Neighbor_alltoallw": ([2, 2], [0, 16], [MPI.DOUBLE] * 2)}[name]
        want = np.concatenate([parts[left](z, 4)[2:], parts[right](z, 4)[:2]])
        if size <= 2:  # left and right are the same rank: MPI leaves the pairing open
            want = None
        operation = getattr(comm, name)([send, *layout] if layout else send,
                                        [out, *layout] if layout else out)
        return expect(operation, [] if want is None else [(out, want)])

    if topology:
        for name in ("Neighbor_allgather", "Neighbor_allgatherv"):
            yield name, partial(neighbor_allgather, name=name)
        for name in ("Neighbor_alltoall", "Neighbor_alltoallv", "Neighbor_alltoallw"):
            yield name, partial(neighbor_alltoall, name=name)
        return
    yield "Barrier", lambda z: (comm.Barrier(), lambda: None)
    for name in ("Alltoallv", "Alltoallw"):
        yield name, partial(vector, name=name)
    for function in (bcast, gather, gatherv, scatter, scatterv, allgather, allgatherv, alltoall,
                     reduce, allreduce, reduce_scatter, reduce_scatter_block, scan, exscan,
                     sendrecv, sendrecv_replace):
        yield function.__name__.capitalize(), function


def awaitable_calls(comm):
    """All of `CALLS`, on the runtime's communicator, on split, wrapped and topology ones."""
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait, agree_every=10) as rt:
            half = rt.comm.Split(comm.rank % 2, -comm.rank)
            assert (half.size, half.rank) == (
                len(range(comm.rank % 2, comm.size, 2)),
                len(range(comm.rank + 2, comm.size, 2)))
            own = comm.Split(comm.rank // 2)
            ring = comm.Create_cart([comm.size], periods=True)
            wrapped, cart = rt.wrap(own), rt.wrap(ring)
            covered = {"Send", "Ssend", "Recv"}  # in point_to_point
            for target, topology in ((rt.comm, False), (half, False), (wrapped, False),
                                     (cart, True)):
                calls = list(calls_against_numpy(target, topology))
                covered |= {name for name, _ in calls}
                names = []

                @rt.pipelined
                async def program(z):
                    for name, make in calls:
                        operation, check = make(z)
                        names.append(operation.name)
                        await operation
                        check()

                program(range(5))
                assert set(names) == {name for name, _ in calls}
            own.Free()
            ring.Free()
            assert covered == set(CALLS), covered ^ set(CALLS)
            assert not [name for name in CALLS if not callable(getattr(AsyncComm, name))]


def point_to_point(comm):
    """Send, Ssend and Recv, also where ranks await different calls and a skeleton tells so."""
    pair = comm.rank ^ 1
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait, agree_every=4) as rt:
            own = rt.wrap(MPI.COMM_SELF)
            got = np.zeros(8)

            async def exchange(z, call):
                send, received = np.array([100.0 * z + comm.rank]), np.empty(1)
                if pair >= comm.size:
                    await own.Barrier()
                    await own.Barrier()
                    return
                ping = getattr(rt.comm, call)(send, pair, z)
                pong = rt.comm.Recv(received, pair, z)
                for operation in ((ping, pong) if comm.rank < pair else (pong, ping)):
                    await operation
                got[z] = received[0]

            for call in ("Send", "Ssend"):
                got[:] = 0
                rt.pipelined(exchange, skeleton=exchange)(range(8), call)
                if pair < comm.size:
                    np.testing.assert_array_equal(got, 100.0 * np.arange(8) + pair)


def asymmetric_split(comm):
    """A sub-communicator that only some ranks belong to does not confuse the others."""
    with overlap.Runtime(comm, depth=2, wait="poll", deadline_s=5) as rt:
        some = rt.comm.Split(MPI.UNDEFINED if comm.rank == 0 else 0)
        assert (some is None) == (comm.rank == 0)
        everyone = rt.comm.Split(0)
        out = np.zeros(4)

        @rt.pipelined
        async def program(z):
            total = np.array([float(z)])
            await everyone.Allreduce(MPI.IN_PLACE, total)
            out[z] = total[0]

        program(range(4))
        np.testing.assert_array_equal(out, comm.size * np.arange(4))


def small_batches(comm):
    """No slices, fewer slices than slots, slices that await nothing, slices of any kind."""
    for wait in (*WAITS, "auto"):
        with overlap.Runtime(comm, workers=2, depth=5, wait=wait) as rt:
            done = []

            @rt.pipelined
            async def program(key, factor, offset):
                total = np.array([float(len(key))])
                await rt.comm.Allreduce(MPI.IN_PLACE, total)
                done.append((key, factor * total[0] + offset))

            for keys in ((), ("a",), ("a", "bb", "ccc"), (key for key in ("x", "yy")), "abcdefg"):
                keys = list(keys)
                done.clear()
                program(iter(keys), 2, 1)
                assert sorted(done) == sorted((key, 2 * comm.size * len(key) + 1) for key in keys)

            @rt.pipelined(depth=2)
            async def silent(z):
                done.append(z)

            done.clear()
            silent(range(9))
            assert sorted(done) == list(range(9))


def auto_settles(comm):
    """`auto` tries both ways twice, then all ranks keep the same one; every result is right."""
    with overlap.Runtime(comm, workers=2, depth=3, wait="auto") as rt:
        out = np.zeros(6)

        @rt.pipelined
        async def program(z):
            total = np.array([float(z)])
            await rt.comm.Allreduce(MPI.IN_PLACE, total)
            out[z] = total[0]

        assert program.wait == "auto"
        program([])  # teaches nothing
        for _ in range(4):
            assert program.wait == "auto"
            out[:] = 0
            program(range(6))
            np.testing.assert_array_equal(out, comm.size * np.arange(6))
        assert program.wait in ("block", "poll")
        same_everywhere(comm, program.wait)
        before = program.wait
        program(range(6))
        assert program.wait == before


# ---- core tokens, exchanges in flight --------------------------------------------------------------

def _most_at_once(intervals):
    changes = sorted([(end, -1) for _, end in intervals] + [(start, 1) for start, _ in intervals])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def core_tokens(comm):
    """With `block`, steps and the communicator inside MPI never exceed N; the trace is witness."""
    most = {}
    for wait in ("block", "poll"):
        for workers in (1, 2, 3):
            with overlap.Runtime(comm, workers=workers, depth=6, wait=wait, trace=True,
                                 agree_every=4) as rt:
                @rt.pipelined
                async def program(z):
                    buffer = np.ones(1000)
                    for _ in range(3):
                        until = time.perf_counter() + 2e-4
                        while time.perf_counter() < until:
                            pass
                        await rt.comm.Allreduce(MPI.IN_PLACE, buffer)
                    await parallel(np.sum, [buffer] * 3)

                program(range(16))
                spans = rt.trace.spans()
            kinds = {span.kind for span in spans}
            assert kinds == {"compute", "communicate"}
            most[wait, workers] = _most_at_once([(span.start_s, span.end_s) for span in spans])
            if wait == "block":
                assert most[wait, workers] <= workers, most
    assert most["poll", 1] > 1, "the control: exchanges in flight take no core token"


def exchanges_in_flight(comm, first=True):
    """No more operations in flight than `in_flight`, and as many where nothing else holds.

    The last rank issues its 40th operation (the program is known by then) when the first has issued
    `in_flight` from that one on: none of these can have completed before.
    """
    held, last = 40, comm.size - 1
    original = Operation.start
    for in_flight in (1, 2, 5):
        count = 0

        def start(operation):
            nonlocal count
            count += 1
            if comm.rank == last > 0 and count == held:
                comm.Recv(np.zeros(1), 0)
            result = original(operation)
            if comm.rank == 0 < last and count == held + in_flight - 1:
                comm.Send(np.zeros(1), last)
            return result

        with overlap.Runtime(comm, workers=2, depth=6, wait="poll", in_flight=in_flight,
                             trace=True) as rt:
            async def program(z):
                buffer = np.ones(20000)
                for _ in range(3):
                    await rt.comm.Allreduce(MPI.IN_PLACE, buffer)

            Operation.start = start
            try:
                rt.pipelined(program, skeleton=None if first else program)(range(30))
            finally:
                Operation.start = original
            spans = [span for span in rt.trace.spans() if "slice" in span.label]
            most = _most_at_once([(span.start_s, span.end_s) for span in spans
                                  if span.kind == "communicate"])
            assert most <= in_flight, (most, in_flight)
            if comm.rank == 0 < last:
                assert most == in_flight, (most, in_flight)


# ---- nesting, closing ------------------------------------------------------------------------

def second_pipeline_while_running(comm):
    """A pipeline started inside another one's slice is refused, on all ranks, without a hang."""
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=2, wait=wait, deadline_s=5) as rt:
            async def quiet(z):
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

            inner = rt.pipelined(quiet)
            threads = set()
            rt.comm._handle = Spy(rt.comm._handle, threads)

            @rt.pipelined
            async def outer(z):
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                if z == 5:
                    inner(range(2))
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

            try:
                outer(range(8))
            except overlap.SliceError as error:
                assert "one at a time" in str(error), error
                assert isinstance(error.__cause__, RuntimeError)
            else:
                raise AssertionError("a pipeline inside a pipeline was accepted")
            assert not [name for name in threads if "worker" in name], threads
            inner(range(3))


def _ours():
    return [thread.name for thread in threading.enumerate()
            if thread is not threading.main_thread()]


def threads_end(comm):
    """Closing joins the threads, however the `with` block is left; a closed runtime says so."""
    async def program(z):
        await target.Allreduce(MPI.IN_PLACE, np.ones(1))

    for wait in WAITS:
        assert not _ours()
        with overlap.Runtime(comm, workers=3, wait=wait) as rt:
            target = rt.comm
            pipeline = rt.pipelined(program)
            pipeline(range(4))
            assert len(_ours()) == (1 if wait == "off" else 5), _ours()
        assert not _ours(), _ours()
        assert rt.closed
        rt.close()
        for use in (lambda: pipeline(range(4)), rt.preflight, lambda: rt.wrap(comm)):
            try:
                use()
            except overlap.ClosedError as error:
                assert "closed" in str(error)
            else:
                raise AssertionError("a closed runtime was used")
        try:
            with overlap.Runtime(comm, wait=wait) as rt:
                target = rt.comm
                rt.pipelined(program)(range(3))
                raise KeyError("mine")
        except KeyError:
            pass
        assert rt.closed and not _ours()


def many_runtimes(comm, count, left):
    """Opened and closed more often than there are communicators; some with sub-communicators."""
    with few_left(comm, left):
        for number in range(count):
            with overlap.Runtime(comm, wait="off") as rt:
                if number % 10 == 0:
                    part = rt.comm.Split(comm.rank % 2)

                    @rt.pipelined
                    async def program(z):
                        await part.Allreduce(MPI.IN_PLACE, np.ones(1))
                    program(range(2))
        assert not _ours()


def nested_runtimes(comm):
    """Two open runtimes do not meet; one inside the other's lifetime, each with its own tags."""
    with overlap.Runtime(comm, workers=2, depth=2, wait="poll") as outer:
        totals = {}

        async def program(z, runtime):
            total = np.array([float(z)])
            await runtime.comm.Allreduce(MPI.IN_PLACE, total)
            totals[z] = total[0]

        first = outer.pipelined(program)
        first(range(5), outer)
        with overlap.Runtime(comm, workers=1, depth=3, wait="block") as inner:
            inner.pipelined(program)(range(5, 9), inner)
            first(range(9, 12), outer)
        first(range(12, 15), outer)
    assert totals == {z: float(comm.size * z) for z in range(15)}


def thread_pools_restored(comm):
    """BLAS and OpenMP pools have one thread while any runtime is open, then what they had."""
    def pools():
        return [(pool["filepath"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info()]

    with threadpoolctl.threadpool_limits(limits=2):
        before = pools()
        assert before and all(threads == 2 for _, threads in before), before
        with overlap.Runtime(comm) as outer:
            assert all(threads == 1 for _, threads in pools())
            with overlap.Runtime(comm):
                pass
            assert all(threads == 1 for _, threads in pools())
            inside = []

            @outer.pipelined
            async def program(z):
                inside.extend(threads for _, threads in pools())

            program(range(3))
            assert set(inside) == {1}
        assert pools() == before
        try:
            with overlap.Runtime(comm):
                raise KeyError
        except KeyError:
            assert pools() == before


def priorities(comm, already):
    """Workers yield to the communicator: their nice value is above the process's, never below."""
    os.nice(already)
    values = []
    for wait in ("block", "poll"):
        with overlap.Runtime(comm, workers=2, wait=wait, nice=3) as rt:
            @rt.pipelined
            async def program(z):
                values.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

            program(range(4))
    assert set(values) == {min(19, already + 3)}, values


def input_checked(comm):
    """Bad arguments of a pipeline are refused before anything runs."""
    with overlap.Runtime(comm, workers=1, depth=2, wait="poll", deadline_s=5) as rt:
        ran = []

        async def program(z):
            ran.append(z)
            await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

        for options in ({"depth": 0}, {"depth": -1}, {"wait": "bogus"}, {"in_flight": 0},
                        {"in_flight": -1}, {"depth": 1.5}):
            try:
                rt.pipelined(program, **options)(range(3))
            except overlap.InputError as error:
                assert "received" in str(error)
            else:
                raise AssertionError(f"{options} was accepted, {len(ran)} slices ran")
            assert not ran
