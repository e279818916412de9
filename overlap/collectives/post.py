"""Letters between ranks of several nodes, each with the collective that it belongs to, and news of failures.

Compiled code sends and awaits letters (`chains`); this prepares them, and clears up.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import numpy as np
from mpi4py import MPI

from .chains import ACTIVE, COUNTED, DATA, HEADER, OTHER, REQUEST
from .protocol import LINE
from .window import Window

_COLLECTIVE, _FAILED = 1, 2  # tags
_ORIGIN_NBYTES = 8  # of news: the rank that has failed
_ROOM_NBYTES = 1024  # of an expected letter at least: one of another collective is longer now and then
_abandoned: list[
    Post
] = []  # where something has failed: MPI may still write to letters until `free`, though nobody holds them


class Letter:
    """Memory for messages to or from a rank, and a persistent request.

    Attributes
    ----------
    address : int
    nbytes : int
        How long its data are.
    words : ndarray of int64
        See `chains`.
    request : mpi4py.MPI.Prequest
    """

    __slots__ = ("address", "nbytes", "request", "words")

    def __init__(self, comm: MPI.Intracomm, rank: int, nbytes: int, sent: bool, counted: int) -> None:
        room = np.zeros(nbytes + DATA + LINE, np.uint8)
        begin = -room.ctypes.data % LINE
        packed = room[begin + HEADER : begin + DATA + nbytes]
        self.address, self.nbytes = room.ctypes.data + begin, nbytes
        self.request = (comm.Send_init if sent else comm.Recv_init)(packed, rank, _COLLECTIVE)
        self.words = room[begin : begin + LINE].view(np.int64)
        self.words[[REQUEST, OTHER, COUNTED]] = MPI._addressof(self.request), rank, counted


class Post:
    """Letters of this rank. A rank that fails tells those of other nodes, which look while they wait.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Duplicated (collective).
    window : Window
        The ranks of this node see failures there.
    """

    def __init__(self, comm: MPI.Intracomm, window: Window) -> None:
        self._comm = comm.Dup()
        self._window = window
        self._sent: list[Letter] = []
        self._expected: list[Letter] = []
        self._told: list[MPI.Request] = []
        self._sent_to, self._received_from = np.zeros((2, comm.size), np.int64)

    @property
    def messages(self) -> int:
        """How many this rank has sent."""
        return int(self._sent_to.sum())

    def letter(self, rank: int, nbytes: int) -> Letter:
        """For messages of so many bytes to a rank of another node."""
        self._sent.append(Letter(self._comm, rank, nbytes, True, self._sent_to[rank:].ctypes.data))
        return self._sent[-1]

    def expected(self, rank: int, nbytes: int) -> Letter:
        """For messages of so many bytes from a rank of another node."""
        counted = self._received_from[rank:].ctypes.data
        self._expected.append(Letter(self._comm, rank, max(nbytes, _ROOM_NBYTES), False, counted))
        return self._expected[-1]

    def discard(self) -> None:
        """Forget all letters, none of which is under way."""
        for letters in (self._sent, self._expected):
            for letter in letters:
                letter.request.Free()
            letters.clear()

    def tell(self, ranks: Iterable[int], text: str, origin: int | None) -> None:
        """Tell ranks that one, this one unless it is named, has failed, and why: this one leaves letters under way."""
        _abandoned.append(self)
        content = np.frombuffer(text.encode(errors="replace"), np.uint8)
        packed = np.empty(_ORIGIN_NBYTES + content.size, np.uint8)
        packed[:_ORIGIN_NBYTES].view(np.int64)[0] = self._comm.rank if origin is None else origin
        packed[_ORIGIN_NBYTES:] = content
        for rank in ranks:
            self._sent_to[rank] += 1
            self._told.append(self._comm.Isend(packed, rank, _FAILED))

    def look(self) -> None:
        """Tell this node of a failure on another one, if there is any."""
        status = MPI.Status()
        if self._comm.Iprobe(MPI.ANY_SOURCE, _FAILED, status):
            packed = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._comm.Recv(packed, status.source, _FAILED)
            self._received_from[status.source] += 1
            self._window.fail(
                bytes(packed[_ORIGIN_NBYTES:]).decode(errors="replace"), int(packed[:_ORIGIN_NBYTES].view(np.int64)[0])
            )

    def free(self) -> None:
        """Free the communicator (collective).

        After a failure there are messages that nobody waits for: MPI wants them received.
        """
        status = MPI.Status()
        for letter in self._expected:
            if letter.words[ACTIVE]:
                letter.request.Cancel()
                letter.request.Wait(status)
                self._received_from[letter.words[OTHER]] += not status.Is_cancelled()
        for rank, sent in enumerate(self._comm.alltoall(self._sent_to.tolist())):
            for _ in range(sent - self._received_from[rank]):
                message = self._comm.Mprobe(rank, status=status)
                message.Recv(np.empty(status.Get_count(MPI.BYTE), np.uint8))
        MPI.Request.Waitall([*self._told, *(letter.request for letter in self._sent)])
        self.discard()
        self._comm.Free()
        if self in _abandoned:
            _abandoned.remove(self)


def mpi_function(name: str) -> int:
    """Address of a function of the MPI library that mpi4py is linked with."""
    function = getattr(ctypes.CDLL(MPI.__file__), f"MPI_{name}")
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address
