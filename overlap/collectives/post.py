"""Messages between ranks of several nodes, each with the collective that it belongs to, and their bounded waits."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from ..errors import InputError
from .attention import described
from .patience import Patience
from .protocol import LINE
from .window import Window

_COLLECTIVE, _FAILED = 1, 2   # tags
_HEADER_NBYTES = 8            # what the collective is (`protocol.signature`), or the rank that has failed
_NOTHING = -1                 # no collective: what a longer letter leaves in the header, where MPI copies nothing of it
_ROOM_NBYTES = 1024           # of a received letter at least: one of another collective is longer now and then
_KEPT_NBYTES, _KEPT = 2**16, 64    # longer letters, and more of them, are not kept


class Letter:
    """Memory for messages to or from a rank, and a persistent request: prepared once, used many times.

    Attributes
    ----------
    rank : int
        The other one.
    address : int
        Where the data stand, behind the header; a multiple of a cache line.
    header : ndarray of int64
    request : mpi4py.MPI.Prequest
    """

    __slots__ = ("rank", "address", "header", "request", "key")

    def __init__(self, comm: MPI.Intracomm, rank: int, nbytes: int, sent: bool) -> None:
        room = np.empty(nbytes + 2 * LINE, np.uint8)
        begin = LINE + -room.ctypes.data % LINE
        packed = room[begin - _HEADER_NBYTES:begin + nbytes]
        self.rank, self.key = rank, (rank, nbytes, sent)
        self.address = room.ctypes.data + begin
        self.header = packed[:_HEADER_NBYTES].view(np.int64)
        self.request = (comm.Send_init if sent else comm.Recv_init)(packed, rank, _COLLECTIVE)


class Post:
    """Sends and receives for this rank. A rank that fails tells those of other nodes, which look while they wait.

    Letters are this rank's from `letter` or `expect` to `finish`.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Duplicated (collective).
    window : Window
        The ranks of this node see failures there.
    patience : Patience

    Attributes
    ----------
    messages : int
        How many this rank has sent.
    """

    def __init__(self, comm: MPI.Intracomm, window: Window, patience: Patience) -> None:
        self._comm = comm.Dup()
        self._window, self._patience = window, patience
        self._idle: dict[tuple[int, int, bool], list[Letter]] = {}
        self._sent: list[Letter] = []
        self._expected: list[Letter] = []
        self._told: list[MPI.Request] = []
        self._sent_to, self._received_from = [0] * comm.size, [0] * comm.size
        self.messages = 0

    def letter(self, rank: int, nbytes: int) -> Letter:
        """Memory for a message of so many bytes to a rank of another node; `send` it."""
        return self._new(rank, nbytes, True)

    def send(self, letter: Letter, agreed: int) -> None:
        """Begin to send a letter; `finish` waits for the end."""
        letter.header[0] = agreed
        letter.request.Start()
        self._sent.append(letter)
        self._sent_to[letter.rank] += 1
        self.messages += 1

    def expect(self, rank: int, nbytes: int) -> Letter:
        """Begin to receive so many bytes from a rank of another node; `take` waits for them."""
        letter = self._new(rank, max(nbytes, _ROOM_NBYTES), False)
        letter.header[0] = _NOTHING
        letter.request.Start()
        self._expected.append(letter)
        return letter

    def take(self, letter: Letter, agreed: int) -> int:
        """Wait for an expected letter and see that it is of the same collective; the address of its data."""
        try:
            if not letter.request.Test():
                self._wait(letter.request.Test, f"rank {letter.rank}")
        except MPI.Exception as error:
            if error.Get_error_class() != MPI.ERR_TRUNCATE:
                raise
        self._received_from[letter.rank] += 1
        received = int(letter.header[0])
        if received != agreed:
            other = "another one, of more bytes," if received == _NOTHING else described(received)
            text = (f"expected the same collective on all ranks, received {described(agreed)} on rank "
                    f"{self._comm.rank} and {other} on rank {letter.rank}")
            self._window.fail(text)
            raise InputError(text)
        return letter.address

    def finish(self) -> None:
        """Wait until everything is sent, and keep letters for the next time."""
        for letter in self._sent:
            if not letter.request.Test():
                self._wait(letter.request.Test, "another rank")
        for letters in (self._sent, self._expected):
            for letter in letters:
                if letter.key[1] <= _KEPT_NBYTES:
                    self._idle.setdefault(letter.key, []).append(letter)
                else:
                    letter.request.Free()
            letters.clear()
        if len(self._idle) > _KEPT:
            self._discard()

    def tell(self, ranks: list[int], text: str, origin: int | None) -> None:
        """Tell ranks that one, this one unless it is named, has failed, and why."""
        content = np.frombuffer(text.encode(errors="replace"), np.uint8)
        packed = np.empty(_HEADER_NBYTES + content.size, np.uint8)
        packed[:_HEADER_NBYTES].view(np.int64)[0] = self._comm.rank if origin is None else origin
        packed[_HEADER_NBYTES:] = content
        for rank in ranks:
            self._sent_to[rank] += 1
            self._told.append(self._comm.Isend(packed, rank, _FAILED))

    def free(self) -> None:
        """Free the communicator (collective). After a failure there are messages that nobody waits for: MPI wants them received."""
        status = MPI.Status()
        for letter in self._expected:
            if letter.request != MPI.REQUEST_NULL and not letter.request.Test():
                letter.request.Cancel()
                letter.request.Wait(status)
                self._received_from[letter.rank] += not status.Is_cancelled()
        for rank, sent in enumerate(self._comm.alltoall(self._sent_to)):
            for _ in range(sent - self._received_from[rank]):
                message = self._comm.Mprobe(rank, status=status)
                message.Recv(np.empty(status.Get_count(MPI.BYTE), np.uint8))
        MPI.Request.Waitall([*self._told, *(letter.request for letter in self._sent)])
        self.finish()
        self._discard()
        self._comm.Free()

    def _new(self, rank, nbytes, sent):
        kept = self._idle.get((rank, nbytes, sent))
        return kept.pop() if kept else Letter(self._comm, rank, nbytes, sent)

    def _discard(self):
        """Forget the letters that are kept."""
        for letters in self._idle.values():
            for letter in letters:
                letter.request.Free()
        self._idle.clear()

    def _wait(self, done, who):
        self._patience.until(done, f"{who} of another node", self._look)

    def _look(self):
        """Tell this node of a failure on another one."""
        status = MPI.Status()
        if self._comm.Iprobe(MPI.ANY_SOURCE, _FAILED, status):
            packed = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._comm.Recv(packed, status.source, _FAILED)
            self._received_from[status.source] += 1
            self._window.fail(bytes(packed[_HEADER_NBYTES:]).decode(errors="replace"),
                              int(packed[:_HEADER_NBYTES].view(np.int64)[0]))
