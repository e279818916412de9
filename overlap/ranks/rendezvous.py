"""`Rendezvous`: all ranks of a communicator wait for each other and reduce a few numbers.

If all ranks are on one node, they have a board: memory that all of them map, with two words for each rank. A rank
writes its word and waits until the words of all others have arrived. Each word carries the number of its round, so no
other order between stores is needed. The rounds use the two words of a rank in turns: a rank that has entered a round
has read all words of the round before. The loop of plans (`overlap.runtime.loop`) meets there, too, by the same two
compiled functions.

A rank that waits at the board calls MPI now and then, because messages sent to the user's code may need that to
progress.

Between nodes a round is a small MPI reduction.
"""

from __future__ import annotations

import os
import platform
import zlib
from array import array
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from math import ceil
from operator import or_
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from ..compiled import njit
from ..compiled.memory import address_of, load_acquire, pause, store_release, words
from ..errors import RankError
from .losses import guard_of, guarded
from .segments import segments
from .wait import HOT_S, wait_for

LINE = 64  # bytes: the words of two ranks are not on one cache line
NUMBER, BOARD, RANK, SIZE, SEEN = range(5)  # words of a state, see `Rendezvous.state`
TAG_BITS = 8  # bits of a word that hold the number of its round
TAG = (1 << TAG_BITS) - 1
WORD = (1 << (64 - TAG_BITS)) - 1
FLAG_BITS = 2  # then two flags of this rank, then a value
FLAGS = (1 << FLAG_BITS) - 1
VALUE = (1 << (64 - TAG_BITS - FLAG_BITS)) - 1
READS = 64  # reads of a rank's word before this rank does something else
_POLLS, _POLLS_SHARED = 1000, 20  # polls before a rank yields its core; the same if ranks share cores


class Rendezvous:
    """Reduces a few numbers over all ranks of a communicator. Making one is collective.

    Attributes
    ----------
    has_board : bool
        The ranks have a board, memory that all of them map.
    state : array of int
        Words for compiled code: how many rounds there have been, the board's address, this rank, the number of ranks,
        and of how many ranks the words of this round have been read.
    hot_s : float
        Seconds for which these ranks poll without sleep while they wait for each other.
    attend : callable or None
        Called with the time, now and then while this rank waits.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.state = array("q", (0, 0, comm.rank, comm.size, 0))
        self.has_board = False
        self._board: Any = None
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
        self._board, self.state[BOARD], self.has_board = segment.view(np.int64), address_of(segment), True

    def end(self) -> None:
        """Release the board: no round follows."""
        self._board, self.has_board = None, False

    def minimum(self, numbers: array[int]) -> None:
        """Reduce the headers ``(ok, signature, -signature)`` of all ranks to their minimum, in place.

        Raises an `MPI.Exception`.
        """
        if self.has_board:
            self._reduce(numbers, True)
            return
        request = self.comm.Iallreduce(MPI.IN_PLACE, numbers, MPI.MIN)  # matches that of `report`
        if self.attend is None:
            request.Wait()
        else:
            wait_for(request.Test, hot_s=self.hot_s, attend=self.attend)

    def report(self) -> Callable[[], bool]:
        """Send the header of a rank that has failed, without a wait for the other ranks.

        Returns a function that tells whether all ranks have reached this header; then it has reduced theirs to a
        failure, whatever they are. It raises as `minimum` does.
        """
        numbers = array("q", (0, 0, 0))
        if self.has_board:
            enter_round(self.state.buffer_info()[0], numbers.buffer_info()[0], True)
            return partial(self._is_over, numbers, True)
        request = self.comm.Iallreduce(MPI.IN_PLACE, numbers, MPI.MIN)
        # What is returned keeps the numbers, into which MPI writes: mpi4py's request keeps no buffer in place.
        return lambda: bool(request.Test() and numbers)

    def absent(self) -> list[int]:
        """Return the ranks that have not reached the round that this rank is in; without a board none is known."""
        board, state = self._board, self.state
        if board is None:
            return []
        arrived: list[int] = board[state[NUMBER] & 1 :: LINE // 8].tolist()
        return [rank for rank, word in enumerate(arrived) if (word ^ state[NUMBER]) & TAG]

    def sum(self, sums: array[int]) -> None:
        """Add up the numbers ``(failed, checksum, messages)`` of all ranks at the end of a call, in place.

        Needs a board, and raises as `minimum` does. The first number and the last one are 0 or 1; of the checksums' sum
        only the lower bits are right.
        """
        self._reduce(sums, False)

    def _reduce(self, numbers: array[int], headers: bool) -> None:
        """Reduce three numbers at the board, in place."""
        # Callers hold signals, so that no exception ends this rank between writing and reading.
        if not enter_round(self.state.buffer_info()[0], numbers.buffer_info()[0], headers):
            wait_for(partial(self._is_over, numbers, headers), hot_s=self.hot_s, attend=self.attend)

    def _is_over(self, numbers: array[int], headers: bool) -> bool:
        """Return whether all ranks have entered the round, and the numbers are reduced."""
        board = self._board  # keeps the memory while it is read: a departure's thread may come here beside `end`
        if board is None or read_round(self.state.buffer_info()[0], numbers.buffer_info()[0], headers):
            return True
        self.comm.Iprobe()
        return False


@njit
def read_round(state: int, numbers: int, headers: bool) -> bool:
    """Read the words of ranks that have entered the round: headers to their minimum, else to their sum.

    Returns False if some rank has not entered; the function is then called again.
    """
    own, reduced = words(state), words(numbers)
    while own[SEEN] < own[SIZE]:
        place, reads = own[BOARD] + LINE * own[SEEN] + 8 * (own[NUMBER] & 1), 0
        while (load_acquire(place) ^ own[NUMBER]) & TAG:
            reads += 1
            if reads == READS:
                return False
            pause()
        word = (load_acquire(place) >> TAG_BITS) & WORD
        if headers:
            reduced[0] = min(reduced[0], word & FLAGS)
            reduced[1] = min(reduced[1], word >> FLAG_BITS)
            reduced[2] = min(reduced[2], -(word >> FLAG_BITS))
        else:
            reduced[0] += word & 1
            reduced[1] = (reduced[1] + (word >> FLAG_BITS)) & VALUE
            reduced[2] += word >> 1 & 1
        own[SEEN] += 1
    return True


@njit
def enter_round(state: int, numbers: int, headers: bool) -> bool:
    """Enter a round with three numbers at an address: write this rank's word; then do as `read_round`."""
    own, given = words(state), words(numbers)
    if headers:
        word = given[1] << FLAG_BITS | given[0]
    else:
        word = (given[1] & VALUE) << FLAG_BITS | given[2] << 1 | given[0]
        given[0] = given[1] = given[2] = 0
    own[SEEN] = 0
    own[NUMBER] += 1
    store_release(own[BOARD] + LINE * own[RANK] + 8 * (own[NUMBER] & 1), word << TAG_BITS | own[NUMBER] & TAG)
    return read_round(state, numbers, headers)


def on_one_node(comm: MPI.Intracomm) -> bool:
    """Return whether all ranks share memory according to MPI. Collective."""
    node, free = node_of(comm)
    all_on_one = node.size == comm.size
    free()
    guard = guard_of(comm)
    if guard is not None and guard.comm.size == comm.size:
        guard.on_one_node = all_on_one
    return all_on_one


def node_of(comm: MPI.Intracomm) -> tuple[MPI.Intracomm, Callable[[], object]]:
    """Return a communicator of the ranks that share memory with this one, and what frees it. Both are collective."""
    guard = guard_of(comm)
    # If a rank dies while others make a communicator, Open MPI 5.0.11 may end them with a segmentation fault. So if
    # ranks may be lost, the answer that the guard has kept is used, and no communicator is made.
    if guard is not None and guard.on_one_node:
        return comm, lambda: None
    node: Any = guarded(comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank), comm)
    return node, node.Free


def polls_of(comm: MPI.Intracomm) -> int:
    """Return how often a rank polls a flag before it yields its core (collective).

    A rank polls less often if there are more ranks on this machine, whatever MPI calls a node, than cores for them.
    """
    return _POLLS_SHARED if ranks_per_core(comm) > 1 else _POLLS


def ranks_per_core(comm: MPI.Comm) -> int:
    """Return how many ranks of this machine share a core at most (collective); 1 if there is a core for each."""
    here, cores = _machine_number(), sum(1 << core for core in os.sched_getaffinity(0))
    shared = accumulate((mask for machine, mask in comm.allgather((here, cores)) if machine == here), or_)
    return max(ceil(ranks / mask.bit_count()) for ranks, mask in enumerate(shared, 1))


def _machine_number() -> int:
    """Return a number that is equal for all processes of one kernel, also in containers and network namespaces."""
    try:
        identity = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        identity = platform.node().encode()
    return zlib.crc32(identity) & 0x7FFFFFFF
