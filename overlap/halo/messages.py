"""Halos by messages: MPI's persistent requests, made once, the receives always started first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ..runtime.own_control import OwnControl
from .moves import Moves, move, packing
from .plan import Traffic

TAG = 7


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
    """

    def __init__(self, traffic: Sequence[Traffic], shape: tuple[int, ...], items: Sequence[int]) -> None:
        self.sources = np.zeros(len(items), np.int64)
        self.sends: list[tuple[int, np.ndarray]] = []
        self.receives: list[tuple[int, np.ndarray]] = []
        self._packs: list[tuple[Moves, np.ndarray]] = []
        self._unpacks: list[tuple[Moves, np.ndarray]] = []
        for one in traffic:
            for regions, found, tables in ((one.sends, self.sends, self._packs),
                                           (one.receives, self.receives, self._unpacks)):
                if regions:
                    pairs, nbytes = packing(regions, shape, items)
                    buffer = np.zeros(nbytes, np.uint8)
                    found.append((one.rank, buffer))
                    address = np.array([buffer.ctypes.data], np.int64)
                    tables.append((Moves(pairs if regions is one.sends else
                                         [(packed, place) for place, packed in pairs]), address))

    def pack(self) -> None:
        """Copy what is sent from the arrays into the messages."""
        for table, buffer in self._packs:
            move(table.address, table.rows, table.width, self.sources.ctypes.data, buffer.ctypes.data)

    def unpack(self) -> None:
        """Copy what was received into the arrays."""
        for table, buffer in self._unpacks:
            move(table.address, table.rows, table.width, buffer.ctypes.data, self.sources.ctypes.data)


class Requests:
    """The persistent requests of messages on a communicator that carries nothing else with their tag.

    Parameters
    ----------
    control : OwnControl
    messages : Messages
    """

    def __init__(self, control: OwnControl, messages: Messages) -> None:
        self._control, comm = control, control.comm
        self._messages = messages
        self._receives: Any = [comm.Recv_init([buffer, MPI.BYTE], peer, TAG) for peer, buffer in messages.receives]
        self._sends: Any = [comm.Send_init([buffer, MPI.BYTE], peer, TAG) for peer, buffer in messages.sends]
        self._all = self._receives + self._sends
        self._started = 0, 0  # rounds of receives and of sends

    def start(self) -> None:
        """Start all receives, pack, start all sends."""
        MPI.Prequest.Startall(self._receives)
        self._started = self._started[0] + 1, self._started[1]
        self._messages.pack()
        MPI.Prequest.Startall(self._sends)
        self._started = self._started[0], self._started[1] + 1

    def test(self) -> bool:
        """Look whether all messages have arrived; if so, unpack them."""
        if not MPI.Request.Testall(self._all):
            return False
        self._messages.unpack()
        return True

    @property
    def waiting_for(self) -> list[int]:
        """The ranks whose messages have not arrived."""
        return sorted({peer for (peer, _), request in zip(self._messages.receives, self._receives)
                       if not request.Get_status()})

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
        for request in self._all:
            request.Free()
