"""The runtime's invariants (docs/design.md names them), on 1 to 4 ranks and two MPI libraries."""

import threading
import time
from contextlib import contextmanager

import jobs
import numpy as np
import pytest
from everywhere import same_everywhere
from marks import exhaustive, on_ranks
from mpi4py import MPI

import overlap
from overlap.runtime import parallel
from overlap.runtime.requests.requests import Operation

WAITS = ("off", "block", "poll")
PATIENCE_S = 20  # for something that must come; only a failing test waits that long


@contextmanager
def issued():
    """Yield a list that grows by every operation issued to MPI, as a pair (operation, thread)."""
    record = []
    original = Operation.make

    def spy(operation, blocking):
        record.append((operation, threading.current_thread()))
        original(operation, blocking)

    Operation.make = spy
    try:
        yield record
    finally:
        Operation.make = original


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
        return {
            "Bcast": np.full(size, sent[z % size]),
            "Alltoall": sent,
            "Allreduce": np.full(size, sent.sum()),
            "Allgather": np.repeat(sent, size),
        }[kind]

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


@on_ranks(1, exhaustive(2), 3, exhaustive(4), "openmpi-2")
def test_forced_order(comm):
    """Every rank's steps end in an order of their own; the issue order is the same everywhere.

    Four workers and four slots: all four steps that the gates hold back can run at once.
    """
    slots, awaits, slices = 4, 3, 12
    orders = {}
    for wait in WAITS:
        with overlap.Runtime(comm, workers=slots, depth=slots, wait=wait, agree_every=5) as rt:
            tagged = Tagged(rt.comm)
            shuffle = np.random.default_rng(comm.rank)
            gates = {
                (group, position): Gates(group * slots + shuffle.permutation(slots))
                for group in range(slices // slots)
                for position in range(awaits)
            }

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


class Spy:
    """In an MPI communicator's place: notes which threads use it."""

    def __init__(self, handle, threads):
        self._handle = handle
        self._threads = threads

    def __getattr__(self, name):
        self._threads.add(threading.current_thread().name)
        return getattr(self._handle, name)


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_one_thread_talks(comm):
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


# ---- core tokens, exchanges in flight --------------------------------------------------------------


def _most_at_once(intervals):
    changes = sorted([(end, -1) for _, end in intervals] + [(start, 1) for start, _ in intervals])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


@on_ranks(2)
def test_core_tokens(comm):
    """With `block`, steps and the communicator inside MPI never exceed N; the trace is witness."""
    most = {}
    for wait in ("block", "poll"):
        for workers in (1, 2, 3):
            with overlap.Runtime(comm, workers=workers, depth=6, wait=wait, trace=True, agree_every=4) as rt:

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
                calls = [span for span in rt.trace.spans() if span.kind == "call"]
                assert [span.label.partition(": ")[2].partition(",")[0] for span in calls] == [wait]
                assert abs(calls[0].end_s - calls[0].start_s - rt.load.wall_s) < 1e-6
                spans = [span for span in rt.trace.spans() if span.kind != "call"]
            kinds = {span.kind for span in spans}
            assert kinds == {"compute", "communicate"}
            most[wait, workers] = _most_at_once([(span.start_s, span.end_s) for span in spans])
            if wait == "block":
                assert most[wait, workers] <= workers, most
    assert most["poll", 1] > 1, "the control: exchanges in flight take no core token"


@on_ranks(2)
@pytest.mark.parametrize("first", [False, True])
def test_exchanges_in_flight(comm, first):
    """No more operations in flight than `in_flight`, and as many where nothing else holds.

    The last rank issues its 40th operation (the program is known by then) when the first has issued
    `in_flight` from that one on: none of these can have completed before.
    """
    held, last = 40, comm.size - 1
    original = Operation.make
    for in_flight in (1, 2, 5):
        count = 0

        def make(operation, blocking):
            nonlocal count
            count += 1
            if comm.rank == last > 0 and count == held:
                comm.Recv(np.zeros(1), 0)
            original(operation, blocking)
            if comm.rank == 0 < last and count == held + in_flight - 1:
                comm.Send(np.zeros(1), last)

        with overlap.Runtime(comm, workers=2, depth=6, wait="poll", in_flight=in_flight, trace=True) as rt:

            async def program(z):
                buffer = np.ones(20000)
                for _ in range(3):
                    await rt.comm.Allreduce(MPI.IN_PLACE, buffer)

            Operation.make = make
            try:
                rt.pipelined(program, skeleton=None if first else program)(range(30))
            finally:
                Operation.make = original
            spans = [span for span in rt.trace.spans() if "slice" in span.label]
            most = _most_at_once([(span.start_s, span.end_s) for span in spans if span.kind == "communicate"])
            assert most <= in_flight, (most, in_flight)
            if comm.rank == 0 < last:
                assert most == in_flight, (most, in_flight)


def thread_level_is_told(comm, level):
    """Plans and runtimes say the thread level of MPI; several of them are made."""
    with overlap.Runtime(comm) as rt, overlap.Runtime(comm), overlap.FFT2(rt, (2, 4, 6)) as plan:
        assert f"MPI at {level}" in repr(rt) and f"MPI at {level}" in plan.describe()


@pytest.mark.parametrize(
    "level, notes, ranks, lines",
    [
        ("multiple", "all", 2, 1),
        ("multiple", "", 2, 0),
        ("serialized", "all", 2, 0),
        exhaustive("multiple", "all", 1, 0),
    ],
)
def test_a_thread_level_that_costs_time_is_told_once(level, notes, ranks, lines):
    env = {"MPI4PY_RC_THREAD_LEVEL": level, "OVERLAP_NOTES": notes}
    result = jobs.run_job("test_runtime:thread_level_is_told", ranks, env=env, args={"level": level})
    told = [line for line in result.err.splitlines() if "MPI runs at MULTIPLE" in line]
    assert len(told) == lines and all('mpi4py.rc.thread_level = "serialized"' in line for line in told)


@on_ranks(1, 2)
def test_a_call_outside_of_slice_programs_warns(comm):
    """Nobody awaits it, so nothing is sent; a request that slices await later is none of these."""
    with overlap.Runtime(comm) as rt:
        with pytest.warns(RuntimeWarning, match="Allreduce on communicator 0 was never awaited, so nothing was done"):
            rt.comm.Allreduce(np.ones(1), np.zeros(1))
        total = np.zeros(1)
        early = rt.comm.Allreduce(np.ones(1), total)

        async def program(z):
            await early

        rt.pipelined(program, skeleton=lambda z: rt.comm.Allreduce(np.ones(1), np.zeros(1)))([0])
        assert total[0] == comm.size
