"""Halos on 1 to 5 ranks, over both transports, and mixed."""

import glob
import os
import signal
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import jobs
import numpy as np
import pytest
from everywhere import raises_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI

from overlap import Blocks, Halo, InputError, RankError, Runtime, SliceError
from overlap.halo import halo as halo_module
from overlap.ranks import segments


def drawn_blocks(chance, size):
    """Blocks of one to three dimensions, with any widths."""
    axes = int(chance.integers(1, 4))
    grid = [1] * axes
    left = size
    for prime in (2, 2, 2, 3, 5, 7):
        if left % prime == 0:
            left //= prime
            grid[chance.integers(axes)] *= prime
    grid[0] *= left
    shape = [int(chance.integers(3 * parts, 3 * parts + 4)) for parts in grid]
    options = dict(
        width=[tuple(map(int, chance.integers(0, 4, 2))) for _ in range(axes)],
        periodic=[bool(one) for one in chance.integers(0, 2, axes)],
        corners=bool(chance.integers(2)),
    )
    try:
        return Blocks(shape, grid, weights=chance.choice([0.001, 1, 2], size), **options)
    except InputError:  # narrower than the ghost cells
        return Blocks(shape, grid, **options)


def fill(blocks, rank, array, number):
    """Own cells by their global numbers, and what the ghost cells must become, -1 where nothing comes."""
    cells = number + np.arange(np.prod(blocks.shape)).reshape(blocks.shape)
    components = array.shape[len(blocks.shape) :]
    array[...] = -1
    array[blocks.own(rank)] = spread(cells[blocks.part(rank)], components)
    expected = array.copy()
    for one in blocks.neighbours(rank):
        there = [
            slice(side.start - own.start + part.start, side.stop - own.start + part.start)
            for side, own, part in zip(one.send, blocks.own(one.rank), blocks.part(one.rank))
        ]
        expected[one.receive] = spread(cells[tuple(there)], components)
    return expected


def spread(values, components):
    return np.broadcast_to(values.reshape(values.shape + (1,) * len(components)), values.shape + components)


def _apart(comm):
    """Ranks of one parity, as if they were a node of their own."""
    node = comm.Split(comm.rank % 2, comm.rank)
    return node, node.Free


def rounded(array):
    """Numbers of double precision as they are after they have been singles; others as they are."""
    single = {"f8": "f4", "c16": "c8"}.get(array.dtype.str[1:])
    return array if single is None else array.astype(single).astype(array.dtype)


def blocks(comm, transport, seeds=(0,), mixed=False, exchange=None):
    """All that there is of structured halos: drawn dimensions, widths, types, rounds with and without shared arrays.

    With `exchange` every ghost cell has a rounded number, whichever way it came.
    """
    before = halo_module.node_of
    if mixed:
        halo_module.node_of = _apart
    try:
        for seed in seeds:
            chance = np.random.default_rng(seed)
            where = drawn_blocks(chance, comm.size)
            types = [[np.float64], ["c16", ("f4", (3,)), "i2"], [("f8", (2, 2)), np.float32]][seed % 3]
            with Halo(comm, where, types, transport=transport, exchange=exchange) as halo:
                doubles = [np.dtype(one).base in (np.float64, np.complex128) for one in types]
                assert [one.itemsize for one in halo.exchange_dtypes] == [
                    np.dtype(one).base.itemsize // (2 if double and exchange else 1)
                    for one, double in zip(types, doubles)
                ]
                assert halo.local_shape == where.local_shape(comm.rank)
                if mixed:
                    assert all(
                        (name == "window") == ((rank - comm.rank) % 2 == 0) for rank, name in halo.transports.items()
                    )
                shared = halo.empty()
                private = [np.zeros_like(array) for array in shared]
                for number in range(8):
                    arrays = shared if (number + seed * comm.rank) % 2 else private
                    expected = [fill(where, comm.rank, array, number) for array in arrays]
                    for array, right in zip(arrays, expected) if exchange else ():
                        if array.dtype.kind in "fc":
                            array /= 3
                            right /= 3
                        for one in where.neighbours(comm.rank):
                            right[one.receive] = rounded(right[one.receive])
                    if number % 3:
                        halo.exchange(*arrays)
                    else:
                        pending = halo.start(*arrays)
                        while not pending.test():
                            pass
                        pending.wait()
                    for array, right in zip(arrays, expected):
                        np.testing.assert_array_equal(array, right)
    finally:
        halo_module.node_of = before


@on_ranks
@pytest.mark.parametrize(
    "comm, transport, seeds, mixed",  # mixed: some neighbours are on the node and some not
    [
        *((ranks, transport, [0, 1, 2, 3], False) for ranks in (1, 2) for transport in ("window", "messages")),
        *(exhaustive(4, transport, [0, 1, 2, 3], False) for transport in ("window", "messages")),
        (3, "auto", [0, 1, 2, 3, 4, 5], True),
        exhaustive(4, "auto", [0, 1, 2, 3, 4, 5], True),
        ("openmpi-2", "auto", [1, 2], False),
    ],
)
def test_blocks(comm, transport, seeds, mixed):
    blocks(comm, transport, seeds, mixed)
    if mixed:
        blocks(comm, transport, seeds[:3], mixed, exchange="f4")


@on_ranks(3)
def test_apart(comm):
    """Where ranks of a node have files of their own, as in containers, it is said why, and messages are taken; a window
    that is asked for is refused.
    """
    before, where = segments._FOLDER, Blocks((3 * comm.size,), (comm.size,))
    with tempfile.TemporaryDirectory() as folder:
        segments._FOLDER = Path(folder)
        try:
            with Halo(comm, where) as halo:
                assert set(halo.transports.values()) == {"messages"}
                assert "cannot map each other's memory here" in halo.reason and "No such file" in halo.reason
                (u,) = halo.empty()
                expected = fill(where, comm.rank, u, 1)
                halo.exchange(u)
                np.testing.assert_array_equal(u, expected)
            raises_everywhere(comm, InputError, "No such file", lambda: Halo(comm, where, transport="window"))
        finally:
            segments._FOLDER = before


@on_ranks(exhaustive(1), 2, exhaustive(3))
@pytest.mark.parametrize("transport", ["window", "messages"])
def test_doubles_travel_as_singles(comm, transport):
    """Blocks, lists of entries, what is not finite, numbers that are too large, slices."""
    blocks(comm, transport, [0, 1, 2], exchange="f4")
    size, last = comm.size, comm.rank == comm.size - 1
    whole = np.random.default_rng(3).standard_normal((6 * size, 2, 3))
    whole[0], whole[1, 0, 0], whole[-1, 0, :2] = 1e-300, np.nan, (np.inf, -np.inf)
    owned = np.random.default_rng(4).permutation(6 * size).reshape(size, 6)
    needed = [np.random.default_rng(rank).permutation(np.delete(owned, rank, 0).ravel())[:7] for rank in range(size)]
    with Halo.from_indices(
        comm, owned[comm.rank], needed[comm.rank], [("f8", (3,)), "c16", "i8"], transport=transport, exchange="f4"
    ) as halo:
        for number in range(4):
            arrays = halo.empty() if number % 2 else [np.zeros(shape, dtype) for shape, dtype in halo._arrays.kinds]
            everything = whole[:, 0], whole[:, 1, 0] + 1j * whole[:, 1, 1], np.arange(len(whole)) + (1 << 40)
            for array, values in zip(arrays, everything):
                array[:6] = values[owned[comm.rank]]
            halo.exchange(*arrays)
            for array, values in zip(arrays, everything):
                np.testing.assert_array_equal(array[:6], values[owned[comm.rank]])
                np.testing.assert_array_equal(array[6:], rounded(values[needed[comm.rank]]))

    row = Blocks((4 * size,), (size,), periodic=True)
    with Halo(comm, row, [float, np.float32], transport=transport, exchange="f4") as halo:
        shared, private = halo.empty(), (np.zeros(halo.local_shape), np.zeros(halo.local_shape, np.float32))
        for number, arrays in enumerate((shared, private) * 2):
            for array in arrays:
                array[...] = comm.rank
            arrays[0][[1, -2]] = -1e300 if comm.rank == number % size else 3e38

            def rounds():
                for _ in range(10):  # who is no neighbour may end one round before it is told
                    halo.exchange(*arrays)
                    assert np.isfinite(arrays[0]).all()

            raises_everywhere(comm, InputError, f"rank {number % size}: expected numbers of at most 3.4e+38", rounds)
            expected = [fill(row, comm.rank, array, number) for array in arrays]
            halo.exchange(*arrays)
            for array, right in zip(arrays, expected):
                np.testing.assert_array_equal(array, right)

    for wait in ("off", "poll"):
        with Runtime(comm, wait=wait) as runtime, Halo(runtime.comm, row, transport=transport, exchange="f4") as halo:
            u = np.zeros(halo.local_shape)
            expected = rounded(fill(row, comm.rank, u, 0) / 3)
            u /= 3
            expected[row.own(comm.rank)] = u[row.own(comm.rank)]

            @runtime.pipelined
            async def program(number):
                await halo(u)

            program(range(1))
            np.testing.assert_array_equal(u, expected)
            u[1] = 1e300 if last else 0.0
            raises_everywhere(comm, SliceError, "expected numbers of at most 3.4e+38", lambda: program(range(1)))
            u[1] = 0.0
            program(range(1))
            assert np.isfinite(u).all()

    for options in (
        {"exchange": "f8"},
        {"exchange": "f4" if last and size > 1 else 4},
        {"exchange": "f4", "dtypes": np.float32},
        {"exchange": "f4", "dtypes": ["i4", "c8"]},
    ):
        raises_everywhere(comm, InputError, "expected", lambda: Halo(comm, row, **options))


@on_ranks(1, 2)
@pytest.mark.parametrize("transport", ["window", "messages"])
def test_arrays_outlive_a_halo(comm, transport):
    """The arrays of a halo are there after it, on each rank as long as that rank wants."""
    where = Blocks((5 * comm.size, 4), (comm.size, 1), periodic=True)
    kept = None
    for number in range(3):
        with Halo(comm, where, ["f8", "i4"], transport=transport) as halo:
            u, v = halo.empty()
            expected, _ = fill(where, comm.rank, u, number), fill(where, comm.rank, v, 1)
            halo.exchange(u, v)
        halo.free()
        del halo
        np.testing.assert_array_equal(u, expected)
        if comm.rank == number % comm.size:  # others drop theirs
            kept = u, expected
        del u, v
        comm.Barrier()
        np.testing.assert_array_equal(*kept or (0, 0))
        if kept:
            kept[0][...] = number
            kept = kept[0], np.full_like(kept[1], number)
    assert not glob.glob(f"/dev/shm/{segments.PREFIX}{os.getpid()}_*")


@on_ranks(1, 3)
def test_planes_without_a_copy(comm):
    """Slabs travel without a copy; more arrays than have requests of their own, on some ranks in another order."""
    where = Blocks((3 * comm.size, 4), (comm.size, 1), width=((1, 1), 0), periodic=(True, False))
    arrays = np.zeros((40, *where.local_shape(comm.rank)))
    with Halo(comm, where, transport="messages") as halo:
        for number in range(60):
            array = arrays[(number * (1 + 2 * comm.rank)) % 40]
            expected = fill(where, comm.rank, array, number)
            halo.exchange(array)
            np.testing.assert_array_equal(array, expected)


@on_ranks(1, 3)
def test_in_slice_programs(comm):
    """`await halo(u)` and `begin`, where ranks have different numbers of neighbours."""
    for wait in ("off", "poll"):
        with Runtime(comm, wait=wait, depth=2) as runtime:
            where = Blocks((3 * comm.size, 4), (comm.size, 1), width=1, periodic=(False, True))
            halos = [Halo(runtime.comm, where) for _ in range(2)]
            arrays = np.zeros((2, *where.local_shape(comm.rank)))
            expected = [fill(where, comm.rank, array, number) for number, array in enumerate(arrays)]

            @runtime.pipelined
            async def program(number):
                if number:
                    await halos[number](arrays[number])
                else:
                    pending = await halos[number].begin(arrays[number])
                    await pending

            program(range(2))
            np.testing.assert_array_equal(arrays, expected)
            halos[0].exchange(arrays[0])
            np.testing.assert_array_equal(arrays[0], expected[0])
            for halo in halos:
                halo.free()


@on_ranks(3)
def test_wrong_arguments(comm):
    """Refused by all ranks with the same words, and nothing is left behind."""
    row = Blocks((4 * comm.size,), (comm.size,))
    last = comm.size - 1
    for text, make in (
        (f"expected a grid of {comm.size} ranks, received (7,)", lambda: Halo(comm, Blocks((14,), (7,)))),
        (
            "expected transport to be one of auto, window, messages, received 'post'",
            lambda: Halo(comm, row, transport="post"),
        ),
        (
            "expected a data type, or a list of them, received 'f3' (data type 'f3' not understood)",
            lambda: Halo(comm, row, "f3" if comm.rank == last else "f8"),
        ),
        (
            "expected the same on all ranks, received",
            lambda: Halo(comm, Blocks((4 * comm.size,), (comm.size,), width=1 + (comm.rank == last))),
        ),
        (
            "expected transport to be one of auto, ",
            lambda: Halo(comm, row, transport=None if comm.rank == last else "auto"),
        ),
        ("expected Blocks, received NoneType", lambda: Halo(comm, None if comm.rank == last else row)),
        ("expected deadline_s to be", lambda: Halo(comm, row, deadline_s="1" if comm.rank == last else 1.0)),
        (
            "expected every entry that is needed to have an owner, received 99",
            lambda: Halo.from_indices(comm, [comm.rank], [99] if comm.rank == last else []),
        ),
        ("expected every entry to have one owner, received 5 twice", lambda: Halo.from_indices(comm, [5], [])),
        (
            "expected owned to be a list of integers >= 0, received an array of shape (1,) and type int64 from -1",
            lambda: Halo.from_indices(comm, [-1 if comm.rank == last else comm.rank], []),
        ),
        ("expected every number of needed once", lambda: Halo.from_indices(comm, [comm.rank], [0, 0])),
    ):
        raises_everywhere(comm, InputError, text, make)

    class Conversion:
        def __array__(self, *_, **__):
            raise ZeroDivisionError("of the user's")

    mine = [comm.rank]
    raises_everywhere(
        comm,
        RankError,
        f"failed on rank {last}: ZeroDivisionError",
        lambda: Halo.from_indices(comm, Conversion() if comm.rank == last else mine, []),
    )
    Halo.from_indices(comm, mine, []).free()


@on_ranks(3)
@pytest.mark.parametrize("transport", ["window", "messages"])
def test_failed_in_the_next_round(comm, transport):
    """A round ends well on a rank that waits for a late one, although a third has gone on and failed in the next."""
    where = Blocks((4 * comm.size,), (comm.size,))
    u = np.zeros(where.local_shape(comm.rank))
    with Halo(comm, where, transport=transport) as kept:
        for number in range(3):
            expected = fill(where, comm.rank, u, number)
            comm.Barrier()
            if comm.rank == 2:
                time.sleep(0.3)  # rank 1 waits for it, rank 0 does not
            kept.exchange(u)
            np.testing.assert_array_equal(u, expected)

            def rounds():
                for _ in range(10):
                    kept.exchange([] if comm.rank == 0 else u)

            raises_everywhere(comm, InputError, "rank 0: expected an array", rounds)


@on_ranks(3)
@pytest.mark.parametrize("transport", ["window", "messages"])
def test_wrong_arrays(comm, transport):
    """A wrong array on one rank: all raise the same, a rank that is not its neighbour too; the next round is right."""
    where = Blocks((4 * comm.size,), (comm.size,))
    with Halo(comm, where, transport=transport) as kept:
        (u,) = kept.empty()
        v = np.zeros(6)
        for number in range(4):
            last = number % comm.size

            def rounds():
                for _ in range(10):  # who is no neighbour may end one round before it is told
                    kept.exchange([] if comm.rank == last else u)

            raises_everywhere(comm, InputError, f"rank {last}: expected an array", rounds)
            for array in (u, v):
                expected = fill(where, comm.rank, array, number)
                kept.exchange(array)
                np.testing.assert_array_equal(array, expected)
            (u,) = kept.empty() if number == 2 else (u,)
    for wrong, text in (
        (np.zeros(3), "type float64, received (3,) and float64"),
        (np.zeros(6, "f4"), "received (6,) and float32"),
        ([0.0] * 6, "expected an array, received list"),
        (np.zeros(12)[::2], "contiguous in C order"),
        (np.ma.zeros(6), "received MaskedArray"),
    ):
        halo = Halo(comm, Blocks((4 * comm.size,), (comm.size,)), transport=transport)

        def rounds():
            for number in range(10):
                halo.exchange(wrong if comm.rank == 0 and number == 2 else np.zeros(6))

        raises_everywhere(comm, InputError, text, rounds)
        halo.free()


@on_ranks(2)
@pytest.mark.parametrize("transport", ["window", "messages"])
def test_late_in_recovery(comm, transport):
    """A rank that is late to take back a failed round's receives gets the next round's messages all the same."""
    where = Blocks((4 * comm.size,), (comm.size,))
    with Halo(comm, where, transport=transport, deadline_s=5.0) as halo:
        u = np.zeros(6)
        raises_everywhere(comm, InputError, "expected an array", lambda: halo.exchange([] if comm.rank == 0 else u))
        watching = halo.coordinator.watching

        @contextmanager
        def late(what):
            with watching(what) as control_comm:
                if comm.rank == 1:
                    time.sleep(0.2)
                    control_comm.Iprobe()  # MPI takes what has arrived
                yield control_comm

        halo.coordinator.watching = late
        for number in range(3):
            expected = fill(where, comm.rank, u, number)
            halo.exchange(u)
            np.testing.assert_array_equal(u, expected)


@on_ranks(2)
@pytest.mark.parametrize("transport", ["window", "messages"])
def test_started_twice(comm, transport):
    halo = Halo(comm, Blocks((4 * comm.size,), (comm.size,)), transport=transport)
    halo.start(np.zeros(6))

    def again():
        if comm.rank == 0:
            halo.start(np.zeros(6))
        for _ in range(3):
            halo._wait()
            halo.exchange(np.zeros(6))

    raises_everywhere(comm, InputError, "expected wait() for the round before", again)
    halo.free()


@on_ranks(2)
@pytest.mark.parametrize("transport", ["window", "messages"])
def test_interrupted(comm, transport):
    """An exception of one rank while it waits is that rank's, and a `RankError` on the others."""
    halo = Halo(comm, Blocks((4 * comm.size,), (comm.size,)), transport=transport)
    try:
        if comm.rank == 0:
            halo._waiting_for = None
            halo._bounded._deadline_s = "none"  # to compare with it raises a TypeError
        if comm.rank != 1:
            halo.exchange(np.zeros(6))
            halo.exchange(np.zeros(6))
        else:
            while not comm.Iprobe(0, 5):
                pass
            comm.recv(source=0, tag=5)
            halo.exchange(np.zeros(6))
            halo.exchange(np.zeros(6))
    except TypeError:
        assert comm.rank == 0
        comm.send(None, 1, 5)
    except RankError as error:
        assert comm.rank != 0 and error.rank == 0 and "TypeError" in str(error)
    else:
        raise AssertionError("no rank may go on")
    halo.free()


def lost_while_made(comm, what):
    """The last rank is stopped before the others make, or free, something with all of them."""
    row = Blocks((4 * comm.size,), (comm.size,))
    halo = Halo(comm, row, deadline_s=1)
    comm.Barrier()
    if comm.rank == comm.size - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    {"made": lambda: Halo(comm, row, deadline_s=1), "freed": halo.free, "arrays": halo.empty}[what]()


def never_comes(comm):
    halo = Halo(comm, Blocks((4 * comm.size,), (comm.size,)), deadline_s=3.0)  # making it takes a while, too
    if comm.rank == 0:
        MPI.COMM_WORLD.recv(source=1)
    halo.exchange(np.zeros(6))


def test_a_rank_that_never_comes_ends_the_job():
    result = jobs.run_job("test_halo:never_comes", 2, expect_failure=True)
    assert "a halo exchange has not completed" in result.err and "rank 0 does not take part" in result.err


@pytest.mark.parametrize("what", ["made", exhaustive("freed"), exhaustive("arrays")])
def test_a_rank_that_is_stopped_ends_the_job_with_stacks(what):
    result = jobs.run_job("test_halo:lost_while_made", 3, args={"what": what}, expect_failure=True)
    assert "has not completed in 1." in result.err and "(deadline_s=1)" in result.err, result
    assert "in lost_while_made" in result.err, result
