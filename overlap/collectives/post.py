"""Messages between ranks of several nodes, each with the collective that it belongs to, and their bounded waits."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from ..errors import InputError
from .attention import described
from .patience import Patience
from .window import Window

_COLLECTIVE, _FAILED = 1, 2   # tags
_HEADER_NBYTES = 8            # what the collective is (`protocol.signature`), or the rank that has failed


class Post:
    """Sends and receives for this rank. A rank that fails tells those of other nodes, which look while they wait.

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
        self._sent: list[tuple[MPI.Request, np.ndarray]] = []
        self._sent_to, self._received_from = [0] * comm.size, [0] * comm.size
        self.messages = 0

    def send(self, rank: int, agreed: int, data: np.ndarray) -> None:
        """Begin to send bytes to a rank of another node; `finish` waits for the end. They may be changed at once."""
        self._send(rank, agreed, data, _COLLECTIVE)
        self.messages += 1

    def receive(self, rank: int, agreed: int) -> np.ndarray:
        """The bytes that a rank of another node has sent for the same collective."""
        found: list[MPI.Message] = []

        def there():
            message = self._comm.Improbe(rank, _COLLECTIVE, status)
            if message is not None:
                found.append(message)
            return bool(found)

        status = MPI.Status()
        self._wait(there, rank)
        packed = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        self._received_from[rank] += 1
        self._wait(found[0].Irecv(packed).Test, rank)
        received = int(packed[:_HEADER_NBYTES].view(np.int64)[0])
        if received != agreed:
            text = (f"expected the same collective on all ranks, received {described(agreed)} on rank "
                    f"{self._comm.rank} and {described(received)} on rank {rank}")
            self._window.fail(text)
            raise InputError(text)
        return packed[_HEADER_NBYTES:]

    def finish(self) -> None:
        """Wait until everything is sent."""
        for request, _ in self._sent:
            self._wait(request.Test, None)
        self._sent.clear()

    def tell(self, ranks: list[int], text: str, origin: int | None) -> None:
        """Tell ranks that one, this one unless it is named, has failed, and why."""
        content = np.frombuffer(text.encode(errors="replace"), np.uint8)
        for rank in ranks:
            self._send(rank, self._comm.rank if origin is None else origin, content, _FAILED)

    def free(self) -> None:
        """Free the communicator (collective). After a failure there are messages that nobody waits for: MPI wants them received."""
        status = MPI.Status()
        for rank, sent in enumerate(self._comm.alltoall(self._sent_to)):
            for _ in range(sent - self._received_from[rank]):
                message = self._comm.Mprobe(rank, status=status)
                message.Recv(np.empty(status.Get_count(MPI.BYTE), np.uint8))
        MPI.Request.Waitall([request for request, _ in self._sent])
        self._sent.clear()
        self._comm.Free()

    def _send(self, rank, header, data, tag):
        packed = np.empty(_HEADER_NBYTES + data.size, np.uint8)
        packed[:_HEADER_NBYTES].view(np.int64)[0] = header
        packed[_HEADER_NBYTES:] = data
        self._sent_to[rank] += 1
        self._sent.append((self._comm.Isend(packed, rank, tag), packed))

    def _wait(self, done, rank):
        self._patience.until(done, ("another rank" if rank is None else f"rank {rank}") + " of another node", self._look)

    def _look(self):
        """Tell this node of a failure on another one."""
        status = MPI.Status()
        if self._comm.Iprobe(MPI.ANY_SOURCE, _FAILED, status):
            packed = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._comm.Recv(packed, status.source, _FAILED)
            self._received_from[status.source] += 1
            self._window.fail(bytes(packed[_HEADER_NBYTES:]).decode(errors="replace"),
                              int(packed[:_HEADER_NBYTES].view(np.int64)[0]))
