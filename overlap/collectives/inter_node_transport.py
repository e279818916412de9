"""Messages between ranks of several nodes, each with the signature of its collective, and notes about failures.

Compiled code sends and awaits messages (`chains`); this module prepares their buffers, and cleans up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from ..compiled.memory import LINE, address_of, line_zeros
from ..compiled.mpi import mpi_function
from ..ranks.failures import FailureChannel, RankFailure
from ..ranks.losses import guarded
from .chains import ACTIVE, COUNTED, DATA, HEADER, OTHER, REQUEST, SENT
from .protocol import MPI_START, MPI_TEST, NOTHING, PAST, ROUND
from .slow_path import CollectiveTransport

_COLLECTIVE, _NOTE = 1, 2  # tags
_FAILED, _ASKED, _ANSWERED = range(3)  # kinds of notes
_ROOM_NBYTES = 1024  # least size of a receive buffer: another collective's message may be longer than the expected one
# Kept alive after a failure: until `free`, MPI may still write to the buffers.
_abandoned: list[InterNodeTransport] = []


class _Note(NamedTuple):
    """A note beside the messages: a rank has failed, asks what another rank does, or answers that.

    Attributes
    ----------
    kind, round : int
    agreed : int
        The signature of the collective on the rank that writes.
    sent, taken : int
        The messages that the rank has sent to the reader, and received from it, so far.
    """

    kind: int
    round: int
    agreed: int
    sent: int
    taken: int


class MessageBuffer:
    """Memory for messages to or from a rank, and a persistent request.

    Attributes
    ----------
    address, nbytes : int
        The address of the buffer, and the bytes of its data.
    words : ndarray of int64
        See `chains`.
    request : mpi4py.MPI.Prequest
    """

    __slots__ = ("address", "nbytes", "request", "words")

    def __init__(self, comm: MPI.Intracomm, rank: int, nbytes: int, sent: bool, counted: int) -> None:
        room = line_zeros(DATA + nbytes)
        packed = room[HEADER:]
        self.address, self.nbytes = address_of(room), nbytes
        self.request = (comm.Send_init if sent else comm.Recv_init)(packed, rank, _COLLECTIVE)
        self.words = room[:LINE].view(np.int64)
        self.words[[REQUEST, OTHER, COUNTED, SENT]] = MPI._addressof(self.request), rank, counted, sent


class InterNodeTransport(CollectiveTransport):
    """Messages of this rank, and notes, which ranks read in long waits.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Duplicated (collective).
    state : ndarray of int64
        This rank's state among all ranks.
    far : sequence of int
        The ranks of other nodes.
    """

    def __init__(self, comm: MPI.Intracomm, state: np.ndarray, far: Sequence[int]) -> None:
        self._comm, self._state, self._far = guarded(comm.Dup(), comm), state, far
        self._notes = FailureChannel(self._comm, _NOTE)
        self._failed: dict[int, tuple[_Note, RankFailure]] = {}  # the failure of each rank
        self._questions: dict[int, int] = {}  # for each rank, the round about which it asks
        self._asked: dict[int, int] = {}  # for each rank, the round about which this rank has asked it
        self._answers: dict[int, _Note] = {}
        self._buffers: list[MessageBuffer] = []
        self._sent_to, self._received_from = np.zeros((2, comm.size), np.int64)
        self._notified = False
        state[[MPI_START, MPI_TEST]] = mpi_function("Start"), mpi_function("Test")

    @property
    def messages(self) -> int:
        """Return how many messages this rank has sent."""
        return int(self._sent_to.sum())

    def buffer(self, rank: int, nbytes: int, sent: bool) -> MessageBuffer:
        """Make a buffer for messages of `nbytes` bytes to (`sent`) or from a rank of another node."""
        counts = self._sent_to if sent else self._received_from
        nbytes = nbytes if sent else max(nbytes, _ROOM_NBYTES)
        self._buffers.append(MessageBuffer(self._comm, rank, nbytes, sent, address_of(counts[rank:])))
        return self._buffers[-1]

    def discard(self) -> None:
        """Forget all buffers, none of whose messages is under way."""
        for buffer in self._buffers:
            buffer.request.Free()
        self._buffers.clear()

    def notify(self, failure: RankFailure) -> None:
        """Notify, once, the ranks of other nodes of a failure here, which leaves messages under way."""
        if not self._notified:
            self._notified = True
            _abandoned.append(self)
            for rank in self._far:
                self._note(rank, _FAILED, 0, NOTHING, failure.packed())

    def poll(self) -> None:
        """Read the notes that have arrived, and answer questions."""
        for rank, packed in self._notes.received():
            note = _Note(*np.frombuffer(packed, np.int64, len(_Note._fields)).tolist())
            if note.kind == _FAILED:
                self._failed[rank] = note, RankFailure.unpacked(packed[8 * len(note) :])
            elif note.kind == _ASKED:
                self._questions[rank] = note.round
            else:
                self._answers[rank] = note
        current = int(self._state[ROUND])
        for rank, asked in list(self._questions.items()):
            if asked <= current:
                del self._questions[rank]
                known = int(self._state[PAST + (asked & 1)]) if asked > current - 2 else NOTHING
                self._note(rank, _ANSWERED, asked, known)

    def never(self, rank: int, coming: bool) -> RankFailure | int | None:
        """Return why the next message from a rank never arrives, or why the last one to it is never received.

        Returns
        -------
        RankFailure
            The failure of the rank. Messages that it had sent before, whose number it has reported, are not lost.
        int
            The signature of the collective that it makes instead, or `NOTHING` if that is not known any more. The rank
            is asked once in a round.
        None
            The message may still arrive or be received.
        """
        self.poll()
        if rank in self._failed:
            note, failure = self._failed[rank]
            return None if self._possible(rank, coming, note) else failure
        current = int(self._state[ROUND])
        answer = self._answers.get(rank)
        if answer is not None and answer.round == current:
            if answer.agreed != NOTHING:
                return answer.agreed if answer.agreed != self._state[PAST + (current & 1)] else None
            return None if self._possible(rank, coming, answer) else NOTHING
        if self._asked.get(rank) != current:
            self._asked[rank] = current
            self._note(rank, _ASKED, current, NOTHING)
        return None

    def _possible(self, rank: int, coming: bool, note: _Note) -> bool:
        """Return whether, according to a rank's note, it has sent the message, or has received it."""
        return bool(self._received_from[rank] < note.sent if coming else self._sent_to[rank] <= note.taken)

    def _note(self, rank: int, kind: int, number: int, agreed: int, more: bytes = b"") -> None:
        """Send a note to a rank."""
        note = _Note(kind, number, agreed, int(self._sent_to[rank]), int(self._received_from[rank]))
        self._notes.notify(rank, np.array(note, np.int64).tobytes() + more)

    def free(self) -> None:
        """Free the communicator (collective).

        After a failure there are messages for which no rank waits; MPI requires that they are received.
        """
        status = MPI.Status()
        for buffer in self._buffers:
            if buffer.words[ACTIVE] and not buffer.words[SENT]:
                buffer.request.Cancel()
                buffer.request.Wait(status)
                self._received_from[buffer.words[OTHER]] += not status.Is_cancelled()
        self._notes.end()
        for rank, sent in enumerate(self._comm.alltoall(self._sent_to.tolist())):
            for _ in range(sent - self._received_from[rank]):
                message = self._comm.Mprobe(rank, _COLLECTIVE, status)
                message.Recv(np.empty(status.Get_count(MPI.BYTE), np.uint8))
        MPI.Request.Waitall([buffer.request for buffer in self._buffers])
        self.discard()
        self._comm.Free()
        if self in _abandoned:
            _abandoned.remove(self)
