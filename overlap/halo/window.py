"""The window of a node: flags and slots of the links between its ranks, and arrays that neighbours write to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from ..collectives.protocol import LINE
from ..collectives.window import SPINS, SPINS_SHARED, cores_are_shared
from ..errors import InputError
from ..lowlevel.segments import segments
from ..runtime.control.own_control import OwnControl
from . import links
from .arguments import address_of
from .moves import Moves, Place, packing
from .plan import Traffic

MOST_SETS = 64

Places = dict[
    tuple[int, int], tuple[int, int, int, int]
]  # what a rank has for another: request, delivery, slots, bytes of a slot


class LinkWindow:
    """Links of this rank to others of its node, and the state that compiled code works on. Collective.

    Parameters
    ----------
    control : OwnControl
        The halo's; all its ranks make it at once.
    node : mpi4py.MPI.Intracomm
        Kept, and freed by `free`.
    peers : dict
        Rank in `node` of every traffic's other rank.
    traffic : sequence of Traffic
    shape : tuple of int
        Shape of the own local array.
    items : sequence of int
        Bytes of an item of each array.
    attend : callable
        Called now and then while a rank waits, with two numbers; it may raise.

    Attributes
    ----------
    address : int
        Where the state stands.
    sources : ndarray of int64
        The addresses of the arrays of the round go there.
    """

    def __init__(
        self,
        control: OwnControl,
        node: MPI.Intracomm,
        peers: dict[int, int],
        traffic: Sequence[Traffic],
        shape: tuple[int, ...],
        items: Sequence[int],
        attend: Callable[[int, int], None],
    ) -> None:
        self._control, self._node, self._peers = control, node, peers
        self._shape, self._items, self._attend = shape, items, attend
        self._traffic = traffic
        self._mapped: list[dict[int, np.ndarray]] = []
        self.sources = np.zeros(len(items), np.int64)
        self._scratch = np.zeros(2 * LINE, np.uint8)
        self._sets = {one.rank: np.zeros(MOST_SETS, np.int64) for one in traffic}
        self._set_addresses: list[np.ndarray] = []
        self._moves: list[Moves] = []
        self.count = 0  # sets of shared arrays
        self.state = np.zeros(links.STATE + links.LINK * len(traffic), np.int64)
        self.address = self.state.ctypes.data
        with control.watching("comparing the cores of a node's ranks"):
            polls = SPINS_SHARED if cores_are_shared(node) else SPINS
        for place, value in (
            (links.LINKS, len(traffic)),
            (links.ATTEND, id(attend)),
            (links.POLLS, polls),
            (links.SCRATCH, self._scratch.ctypes.data),
            (links.SOURCES, self.sources.ctypes.data),
        ):
            self.state[place] = value
        self._join(self._segments())

    def _segments(self) -> Places:
        """Allocate memory for the links.

        Returns
        -------
        dict
            Where a rank has what it shares with another one, by these two: request, delivery, slots and its bytes.
        """
        mine, nbytes = {}, 0
        for one in self._traffic:
            slot = -(-packing(one.receives, self._shape, self._items)[1] // LINE) * LINE
            mine[self._node.rank, self._peers[one.rank]] = (
                nbytes,
                nbytes + links.REQUEST_NBYTES,
                nbytes + links.REQUEST_NBYTES + 2 * links.DELIVERY_NBYTES,
                slot,
            )
            nbytes += links.REQUEST_NBYTES + 2 * links.DELIVERY_NBYTES + 2 * slot
        bases = {rank: address_of(memory) for rank, memory in self._allocate(nbytes).items()}
        places: Places = {}
        with self._control.watching("exchanging where segments are"):
            every = self._node.allgather(mine)
        for rank, base in bases.items():
            places |= {
                pair: tuple(base + offset for offset in found[:3]) + found[3:] for pair, found in every[rank].items()
            }
        return places

    def _join(self, places: Places) -> None:
        me = self._node.rank
        for number, one in enumerate(self._traffic):
            peer = self._peers[one.rank]
            # A rank's own part has: the request that the other one writes as the receiver of what is sent, the delivery
            # that it writes as a sender, and the slots for what it sends.
            request, delivery, slots, slot = places[me, peer]
            their_request, their_delivery, their_slots, their_slot = places[peer, me]
            link = self.state[links.STATE + links.LINK * number :][: links.LINK]
            link[links.PEER] = one.rank
            if one.sends:
                pairs, nbytes = packing(one.sends, self._shape, self._items)
                direct = [
                    (Place(array, self._shape, item, region), Place(array, one.shape, item, fill))
                    for array, item in enumerate(self._items)
                    for region, fill in zip(one.sends, one.fills)
                ]
                into_slot, into_array = Moves(pairs), Moves(direct)
                assert nbytes <= their_slot
                self._moves += [into_slot, into_array]
                for place, value in (
                    (links.REQUEST, request),
                    (links.DELIVERY, their_delivery),
                    (links.SLOT, their_slots),
                    (links.SLOT_NBYTES, their_slot),
                    (links.SLOT_TABLE, into_slot.address),
                    (links.SLOT_ROWS, into_slot.rows),
                    (links.SLOT_WIDTH, into_slot.width),
                    (links.DIRECT_TABLE, into_array.address),
                    (links.DIRECT_ROWS, into_array.rows),
                    (links.DIRECT_WIDTH, into_array.width),
                    (links.SETS, self._sets[one.rank].ctypes.data),
                ):
                    link[place] = value
            if one.receives:
                table = Moves([(packed, place) for place, packed in packing(one.receives, self._shape, self._items)[0]])
                self._moves.append(table)
                for place, value in (
                    (links.MY_REQUEST, their_request),
                    (links.MY_DELIVERY, delivery),
                    (links.MY_SLOT, slots),
                    (links.MY_SLOT_NBYTES, slot),
                    (links.TABLE, table.address),
                    (links.ROWS, table.rows),
                    (links.WIDTH, table.width),
                ):
                    link[place] = value

    def _allocate(self, nbytes: int) -> dict[int, np.ndarray]:
        """Make a segment of zeros on each rank, and keep it: others' memory is there as long as it is written to."""
        with self._control.watching("allocating memory that a node shares"):
            found = segments(self._node, nbytes, [self._peers[one.rank] for one in self._traffic])
        self._mapped.append(found)
        return found

    def new_set(self, shapes: Sequence[tuple[tuple[int, ...], np.dtype]]) -> list[np.ndarray]:
        """Make arrays of zeros that the neighbours write to directly. Collective over the node.

        Raises
        ------
        InputError
            There are `MOST_SETS` already.
        """
        if self.count == MOST_SETS:
            raise InputError(f"expected at most {MOST_SETS} sets of shared arrays of a halo, received one more")
        counts = [int(np.prod(shape)) for shape, _ in shapes]
        offsets, nbytes = [], 0
        for count, (_, dtype) in zip(counts, shapes):
            offsets.append(nbytes)
            nbytes += -(-count * dtype.itemsize // LINE) * LINE
        with self._control.watching("exchanging where arrays are"):
            every = self._node.allgather(offsets)
        memory = self._allocate(nbytes)
        for one in self._traffic:
            peer = self._peers[one.rank]
            addresses = np.array([address_of(memory[peer]) + offset for offset in every[peer]], np.int64)
            self._set_addresses.append(addresses)
            self._sets[one.rank][self.count] = addresses.ctypes.data
        self.count += 1
        mine = memory[self._node.rank]
        with self._control.watching("the end of making shared arrays"):
            self._node.Barrier()
        return [
            mine[offset : offset + count * dtype.itemsize].view(dtype).reshape(shape)
            for offset, count, (shape, dtype) in zip(offsets, counts, shapes)
        ]

    def begin_anew(self) -> None:
        """Forget a round that has failed. Collective over the node, and nobody is in a round."""
        with self._control.watching("forgetting a round that has failed"):
            self._node.Barrier()
            self._mapped[0][self._node.rank][:] = 0  # the flags of all links
            self.state[[links.ROUND, links.BROKEN]] = 0
            self.state[links.STATE :].reshape(-1, links.LINK)[:, [links.SENDING, links.RECEIVING]] = 0
            self._node.Barrier()

    @property
    def waiting_for(self) -> list[int]:
        """The ranks that something is left to be done with in this round."""
        rows = self.state[links.STATE :].reshape(-1, links.LINK)
        return sorted({int(row[links.PEER]) for row in rows if row[links.SENDING] or row[links.RECEIVING]})

    def free(self) -> None:
        """End the links (collective over the node). Arrays keep their memory, but nobody writes to them any more."""
        with self._control.watching("freeing the ranks of a node"):
            self._mapped.clear()
            self._node.Free()
