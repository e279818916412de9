"""Error semantics: no hang, ever, and the same exception on all ranks."""

import threading
import time
from functools import partial, wraps
from itertools import product
from unittest import mock

import numpy as np
import pytest
from everywhere import raised, raises_everywhere, same_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI

import overlap
from overlap import RankError
from overlap.collectives import Collectives
from overlap.runtime import barrier, parallel
from overlap.sparse import Matrix

WAITS = ("off", "block", "poll")
PATIENCE_S = 20
SLICES = 13
SITES = ("before", "between", "after", "part", "foreign", "missing", "argument", "count")
BAD_CALLS = ("argument", "count")


class Boom(Exception):
    """The user's own exception."""


class Foreign:
    """Something that can be awaited, but not here."""

    def __await__(self):
        yield "from another framework"


class Program:
    """A slice program with two exchanges and a split step, that fails where it is told to."""

    def __init__(self, rt):
        self.rt = rt
        self.out = np.zeros((SLICES, rt.comm.size))
        self.fault = None  # (rank, slice, site)
        self.before = {}

    def at(self, z, site):
        return self.fault == (self.rt.comm.rank, z, site)

    async def run(self, z):
        comm = self.rt.comm
        if self.at(z, "before"):
            raise Boom(z)
        send = np.full(comm.size, float(z * comm.size + comm.rank))
        recv = np.empty(comm.size)
        if self.at(z, "argument"):
            send = "not a buffer"
        elif self.at(z, "count"):
            send = [send, -3, MPI.DOUBLE]
        await comm.Alltoall(send, recv)
        if self.at(z, "between"):
            raise Boom(z)
        if self.at(z, "foreign"):
            await Foreign()
        if self.at(z, "missing"):
            await None
        await parallel(self.part, [(z, column, recv) for column in range(comm.size)])
        total = np.zeros(1)
        await comm.Allreduce(self.out[z].sum(keepdims=True), total)
        if self.at(z, "after"):
            raise Boom(z)
        self.out[z] += total

    def part(self, where):
        z, column, recv = where
        if column == 0 and self.at(z, "part"):
            raise Boom(z)
        self.out[z, column] = recv[column]

    async def skeleton(self, z):
        comm = self.rt.comm
        await comm.Alltoall(np.zeros(comm.size), np.empty(comm.size))
        await comm.Allreduce(np.zeros(1), np.empty(1))

    def check(self, pipeline):
        """A full run gives the right answer."""
        self.fault = None
        self.out[:] = 0
        pipeline(range(SLICES))
        size = self.rt.comm.size
        row = np.arange(SLICES)[:, None] * size + np.arange(size)
        np.testing.assert_array_equal(self.out, row + size * row.sum(axis=1, keepdims=True))


def check_slice_error(comm, error, rank, z, cause=Boom):
    """One SliceError for all, with the origin's exception as its cause there."""
    same_everywhere(comm, str(error))
    assert (error.rank, error.slice) == (rank, str(z)), error
    assert f"slice {z} failed on rank {rank}" in str(error)
    assert cause.__name__ in error.traceback_text and cause.__name__ in error.summary
    if comm.rank == rank:
        assert type(error.__cause__) is cause, repr(error.__cause__)
    else:
        assert error.__cause__ is None


# ---- a slice that fails ----------------------------------------------------------------------


def fail_and_recover(rt, program, pipeline, fault):
    """One failing run, whose error all ranks agree on, and a right one after it."""
    comm, (rank, z, site) = rt.comm._handle, fault
    program.fault = fault
    error = raised(overlap.SliceError, pipeline, range(SLICES))
    if site in BAD_CALLS:  # mpi4py's own words and type
        cause = comm.bcast(type(error.__cause__) if comm.rank == rank else None, root=rank)
        assert issubclass(cause, (TypeError, ValueError, MPI.Exception)), cause
    else:
        cause = TypeError if site in ("foreign", "missing") else Boom
    check_slice_error(comm, error, rank, z, cause)
    program.check(pipeline)


def injected(comm, wait, hit=(0, 1, 6, SLICES - 1), agree_every=64):
    """Every site, slice and rank, with and without a skeleton."""
    for workers, depth in ((2, 4), (1, 1)):
        with overlap.Runtime(
            comm, workers=workers, depth=depth, wait=wait, deadline_s=10, agree_every=agree_every
        ) as rt:
            program = Program(rt)
            for skeleton in (None, program.skeleton):
                pipeline = rt.pipelined(program.run, skeleton=skeleton)
                program.check(pipeline)
                sites = SITES if depth > 1 else ("before", "part")
                for z, site, rank in product(hit, sites, {0, comm.size - 1}):
                    if site not in BAD_CALLS or skeleton or z >= depth:
                        fail_and_recover(rt, program, pipeline, (rank, z, site))


@on_ranks
@pytest.mark.parametrize(
    "wait, comm, hit, agree_every",
    [
        ("poll", 2, (0, 1, 6, SLICES - 1), 64),
        exhaustive("off", 2, (0, 1, 6, SLICES - 1), 64),
        exhaustive("block", 2, (0, 1, 6, SLICES - 1), 64),
        ("off", 1, (0, 6), 64),
        exhaustive("poll", 1, (0, 6), 3),
        ("block", 3, (0, 6), 64),
        exhaustive("poll", 3, (1, 12), 64),
        exhaustive("block", "openmpi-3", (0, 6), 64),
        exhaustive("poll", "openmpi-3", (0, 6), 64),
    ],
)
def test_failure_at_every_site(comm, wait, hit, agree_every):
    injected(comm, wait=wait, hit=hit, agree_every=agree_every)


@pytest.mark.exhaustive
@on_ranks(4, fresh=True)
@pytest.mark.parametrize("wait, hit, agree_every", [("poll", 6, 1), ("block", 1, 3)])
def test_failure_on_four_ranks(comm, wait, hit, agree_every):
    injected(comm, wait=wait, hit=(hit,), agree_every=agree_every)


@on_ranks(2, exhaustive(3), fresh=True)
def test_bad_start(comm):
    """A call that MPI refuses on one rank, while the runtime does not yet know the program."""
    for wait, site, rank in product(WAITS, BAD_CALLS, range(comm.size)):
        with overlap.Runtime(comm, workers=2, depth=4, wait=wait, deadline_s=5) as rt:
            program = Program(rt)
            pipeline = rt.pipelined(program.run)
            for z in (0, 1, 3):
                fail_and_recover(rt, program, pipeline, (rank, z, site))


@on_ranks(2, exhaustive(3))
def test_no_more_threads(comm):
    """If one rank can start no thread, what needs one fails on all ranks, and can be made later."""
    blocks = overlap.Blocks((4 * comm.size, 4), (comm.size, 1), width=1)
    makers = (
        partial(overlap.Runtime, comm),
        partial(overlap.FFT2, comm, (2, 8, 8)),
        partial(overlap.Halo, comm, blocks),
        partial(Collectives, comm),
        partial(Matrix.from_stencil, comm, (8,), [(0,)], [1.0]),
        partial(overlap.Runtime, comm, workers=2),
    )

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    for number, make in enumerate(makers):
        refused = comm.rank == number % comm.size
        with mock.patch.object(threading.Thread, "start", refuse if refused else threading.Thread.start):
            raises_everywhere(comm, RankError, "can't start new thread", make)
        made = make()
        made.close()


@on_ranks(2, exhaustive(3), "openmpi-2")
def test_several_ranks_at_once(comm):
    """When all ranks fail, each on a slice of its own, they still agree on one error."""
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait, deadline_s=10) as rt:

            @rt.pipelined
            async def program(z, bad):
                buffer = np.ones(2)
                await rt.comm.Allreduce(MPI.IN_PLACE, buffer)
                if z == bad:
                    raise Boom(f"of rank {comm.rank}")
                await rt.comm.Allreduce(MPI.IN_PLACE, buffer)

            for shift in (0, 2):
                error = raises_everywhere(comm, overlap.SliceError, "", program, range(9), comm.rank + shift)
                assert error.slice == str(error.rank + shift)
                assert error.__cause__ is None or f"of rank {comm.rank}" in str(error.__cause__)
                program(range(9), -1)


@on_ranks(2)
def test_hundreds_of_errors(comm):
    """Errors over and over leave nothing behind; the last run is right, the threads are few."""
    with overlap.Runtime(comm, workers=2, depth=4, wait="poll", deadline_s=10) as rt:
        program = Program(rt)
        pipeline = rt.pipelined(program.run)
        before = threading.active_count()
        for number in range(150):
            program.fault = number % comm.size, 2 + number % 7, SITES[number % 4]
            raised(overlap.SliceError, pipeline, range(SLICES))
        program.check(pipeline)
        assert threading.active_count() - before in (0, 3)


@on_ranks(2, exhaustive(3))
def test_results_survive(comm):
    """Draining moves no user's data: what other slices hold is theirs or untouched."""
    for wait, agree_every in product(WAITS, (1, 64)):
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait, deadline_s=10, agree_every=agree_every) as rt:
            recv = np.full((20, comm.size), -1.0)

            @rt.pipelined
            async def program(z):
                await rt.comm.Allgather(np.array([float(z)]), recv[z])
                if z == 4 and comm.rank == 0:
                    raise Boom
                await rt.comm.Barrier()

            raised(overlap.SliceError, program, range(20))
            for z in range(20):
                assert (recv[z] == z).all() or (recv[z] == -1).all() or comm.rank != 0, recv
            assert (recv[0] == 0).all()  # the first slice's buffers are no scratch


@on_ranks(2, exhaustive(3), exhaustive("openmpi-2"))
def test_different_programs(comm):
    """Ranks whose programs await different calls raise one error instead of hanging."""
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait, deadline_s=10) as rt:
            sub = rt.comm.Split(0)

            def program(kind):
                async def run(z):
                    data = np.ones(2)
                    await rt.comm.Allreduce(MPI.IN_PLACE, data)
                    if kind == "short":
                        return
                    if kind == "barrier":
                        await barrier()
                    elif kind == "sub":
                        await sub.Bcast(data)
                    elif kind == "Bcast":
                        await rt.comm.Bcast(data)
                    elif kind == "Send":
                        await rt.comm.Send(data, comm.rank)
                    else:
                        await rt.comm.Barrier()

                return run

            for kind, odd in product(("short", "barrier", "sub", "Bcast", "Send"), {0, comm.size - 1}):
                if comm.size > 1:
                    pipeline = rt.pipelined(program(kind if comm.rank == odd else "usual"))
                    error = raised(overlap.SliceError, pipeline, range(6))
                    same_everywhere(comm, str(error))
                    assert "await different operations" in str(error), error
                    # Collectives of all ranks must match, whatever the program has; messages need not.
                    assert ("needs skeleton=" in str(error)) == (kind == "Send"), error
                rt.pipelined(program("usual"))(range(6))


@on_ranks(2, exhaustive(3))
def test_truncated(comm):
    """A receive that is too short on one rank is an error on all, never a silent wrong answer."""
    for wait, bad in product(WAITS, (0, 7)):
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait, deadline_s=10) as rt:

            @rt.pipelined
            async def program(z, bad):
                short = z == bad and comm.rank == 1
                await rt.comm.Barrier()
                if comm.size > 1:
                    await rt.comm.Bcast(np.zeros(10 if short else 1000), root=0)
                await rt.comm.Barrier()

            raises_everywhere(comm, overlap.SliceError, "", program, range(10), bad)
            program(range(10), -1)


@on_ranks(2, exhaustive(3), fresh=True)
def test_buffers_after_a_bad_start(comm):
    """A call that started on some ranks only is left behind; it must not write any more.

    The same large buffers are used before, in and after the failure.
    """
    for wait in ("block", "poll"):
        with overlap.Runtime(comm, workers=2, depth=2, wait=wait, deadline_s=10) as rt:
            length = 1 << 16

            def slot():
                return np.zeros((2, comm.size, length))

            @rt.pipelined(buffers=slot)
            async def program(z, slot, value, bad):
                send, recv = slot
                send[:] = value + z
                recv[:] = np.nan
                await rt.comm.Alltoall("no buffer" if z == bad else send, recv)
                assert (recv == value + z).all()
                time.sleep(1e-3)
                assert (recv == value + z).all(), "an old exchange wrote into this slot"

            for number in range(8):
                bad = number % 2 if comm.rank == 1 else -1
                raised(overlap.SliceError, program, range(6), -1000.0, bad)
                program(range(6), 10.0 * number, -1)


@on_ranks(2, exhaustive(3))
def test_program_that_cannot_be_called(comm):
    """Wrong arguments of the program itself are an error like any other."""
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait, deadline_s=5) as rt:

            async def program(z):
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))

            def plain(z):
                calls.append(z)

            def passes_on(z):
                return program(z)

            calls = []
            for function in (plain, partial(plain), plain.__get__(0)):
                error = raised(overlap.InputError, rt.pipelined, function)
                assert "expected a coroutine function (`async def`) as program, received" in str(error), error
                assert "plain" in str(error) and not calls
            raises_everywhere(comm, overlap.SliceError, "", rt.pipelined(lambda z: None), range(5))
            raises_everywhere(comm, overlap.SliceError, "", rt.pipelined(program), range(5), "too many")
            for function in (program, partial(program), lambda z: program(z)):
                rt.pipelined(function)(range(5))
            rt.pipelined(wraps(program)(passes_on))(range(5))


@on_ranks(2, exhaustive(3))
def test_rejected_awaits(comm):
    """The text of a call that MPI rejects begins with the slice's await, on all ranks."""
    awaits = [
        'await summed(np.zeros(3, "f4"), np.zeros(3, "f8" if z == bad else "f4"))',
        "await rt.comm.Allreduce(send, receive)",
    ]
    for wait in WAITS:
        with overlap.Runtime(comm, workers=2, depth=3, wait=wait, deadline_s=5) as rt:

            async def summed(send, receive):
                await rt.comm.Allreduce(send, receive)

            async def program(z, bad):
                await summed(np.zeros(3, "f4"), np.zeros(3, "f8" if z == bad else "f4"))

            def known(z, bad):
                return rt.comm.Allreduce(np.zeros(3, "f4"), np.zeros(3, "f4"))

            for skeleton, bad in product((None, "agree", known), (0, 4)):
                pipeline = rt.pipelined(program, skeleton=skeleton)
                error = raises_everywhere(comm, overlap.SliceError, "", pipeline, range(6), bad)
                assert error.slice == str(bad), error
                lines = [line.strip() for line in error.traceback_text.splitlines()]
                assert [line for line in lines if line.startswith("await")] == awaits, error
                if skeleton is None and bad:  # the first slice has shown what slices await
                    assert "received Allreduce(sendbuf=3 of f4, recvbuf=3 of f8" in error.summary, error
                else:
                    assert error.summary == "ValueError: mismatch in send and receive MPI datatypes"
                    assert "overlap/runtime" not in error.traceback_text and len(lines) < 12, error
                pipeline(range(6), -1)


@on_ranks(2, exhaustive(3))
def test_programs_that_clean_up(comm):
    """`try: ... finally:` around awaits, also such that do not end when told to."""
    for wait, agree_every in product(WAITS, (1, 64)):
        with overlap.Runtime(comm, workers=2, depth=4, wait=wait, deadline_s=5, agree_every=agree_every) as rt:
            cleaned = []

            async def polite(z, bad):
                try:
                    await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                    if z == bad:
                        raise Boom
                    await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                finally:
                    cleaned.append(z)

            async def awaits_again(z, bad):
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                if z == bad:
                    raise Boom
                try:
                    await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                finally:
                    await rt.comm.Barrier()

            async def raises_again(z, bad):
                try:
                    await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                    if z == bad:
                        raise Boom
                    await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(1))
                except GeneratorExit:
                    raise KeyError("while closing") from None

            for function in (polite, awaits_again, raises_again):
                pipeline = rt.pipelined(function)
                error = raises_everywhere(
                    comm, overlap.SliceError, "", pipeline, range(12), 5 if comm.rank == 0 else -1
                )
                assert error.slice == "5" and error.rank == 0, error
                pipeline(range(12), -1)
            assert len(cleaned) >= 12


@on_ranks(2, exhaustive(3))
def test_skeletons(comm):
    """A skeleton awaits the same requests: with `parallel` in it or without, barriers too."""
    for wait, split in product(WAITS, (False, True)):
        with overlap.Runtime(comm, workers=2, depth=8, wait=wait, deadline_s=5) as rt:

            async def program(z, bad):
                await parallel(abs, range(3))
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(3))
                await barrier()
                await parallel(abs, range(3))
                if z == bad:
                    raise Boom
                await rt.comm.Bcast(np.ones(5))

            async def skeleton(z, bad):
                if split:
                    await parallel(abs, ())
                await rt.comm.Allreduce(MPI.IN_PLACE, np.ones(3))
                await barrier()
                if split:
                    await parallel(abs, ())
                await rt.comm.Bcast(np.ones(5))

            for slices in (8, 20):
                pipeline = rt.pipelined(program, skeleton=skeleton)
                for bad in (0, 3):
                    error = raised(
                        overlap.SliceError, pipeline, range(slices), bad if comm.rank == comm.size - 1 else -1
                    )
                    check_slice_error(comm, error, comm.size - 1, bad)
                pipeline(range(slices), -1)


@on_ranks(2, exhaustive(3))
def test_first_cause(comm):
    """A rank whose slices fail on what a failed rank sends in place of results is not taken for the cause."""
    last = comm.size - 1
    for wait, workers in (("off", 1), ("block", 2), ("poll", 1), ("poll", 2)):
        with overlap.Runtime(comm, wait=wait, workers=workers, depth=3, deadline_s=20) as rt:

            async def program(z, bad):
                found = np.full(1, float(z))
                await rt.comm.Allreduce(MPI.IN_PLACE, found)
                assert found[0] == comm.size * z, (z, found)
                if z == bad and comm.rank == last:
                    raise Boom(z)
                await rt.comm.Allreduce(MPI.IN_PLACE, found)
                assert found[0] == comm.size**2 * z, (z, found)

            async def skeleton(z, bad):
                for _ in range(2):
                    await rt.comm.Allreduce(MPI.IN_PLACE, np.full(1, -1.0))

            for pipeline in (rt.pipelined(program), rt.pipelined(program, skeleton=skeleton)):
                for count in (9, 9, 9, 1):  # the first one finds out what slices await
                    for bad in (0, count // 2, count - 1):
                        error = raised(overlap.SliceError, pipeline, range(count), bad)
                        check_slice_error(comm, error, last, bad)
                    pipeline(range(count), -1)
