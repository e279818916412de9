"""Halos by messages: persistent MPI requests, whose receives are always started first, or operations of slices.

If a message is one run of bytes of one array, such as a slab of planes, it is sent from or received in the array
itself, and persistent requests are made for each such memory. Other messages are packed into buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..compiled.copy_table import CopyTable
from ..compiled.memory import address_of
from ..compiled.mpi import memory_at
from ..ranks.standalone_coordinator import StandaloneCoordinator
from ..runtime.requests.operations import start as started
from ..runtime.requests.requests import AsyncComm
from .traffic import LocalArrays, Pairs, Traffic, swapped

TAG = 7
_MOST = 16  # sets of arrays with requests of their own; messages of other arrays are packed
_PACKED = ()  # instead of addresses: all messages are packed


class HaloMessage(NamedTuple):
    """A message to or from another rank."""

    rank: int
    buffer: np.ndarray  # of bytes
    run: tuple[int, int] | None  # if the message is one run of bytes of an array: the array's index, the offset in it

    def memory(self, addresses: tuple[int, ...]) -> Any:
        """Return the memory of the message: its array's if it is a run and addresses are given, else the buffer."""
        if self.run is None or not addresses:
            return self.buffer
        number, offset = self.run
        return memory_at(addresses[number] + offset, self.buffer.nbytes)


class Messages:
    """Buffers and copy tables of a rank's messages to and from others."""

    def __init__(self, traffic: Sequence[Traffic], local: LocalArrays) -> None:
        self.sources = np.zeros(len(local.items), np.int64)  # to be filled with the addresses of the round's arrays
        self._sources_at = address_of(self.sources)
        self._check = local.check

        def made(sending: bool) -> tuple[list[HaloMessage], np.ndarray, list[CopyTable]]:
            messages: list[HaloMessage] = []
            pairs: Pairs = []
            packed: Pairs = []  # without runs
            for one in traffic:
                if regions := one.sends if sending else one.receives:
                    found, nbytes = local.packing(regions, len(messages))
                    run = CopyTable(found).run()
                    messages.append(HaloMessage(one.rank, np.zeros(nbytes, np.uint8), run and run[0]))
                    pairs += found
                    packed += [] if run else found
            addresses = np.array([address_of(one.buffer) for one in messages], np.int64)
            return messages, addresses, [CopyTable(one if sending else swapped(one)) for one in (pairs, packed)]

        self.sends, self._sent, self._packs = made(sending=True)
        self.receives, self._received, self._unpacks = made(sending=False)
        self._sent_at, self._received_at = address_of(self._sent), address_of(self._received)

    def pack(self, direct: bool = False) -> None:
        """Copy entries to be sent from the arrays into the messages; if `direct`, all but runs. An `InputError` says
        that a number is too large to be sent as a single."""
        self._packs[direct].execute(self._sources_at, self._sent_at)
        self._check()

    def unpack(self, direct: bool = False) -> None:
        """Copy received entries into the arrays; if `direct`, all but runs."""
        self._unpacks[direct].execute(self._received_at, self._sources_at)


class Requests:
    """Persistent requests of messages, on a communicator that carries nothing else with their tag."""

    def __init__(self, comm: MPI.Intracomm, messages: Messages) -> None:
        self._comm = comm
        self._messages = messages
        self._runs = any(one.run is not None for one in messages.sends + messages.receives)
        self._made: dict[tuple[int, ...], tuple[Any, Any]] = {}  # addresses of the arrays -> receives and sends
        self.begin()

    def begin(self) -> None:
        """Make requests, at first or after `end`."""
        self._use(_PACKED)
        self._started = 0, 0  # numbers of rounds whose receives, and whose sends, were started

    def choose(self, addresses: tuple[int, ...]) -> None:
        """Let the next rounds be those of the arrays at these addresses."""
        self._messages.sources[:] = addresses
        self._use(addresses if self._runs and (addresses in self._made or len(self._made) <= _MOST) else _PACKED)

    def _use(self, addresses: tuple[int, ...]) -> None:
        if addresses not in self._made:
            receives, sends = (
                [make([one.memory(addresses), MPI.BYTE], one.rank, TAG) for one in messages]
                for make, messages in (
                    (self._comm.Recv_init, self._messages.receives),
                    (self._comm.Send_init, self._messages.sends),
                )
            )
            self._made[addresses] = receives, sends
        self._direct = bool(addresses)
        self._receives, self._sends = self._made[addresses]
        self._all = self._receives + self._sends

    def start(self) -> None:
        """Start all receives, pack, start all sends."""
        MPI.Prequest.Startall(self._receives)
        self._started = self._started[0] + 1, self._started[1]
        self._messages.pack(self._direct)
        MPI.Prequest.Startall(self._sends)
        self._started = self._started[0], self._started[1] + 1

    def test(self) -> bool:
        """Return whether all messages have arrived; if so, unpack them."""
        if not MPI.Request.Testall(self._all):
            return False
        self._messages.unpack(self._direct)
        return True

    @property
    def waiting_for(self) -> list[int]:
        """List the ranks whose messages have not arrived."""
        pairs = zip(self._messages.receives, self._receives)
        return sorted({one.rank for one, request in pairs if not request.Get_status()})

    def end(self) -> None:
        """Complete messages that a failure has left under way, and free the requests. Collective.

        A rank that has failed may have started one round less than its neighbours.
        """
        receives, sends = self._started
        theirs: list[int] = self._comm.allgather(sends)
        for one, request in zip(self._messages.receives, self._receives):
            if theirs[one.rank] > receives:
                request.Wait()
                request.Start()
            elif theirs[one.rank] < receives:
                request.Cancel()
        MPI.Request.Waitall(self._all)
        self._comm.Barrier()  # else a neighbour's next message could match a receive that is still to be cancelled
        for receives_made, sends_made in self._made.values():
            for request in receives_made + sends_made:
                request.Free()
        self._made.clear()


class Begun:
    """A round that a slice has begun, to be awaited."""

    def __init__(self, operations: list[Any], then: Callable[[], None]) -> None:
        self._operations, self._then = operations, then

    def __await__(self) -> Generator[Any, Any, None]:
        for pending in self._operations:
            yield from pending.__await__()
        self._then()


class Awaited:
    """The messages of a halo as operations of a runtime: as many on all ranks, receives first.

    A rank at a border has fewer neighbours; it exchanges messages with ``MPI.PROC_NULL`` instead, so that all ranks
    await the same operations.
    """

    def __init__(self, comm: AsyncComm, coordinator: StandaloneCoordinator, messages: Messages) -> None:
        self._comm, self._messages = comm, messages
        most = coordinator.maximum(np.array([len(messages.receives), len(messages.sends)]))
        nobody = HaloMessage(MPI.PROC_NULL, np.zeros(1, np.uint8), None)
        self._receives, self._sends = (
            found + [nobody] * int(count - len(found))
            for found, count in zip((messages.receives, messages.sends), most)
        )

    async def begin(self, addresses: tuple[int, ...]) -> Begun:
        """Begin a round with the arrays at these addresses."""
        self._messages.sources[:] = addresses
        self._messages.pack()
        # All halos use one tag: slices must await the same operations, and the issue order keeps their messages apart.
        # The requests are not persistent, because Testsome, by which a runtime polls, and Testany of MPICH 5.0.2 never
        # report a persistent request to PROC_NULL, though Test, Testall, Get_status and Wait complete it at once.
        operations = [
            *(self._comm.Recv([message.buffer, MPI.BYTE], message.rank, 0) for message in self._receives),
            *(self._comm.Send([message.buffer, MPI.BYTE], message.rank, 0) for message in self._sends),
        ]
        return Begun([await started(message) for message in operations], self._messages.unpack)
