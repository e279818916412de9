"""Awaited calls and their results, in every mode."""

from functools import partial

import numpy as np
import pytest
from everywhere import raised, same_everywhere
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


def calls_against_numpy(comm, topology=False):
    """Every awaitable call, on whatever communicator, with numpy's answer next to it.

    Yields (name, function of the slice that makes the operation and a list of pairs: what is found, what is right).
    """
    size, rank, root = comm.size, comm.rank, comm.size - 1
    counts = np.arange(1, size + 1)
    starts, total = np.cumsum(counts) - counts, int(counts.sum())
    mine = slice(starts[rank], starts[rank] + rank + 1)
    right, left = (rank + 1) % size, (rank - 1) % size

    def of(other, z, length):  # what a rank sends
        return np.arange(length) + 1000.0 * other + 7 * z

    def every(z, length):
        return np.array([of(other, z, length) for other in range(size)])

    def uneven(z):  # rank r sends r + 1 numbers
        return np.concatenate([of(other, z, other + 1) for other in range(size)])

    def here(z, length):
        return of(rank, z, length)

    def at_root(found, truth):
        return [(found, truth)] if rank == root else []

    def bcast(z, data):
        return comm.Bcast(data, root=root), [(data, of(root, z, 5))]

    def gather(z, out):
        return comm.Gather(here(z, 3), out if rank == root else None, root=root), at_root(out, every(z, 3))

    def gatherv(z, out):
        operation = comm.Gatherv(here(z, rank + 1), [out, counts, starts, MPI.DOUBLE], root=root)
        return operation, at_root(out, uneven(z))

    def scatter(z, out):
        return comm.Scatter(here(z, 2 * size), out, root=root), [(out, of(root, z, 2 * size)[2 * rank :][:2])]

    def scatterv(z, out):
        operation = comm.Scatterv([here(z, total), counts, starts, MPI.DOUBLE], out, root=root)
        return operation, [(out, of(root, z, total)[mine])]

    def allgather(z, out):
        return comm.Allgather(here(z, 3), out), [(out, every(z, 3))]

    def allgatherv(z, out):
        return comm.Allgatherv(here(z, rank + 1), [out, counts, starts, MPI.DOUBLE]), [(out, uneven(z))]

    def alltoall(z, out):
        return comm.Alltoall(here(z, 2 * size), out), [(out, every(z, 2 * size)[:, 2 * rank :][:, :2].ravel())]

    def alltoallv(z, out):  # rank r sends c + 1 numbers to rank c
        received, places = np.full(size, rank + 1), np.arange(size) * (rank + 1)
        operation = comm.Alltoallv([here(z, total), counts, starts, MPI.DOUBLE], [out, received, places, MPI.DOUBLE])
        return operation, [(out, every(z, total)[:, mine].ravel())]

    def alltoallw(z, out):
        received, places, types = np.full(size, rank + 1), np.arange(size) * (rank + 1), [MPI.DOUBLE] * size
        operation = comm.Alltoallw([here(z, total), counts, 8 * starts, types], [out, received, 8 * places, types])
        return operation, [(out, every(z, total)[:, mine].ravel())]

    def reduce(z, out):
        return comm.Reduce(here(z, 4), out, op=MPI.SUM, root=root), at_root(out, every(z, 4).sum(0))

    def allreduce(z, out):
        return comm.Allreduce(here(z, 4), out, op=MPI.MAX), [(out, every(z, 4).max(0))]

    def reduce_scatter(z, out):
        return comm.Reduce_scatter(here(z, total), out, list(counts)), [(out, every(z, total).sum(0)[mine])]

    def reduce_scatter_block(z, out):
        truth = every(z, 2 * size).sum(0)[2 * rank :][:2]
        return comm.Reduce_scatter_block(here(z, 2 * size), out), [(out, truth)]

    def scan(z, out):
        return comm.Scan(here(z, 3), out), [(out, every(z, 3)[: rank + 1].sum(0))]

    def exscan(z, out):
        return comm.Exscan(here(z, 3), out), [(out, every(z, 3)[:rank].sum(0))] if rank else []

    def sendrecv(z, out):
        return comm.Sendrecv(here(z, 3), right, 7, out, left, 7), [(out, of(left, z, 3))]

    def sendrecv_replace(z, data):
        return comm.Sendrecv_replace(data, left, 5, source=right, recvtag=5), [(data, of(right, z, 3))]

    def neighbours(z, name):  # a ring: the neighbours are left, then right
        if name.startswith("Neighbor_allgather"):
            send, out, truth = here(z, 3), np.empty((2, 3)), [of(left, z, 3), of(right, z, 3)]
            buffer = out if name == "Neighbor_allgather" else [out, [3, 3], [0, 3], MPI.DOUBLE]
            return getattr(comm, name)(send, buffer), [(out, truth)]
        send, out, layout = here(z, 4), np.empty(4), []
        if name != "Neighbor_alltoall":
            layout = [[2, 2], [0, 2], MPI.DOUBLE] if name[-1] == "v" else [[2, 2], [0, 16], [MPI.DOUBLE] * 2]
        operation = getattr(comm, name)([send, *layout] if layout else send, [out, *layout] if layout else out)
        truth = np.concatenate([of(left, z, 4)[2:], of(right, z, 4)[:2]])
        return operation, [(out, truth)] if size > 2 else []  # with one neighbour MPI leaves the pairing open

    if topology:
        for name in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw"):
            yield f"Neighbor_{name}", partial(neighbours, name=f"Neighbor_{name}")
        return
    yield "Barrier", lambda z: (comm.Barrier(), [])
    for function, shape in (
        (gather, (size, 3)),
        (gatherv, total),
        (scatter, 2),
        (scatterv, rank + 1),
        (allgather, (size, 3)),
        (allgatherv, total),
        (alltoall, 2 * size),
        (alltoallv, size * (rank + 1)),
        (alltoallw, size * (rank + 1)),
        (reduce, 4),
        (allreduce, 4),
        (reduce_scatter, rank + 1),
        (reduce_scatter_block, 2),
        (scan, 3),
        (exscan, 3),
        (sendrecv, 3),
    ):
        yield function.__name__.capitalize(), lambda z, make=function, shape=shape: make(z, np.zeros(shape))
    for function, length in ((bcast, 5), (sendrecv_replace, 3)):  # from and to one array
        yield function.__name__.capitalize(), lambda z, make=function, n=length: make(z, here(z, n))


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
                    for _, make in calls:
                        operation, pairs = make(z)
                        names.append(operation.name)
                        await operation
                        for found, truth in pairs:
                            np.testing.assert_array_equal(found, truth)

                program(range(5))
                assert set(names) == {name for name, _ in calls}
            own.Free()
            ring.Free()
            assert covered == set(CALLS), covered ^ set(CALLS)
            assert not [name for name in CALLS if not callable(getattr(AsyncComm, name))]


@on_ranks(2, exhaustive(4), exhaustive("openmpi-2"))
def test_ranks_outside(comm):
    """A runtime of some ranks wraps communicators of these alone, also one with a side each."""
    half = comm.Split(comm.rank % 2)
    sides = half.Create_intercomm(0, comm, 1 - comm.rank % 2)
    with overlap.Runtime(half) as rt:
        for other in (comm, sides):
            assert f"with {comm.size // 2} other(s)" in str(raised(overlap.InputError, rt.wrap, other))
        assert "expected a communicator" in str(raised(overlap.InputError, rt.wrap, MPI.COMM_NULL))
    with overlap.Runtime(comm) as rt:
        between, received = rt.wrap(sides), np.empty((3, comm.size // 2), int)

        @rt.pipelined
        async def program(z):
            await between.Allgather(np.array([comm.rank + z]), received[z])
            assert received[z].tolist() == [rank + z for rank in range(comm.size) if rank % 2 != comm.rank % 2]

        program(range(3))
    sides.Free()
    half.Free()


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
            ({"nonsense": 4}, rf"^{name}\(\) got an unexpected keyword argument 'nonsense'; its arguments are comm, "),
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
