"""The window of a node: its segments, and the states for a rank's compiled code."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import NoReturn

import numpy as np
from mpi4py import MPI

from ..compiled.memory import LINE, address_of, line_zeros
from ..compiled.mpi import memory_at
from ..errors import RankLost
from ..ranks.failures import RankFailure
from ..ranks.losses import guard_of
from ..ranks.segments import segments
from ..ranks.wait import wait_for
from . import protocol
from .combine import KERNELS

FLAT_RANKS = 8  # up to this number of ranks of a node, every collective takes one step
NO_LIMIT = 2**62
_SCRATCH_NBYTES = 4 * LINE  # a number and a result, times, what MPI writes
# Words of a segment about its owner's failure: the mark, and the bytes of the `RankFailure` that follows.
_MARK, _LENGTH = range(2)
_WORDS_NBYTES = 2 * 8
_FAILURE_NBYTES = protocol.SLOTS - protocol.FAILED
_STORED_S = 1.0  # after its mark a failure is stored at once, unless a signal handler raises meanwhile


class Window:
    """A window with a segment for each rank of a node, and this rank's state.

    Making it is collective over `comm`; a `RankError` is raised on all ranks if there is not enough shared memory.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,  # all ranks, which make the windows of their nodes at once
        node: MPI.Intracomm,  # the ranks that share memory with this one
        capacity: int,  # bytes of a slot, a multiple of a cache line for each rank
        ranks: tuple[int, ...],  # the numbers of the node's ranks in error messages
        polls: int,  # how often a rank reads a flag before it yields its core
        identity: str,  # of what the first collective that fails raises on all ranks, each of which raises it once
        answer: Callable[[RankFailure], object],  # called with the failure that is raised here, of this or another rank
    ) -> None:
        self._place, self._ranks, self.identity = node.rank, ranks, identity
        self.guard, self._answer = guard_of(comm), answer
        self.closed = self.forked = False  # freed; of the process that this one was forked from
        self.uncaught = False  # the exception that has ended compiled code on this rank has no identity yet
        nbytes = protocol.segment_nbytes(capacity)
        self._segments = segments(node, nbytes, range(node.size), comm)
        self._bases = [address_of(self._segments[peer]) for peer in range(node.size)]
        self._failures = [memory(base + protocol.FAILED, _FAILURE_NBYTES) for base in self._bases]
        self._polls = polls
        self._capacity = capacity
        self._states: list[np.ndarray] = []
        self.state = self.new_state(node.rank, self._bases, NO_LIMIT)
        protocol.set_mark(self._bases[node.rank], 0)  # has the function compiled now, not after a failure
        if self.guard is not None:
            self.guard.register(self)

    def new_state(self, rank: int, bases: list[int], limit: int) -> np.ndarray:
        """Make the state of a rank among several, given their segments' addresses and the longest message in bytes."""
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
        """Make the state of a rank among those of all nodes, whose collectives do not use the window alone."""
        return self.new_state(rank, [self._bases[self._place]] * size, -1)

    def fail(self, failure: RankFailure) -> None:
        """Store this rank's failure for the ranks that wait for it; the first failure stays."""
        self.spoil()
        own_failure = self._failures[self._place]
        if not _words(own_failure)[_LENGTH]:
            content = np.frombuffer(failure.packed(_FAILURE_NBYTES - _WORDS_NBYTES), np.uint8)
            own_failure[_WORDS_NBYTES : _WORDS_NBYTES + len(content)] = content
            _words(own_failure)[_LENGTH] = len(content)
            # Compiled code does so, too, if an exception ends it, and stores the failure only then.
            protocol.set_mark(self._bases[self._place], 1)
            self._answer(failure)

    def fail_unknown(self) -> None:
        """Store that an exception has ended compiled code, unless this or another failure is stored already."""
        if not (self.closed or _words(self._failures[self._place])[_LENGTH]):
            self.uncaught = True
            self.fail(self._unknown(self._place))

    def _unknown(self, place: int) -> RankFailure:
        text = "it has left a collective by an exception", "(raised on that rank)"
        return RankFailure(self._ranks[place], *text, identity=self.identity)

    def lose(self, lost: RankLost) -> None:
        """Note that a rank is lost, so that no rank waits for this one any more."""
        if not self.closed:
            self.fail(RankFailure.of(self._ranks[self._place], lost))

    @property
    def lost(self) -> RankLost | None:
        """Return the `RankLost` raised on this rank, or None."""
        return None if self.guard is None else self.guard.lost

    def spoil(self) -> None:
        """Take no further part in collectives."""
        for state in self._states:
            state[protocol.BROKEN] = 1

    def failure(self, place: int | None = None) -> RankFailure:
        """Return the failure of a rank of the node that has set its mark, by default of this rank."""
        place = self._place if place is None else place
        words, end = _words(stored := self._failures[place]), monotonic() + _STORED_S
        wait_for(lambda: bool(words[_LENGTH]) or monotonic() > end)
        if length := int(words[_LENGTH]):
            return RankFailure.unpacked(bytes(stored[_WORDS_NBYTES : _WORDS_NBYTES + length]))
        return self._unknown(place)

    def follow(self, place: int) -> NoReturn:
        """Raise the failure of another rank of the node, without which this one cannot go on."""
        failure = self.failure(place)
        if failure.is_loss and self.guard is not None:  # a loss that that rank was the first to detect
            raise self.guard.lose("a collective")
        self.end(failure)

    def end(self, failure: RankFailure) -> NoReturn:
        """Raise another rank's failure, here and on the ranks that wait for this one."""
        self.fail(failure)
        raise failure.error()

    def close(self, forked: bool = False) -> None:
        """Close the window on this rank, or in a child that was forked from this process."""
        self.closed, self.forked = True, forked
        self.spoil()
        for state in self._states:
            # If compiled code raises, it writes to this rank's segment, which is now scratch memory.
            size = state[protocol.SIZE]
            state[protocol.SEEN + size : protocol.SEEN + 2 * size] = state[protocol.SCRATCH] - protocol.FAILED
        self._failures.clear()

    def free(self) -> None:
        """Close the window and release its memory on this rank."""
        self.close()
        self._segments.clear()


def memory(address: int, nbytes: int) -> np.ndarray:
    """Return the bytes at an address as an array."""
    return np.frombuffer(memory_at(address, nbytes), np.uint8)


def _words(failure: np.ndarray) -> np.ndarray:
    return failure[:_WORDS_NBYTES].view(np.int64)
