"""Halos by remote writes, in drawn orders of everything that several ranks do: all in one process.

The compiled code never waits but in `complete`; what it does between two looks is a step, and steps of different ranks
are taken in the order that hypothesis draws. That ranks do not stop in the middle of a step hides nothing that acquires
and releases would show: the flags are tested for what they promise.
"""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.halo import remote_writes, traffic
from overlap.halo.remote_writes import LinkWindow

CELLS = 3  # of each rank


class Node:
    """What `LinkWindow` asks a communicator for, among threads."""

    def __init__(self, size):
        self.size, self.barrier, self.values = size, threading.Barrier(size, timeout=20), [None] * size

    def seen_by(self, rank):
        return SimpleNamespace(
            rank=rank, size=self.size, allgather=lambda value: self.gathered(rank, value), Barrier=self.barrier.wait
        )

    def gathered(self, rank, value):
        self.values[rank] = value
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()
        return found


class OneProcess(LinkWindow):
    """A window in the memory of this process."""

    def _allocate(self, nbytes):
        memory = np.zeros(nbytes + 64, np.uint8)
        every = self._node.allgather(memory[-memory.ctypes.data % 64 :][:nbytes])
        found = {rank: every[rank] for rank in {self._node.rank, *(self._peers[one.rank] for one in self._traffic)}}
        self._mapped.append(found)
        return found


@pytest.fixture(scope="module", autouse=True)
def polls():
    patch = pytest.MonkeyPatch()
    patch.setattr("overlap.halo.remote_writes.polls_of", lambda comm: 20)
    yield
    patch.undo()


def traffic_of(arrows, rank, size):
    """Messages along arrows (from, to): an owner's cells go to places of their own on the other rank."""
    shape = (CELLS * (size + 1),)

    def fill(source):
        return (slice(CELLS * (source + 1), CELLS * (source + 2)),)

    own = (slice(0, CELLS),)
    return [
        traffic.Traffic(
            other,
            [own] if (rank, other) in arrows else [],
            [fill(rank)] if (rank, other) in arrows else [],
            [fill(other)] if (other, rank) in arrows else [],
            shape,
        )
        for other in range(size)
        if {(rank, other), (other, rank)} & arrows
    ]


def made(arrows, size):
    node, windows = Node(size), [None] * size

    def make(rank):
        coordinator = SimpleNamespace(watching=lambda what: nullcontext())
        windows[rank] = OneProcess(
            coordinator,
            node.seen_by(rank),
            {other: other for other in range(size)},
            traffic_of(arrows, rank, size),
            traffic.LocalArrays((CELLS * (size + 1),), [8]),
            print,
        )
        windows[rank].shared = windows[rank].new_set([((CELLS * (size + 1),), np.dtype(np.int64))])[0]

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return windows


class Rank:
    """A rank that runs through rounds, one step at a time, and compares what it gets."""

    def __init__(self, rank, window, arrows, rounds):
        self.rank, self.window, self.rounds = rank, window, rounds
        self.sources = [source for source, target in arrows if target == rank]
        self.array = np.full(len(window.shared), -1)
        self.steps = self.all_steps()

    def all_steps(self):
        for number in range(1, self.rounds + 1):
            shared = (number + self.rank) % 3 != 0
            array = self.window.shared if shared else self.array
            array[:CELLS] = 1000 * self.rank + 10 * number + np.arange(CELLS)
            array[CELLS:] = -1
            yield
            self.window.sources[0] = array.ctypes.data
            remote_writes.start(self.window.address, 0 if shared else remote_writes.NO_SET)
            yield
            while remote_writes.progress(self.window.address):
                yield
            for source in self.sources:
                np.testing.assert_array_equal(
                    array[CELLS * (source + 1) :][:CELLS], 1000 * source + 10 * number + np.arange(CELLS)
                )
            yield  # others go on: nobody may write before the next start
            for source in self.sources:
                assert array[CELLS * (source + 1)] == 1000 * source + 10 * number


@given(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1), st.lists(st.integers(0, 2), max_size=120))
@settings(max_examples=60, deadline=None)
def test_any_order_of_steps(arrows, order):
    """On any graph, one-way links and links to oneself among them; a rank that only sends may be rounds ahead."""
    rounds, size = 6, 3
    ranks = [Rank(rank, window, arrows, rounds) for rank, window in enumerate(made(arrows, size))]
    left = dict(enumerate(ranks))
    for chosen in [*order, *(step % size for step in range(10_000))]:
        if chosen in left and next(left[chosen].steps, "end") == "end":
            del left[chosen]
        if not left:
            return
    raise AssertionError(f"ranks {list(left)} did not come to their end")


def test_a_sender_is_at_most_two_rounds_ahead():
    """The slots of a receiver that does not come are not written to a third time."""
    sender, receiver = made({(0, 1)}, 2)
    values = np.arange(9)
    sender.sources[0] = values.ctypes.data
    assert [remote_writes.start(sender.address, remote_writes.NO_SET) for _ in range(2)] == [0, 0]
    assert (
        remote_writes.start(sender.address, remote_writes.NO_SET) == 1 and remote_writes.progress(sender.address) == 1
    )
    assert sender.waiting_for == [1]
    target = np.zeros(9, int)
    receiver.sources[0] = target.ctypes.data
    remote_writes.start(receiver.address, remote_writes.NO_SET)
    assert remote_writes.progress(receiver.address) == 0 and remote_writes.progress(sender.address) == 0
    np.testing.assert_array_equal(target[CELLS : 2 * CELLS], values[:CELLS])
