"""Halos by remote writes: ranks of one node write data into each other's memory.

A *link* joins two ranks, one that sends and one that receives. Rounds are numbered from 1 and every round has one
message per link. Two pairs of flags in a shared window, each written by one rank alone, carry round numbers:

* The receiver's *request*, read by the sender: the receiver's round, the set of shared arrays into which the data go
  (or none), and the last round that the receiver has completed.
* The sender's *delivery*, read by the receiver, one for odd and one for even rounds: the round whose data have been
  written, and where they are.

The receiver starts a round by a request. The sender writes the payload once and then the delivery, by a release. If the
receiver has requested it and is in the same round already, the payload goes directly into the ghost cells, else into
the slot of the round in the receiver's segment. There are two slots, used alternately; that of round k is free when
round k - 2 is complete. So a sender waits only if the receiver is a whole round late; data that cannot be sent at the
start are sent while the sender tests or waits. When the receiver finds the delivery, it copies data from the slot to
the ghost cells, unless they are there already, and notes the round as completed.

From the request to the delivery of a round the ghost cells belong to the neighbour, at other times to their owner: no
write precedes the request of its round.

Order in memory: payload and the words of a flag are plain stores before a `store_release` of the round number, and
plain loads after a `load_acquire` of it (`compiled.memory`). Because both sides map the same memory
(`ranks.segments`), this is enough on ARM, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

from ..compiled import njit
from ..compiled.copy_table import CopyTable, execute
from ..compiled.memory import (
    LINE,
    address_of,
    begin_wait,
    call_python,
    load,
    load_acquire,
    pause,
    store,
    store_release,
    waited,
    whole_lines,
    words,
)
from ..errors import InputError
from ..ranks.rendezvous import polls_of
from ..ranks.segments import segments
from ..ranks.standalone_coordinator import StandaloneCoordinator
from .traffic import LocalArrays, Traffic, swapped

# Words of a rank's state; then the links.
# `OVERFLOW` is the address of a word that copies set if a number is too large to be sent as a single, or 0.
ROUND, LINKS, POLLS, ATTEND, SCRATCH, SOURCES, BROKEN, OVERFLOW, STATE = range(9)
# Words of a link: whether sending and receiving are still to be done in this round, and whether they exist at all; the
# part of the own segment for the other rank, the part of the other rank's segment for this one, and the bytes of their
# slots; tables of copies into a slot, into shared arrays, and from a slot to the ghost cells; the addresses of the sets
# of shared arrays.
(SENDING, RECEIVING, SENDS, RECEIVES, MINE, THEIRS, MY_SLOT_NBYTES, THEIR_SLOT_NBYTES) = range(8)
(INTO_SLOT, INTO_SLOT_ROWS, DIRECT, DIRECT_ROWS, FROM_SLOT, FROM_SLOT_ROWS, SETS, PEER) = range(8, 16)
LINK = 16

# A part of a segment: the other rank's request; in cache lines of their own, the last round that it has completed and
# its deliveries of odd and even rounds; the slots for its data. A request is the round and the set of arrays, a
# delivery the round and whether the data are in the ghost cells.
SET, COMPLETED, DELIVERIES, IN_PLACE, SLOTS = 8, LINE, 2 * LINE, 8, 4 * LINE
NO_SET = -1
MOST_SETS = 64


@njit
def start(state_at: Any, set_number: Any) -> Any:
    """Begin a round: request data, into a set of shared arrays or `NO_SET`, and send the data that can be sent."""
    state = words(state_at)
    state[ROUND] += 1
    number = state[ROUND]
    for place in range(state[LINKS]):
        link = words(state_at + 8 * (STATE + LINK * place))
        if link[RECEIVES]:
            link[RECEIVING] = 1
            store(link[THEIRS] + SET, set_number)
            store_release(link[THEIRS], number)
    left = 0
    for place in range(state[LINKS]):
        link = words(state_at + 8 * (STATE + LINK * place))
        if link[SENDS]:
            link[SENDING] = 1
            left += send(state, link, number)
        left += link[RECEIVING]
    return left


@njit
def send(state: Any, link: Any, number: Any) -> Any:
    """Send the payload of a round if the receiver is ready for it; return whether it is still to be sent.

    A payload with a number that is too large for a single is never sent; the caller raises an error.
    """
    request, place = link[MINE], number & 1
    delivery = link[THEIRS] + DELIVERIES + place * LINE
    asked = load_acquire(request)
    wanted = load(request + SET, number) if asked == number else NO_SET
    if wanted != NO_SET:
        execute(link[DIRECT], link[DIRECT_ROWS], state[SOURCES], words(link[SETS])[wanted])
        store(delivery + IN_PLACE, 1)
    elif load_acquire(request + COMPLETED) >= number - 2:
        store(state[SCRATCH], link[THEIRS] + SLOTS + place * link[THEIR_SLOT_NBYTES])
        execute(link[INTO_SLOT], link[INTO_SLOT_ROWS], state[SOURCES], state[SCRATCH])
        store(delivery + IN_PLACE, 0)
    else:
        return 1
    if state[OVERFLOW] and load(state[OVERFLOW], number):
        return 1
    store_release(delivery, number)
    link[SENDING] = 0
    return 0


@njit
def receive(state: Any, link: Any, number: Any) -> Any:
    """Take the payload of a round if it has arrived; return whether it is still to be taken."""
    place = number & 1
    delivery = link[MINE] + DELIVERIES + place * LINE
    if load_acquire(delivery) != number:
        return 1
    if load(delivery + IN_PLACE, number) == 0:
        store(state[SCRATCH], link[MINE] + SLOTS + place * link[MY_SLOT_NBYTES])
        execute(link[FROM_SLOT], link[FROM_SLOT_ROWS], state[SCRATCH], state[SOURCES])
    store_release(link[THEIRS] + COMPLETED, number)
    link[RECEIVING] = 0
    return 0


@njit
def progress(state_at: Any) -> Any:
    """Send and take the payloads that are ready; return how many messages of the round are left."""
    state = words(state_at)
    number, left = state[ROUND], 0
    for place in range(state[LINKS]):
        link = words(state_at + 8 * (STATE + LINK * place))
        if link[SENDING]:
            left += send(state, link, number)
        if link[RECEIVING]:
            left += receive(state, link, number)
    return left


@njit
def complete(state_at: Any) -> None:
    """Wait until the round is complete. Calls Python now and then, which may raise."""
    state = words(state_at)
    for _ in range(state[POLLS]):
        if progress(state_at) == 0:
            return
        pause()
    begin_wait(state[SCRATCH])
    while progress(state_at):
        if waited(state[SCRATCH]):
            mark = state_at + 8 * BROKEN
            call_python(state[ATTEND], 0, 0, 1, mark, mark)


class LinkWindow:
    """Links of this rank to others of its node, with the state for compiled code. Making one is collective."""

    def __init__(
        self,
        coordinator: StandaloneCoordinator,  # the halo's; all its ranks make their windows at once
        node: MPI.Intracomm,  # the ranks of the node; freed with the coordinator's communicator
        peers: dict[int, int],  # the rank in `node` of each traffic's other rank
        traffic: Sequence[Traffic],
        local: LocalArrays,
        attend: Callable[[int, int], None],  # called with two numbers now and then while a rank waits; may raise
    ) -> None:
        self._coordinator, self._node, self._peers = coordinator, node, peers
        self._attend, self._traffic = attend, traffic  # compiled code calls `attend` by its address: it must live on
        self._mapped: list[dict[int, np.ndarray]] = []
        self.sources = np.zeros(len(local.items), np.int64)  # to be filled with the addresses of the round's arrays
        self._scratch = np.zeros(LINE // 8, np.int64)
        self._sets = [np.zeros(MOST_SETS, np.int64) for _ in traffic]
        self._set_addresses: list[np.ndarray] = []
        self._tables: list[CopyTable] = []
        self.count = 0  # sets of shared arrays
        self.state = np.zeros(STATE + LINK * len(traffic), np.int64)
        self._links = self.state[STATE:].reshape(-1, LINK)
        self.address = address_of(self.state)
        with coordinator.watching("comparing the cores of a node's ranks"):
            polls = polls_of(node)
        self.state[[LINKS, ATTEND, POLLS]] = len(traffic), id(attend), polls
        if local.overflow is not None:
            self.state[OVERFLOW] = local.overflow.address
        self.state[[SCRATCH, SOURCES]] = address_of(self._scratch), address_of(self.sources)
        self._join(local)

    def _join(self, local: LocalArrays) -> None:
        """Allocate memory for the links, and write the tables for compiled code."""
        # Peer -> offset of its part in this rank's segment, and the bytes of a slot.
        me, parts, nbytes = self._node.rank, {}, 0
        for link in self._traffic:
            slot = whole_lines(local.packing(link.receives)[1])
            parts[self._peers[link.rank]] = nbytes, slot
            nbytes += SLOTS + 2 * slot
        bases = {rank: address_of(memory) for rank, memory in self._allocate(nbytes).items()}
        with self._coordinator.watching("exchanging the places of segments"):
            every = self._node.allgather(parts)
        for number, link in enumerate(self._traffic):
            peer = self._peers[link.rank]
            (own_offset, my_slot), (peer_offset, their_slot) = parts[peer], every[peer][me]
            remote = local._replace(shape=link.shape)
            direct = [
                (local.region(array, region), remote.region(array, fill))
                for array in range(len(local.items))
                for region, fill in zip(link.sends, link.fills)
            ]
            into_slot, from_slot = local.packing(link.sends)[0], swapped(local.packing(link.receives)[0])
            tables = [CopyTable(pairs) for pairs in (into_slot, direct, from_slot)]
            self._tables += tables
            self._links[number, SENDS:] = (
                *(bool(link.sends), bool(link.receives)),
                *(bases[me] + own_offset, bases[peer] + peer_offset, my_slot, their_slot),
                *(word for table in tables for word in (table.address, table.rows)),
                *(address_of(self._sets[number]), link.rank),
            )

    def _allocate(self, nbytes: int) -> dict[int, np.ndarray]:
        """Make a segment of zeros on each rank, and keep the mappings as long as the window may be used."""
        with self._coordinator.watching("allocating memory that a node shares"):
            mapped = segments(self._node, nbytes, [self._peers[link.rank] for link in self._traffic])
        self._mapped.append(mapped)
        return mapped

    def new_set(self, shapes: Sequence[tuple[tuple[int, ...], np.dtype]]) -> list[np.ndarray]:
        """Make arrays of zeros into which the neighbours write directly. Collective over the node."""
        if self.count == MOST_SETS:
            raise InputError(f"expected at most {MOST_SETS} sets of shared arrays of a halo, received one more")
        sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in shapes]
        *offsets, nbytes = accumulate(map(whole_lines, sizes), initial=0)
        with self._coordinator.watching("exchanging the places of arrays"):
            every = self._node.allgather(offsets)
        memory = self._allocate(nbytes)
        for link, sets in zip(self._traffic, self._sets):
            peer = self._peers[link.rank]
            addresses = np.array([address_of(memory[peer]) + offset for offset in every[peer]], np.int64)
            self._set_addresses.append(addresses)
            sets[self.count] = address_of(addresses)
        self.count += 1
        own_memory = memory[self._node.rank]
        with self._coordinator.watching("the end of making shared arrays"):
            self._node.Barrier()
        return [
            own_memory[offset : offset + size].view(dtype).reshape(shape)
            for offset, size, (shape, dtype) in zip(offsets, sizes, shapes)
        ]

    def begin_anew(self) -> None:
        """Forget a round that has failed. Collective over the node; no rank may be in a round."""
        with self._coordinator.watching("forgetting a round that has failed"):
            self._node.Barrier()
            self._mapped[0][self._node.rank][:] = 0  # the flags of all links
            self.state[[ROUND, BROKEN]] = 0
            self._links[:, [SENDING, RECEIVING]] = 0
            self._node.Barrier()

    @property
    def waiting_for(self) -> list[int]:
        """List the ranks with which this round is not complete."""
        incomplete = self._links[:, [SENDING, RECEIVING]].any(axis=1)
        return sorted(set(self._links[incomplete, PEER].tolist()))

    def end(self) -> None:
        """End the links. Arrays keep their memory, which only their owner uses then."""
        self._mapped.clear()
