"""Awaited calls and their results, in every mode."""

from functools import partial

import numpy as np
import pytest
from everywhere import same_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI
from test_runtime import WAITS

import overlap
from overlap.runtime.pipeline import SHORT_TRIALS, TRIALS
from overlap.runtime.requests.requests import CALLS, AsyncComm

# ---- results ---------------------------------------------------------------------------------


@on_ranks(1, exhaustive(2), 3, exhaustive(4), "openmpi-2")
def test_bit_for_bit(comm):
    """Distributed FFTs in all modes: the same bits as without overlap, and numpy's values."""
    size, n, slices = comm.size, 6 * comm.size, 9
    rows = n // size
    whole = np.random.default_rng(5).standard_normal((slices, n, n, 2)) @ [1, 1j]
    mine = slice(comm.rank * rows, (comm.rank + 1) * rows)
    reference = None
    for wait in WAITS:
        for workers, depth, in_flight in ((1, 1, 1), (1, 4, None), (2, 4, 2), (3, 16, None)):
            with overlap.Runtime(comm, workers=workers, depth=depth, wait=wait, in_flight=in_flight) as rt:
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
    return np.arange(length) + 1000.0 * (comm.rank if rank is None else rank) + 7 * z


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
        return np.concatenate([parts[r](z, size * shape)[rank * shape :][:shape] for r in range(size)])

    def bcast(z):
        data = _array(comm, z, 5)
        return expect(comm.Bcast(data, root=root), [(data, parts[root](z, 5))])

    def gather(z, name="Gather"):
        out = np.empty((size, 3)) if rank == root else None
        return expect(
            comm.Gather(_array(comm, z, 3), out, root=root), [(out, [p(z, 3) for p in parts])] if rank == root else []
        )

    def gatherv(z):
        out = np.empty(counts.sum())
        return expect(
            comm.Gatherv(_array(comm, z, rank + 1), [out, counts, displs, MPI.DOUBLE], root=root),
            [(out, np.concatenate([parts[r](z, r + 1) for r in range(size)]))] if rank == root else [],
        )

    def scatter(z):
        out = np.empty(2)
        return expect(
            comm.Scatter(_array(comm, z, 2 * size), out, root=root), [(out, parts[root](z, 2 * size)[2 * rank :][:2])]
        )

    def scatterv(z):
        out = np.empty(rank + 1)
        send = _array(comm, z, counts.sum())
        return expect(
            comm.Scatterv([send, counts, displs, MPI.DOUBLE], out, root=root),
            [(out, parts[root](z, counts.sum())[displs[rank] :][: rank + 1])],
        )

    def allgather(z):
        out = np.empty((size, 3))
        return expect(comm.Allgather(_array(comm, z, 3), out), [(out, [p(z, 3) for p in parts])])

    def allgatherv(z):
        out = np.empty(counts.sum())
        return expect(
            comm.Allgatherv(_array(comm, z, rank + 1), [out, counts, displs, MPI.DOUBLE]),
            [(out, np.concatenate([parts[r](z, r + 1) for r in range(size)]))],
        )

    def alltoall(z):
        out = np.empty(2 * size)
        return expect(comm.Alltoall(_array(comm, z, 2 * size), out), [(out, blocks(z))])

    def vector(z, name):  # rank r sends c + 1 numbers to rank c
        out = np.empty(size * (rank + 1))
        send = _array(comm, z, counts.sum())
        want = np.concatenate([parts[r](z, counts.sum())[displs[rank] :][: rank + 1] for r in range(size)])
        received = np.full(size, rank + 1)
        starts = np.arange(size) * (rank + 1)
        if name == "Alltoallw":
            types = [MPI.DOUBLE] * size
            operation = comm.Alltoallw([send, counts, 8 * displs, types], [out, received, 8 * starts, types])
        else:
            operation = comm.Alltoallv([send, counts, displs, MPI.DOUBLE], [out, received, starts, MPI.DOUBLE])
        return expect(operation, [(out, want)])

    def reduce(z):
        out = np.zeros(4)
        return expect(
            comm.Reduce(_array(comm, z, 4), out, op=MPI.SUM, root=root),
            [(out, sum(p(z, 4) for p in parts))] if rank == root else [],
        )

    def allreduce(z):
        out = np.empty(4)
        return expect(
            comm.Allreduce(_array(comm, z, 4), out, op=MPI.MAX), [(out, np.max([p(z, 4) for p in parts], axis=0))]
        )

    def reduce_scatter(z):
        out = np.empty(rank + 1)
        want = sum(p(z, counts.sum()) for p in parts)[displs[rank] :][: rank + 1]
        return expect(comm.Reduce_scatter(_array(comm, z, counts.sum()), out, list(counts)), [(out, want)])

    def reduce_scatter_block(z):
        out = np.empty(2)
        want = sum(p(z, 2 * size) for p in parts)[2 * rank :][:2]
        return expect(comm.Reduce_scatter_block(_array(comm, z, 2 * size), out), [(out, want)])

    def scan(z):
        out = np.empty(3)
        return expect(comm.Scan(_array(comm, z, 3), out), [(out, sum(p(z, 3) for p in parts[: rank + 1]))])

    def exscan(z):
        out = np.zeros(3)
        return expect(
            comm.Exscan(_array(comm, z, 3), out),
            [(out, sum((p(z, 3) for p in parts[:rank]), np.zeros(3)))] if rank else [],
        )

    def sendrecv(z):
        out = np.empty(3)
        return expect(comm.Sendrecv(_array(comm, z, 3), right, 7, out, left, 7), [(out, parts[left](z, 3))])

    def sendrecv_replace(z):
        data = _array(comm, z, 3)
        return expect(comm.Sendrecv_replace(data, left, 5, source=right, recvtag=5), [(data, parts[right](z, 3))])

    def neighbor_allgather(z, name):  # a ring: the neighbours are left, then right
        out = np.empty((2, 3))
        buffer = out if name == "Neighbor_allgather" else [out, [3, 3], [0, 3], MPI.DOUBLE]
        return expect(getattr(comm, name)(_array(comm, z, 3), buffer), [(out, [parts[left](z, 3), parts[right](z, 3)])])

    def neighbor_alltoall(z, name):
        send, out = _array(comm, z, 4), np.empty(4)
        layout = {
            "Neighbor_alltoall": (),
            "Neighbor_alltoallv": ([2, 2], [0, 2], MPI.DOUBLE),
            "Neighbor_alltoallw": ([2, 2], [0, 16], [MPI.DOUBLE] * 2),
        }[name]
        want = np.concatenate([parts[left](z, 4)[2:], parts[right](z, 4)[:2]])
        if size <= 2:  # left and right are the same rank: MPI leaves the pairing open
            want = None
        operation = getattr(comm, name)([send, *layout] if layout else send, [out, *layout] if layout else out)
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
    for function in (
        bcast,
        gather,
        gatherv,
        scatter,
        scatterv,
        allgather,
        allgatherv,
        alltoall,
        reduce,
        allreduce,
        reduce_scatter,
        reduce_scatter_block,
        scan,
        exscan,
        sendrecv,
        sendrecv_replace,
    ):
        yield function.__name__.capitalize(), function


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_awaitable_calls(comm):
    """All of `CALLS`, on the runtime's communicator, on split, wrapped and topology ones."""
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait, agree_every=10) as rt:
            half = rt.comm.Split(comm.rank % 2, -comm.rank)
            assert (half.size, half.rank) == (
                len(range(comm.rank % 2, comm.size, 2)),
                len(range(comm.rank + 2, comm.size, 2)),
            )
            own = comm.Split(comm.rank // 2)
            ring = comm.Create_cart([comm.size], periods=True)
            wrapped, cart = rt.wrap(own), rt.wrap(ring)
            covered = {"Send", "Ssend", "Recv"}  # in point_to_point
            for target, topology in ((rt.comm, False), (half, False), (wrapped, False), (cart, True)):
                calls = list(calls_against_numpy(target, topology))
                covered |= {name for name, _ in calls}
                names = []

                @rt.pipelined
                async def program(z):
                    for _name, make in calls:
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


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_point_to_point(comm):
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
                for operation in (ping, pong) if comm.rank < pair else (pong, ping):
                    await operation
                got[z] = received[0]

            for call in ("Send", "Ssend"):
                got[:] = 0
                rt.pipelined(exchange, skeleton=exchange)(range(8), call)
                if pair < comm.size:
                    np.testing.assert_array_equal(got, 100.0 * np.arange(8) + pair)


@on_ranks(3)
def test_split_that_leaves_a_rank_out(comm):
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


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_small_batches(comm):
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


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_auto_settles(comm):
    """`auto` tries both ways twice, or more often where calls are short; then all ranks keep the same one."""
    with overlap.Runtime(comm, workers=2, depth=3, wait="auto") as rt:
        out = np.zeros(6)

        @rt.pipelined
        async def program(z):
            total = np.array([float(z)])
            await rt.comm.Allreduce(MPI.IN_PLACE, total)
            out[z] = total[0]

        assert program.wait == "auto"
        program([])  # teaches nothing
        used = []
        for _ in range(2 * SHORT_TRIALS):
            out[:] = 0
            program(range(6))
            np.testing.assert_array_equal(out, comm.size * np.arange(6))
            used.append(program.wait)
        same_everywhere(comm, used)
        assert sorted(used[: 2 * TRIALS]) == ["block"] * TRIALS + ["poll"] * TRIALS, used
        program(range(6))
        before = program.wait
        assert before in ("block", "poll")
        program(range(6))
        assert program.wait == before


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_slices_return(comm):
    """What slices return is a list in their order, in every way to wait; None if they return nothing."""
    for wait in ("off", "block", "poll"):
        for workers in (1, 2):
            with overlap.Runtime(comm, workers=workers, depth=3, wait=wait) as rt:

                @rt.pipelined
                async def squared(z):
                    total = np.array([float(z)])
                    await rt.comm.Allreduce(MPI.IN_PLACE, total)
                    return None if z == 5 else (z, total[0] ** 2, comm.rank)

                @rt.pipelined
                async def nothing(z):
                    await overlap.take_turn()

                found = squared([4, 7, 5, 0, 1, 2, 3])
                assert found == [
                    None if z == 5 else (z, (comm.size * z) ** 2, comm.rank) for z in [4, 7, 5, 0, 1, 2, 3]
                ]
                assert nothing(range(4)) is None and squared([]) is None


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_plans_in_slices(comm):
    """A plan that is called in a slice says what works there."""
    with overlap.Runtime(comm) as rt, overlap.FFT2(rt, (4, 8, 8)) as plan:
        u = plan.real.empty()
        u[...] = 1.0

        @rt.pipelined
        async def program(z):
            await overlap.take_turn()
            plan.forward(u)

        for _ in range(3):
            try:
                program(range(6))
            except overlap.SliceError as error:
                told = error.summary
            assert "BusyError" in told and "await `apply` of a Bracket" in told and "`plan.pointwise`" in told, told
        assert plan.forward(u).shape == plan.spectrum.shape


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_options_of_runtimes(comm):
    """A plan says where an option of a runtime, or a setting, belongs; it refuses others as any function does."""
    makers = {
        "FFT2": lambda **options: overlap.FFT2(comm, (2, 4, 6), **options),
        "FFT3": lambda **options: overlap.FFT3(comm, (4, 4, 6), **options),
        "FFTN": lambda **options: overlap.FFTN(comm, (4, 4, 6), **options),
        "Bracket": lambda **options: overlap.Bracket(comm, (2, 2, 3, 5), **options),
        "Transpose": lambda **options: overlap.Transpose(comm, (2, 4, 4), 1, 2, **options),
    }
    for name, make in makers.items():
        for options, text in (
            ({"workers": 4}, rf"{name}\(Runtime\(comm, workers=4\), \.\.\.\)"),
            ({"deadline_s": None}, rf"{name}\(Runtime\(comm, deadline_s=None\)"),
            ({"nonsense": 4}, "unexpected keyword argument 'nonsense'"),
        ):
            with pytest.raises(TypeError, match=text):
                make(**options)
    with pytest.raises(TypeError, match=r"settings=\{'wait': 'poll'\}"):
        makers["FFT3"](wait="poll")


class NoBuffer:
    """An array that gives its memory by DLPack alone."""

    def __init__(self, array):
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_persistent_scans_and_pieces(comm):
    """Requests of scans, and of pieces whose memory only DLPack tells."""
    rank, size = comm.rank, comm.size
    with overlap.Runtime(comm, deadline_s=20) as rt:
        mine, sums, before = np.full(2, rank + 1.0), np.zeros(2), np.full(2, -1.0)
        pieces = np.zeros((size, 3)) if rank == 0 else None
        whole = None if pieces is None else [pieces, (2, 3), MPI.DOUBLE]  # two numbers of each rank, three apart
        kept = [
            rt.comm.Gatherv_init([NoBuffer(mine), MPI.DOUBLE], whole),
            rt.comm.Scan_init(mine, sums),
            rt.comm.Exscan_init(mine, before),
        ]

        @rt.pipelined
        async def program(z):
            for request in kept:
                await request

        program(range(1))
        assert pieces is None or ((pieces[:, :2] == 1.0 + np.arange(size)[:, None]).all() and not pieces[:, 2].any())
        assert (sums == sum(range(1, rank + 2))).all() and (before == (sum(range(1, rank + 1)) if rank else -1)).all()
