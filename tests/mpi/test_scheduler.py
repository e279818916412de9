"""The scheduler at its edges: waits without end, single issues, irregular programs, leftovers."""

import gc
import threading
import time
import weakref
from itertools import product

import numpy as np
from communicators import few_left
from everywhere import raised, same_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI
from test_errors import PATIENCE_S, WAITS, Boom, check_slice_error

import overlap
from overlap.errors import CommunicatorsExhausted
from overlap.runtime import barrier, parallel, take_turn, wait_for_slices
from overlap.runtime.scheduling.job import Job

# ---- waits, single issues, what is kept ------------------------------------------------------


def wait_without_end(comm):
    """A wait that nobody can end is an error on all ranks, at once and in every mode."""
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait, deadline_s=10) as rt:

            async def crossed(z):  # slice 0 waits at the barrier for slice 1, which waits for slice 0
                if z == 1:
                    await wait_for_slices(1)
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                await barrier()

            async def late(z):  # slice 2 waits for slice 1, whose second operation comes later
                if z == 2:
                    await wait_for_slices(2)
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

            async def both(z):
                for _ in range(2):
                    await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

            async def skeleton(z):
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                await barrier()

            for program, known, bad in ((crossed, skeleton, 1), (crossed, None, 1), (late, both, 2), (late, None, 2)):
                error = raised(overlap.SliceError, rt.pipelined(program, skeleton=known), range(6))
                same_everywhere(comm, str(error))
                assert error.slice == str(bad) and "waits for ever" in error.summary, error
                rt.pipelined(both)(range(5))


def nothing_is_kept(comm):
    """When a call has ended its arrays can go, without another call or a garbage collection."""
    for wait, known in product(WAITS, (True, False)):
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait, deadline_s=10, agree_every=2) as rt:

            async def program(z, data):
                await rt.comm.Allreduce(MPI.IN_PLACE, data[z])
                await parallel(np.sum, [data[z]] * 3)

            async def skeleton(z, data):
                await rt.comm.Allreduce(MPI.IN_PLACE, np.zeros(4))

            pipeline = rt.pipelined(program, skeleton=skeleton if known else None)
            gc.collect()
            gc.disable()
            try:
                data = np.ones((6, 4))
                kept = weakref.ref(data)
                pipeline(range(6), data)
                del data
                end = time.monotonic() + PATIENCE_S  # a worker may be on its way out
                while kept() is not None and time.monotonic() < end:
                    time.sleep(1e-3)
                assert kept() is None, gc.get_referrers(kept())
            finally:
                gc.enable()


def first_of_parallel(comm):
    """`parallel` raises the first exception, not the last one."""
    original = Job.fail
    for wait in ("block", "poll"):
        with overlap.Runtime(comm, workers=2, depth=2, wait=wait, deadline_s=10) as rt:
            failed, both = threading.Event(), threading.Barrier(2)

            def fail(job, key, error):
                original(job, key, error)
                failed.set()

            def part(number):
                both.wait(PATIENCE_S)
                if number:
                    assert failed.wait(PATIENCE_S)
                raise Boom(f"part {number}")

            seen = []

            async def program(z):
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                try:
                    await parallel(part, range(2))
                except Boom as error:
                    seen.append(str(error))
                    raise

            Job.fail = fail
            try:
                error = raised(overlap.SliceError, rt.pipelined(program), [0])
            finally:
                Job.fail = original
            assert "part 0" in error.summary and seen == ["part 0"], (error, seen)


# ---- programs that do not await the same everywhere ------------------------------------------


def _irregular(rt, kind, z, data):
    """The second operation of a slice; that of slice 4 and later is odd in one way."""
    comm, odd = rt.comm, kind is not None and z >= 4
    size, one = comm.size, int(odd)
    last = size - 1 if odd else 0
    if kind == "root":
        return comm.Bcast(data, root=last)
    if kind == "gather root":
        return comm.Gather(data, np.empty((size, 4)), root=last)
    if kind == "tag":
        return comm.Sendrecv(data, (comm.rank + 1) % size, one, np.empty(4), (comm.rank - 1) % size, one)
    if kind == "peer":
        step = 1 + odd
        return comm.Sendrecv(data, (comm.rank + step) % size, 5, np.empty(4), (comm.rank - step) % size, 5)
    if kind == "count":
        return comm.Allreduce(MPI.IN_PLACE, data[: 4 - one])
    if kind == "type":
        return comm.Allreduce(MPI.IN_PLACE, data.view("i8") if odd else data)
    if kind == "operation":
        return comm.Allreduce(MPI.IN_PLACE, data, MPI.MAX if odd else MPI.SUM)
    return comm.Barrier() if odd else comm.Allreduce(MPI.IN_PLACE, data)


KINDS = ("root", "gather root", "tag", "peer", "count", "type", "operation", "call")


def _right_again(rt, calls=3):
    """Calls whose roots and tags depend on the slice, against what they must give."""
    comm = rt.comm
    rank, size = comm.rank, comm.size

    async def program(z, out):
        row = out[z]
        row[:4] = 10.0 * z + rank
        await comm.Bcast(row[:4], root=z % size)
        send = np.array([100.0 * z + rank])
        await comm.Sendrecv(send, (rank + 1) % size, z, row[4:5], (rank - 1) % size, z)
        gathered = np.zeros(size)
        await comm.Gather(send, gathered, root=(z + 1) % size)
        row[5] = gathered.sum()

    for _ in range(calls):
        out = np.full((9, 6), np.nan)
        rt.pipelined(program, skeleton="agree" if rt.wait == "off" else program)(range(9), out)
        for z in range(9):
            want = np.full(6, 10.0 * z + z % size)
            want[4] = 100.0 * z + (rank - 1) % size
            want[5] = sum(100.0 * z + r for r in range(size)) if rank == (z + 1) % size else 0
            np.testing.assert_array_equal(out[z], want)


def irregular_without_skeleton(comm):
    """A program whose slices await differently needs a skeleton; all ranks are told so, at once."""
    for wait, workers in product(WAITS, (1, 2)):
        with overlap.Runtime(comm, workers=workers, depth=3, wait=wait, deadline_s=10) as rt:

            async def program(z, kind, fewer=False):
                data = np.ones(4)
                await rt.comm.Allreduce(MPI.IN_PLACE, data)
                if fewer and z >= 4:
                    return
                await _irregular(rt, kind, z, data)

            for kind in KINDS:
                if comm.size == 1 and kind in ("root", "gather root", "peer"):
                    continue
                if comm.size == 2 and kind == "peer":
                    continue
                error = raised(overlap.SliceError, rt.pipelined(program), range(9), kind)
                same_everywhere(comm, str(error))
                assert "position 1 differs: expected" in str(error), error
                assert "skeleton=" in str(error) and error.slice in "456", error
                _right_again(rt, 1)
            error = raised(overlap.SliceError, rt.pipelined(program), range(9), "call", True)
            same_everywhere(comm, str(error))
            assert "received the end of the slice" in str(error), error
            error = raised(overlap.SliceError, rt.pipelined(program), range(2, 9), "call", True)
            assert "position" in str(error), error
            _right_again(rt, 1)
            # While the program is learned, slices differ from the first one already.
            error = raised(overlap.SliceError, rt.pipelined(program), (1, 4, 2, 3), "root" if comm.size > 1 else "tag")
            same_everywhere(comm, str(error))
            assert "position 1 differs" in str(error), error
            _right_again(rt)


def one_rank_is_irregular(comm):
    """Where one rank alone leaves its recorded program, it drains with that and the others go on."""
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait, deadline_s=10, agree_every=3) as rt:

            async def program(z, kind):
                data = np.ones(4)
                await rt.comm.Allreduce(MPI.IN_PLACE, data)
                await _irregular(rt, kind, z if comm.rank == comm.size - 1 else 0, data)

            for kind in ("root", "tag", "count", "operation", "call"):
                if kind == "root" and comm.size == 1:
                    continue
                error = raised(overlap.SliceError, rt.pipelined(program), range(12), kind)
                same_everywhere(comm, str(error))
                assert error.rank == comm.size - 1 and "position 1 differs" in str(error), error
                _right_again(rt)


def ranks_await_otherwise(comm):
    """The same call with another operation, root, type or count on one rank is named on all."""
    odd = comm.rank == comm.size - 1
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait, deadline_s=10, agree_every=4) as rt:

            async def program(z, kind):
                data = np.ones(4)
                await rt.comm.Allreduce(MPI.IN_PLACE, data)
                await _irregular(rt, kind, 4 if odd else 0, data)

            def regular(z, kind):
                return program(z, None)

            for kind, known in product(("root", "count", "type", "operation", "call"), (False, True)):
                if known and kind in ("root", "count", "call"):
                    continue  # MPI itself hangs or fails there
                if comm.size > 1:
                    pipeline = rt.pipelined(program, skeleton=program if known else None)
                    error = raised(overlap.SliceError, pipeline, range(9), kind)
                    same_everywhere(comm, str(error))
                    assert "await different operations" in str(error), error
                    assert f"(rank {comm.size - 1})" in str(error), error
                rt.pipelined(program, skeleton=regular)(range(9), None)
                _right_again(rt, 1)


def nothing_is_left_behind(comm):
    """After failures at every place of asymmetric programs, the next calls are right, bit for bit."""
    pair = comm.rank ^ 1
    for wait, agree_every in product(WAITS, (1, 3)):
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait, deadline_s=10, agree_every=agree_every) as rt:

            async def exchange(z, bad, site):
                send, received = np.array([100.0 * z + comm.rank]), np.empty(1)
                if z == bad and site == 0:
                    raise Boom
                if pair < comm.size:
                    there = rt.comm.Send(send, pair, z)
                    back = rt.comm.Recv(received, pair, z)
                else:
                    there = back = take_turn()
                for place, operation in enumerate((there, back) if comm.rank < pair else (back, there)):
                    await operation
                    if z == bad and site == place + 1:
                        raise Boom
                await rt.comm.Bcast(np.zeros(2), root=z % comm.size)

            def awaits(z, bad, site):
                return exchange(z, -1, 0)

            pipeline = rt.pipelined(exchange, skeleton=awaits)
            for (bad, site), rank in product(((0, 0), (1, 1), (0, 2), (5, 1)), {0, comm.size - 1}):
                error = raised(overlap.SliceError, pipeline, range(12), bad if comm.rank == rank else -1, site)
                check_slice_error(comm, error, rank, bad)
                pipeline(range(5), -1, 0)
                _right_again(rt)


@on_ranks(exhaustive(1), 2, exhaustive(3), fresh=True)
def test_on_any_number_of_ranks(comm):
    wait_without_end(comm)
    nothing_is_kept(comm)
    first_of_parallel(comm)
    irregular_without_skeleton(comm)
    one_rank_is_irregular(comm)
    ranks_await_otherwise(comm)
    nothing_is_left_behind(comm)


@on_ranks(2, fresh=True)
def test_messages_between_slices(comm):
    """Messages from one slice to another that a failure leaves behind reach no later call."""
    pair = comm.rank ^ 1
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=2, wait=wait, deadline_s=10, agree_every=1) as rt:

            async def handed_on(z, bad):  # what slice z sends, slice z + 6 receives
                if z == bad:
                    raise Boom
                await rt.comm.Barrier()
                if pair < comm.size:
                    if z < 6:
                        await rt.comm.Send(np.array([1000.0 + z]), pair, z)
                    else:
                        got = np.empty(1)
                        await rt.comm.Recv(got, pair, z - 6)
                        assert got[0] == 1000.0 + z - 6

            async def awaits(z, bad):
                await rt.comm.Barrier()
                if pair < comm.size:
                    await (rt.comm.Send(np.zeros(1), pair, z) if z < 6 else rt.comm.Recv(np.empty(1), pair, z - 6))

            pipeline = rt.pipelined(handed_on, skeleton=awaits)
            pipeline(range(12), -1)
            for bad in (0, 2, 5, 8):
                raised(overlap.SliceError, pipeline, range(12), bad if comm.rank == 0 else -1)
                _right_again(rt)
                pipeline(range(12), -1)


@on_ranks(2, fresh=True)
def test_more_failures_than_mpi_has_communicators(comm):
    """A call that no rank can start needs no communicator; one that some can ends in time, named."""
    with overlap.Runtime(comm, workers=1, depth=2, wait="off", deadline_s=10) as rt:

        async def program(z, data, received):
            await rt.comm.Allreduce(data, received)

        pipeline = rt.pipelined(program)
        with few_left(comm, 8):
            for _ in range(30):
                raised(overlap.SliceError, pipeline, range(3), "no buffer", np.zeros(2))
        pipeline(range(3), np.zeros(2), np.zeros(2))
        locked = np.zeros(2)
        locked.flags.writeable = comm.rank > 0
        for number in range(2200):  # MPI takes it on some ranks only  # noqa: B007 (used below)
            error = raised((overlap.SliceError, CommunicatorsExhausted), pipeline, range(3), np.zeros(2), locked)
            if not isinstance(error, overlap.SliceError):
                break
        same_everywhere(comm, str(error))
        if comm.size > 1:
            assert isinstance(error, CommunicatorsExhausted) and number >= 400, (number, error)
            again = raised(CommunicatorsExhausted, pipeline, range(3), np.zeros(2), np.zeros(2))
            assert "can only be closed" in str(again)
        else:
            pipeline(range(3), np.zeros(2), np.zeros(2))
