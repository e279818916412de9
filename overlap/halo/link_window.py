"""The window of a node: flags and slots of the links between its ranks, and arrays to which neighbours write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from mpi4py import MPI

from ..compiled.copy_table import CopyTable
from ..compiled.memory import LINE, address_of, whole_lines
from ..errors import InputError
from ..ranks.rendezvous import polls_of
from ..ranks.segments import segments
from ..ranks.standalone_coordinator import StandaloneCoordinator
from . import remote_writes
from .traffic import LocalArrays, Traffic, swapped

MOST_SETS = 64


class LinkWindow:
    """Links of this rank to others of its node, with the state for compiled code. Making one is collective.

    Parameters
    ----------
    coordinator : StandaloneCoordinator
        The halo's coordinator; all its ranks make their windows at once.
    node : mpi4py.MPI.Intracomm
        The ranks of the node; freed with the coordinator's communicator.
    peers : dict
        The rank in `node` of each traffic's other rank.
    traffic : sequence of Traffic
    local : LocalArrays
    attend : callable
        Called with two numbers now and then while a rank waits; may raise.

    Attributes
    ----------
    address : int
        The address of the state.
    sources : ndarray of int64
        The addresses of the arrays of the round go there.
    """

    def __init__(
        self,
        coordinator: StandaloneCoordinator,
        node: MPI.Intracomm,
        peers: dict[int, int],
        traffic: Sequence[Traffic],
        local: LocalArrays,
        attend: Callable[[int, int], None],
    ) -> None:
        self._coordinator, self._node, self._peers = coordinator, node, peers
        self._attend, self._traffic = attend, traffic  # compiled code calls `attend` by its address: it must live on
        self._mapped: list[dict[int, np.ndarray]] = []
        self.sources = np.zeros(len(local.items), np.int64)
        self._scratch = np.zeros(LINE // 8, np.int64)
        self._sets = [np.zeros(MOST_SETS, np.int64) for _ in traffic]
        self._set_addresses: list[np.ndarray] = []
        self._tables: list[CopyTable] = []
        self.count = 0  # sets of shared arrays
        self.state = np.zeros(remote_writes.STATE + remote_writes.LINK * len(traffic), np.int64)
        self._links = self.state[remote_writes.STATE :].reshape(-1, remote_writes.LINK)
        self.address = address_of(self.state)
        with coordinator.watching("comparing the cores of a node's ranks"):
            polls = polls_of(node)
        self.state[[remote_writes.LINKS, remote_writes.ATTEND, remote_writes.POLLS]] = len(traffic), id(attend), polls
        if local.overflow is not None:
            self.state[remote_writes.OVERFLOW] = local.overflow.address
        self.state[[remote_writes.SCRATCH, remote_writes.SOURCES]] = address_of(self._scratch), address_of(self.sources)
        self._join(local)

    def _join(self, local: LocalArrays) -> None:
        """Allocate memory for the links, and write the tables for compiled code."""
        # Peer -> offset of its part in this rank's segment, and the bytes of a slot.
        me, parts, nbytes = self._node.rank, {}, 0
        for link in self._traffic:
            slot = whole_lines(local.packing(link.receives)[1])
            parts[self._peers[link.rank]] = nbytes, slot
            nbytes += remote_writes.SLOTS + 2 * slot
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
            self._links[number, remote_writes.SENDS :] = (
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
        """Make arrays of zeros into which the neighbours write directly. Collective over the node.

        Raises
        ------
        InputError
            There are `MOST_SETS` sets already.
        """
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
            self.state[[remote_writes.ROUND, remote_writes.BROKEN]] = 0
            self._links[:, [remote_writes.SENDING, remote_writes.RECEIVING]] = 0
            self._node.Barrier()

    @property
    def waiting_for(self) -> list[int]:
        """List the ranks with which this round is not complete."""
        incomplete = self._links[:, [remote_writes.SENDING, remote_writes.RECEIVING]].any(axis=1)
        return sorted(set(self._links[incomplete, remote_writes.PEER].tolist()))

    def end(self) -> None:
        """End the links. Arrays keep their memory, which only their owner uses then."""
        self._mapped.clear()
