"""`Rendezvous`: where all ranks of a communicator wait for each other, and tell each other a few numbers.

Ranks of one node have a board: memory that all of them map, with two words for each rank. A rank writes its word of the
meeting, and waits until the words of all others are there. A word carries the number of its meeting, so that nothing
else need be ordered; meetings use the two words of a rank in turns: who has come to a meeting has read the words of the
one before. Compiled code takes part at the board as well (`overlap.fft.engine.compiled_call`).

A rank that waits at the board comes to MPI now and then: what others have sent to the user may need that.

Between nodes a meeting is a small reduction of MPI.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from mpi4py import MPI

from ...errors import RankError
from ...interrupts import held_signals
from ...losses import guard_of
from ...lowlevel.segments import segments
from .hot_wait import wait_for

LINE = 64  # bytes: the words of two ranks are not on one cache line
NUMBER, BOARD, RANK, SIZE, STATE = range(5)  # words of a state: meetings so far, the board's address, rank, ranks
TAG_BITS = 8  # of a word: the number of its meeting
TAG = (1 << TAG_BITS) - 1
FLAG_BITS = 2  # then what is true of this rank, then a value
FLAGS = (1 << FLAG_BITS) - 1
VALUE = (1 << (64 - TAG_BITS - FLAG_BITS)) - 1


class Rendezvous:
    """Meets all ranks of a communicator. Collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm

    Attributes
    ----------
    comm : mpi4py.MPI.Intracomm
    state : array of int
        What compiled code works on: NUMBER, BOARD, RANK, SIZE. Its board is 0 if there is none.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.state = array("q", (0, 0, comm.rank, comm.size))
        self._board: memoryview | None = None
        if comm.size > 1 and on_one_node(comm):
            self._make_board()

    def _make_board(self) -> None:
        comm = self.comm
        try:
            found = segments(comm, LINE * comm.size if comm.rank == 0 else 1, [0])[0]
        except RankError:  # on all ranks: they cannot map each other's memory, and meet by MPI
            return
        self._board = found.data.cast("Q")
        self.state[BOARD] = found.__array_interface__["data"][0]

    def end(self) -> None:
        """Let go of the board: no rank meets here any more."""
        self._board, self.state[BOARD] = None, 0

    @property
    def has_board(self) -> bool:
        """Tell whether words are written to memory that all ranks map."""
        return self._board is not None

    def minimum(self, numbers: array[int]) -> None:
        """Find the smallest of all ranks' headers, in place.

        Parameters
        ----------
        numbers : array of int
            ``(well, signature, -signature)``.

        Raises
        ------
        MPI.Exception
        """
        if self._board is None:
            self.comm.Allreduce(MPI.IN_PLACE, numbers, MPI.MIN)
            return
        own = header_word(numbers)
        words = self._met(own)
        if words.count(own) == len(words):  # nearly always
            return
        signatures = [word >> FLAG_BITS for word in words]
        numbers[0] = min(word & FLAGS for word in words)
        numbers[1], numbers[2] = min(signatures), -max(signatures)

    def sum(self, sums: array[int]) -> None:
        """Add up what all ranks tell at the end of a call, in place; there is a board.

        Parameters
        ----------
        sums : array of unsigned int
            ``(failed, checksum, messages)``; of the checksums' sum only the lower bits are right.

        Raises
        ------
        MPI.Exception
        """
        failed = checksum = messages = 0
        for word in self._met(agreement_word(sums)):
            failed += word & 1
            messages += word >> 1 & 1
            checksum += word >> FLAG_BITS
        sums[0], sums[1], sums[2] = failed, checksum & VALUE, messages

    def _met(self, word: int) -> list[int]:
        """Exchange words with all ranks; returns those of all, each with flags and a value."""
        board, state = self._board, self.state
        assert board is not None
        with held_signals():  # nobody may leave between writing and reading
            number = state[NUMBER] = state[NUMBER] + 1
            tag, column, width = number & TAG, number & 1, LINE // 8
            board[width * state[RANK] + column] = word << TAG_BITS | tag
            found = []
            for place in range(column, width * state[SIZE], width):
                if (here := board[place]) & TAG != tag:
                    here = self._awaited(board, place, tag)
                found.append(here >> TAG_BITS)
        return found

    def _awaited(self, board: memoryview, place: int, tag: int) -> int:
        """Wait for a word."""

        def is_there() -> bool:
            self.comm.Iprobe()
            return board[place] & TAG == tag

        wait_for(is_there)
        return board[place]


def on_one_node(comm: MPI.Intracomm) -> bool:
    """Tell whether all ranks share memory, as MPI sees it. Collective."""
    guard = guard_of(comm)
    # If a rank dies while others make a communicator, Open MPI 5.0.11 may end them with a segmentation fault. So where
    # ranks may be lost, no communicator is made to find out what is known.
    if guard is not None and guard.on_one_node:
        return True
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    found = node.size == comm.size
    node.Free()
    if guard is not None and guard.comm.size == comm.size:
        guard.on_one_node = found
    return found


def header_word(numbers: Sequence[int]) -> int:
    """Write a header as a word of the board, without the number of the meeting."""
    return numbers[1] << FLAG_BITS | numbers[0]


def agreement_word(sums: Sequence[int]) -> int:
    """Write what a rank tells at the end of a call as a word of the board, without the number of the meeting."""
    return (sums[1] & VALUE) << FLAG_BITS | (sums[2] > 0) << 1 | (sums[0] > 0)
