"""Halos by messages: MPI's persistent requests, made once, the receives always started first.

A message that is one run of bytes of one array, as a slab of planes is, goes from and to the array itself: persistent
requests are made once for each such memory. All others are packed into buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ..runtime.control.own_control import OwnControl
from .moves import Moves, move, packing
from .plan import Traffic

TAG = 7
_MOST = 16  # sets of arrays with requests of their own; others are packed
_PACKED = ()  # in place of addresses


class Messages:
    """Buffers and tables of a rank's messages to and from others.

    Parameters
    ----------
    traffic : sequence of Traffic
    shape : tuple of int
        Shape of the local array.
    items : sequence of int
        Bytes of an item of each array.

    Attributes
    ----------
    sources : ndarray of int64
        The addresses of the arrays of the round go there.
    sends, receives : list of (int, ndarray)
        The other rank and the message's buffer.
    send_runs, receive_runs : list of (int, int, int) or None
        The array, the offset there and the bytes of each message that is one run of bytes.
    """

    def __init__(self, traffic: Sequence[Traffic], shape: tuple[int, ...], items: Sequence[int]) -> None:
        self.sources = np.zeros(len(items), np.int64)
        self.sends: list[tuple[int, np.ndarray]] = []
        self.receives: list[tuple[int, np.ndarray]] = []
        self.send_runs: list[tuple[int, int, int] | None] = []
        self.receive_runs: list[tuple[int, int, int] | None] = []
        self._packs: list[tuple[Moves, np.ndarray]] = []
        self._unpacks: list[tuple[Moves, np.ndarray]] = []
        for one in traffic:
            for regions, found, tables in (
                (one.sends, self.sends, self._packs),
                (one.receives, self.receives, self._unpacks),
            ):
                if regions:
                    pairs, nbytes = packing(regions, shape, items)
                    buffer = np.zeros(nbytes, np.uint8)
                    found.append((one.rank, buffer))
                    address = np.array([buffer.ctypes.data], np.int64)
                    sending = found is self.sends
                    table = Moves(pairs if sending else [(packed, place) for place, packed in pairs])
                    tables.append((table, address))
                    run = table.run()
                    (self.send_runs if sending else self.receive_runs).append(
                        None if run is None else (*(run[:2] if sending else run[2:4]), run[4])
                    )

    def pack(self, direct: bool = False) -> None:
        """Copy what is sent from the arrays into the messages; if `direct`, but for runs."""
        for (table, buffer), run in zip(self._packs, self.send_runs):
            if direct and run is not None:
                continue
            move(table.address, table.rows, table.width, self.sources.ctypes.data, buffer.ctypes.data)

    def unpack(self, direct: bool = False) -> None:
        """Copy what was received into the arrays; if `direct`, but for runs."""
        for (table, buffer), run in zip(self._unpacks, self.receive_runs):
            if direct and run is not None:
                continue
            move(table.address, table.rows, table.width, buffer.ctypes.data, self.sources.ctypes.data)


class Requests:
    """The persistent requests of messages on a communicator that carries nothing else with their tag.

    Parameters
    ----------
    control : OwnControl
    messages : Messages
    """

    def __init__(self, control: OwnControl, messages: Messages) -> None:
        self._control = control
        self._messages = messages
        self._runs = any(run is not None for run in messages.send_runs + messages.receive_runs)
        self._made: dict[tuple[int, ...], tuple[Any, Any]] = {}  # receives and sends, by the addresses of the arrays
        self._use(_PACKED)
        self._started = 0, 0  # rounds of receives and of sends

    def choose(self, addresses: tuple[int, ...]) -> None:
        """Let the next rounds be those of the arrays at these addresses."""
        self._messages.sources[:] = addresses
        self._use(addresses if self._runs and (addresses in self._made or len(self._made) <= _MOST) else _PACKED)

    def _use(self, addresses: tuple[int, ...]) -> None:
        if addresses not in self._made:
            receives, sends = (
                [
                    make([_buffer(buffer, run if addresses else None, addresses), MPI.BYTE], peer, TAG)
                    for (peer, buffer), run in zip(messages, runs)
                ]
                for make, messages, runs in (
                    (self._control.comm.Recv_init, self._messages.receives, self._messages.receive_runs),
                    (self._control.comm.Send_init, self._messages.sends, self._messages.send_runs),
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
        """Look whether all messages have arrived; if so, unpack them."""
        if not MPI.Request.Testall(self._all):
            return False
        self._messages.unpack(self._direct)
        return True

    @property
    def waiting_for(self) -> list[int]:
        """The ranks whose messages have not arrived."""
        return sorted(
            {peer for (peer, _), request in zip(self._messages.receives, self._receives) if not request.Get_status()}
        )

    def end(self) -> None:
        """Bring what a failure has left under way to its end, and free the requests. Collective.

        A rank that has failed may have started a round less than its neighbours.
        """
        receives, sends = self._started
        theirs: list[int] = self._control.allgather(sends)
        with self._control.watching("the end of messages that are under way"):
            for (peer, _), request in zip(self._messages.receives, self._receives):
                if theirs[peer] > receives:
                    request.Wait()
                    request.Start()
                elif theirs[peer] < receives:
                    request.Cancel()
            MPI.Request.Waitall(self._all)
        for receives_made, sends_made in self._made.values():
            for request in receives_made + sends_made:
                request.Free()


def _buffer(packed: np.ndarray, run: tuple[int, int, int] | None, addresses: tuple[int, ...]) -> Any:
    """Give the memory of a message: the array's own where it is a run there."""
    if run is None:
        return packed
    number, offset, nbytes = run
    return MPI.buffer.fromaddress(addresses[number] + offset, nbytes)
