"""The window of a node: its segments, and the states that a rank's compiled code works on."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from mpi4py import MPI

from ..errors import RankLost
from ..failures import RankFailure
from ..losses import guard_of
from ..lowlevel.memory import LINE, address_of, line_zeros, whole_lines
from ..lowlevel.mpi import memory_at
from . import protocol
from .combine import KERNELS

FLAT_RANKS = 8  # up to so many ranks of a node, every collective takes one step
NO_LIMIT = 2**62
_SCRATCH_NBYTES = 4 * LINE  # a number and a result, times, what MPI writes
# What a segment has about its owner's failure: the mark, and how many bytes of a `RankFailure` follow.
_MARK, _LENGTH = range(2)
_WORDS_NBYTES = 2 * 8
_FAILURE_NBYTES = protocol.SLOTS - protocol.FAILED


class Window:
    """A shared window with a segment for each rank of a node, and this rank's state.

    Collective over `comm`, whose ranks share memory. Free it together, too.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    capacity : int
        Bytes of a slot, a multiple of a cache line for each rank.
    ranks : sequence of int
        What the node's ranks are called in messages.
    polls : int
        How often a flag is read before a rank lets others have its core.

    Attributes
    ----------
    state : ndarray of int64
        Compiled code is given its address.
    closed, forked : bool
        Whether it was freed, or belongs to the process that this one was forked from.
    guard : Guard or None
        That of `comm`.
    """

    def __init__(self, comm: MPI.Intracomm, capacity: int, ranks: tuple[int, ...], polls: int) -> None:
        self._place, self._ranks = comm.rank, ranks
        self.guard = guard_of(comm)
        self.closed = self.forked = False
        nbytes = protocol.segment_nbytes(capacity)
        self._window = MPI.Win.Allocate_shared(nbytes + LINE, 1, comm=comm)
        self._bases = [whole_lines(self._window.Shared_query(other)[0].address) for other in range(comm.size)]
        self._failures = [memory(base + protocol.FAILED, _FAILURE_NBYTES) for base in self._bases]
        self._polls = polls
        self._capacity = capacity
        self._states: list[np.ndarray] = []
        self.state = self.new_state(comm.rank, self._bases, NO_LIMIT)
        memory(self._bases[comm.rank], nbytes)[:] = 0
        protocol.set_mark(self._bases[comm.rank], 0)  # compiled now, not when something has failed
        comm.Barrier()  # nobody writes to a segment that is not empty yet
        if self.guard is not None:
            self.guard.register(self)

    def new_state(self, rank: int, bases: list[int], limit: int) -> np.ndarray:
        """Return the state of one of several ranks, given the addresses of their segments, and a limit of messages'
        bytes.
        """
        size = len(bases)
        state = line_zeros((protocol.SEEN + 2 * size) * 8 + _SCRATCH_NBYTES).view(np.int64)
        address = address_of(state)
        scratch = address + state.nbytes - _SCRATCH_NBYTES
        state[[protocol.RANK, protocol.SIZE, protocol.CAPACITY, protocol.POLLS]] = (
            rank,
            size,
            self._capacity,
            self._polls,
        )
        state[[protocol.FLAT, protocol.KERNELS, protocol.SELF]] = FLAT_RANKS, address_of(KERNELS), address
        state[protocol.SCRATCH] = scratch
        state[protocol.LIMITS : protocol.LIMITS + len(protocol.NAMES)] = limit
        state[protocol.SEEN + size : protocol.SEEN + 2 * size] = bases
        self._states.append(state)
        return state

    def state_of_all(self, rank: int, size: int) -> np.ndarray:
        """Make a state for ranks of several nodes, which have no collective of their own in the window."""
        return self.new_state(rank, [self._bases[self._place]] * size, -1)

    def fail(self, failure: RankFailure) -> None:
        """Let the ranks that wait for this one know that it does not come, and why; a first failure stays."""
        self.spoil()
        mine = self._failures[self._place]
        if not _words(mine)[_MARK]:
            content = np.frombuffer(failure.packed(_FAILURE_NBYTES - _WORDS_NBYTES), np.uint8)
            mine[_WORDS_NBYTES : _WORDS_NBYTES + len(content)] = content
            _words(mine)[_LENGTH] = len(content)
            # Compiled code does the same where it is left by an exception.
            protocol.set_mark(self._bases[self._place], 1)

    def lose(self, lost: RankLost) -> None:
        """Note that a rank is lost: nobody waits for this one any more."""
        if not self.closed:
            self.fail(RankFailure.of(self._ranks[self._place], lost))

    @property
    def lost(self) -> RankLost | None:
        """Tell what the loss of a rank has raised here."""
        return None if self.guard is None else self.guard.lost

    def spoil(self) -> None:
        """Take no part in collectives any more."""
        for state in self._states:
            state[protocol.BROKEN] = 1

    def failure(self, place: int | None = None) -> RankFailure:
        """Return why a rank of the node has set its mark, this one unless another is named."""
        place = self._place if place is None else place
        one = self._failures[place]
        if length := int(_words(one)[_LENGTH]):
            return RankFailure.unpacked(bytes(one[_WORDS_NBYTES : _WORDS_NBYTES + length]))
        return RankFailure(self._ranks[place], "it has left a collective by an exception", "(raised on that rank)")

    def follow(self, place: int) -> NoReturn:
        """Fail as another rank of the node has, without which this one cannot go on."""
        failure = self.failure(place)
        if failure.is_loss and self.guard is not None:  # which that rank was the first to notice
            raise self.guard.lose("a collective")
        self.fail(failure)
        raise failure.error()

    def close(self, forked: bool = False) -> None:
        """Let nobody use it here any more, also not a child of this process if it was forked."""
        self.closed, self.forked = True, forked
        self.spoil()
        for state in self._states:
            # What compiled code writes to this rank's segment when it raises goes to the scratch memory.
            size = state[protocol.SIZE]
            state[protocol.SEEN + size : protocol.SEEN + 2 * size] = state[protocol.SCRATCH] - protocol.FAILED
        self._failures.clear()

    def free(self) -> None:
        """Free the window (collective)."""
        self.close()
        self._window.Free()


def memory(address: int, nbytes: int) -> np.ndarray:
    """Bytes at an address as an array."""
    return np.frombuffer(memory_at(address, nbytes), np.uint8)


def _words(failure: np.ndarray) -> np.ndarray:
    return failure[:_WORDS_NBYTES].view(np.int64)
