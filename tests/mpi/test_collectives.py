"""Collectives by remote writes, on 1 to 8 ranks and two MPI libraries."""

import random
import threading
import time
from unittest import mock

import numpy as np
import pytest
from everywhere import outcome
from marks import exhaustive, on_ranks
from mpi4py import MPI
from test_collectives_drawn import KINDS, good

from overlap import compiled
from overlap.collectives import Collectives, Op
from overlap.collectives.combine import DTYPES, operations_of
from overlap.collectives.protocol import INSIDE
from overlap.collectives.window import Window
from overlap.compiled.memory import address_of, load_acquire
from overlap.errors import BusyError, ClosedError

FEW_SIZES = [0, 1, 7, 1000]
SIZES = [0, 1, 6, 7, 128, 1000, 20_000]
NUMPY = {
    Op.SUM: np.add,
    Op.PROD: np.multiply,
    Op.MIN: np.minimum,
    Op.MAX: np.maximum,
    Op.LAND: np.logical_and,
    Op.LOR: np.logical_or,
    Op.LXOR: np.logical_xor,
    Op.BAND: np.bitwise_and,
    Op.BOR: np.bitwise_or,
    Op.BXOR: np.bitwise_xor,
}


def values(dtype, count, seed):
    """Small whole numbers, whose sums and products are exact in every type."""
    return np.random.default_rng(seed).integers(0, 3, count).astype(dtype)


def everything(fast, comm, count, root, seed):
    """All seven, compared with MPI's."""
    rank, size = comm.rank, comm.size
    mine = values("f8", count, [seed, rank])
    found, expected = np.zeros(count), np.zeros(count)
    fast.Allreduce(mine, found)
    comm.Allreduce(mine, expected)
    assert (found == expected).all(), (found, expected)
    found[:] = expected[:] = -1
    fast.Reduce(mine, found if rank == root else None, root=root)
    comm.Reduce(mine, expected if rank == root else None, root=root)
    assert (found == expected).all()
    found[:] = mine
    fast.Bcast(found, root)
    assert (found == values("f8", count, [seed, root])).all()
    all_found, all_expected = np.zeros((size, count)), np.zeros((size, count))
    comm.Allgather(mine, all_expected)
    fast.Allgather(mine, all_found)
    assert (all_found == all_expected).all()
    all_found[:] = -1
    fast.Gather(mine, all_found if rank == root else None, root)
    assert (all_found == (all_expected if rank == root else -1)).all()
    pieces = values("f8", size * count, [seed, root, 1]).reshape(size, count)
    fast.Scatter(pieces if rank == root else None, found, root)
    assert (found == pieces[rank]).all()
    fast.Barrier()


def all_seven(comm, counts, max_nbytes=2**16, flat=None):
    """Every size with every root."""
    with Collectives(comm, max_nbytes=max_nbytes) as fast:
        if flat is not None:
            _use_trees(fast, flat)
        for seed, count in enumerate(counts):
            for root in range(comm.size):
                everything(fast, comm, count, root, seed)


@on_ranks
@pytest.mark.parametrize(
    "comm, counts", [(1, FEW_SIZES), (2, SIZES), (3, FEW_SIZES), *[exhaustive(ranks, SIZES) for ranks in (1, 3, 4)]]
)
def test_all_seven_with_every_root(comm, counts):
    all_seven(comm, counts=counts)


@on_ranks(exhaustive(2), 3, exhaustive(5))
def test_trees(comm):
    """What more ranks use than a test can start."""
    all_seven(comm, counts=[1, 6, 7], flat=1)


@on_ranks
@pytest.mark.parametrize("comm, counts", [(2, [1000, 20_000]), exhaustive(3, [1000, 131_072])])
def test_messages_of_many_pieces(comm, counts):
    all_seven(comm, counts=counts, max_nbytes=1000)


@pytest.mark.exhaustive
@on_ranks(8)
def test_all_seven_on_up_to_eight_ranks(comm):
    """The same of the first ranks, of so many."""
    for size in range(5, 9):
        some = comm.Split(0 if comm.rank < size else MPI.UNDEFINED)
        if some != MPI.COMM_NULL:
            all_seven(some, counts=[1, 7])
            some.Free()


def _use_trees(fast, flat):
    from overlap.collectives import protocol

    fast._window.state[protocol.FLAT] = flat


ALL_OPERATIONS = np.dtype("i4"), np.dtype("f8")


@on_ranks(1, 3)
@pytest.mark.parametrize("few", [True, exhaustive(False)])
def test_types_and_operations(comm, few):
    """Every operation on two types, and every type with one operation at least, against NumPy.

    With `few` every operation once. Each pair is compiled for itself: all of them would take minutes on every rank.
    """
    seen = set()
    with Collectives(comm) as fast:
        for code, dtype in enumerate(DTYPES):
            for number, op in enumerate(operations_of(code)):
                if dtype not in ALL_OPERATIONS and number != code % len(operations_of(code)):
                    continue
                if few and (op in seen or (dtype not in ALL_OPERATIONS and not dtype.names)):
                    continue
                seen.add(op)
                if dtype.names:
                    _pairs(fast, comm, dtype, op)
                    continue
                mine = values(dtype, 5, [comm.rank, code])
                found, everybodys = np.zeros(5, dtype), np.zeros((comm.size, 5), dtype)
                fast.Allreduce(mine, found, op)
                comm.Allgather(mine.view(np.uint8), everybodys.view(np.uint8))
                # One rank's values are MPI's result as they are, of logical operations too.
                expected = mine if comm.size == 1 else NUMPY[op].reduce(everybodys)
                assert (found == expected).all(), (dtype, op, found, expected)


def _pairs(fast, comm, dtype, op):
    mine = np.zeros(4, dtype)
    mine["value"] = values("i4", 4, [comm.rank, 9])
    mine["index"] = comm.rank
    found = np.zeros(4, dtype)
    fast.Allreduce(mine, found, op)
    everybodys = np.array(comm.allgather(mine["value"]))
    best = (everybodys.argmax if op == Op.MAXLOC else everybodys.argmin)(0)
    assert (found["index"] == best).all() and (found["value"] == everybodys[best, range(4)]).all()


@on_ranks(1, 3)
def test_scalars(comm):
    rank, size = comm.rank, comm.size
    with Collectives(comm) as fast:
        for value, expected in (
            (1.5, 1.5 * size),
            (rank, size * (size - 1) // 2),
            (1j, 1j * size),
            (np.float32(0.5), np.float32(0.5 * size)),
        ):
            found = fast.allreduce(value)
            assert found == expected, (found, expected)
        assert fast.allreduce(rank == 0, Op.LOR) is True
        assert fast.allreduce(rank, MPI.MAX) == size - 1
        assert fast.allreduce((float(-rank), rank), MPI.MAXLOC) == (0.0, 0)
        assert fast.allreduce((2.0, rank), op=Op.MINLOC) == (2.0, 0)


@on_ranks
@pytest.mark.parametrize("comm, flat", [(2, 8), exhaustive(4, 8), exhaustive(4, 1), (3, 1)])
def test_the_same_to_the_last_bit(comm, flat):
    """Sums of numbers that do not add up exactly; the order is that of the ranks."""
    with Collectives(comm) as fast:
        _use_trees(fast, flat)
        for seed in range(20):
            mine = np.random.default_rng([seed, comm.rank]).standard_normal(3)
            found, everybodys = np.zeros(3), np.zeros((comm.size, 3))
            time.sleep(random.random() * 1e-3)
            fast.Allreduce(mine, found)
            comm.Allgather(mine, everybodys)
            expected = everybodys[0].copy()
            for one in everybodys[1:]:
                expected += one
            if flat >= comm.size:
                assert found.tobytes() == expected.tobytes()
            assert len(set(comm.allgather(found.tobytes()))) == 1


def many_rounds(comm, rounds, seed=0):
    """Back to back, with changing data and collectives, and ranks that are late now and then."""
    late, which = random.Random(comm.rank), random.Random(seed)
    with Collectives(comm) as fast:
        for number in range(rounds):
            if late.random() < 0.002:
                time.sleep(late.random() * 2e-3)
            good(comm, which.choice(KINDS), which.randrange(comm.size), number, count=8)(fast)


@on_ranks
@pytest.mark.parametrize("comm, rounds", [(2, 20_000), exhaustive(2, 100_000), (3, 3_000), exhaustive(4, 3_000)])
def test_rounds_back_to_back(comm, rounds):
    many_rounds(comm, rounds=rounds)


@compiled.njit
def _loop(fast, rounds, rank, size, block, pieces):
    """The same for compiled code; returns the first round whose result is wrong, or -1."""
    for number in range(rounds):
        root = number * 7919 % size
        block[:] = number + rank
        if fast.allreduce(1.0 * number + rank) != size * number + size * (size - 1) / 2:
            return number
        fast.Allgather(block, pieces)
        for other in range(size):
            if pieces[other, 0] != number + other or pieces[other, -1] != number + other:
                return number
        fast.Bcast(block, root)
        if block[0] != number + root or block[-1] != number + root:
            return number
        fast.Reduce(block, pieces[0], Op.MAX, root)
        if rank == root and pieces[0, 0] != number + root:
            return number
        block[:] = number + rank
        fast.Gather(block, pieces, root)
        if rank == root and (pieces[0, 0] != number or pieces[size - 1, -1] != number + size - 1):
            return number
        for other in range(size):
            pieces[other] = number - other
        fast.Scatter(pieces, block, root)
        if block[0] != number - rank:
            return number
        fast.Allreduce(block, pieces[0])
        if pieces[0, -1] != size * number - size * (size - 1) / 2:
            return number
        fast.Barrier()
    return -1


def compiled_loop(comm, rounds):
    with Collectives(comm) as fast:
        found = _loop(fast, rounds, comm.rank, comm.size, np.zeros(33), np.zeros((comm.size, 33)))
        assert found == -1, found


@on_ranks
@pytest.mark.parametrize("comm, rounds", [(1, 100), (2, 100_000), (3, 2_000), exhaustive(4, 2_000)])
def test_rounds_in_compiled_code(comm, rounds):
    compiled_loop(comm, rounds=rounds)


@on_ranks("openmpi-2")
def test_under_open_mpi(comm):
    all_seven(comm, counts=[1, 7, 9000])
    test_scalars(comm)
    compiled_loop(comm, rounds=1000)


@pytest.mark.exhaustive
@on_ranks("openmpi-3")
def test_on_three_ranks_under_open_mpi(comm):
    all_seven(comm, counts=[1, 7, 9000])
    test_scalars(comm)
    test_other_arguments(comm)
    test_freed(comm)
    compiled_loop(comm, rounds=1000)


@pytest.mark.exhaustive
@on_ranks("openmpi-2")
def test_nodes_under_open_mpi(comm):
    compiled_loop(comm, rounds=10000)


@on_ranks(1, 3)
def test_other_arguments(comm):
    """In-place, other spellings, memory that is no ndarray, nothing at all."""
    rank, size = comm.rank, comm.size
    with Collectives(comm) as fast:
        both = np.full(3, rank + 1)
        fast.Allreduce(MPI.IN_PLACE, both, MPI.SUM)
        assert (both == size * (size + 1) // 2).all()
        for root in range(size):
            both[:] = rank + 1
            fast.Reduce(MPI.IN_PLACE if rank == root else both, both, root=root)
            assert (both == (size * (size + 1) // 2 if rank == root else rank + 1)).all()
        everybodys = np.full((size, 2), -1.0)
        everybodys[rank] = rank
        fast.Allgather(MPI.IN_PLACE, everybodys)
        assert (everybodys == np.arange(size)[:, None]).all()
        data = bytearray([rank] * 3)
        fast.Bcast(data, root=np.int64(size - 1))
        assert data == bytearray([size - 1] * 3)
        _moved(fast, comm, "m8[s]")
        fast.Allreduce(np.zeros(0), np.zeros(0))
        fast.Bcast(np.zeros((0, 3)))
        volume = np.full((2, 3, 4), 1.0, np.float32)
        total = np.empty_like(volume)
        fast.Allreduce(volume, total)
        assert (total == size).all()


def _moved(fast, comm, dtype):
    """Values are moved as they are, though there are no reductions of their type."""
    first = comm.rank == 0
    block = np.arange(3).astype(dtype) * first
    pieces = np.zeros((comm.size, 3), block.dtype)
    fast.Bcast(block)
    fast.Gather(block, pieces if first else None)
    fast.Scatter(pieces if first else None, block)
    fast.Allgather(block, pieces)
    assert (pieces == np.arange(3).astype(block.dtype)).all(), (dtype, pieces)


@pytest.mark.exhaustive
@on_ranks(1, 3)
def test_types_without_reductions(comm):
    with Collectives(comm) as fast:
        for dtype in "egG":
            _moved(fast, comm, dtype)


@on_ranks(2)
def test_many_instances(comm, count=60):
    several = [Collectives(comm, max_nbytes=1024) for _ in range(count)]
    for number, fast in enumerate(several):
        assert fast.allreduce(number) == comm.size * number
    for fast in several[::2]:
        fast.free()
    for number, fast in enumerate(several[1::2]):
        assert fast.allreduce(number) == comm.size * number
        fast.free()


@on_ranks(1, 3)
def test_freed(comm):
    fast = Collectives(comm)
    fast.free()
    fast.free()
    for call in (fast.Barrier, lambda: fast.allreduce(1.0), lambda: _once(fast)):
        with pytest.raises(ClosedError, match="closed"):
            call()


@on_ranks(3)
def test_beside_another_thread(comm):
    """A second thread's calls, `close` among them, are refused; the call of the first one goes on."""
    fast, ends = Collectives(comm), []
    calling = threading.Thread(target=lambda: ends.append(_sum_of(fast, 10)))
    if comm.rank == 0:
        calling.start()
        while not fast._window.state[INSIDE]:
            time.sleep(0.001)
        for call in (fast.close, fast.Barrier, lambda: fast.allreduce(1.0), lambda: _once(fast)):
            with pytest.raises(BusyError, match="while another thread is in one"):
                call()
        assert calling.is_alive() and not fast.closed and not fast.broken
        comm.send(None, 1)
        calling.join()
    else:
        if comm.rank == 1:
            comm.recv(source=0)
        ends.append(_sum_of(fast, 10))
    assert ends == [10.0 * comm.size], ends
    fast.close()


@on_ranks(1)
def test_closed_in_the_middle(comm):
    """Closed at any time while another thread calls, an instance raises here or there, and nothing is lost."""
    for pause_us in range(0, 2000, 100):
        fast, ends = Collectives(comm), []
        calling = threading.Thread(target=lambda: ends.append(outcome(lambda: _sum_of(fast, 200_000))))
        calling.start()
        time.sleep(1e-6 * pause_us)
        while outcome(fast.close) is not None:
            pass
        calling.join()
        assert fast.closed
        assert ends[0] is None or type(ends[0]) in (BusyError, ClosedError), ends


@on_ranks(1)
def test_a_thread_that_is_refused_writes_to_no_memory_that_is_freed(comm):
    """A thread begins a call in the middle of another's close, and raises only when the memory is gone."""
    before, flag = Window.spoil, np.zeros(1, np.int64)

    def spoil(window):
        before(window)
        flag[0] = 1
        started = time.perf_counter()
        while time.perf_counter() - started < 1e-3:  # the other thread waits for the interpreter meanwhile
            pass

    for _ in range(5):
        fast, ends = Collectives(comm), []
        flag[0] = 1
        _called_at(fast, flag)  # compiled now
        flag[0] = 0
        calling = threading.Thread(target=lambda: ends.append(outcome(lambda: _called_at(fast, flag))))
        calling.start()
        time.sleep(1e-2)
        with mock.patch.object(Window, "spoil", spoil):
            fast.close()
        calling.join()
        assert type(ends[0]) in (BusyError, ClosedError), ends


@compiled.njit
def _called_at(fast, flag):
    """Make a collective as soon as a flag is set."""
    while load_acquire(address_of(flag)) == 0:
        pass
    return fast.allreduce(1.0)


@compiled.njit
def _sum_of(fast, count):
    total = 0.0
    for _ in range(count):
        total += fast.allreduce(1.0)
    return total


@compiled.njit
def _once(fast):
    return fast.allreduce(1.0)


@on_ranks(3)
def test_sub_communicators(comm):
    half = comm.Split(comm.rank % 2, -comm.rank)
    with Collectives(comm) as whole, Collectives(half) as fast:
        for _ in range(50):
            assert fast.allreduce(1) == half.size
            assert whole.allreduce(1) == comm.size
            block = np.array([comm.rank])
            fast.Bcast(block, half.size - 1)
            assert block[0] == comm.rank % 2
    half.Free()
