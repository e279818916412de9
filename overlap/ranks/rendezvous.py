"""`Rendezvous`: all ranks of a communicator wait for each other and reduce a few numbers.

If all ranks are on one node, they have a board: memory that all of them map, with two words for each rank. A rank
writes its word and waits until the words of all others have arrived. Each word carries the number of its round, so no
other order between stores is needed. The rounds use the two words of a rank in turns: a rank that has entered a round
has read all words of the round before. Compiled code uses the board, too (`overlap.runtime.loop.ranks`).

A rank that waits at the board calls MPI now and then, because messages sent to the user's code may need that to
progress.

Between nodes a round is a small MPI reduction.
"""

from __future__ import annotations

import os
import platform
import zlib
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import ceil
from operator import or_
from pathlib import Path

from mpi4py import MPI

from ..errors import RankError
from .losses import guard_of, guarded
from .segments import segments
from .wait import HOT_S, wait_for

LINE = 64  # bytes: the words of two ranks are not on one cache line
NUMBER, BOARD, RANK, SIZE, STATE = range(5)  # words of a state: rounds so far, the board's address, rank, ranks
TAG_BITS = 8  # bits of a word that hold the number of its round
TAG = (1 << TAG_BITS) - 1
FLAG_BITS = 2  # then two flags of this rank, then a value
FLAGS = (1 << FLAG_BITS) - 1
VALUE = (1 << (64 - TAG_BITS - FLAG_BITS)) - 1
_POLLS, _POLLS_SHARED = 1000, 20  # polls before a rank yields its core; the same if ranks share cores


class Rendezvous:
    """Reduces a few numbers over all ranks of a communicator. Making one is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm

    Attributes
    ----------
    comm : mpi4py.MPI.Intracomm
    state : array of int
        The words NUMBER, BOARD, RANK and SIZE, for compiled code; without a board, BOARD is 0.
    hot_s : float
        Seconds for which these ranks poll without sleep while they wait for each other.
    attend : callable or None
        Called with the time, now and then while this rank waits.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.state = array("q", (0, 0, comm.rank, comm.size))
        self._board: memoryview | None = None
        self.hot_s = HOT_S
        self.attend: Callable[[float], None] | None = None
        if comm.size > 1 and on_one_node(comm):
            # Ranks that share a core run in turns, so a short wait takes as many times longer. If all ranks slept
            # meanwhile, an operation of several steps would take a sleep for each.
            self.hot_s = HOT_S * ranks_per_core(comm)
            self._make_board()

    def _make_board(self) -> None:
        comm = self.comm
        try:
            segment = segments(comm, LINE * comm.size if comm.rank == 0 else 1, [0])[0]
        except RankError:  # raised on all ranks: they cannot map each other's memory, so they use MPI
            return
        self._board = segment.data.cast("Q")
        self.state[BOARD] = segment.__array_interface__["data"][0]

    def end(self) -> None:
        """Release the board: no round follows."""
        self._board, self.state[BOARD] = None, 0

    @property
    def has_board(self) -> bool:
        """Return whether the ranks have a board, memory that all of them map."""
        return self._board is not None

    def minimum(self, numbers: array[int]) -> None:
        """Reduce the headers of all ranks to their minimum, in place.

        Parameters
        ----------
        numbers : array of int
            ``(ok, signature, -signature)``.

        Raises
        ------
        MPI.Exception
        """
        if self._board is None:
            request = self.comm.Iallreduce(MPI.IN_PLACE, numbers, MPI.MIN)  # matches that of `report`
            if self.attend is None:
                request.Wait()
            else:
                wait_for(request.Test, hot_s=self.hot_s, attend=self.attend)
            return
        own = header_word(numbers)
        words = self._exchanged(own)
        if words.count(own) == len(words):  # nearly always
            return
        signatures = [word >> FLAG_BITS for word in words]
        numbers[0] = min(word & FLAGS for word in words)
        numbers[1], numbers[2] = min(signatures), -max(signatures)

    def report(self) -> Callable[[], bool]:
        """Send the header of a rank that has failed, without a wait for the other ranks.

        Returns
        -------
        callable
            Tells whether all ranks have reached this header; then it has reduced theirs to a failure, whatever they
            are. Raises as `minimum` does.
        """
        if self._board is None:
            numbers = array("q", (0, 0, 0))
            request = self.comm.Iallreduce(MPI.IN_PLACE, numbers, MPI.MIN)
            # What is returned keeps the numbers, into which MPI writes: mpi4py's request keeps no buffer in place.
            return lambda: bool(request.Test() and numbers)
        self._write(0)

        def is_complete() -> bool:
            self.comm.Iprobe()
            return not self.absent()

        return is_complete

    def absent(self) -> list[int]:
        """Return the ranks that have not reached the round that this rank is in; without a board none is known."""
        board, state = self._board, self.state
        if board is None:
            return []
        tag, column, width = state[NUMBER] & TAG, state[NUMBER] & 1, LINE // 8
        return [rank for rank in range(state[SIZE]) if board[width * rank + column] & TAG != tag]

    def sum(self, sums: array[int]) -> None:
        """Add up the numbers of all ranks at the end of a call, in place; needs a board.

        Parameters
        ----------
        sums : array of unsigned int
            ``(failed, checksum, messages)``; of the checksums' sum only the lower bits are right.

        Raises
        ------
        MPI.Exception
        """
        failed = checksum = messages = 0
        for word in self._exchanged(agreement_word(sums)):
            failed += word & 1
            messages += word >> 1 & 1
            checksum += word >> FLAG_BITS
        sums[0], sums[1], sums[2] = failed, checksum & VALUE, messages

    def _exchanged(self, word: int) -> list[int]:
        """Exchange words with all ranks; return the words of all, each with its flags and its value."""
        # Callers hold signals, so that no exception ends this rank between writing and reading.
        board, number = self._write(word)
        state = self.state
        tag, column, width = number & TAG, number & 1, LINE // 8
        words = []
        for index in range(column, width * state[SIZE], width):
            if (received := board[index]) & TAG != tag:
                received = self._awaited(board, index, tag)
            words.append(received >> TAG_BITS)
        return words

    def _write(self, word: int) -> tuple[memoryview, int]:
        """Write this rank's word of the next round; return the board and the number of the round."""
        board, state = self._board, self.state
        assert board is not None
        number = state[NUMBER] = state[NUMBER] + 1
        board[LINE // 8 * state[RANK] + (number & 1)] = word << TAG_BITS | number & TAG
        return board, number

    def _awaited(self, board: memoryview, index: int, tag: int) -> int:
        """Wait until a word carries the number of this round."""

        def is_there() -> bool:
            self.comm.Iprobe()
            return board[index] & TAG == tag

        wait_for(is_there, hot_s=self.hot_s, attend=self.attend)
        return board[index]


def on_one_node(comm: MPI.Intracomm) -> bool:
    """Return whether all ranks share memory according to MPI. Collective."""
    guard = guard_of(comm)
    # If a rank dies while others make a communicator, Open MPI 5.0.11 may end them with a segmentation fault. So if
    # ranks may be lost, the answer that the guard has kept is used, and no communicator is made.
    if guard is not None and guard.on_one_node:
        return True
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    all_on_one = node.size == comm.size
    node.Free()
    if guard is not None and guard.comm.size == comm.size:
        guard.on_one_node = all_on_one
    return all_on_one


def header_word(numbers: Sequence[int]) -> int:
    """Return a header as a word of the board, without the number of the round."""
    return numbers[1] << FLAG_BITS | numbers[0]


def agreement_word(sums: Sequence[int]) -> int:
    """Return a rank's numbers at the end of a call as a word of the board, without the number of the round."""
    return (sums[1] & VALUE) << FLAG_BITS | (sums[2] > 0) << 1 | (sums[0] > 0)


def polls_of(comm: MPI.Intracomm) -> int:
    """Return how often a rank polls a flag before it yields its core (collective).

    A rank polls less often if there are more ranks on this machine, whatever MPI calls a node, than cores for them.
    """
    machine = guarded(comm.Split(_machine_number(), comm.rank), comm)
    shared = ranks_per_core(machine) > 1
    machine.Free()
    return _POLLS_SHARED if shared else _POLLS


def ranks_per_core(machine: MPI.Comm) -> int:
    """Return how many ranks of one machine share a core at most (collective); 1 if there is a core for each."""
    cores: list[set[int]] = machine.allgather(os.sched_getaffinity(0))
    return max(ceil(ranks / len(shared)) for ranks, shared in enumerate(accumulate(cores, or_), 1))


def _machine_number() -> int:
    """Return a number that is equal for all processes of one kernel, also in containers and network namespaces."""
    try:
        identity = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        identity = platform.node().encode()
    return zlib.crc32(identity) & 0x7FFFFFFF
