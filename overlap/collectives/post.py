"""Letters between ranks of several nodes, each with the collective that it belongs to, and notes of what goes wrong.

Compiled code sends and awaits letters (`chains`); this prepares them, and clears up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from ..failures import Failure
from .chains import ACTIVE, COUNTED, DATA, HEADER, OTHER, REQUEST
from .protocol import LINE, NOTHING, PAST, ROUND

_COLLECTIVE, _NOTE = 1, 2  # tags
_FAILED, _ASKED, _ANSWERED = range(3)  # what a note is for
_ROOM_NBYTES = 1024  # of an expected letter at least: one of another collective is longer now and then
_abandoned: list[
    Post
] = []  # where something has failed: MPI may still write to letters until `free`, though nobody holds them


class _Note(NamedTuple):
    """What ranks tell each other beside their letters: that one has failed, and what it does, where the other waits.

    Attributes
    ----------
    kind, round : int
    agreed : int
        What the collective is on the rank that writes.
    sent, taken : int
        How many letters it has sent to the reader, and taken from it, so far.
    """

    kind: int
    round: int
    agreed: int
    sent: int
    taken: int


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
    """Letters of this rank, and notes, which ranks read while they wait for long.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Duplicated (collective).
    state : ndarray of int64
        This rank's among all ranks.
    """

    def __init__(self, comm: MPI.Intracomm, state: np.ndarray) -> None:
        self._comm, self._state = comm.Dup(), state
        self._news: dict[int, tuple[_Note, Failure]] = {}  # of ranks that have failed
        self._questions: dict[int, int] = {}  # by rank, the round that it asks for
        self._asked: dict[int, int] = {}  # the same that this rank has asked for
        self._answers: dict[int, _Note] = {}
        self._sent: list[Letter] = []
        self._expected: list[Letter] = []
        self._written: list[MPI.Request] = []  # notes under way
        self._sent_to, self._received_from = np.zeros((2, comm.size), np.int64)
        self._notes_sent, self._notes_received = np.zeros((2, comm.size), np.int64)

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

    def tell(self, ranks: Iterable[int], failure: Failure) -> None:
        """Tell ranks that this one has failed, and why: it leaves letters under way."""
        _abandoned.append(self)
        for rank in ranks:
            self._note(rank, _FAILED, 0, NOTHING, failure.packed())

    def look(self) -> None:
        """Read the notes that have come, and answer questions."""
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, _NOTE, status):
            packed, rank = bytearray(status.Get_count(MPI.BYTE)), status.source
            self._comm.Recv(packed, rank, _NOTE)
            self._notes_received[rank] += 1
            note = _Note(*np.frombuffer(packed, np.int64, len(_Note._fields)).tolist())
            if note.kind == _FAILED:
                self._news[rank] = note, Failure.unpacked(bytes(packed[8 * len(note) :]))
            elif note.kind == _ASKED:
                self._questions[rank] = note.round
            else:
                self._answers[rank] = note
        here = int(self._state[ROUND])
        for rank, asked in list(self._questions.items()):
            if asked <= here:
                del self._questions[rank]
                known = int(self._state[PAST + (asked & 1)]) if asked > here - 2 else NOTHING
                self._note(rank, _ANSWERED, asked, known)

    def never(self, rank: int, coming: bool) -> Failure | int | None:
        """Tell why the next letter from a rank never comes, or the last one to it is never taken.

        Returns
        -------
        Failure
            Of the rank. Of what it has sent before nothing is lost, and how much that was it has told.
        int
            What it does instead (`protocol.signature`), or `NOTHING` where that is not known any more. It is asked
            once in a round.
        None
            The letter may still come, or be taken.
        """
        self.look()
        if rank in self._news:
            note, failure = self._news[rank]
            return None if self._possible(rank, coming, note) else failure
        here = int(self._state[ROUND])
        answer = self._answers.get(rank)
        if answer is not None and answer.round == here:
            if answer.agreed != NOTHING:
                return answer.agreed if answer.agreed != self._state[PAST + (here & 1)] else None
            return None if self._possible(rank, coming, answer) else NOTHING
        if self._asked.get(rank) != here:
            self._asked[rank] = here
            self._note(rank, _ASKED, here, NOTHING)
        return None

    def _possible(self, rank: int, coming: bool, note: _Note) -> bool:
        """Whether a letter is on its way from a rank, or has been taken there, as a note of it tells."""
        return bool(self._received_from[rank] < note.sent if coming else self._sent_to[rank] <= note.taken)

    def _note(self, rank: int, kind: int, number: int, agreed: int, more: bytes = b"") -> None:
        """Send a note to a rank."""
        note = _Note(kind, number, agreed, int(self._sent_to[rank]), int(self._received_from[rank]))
        packed = np.frombuffer(np.array(note, np.int64).tobytes() + more, np.uint8)
        self._written = [request for request in self._written if not request.Test()]
        self._written.append(self._comm.Isend(packed, rank, _NOTE))
        self._notes_sent[rank] += 1

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
        received = self._received_from + self._notes_received
        for rank, sent in enumerate(self._comm.alltoall((self._sent_to + self._notes_sent).tolist())):
            for _ in range(sent - received[rank]):
                message = self._comm.Mprobe(rank, status=status)
                message.Recv(np.empty(status.Get_count(MPI.BYTE), np.uint8))
        MPI.Request.Waitall([*self._written, *(letter.request for letter in self._sent)])
        self.discard()
        self._comm.Free()
        if self in _abandoned:
            _abandoned.remove(self)
