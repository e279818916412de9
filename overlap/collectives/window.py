"""The window of a node: its segments, and the states that a rank's compiled code works on."""

from __future__ import annotations

import os
import platform
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from . import protocol
from .combine import KERNELS

SPINS = 1000  # polls of a flag before a rank lets others have its core
SPINS_SHARED = 20  # the same where ranks share cores
FLAT_RANKS = 8  # up to so many ranks of a node, every collective takes one step
NO_LIMIT = 2**62
_SCRATCH_NBYTES = 4 * protocol.LINE  # a number and a result, times, what MPI writes
# Words of a failure: is there one, is it another rank's, whose (plus one; 0: the segment's owner's), length of its
# text.
_MARK, _FOLLOWS, _ORIGIN, _LENGTH = range(4)
_WORDS_NBYTES = 4 * 8
_FAILURE_NBYTES = (protocol.SLOTS - protocol.FAILED) // 2


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
        How often a flag is read before a rank lets others have its core: `SPINS`, or `SPINS_SHARED` where cores are
        shared.

    Attributes
    ----------
    state : ndarray of int64
        Compiled code is given its address.
    closed : bool
    """

    def __init__(self, comm: MPI.Intracomm, capacity: int, ranks: tuple[int, ...], polls: int) -> None:
        self._place, self._ranks = comm.rank, ranks
        self.closed = False
        nbytes = protocol.segment_nbytes(capacity)
        self._window = MPI.Win.Allocate_shared(nbytes + protocol.LINE, 1, comm=comm)
        self._bases = [_aligned(self._window.Shared_query(other)[0].address) for other in range(comm.size)]
        self._failures = [memory(base + protocol.FAILED, _FAILURE_NBYTES) for base in self._bases]
        self._polls = polls
        self._capacity = capacity
        self._states: list[np.ndarray] = []
        self.state = self.new_state(comm.rank, self._bases, NO_LIMIT)
        memory(self._bases[comm.rank], nbytes)[:] = 0
        comm.Barrier()  # nobody writes to a segment that is not empty yet

    def new_state(self, rank: int, bases: list[int], limit: int) -> np.ndarray:
        """Return the state of one of several ranks, given the addresses of their segments, and a limit of messages'
        bytes.
        """
        size = len(bases)
        room = np.zeros((protocol.SEEN + 2 * size) * 8 + _SCRATCH_NBYTES + protocol.LINE, np.uint8)
        shift = -room.ctypes.data % protocol.LINE
        state = room[shift : shift + (room.nbytes - protocol.LINE) // 8 * 8].view(np.int64)
        address = state.ctypes.data
        for place, value in (
            (protocol.RANK, rank),
            (protocol.SIZE, size),
            (protocol.CAPACITY, self._capacity),
            (protocol.POLLS, self._polls),
            (protocol.FLAT, FLAT_RANKS),
            (protocol.KERNELS, KERNELS.ctypes.data),
            (protocol.SELF, address),
            (protocol.SCRATCH, address + state.nbytes - _SCRATCH_NBYTES),
        ):
            state[place] = value
        state[protocol.LIMITS : protocol.LIMITS + len(protocol.NAMES)] = limit
        state[protocol.SEEN + size : protocol.SEEN + 2 * size] = bases
        self._states.append(state)
        return state

    def state_of_all(self, rank: int, size: int) -> np.ndarray:
        """Make a state for ranks of several nodes, which have no collective of their own in the window."""
        return self.new_state(rank, [self._bases[self._place]] * size, -1)

    def fail(self, text: str, origin: int | None = None) -> None:
        """Tell the ranks that wait for this one that it does not come, and why; `origin` is a rank of another node."""
        mine = self._failures[self._place]
        content = np.frombuffer(text.encode(errors="replace"), np.uint8)[: _FAILURE_NBYTES - _WORDS_NBYTES]
        mine[_WORDS_NBYTES : _WORDS_NBYTES + len(content)] = content
        words = _words(mine)
        words[_LENGTH] = len(content)
        words[_ORIGIN] = 0 if origin is None else 1 + origin
        words[_MARK] = 1  # last; compiled code does the same where it is left by an exception
        self.spoil()

    def spoil(self) -> None:
        """Let this rank take no part in collectives any more."""
        for state in self._states:
            state[protocol.BROKEN] = 1

    def failure(self) -> tuple[int, str] | None:
        """Return the rank that has failed first by itself, as far as this node knows, and why; None while there is
        none.
        """
        marked = [place for place, one in enumerate(self._failures) if _words(one)[_MARK]]
        for place in marked:
            one = self._failures[place]
            words = _words(one)
            if not words[_FOLLOWS]:
                text = bytes(one[_WORDS_NBYTES : _WORDS_NBYTES + int(words[_LENGTH])]).decode(errors="replace")
                _words(self._failures[self._place])[_FOLLOWS] = place != self._place
                return int(words[_ORIGIN]) - 1 if words[_ORIGIN] else self._ranks[place], text
        return None

    def free(self) -> None:
        """Free the window (collective)."""
        self.closed = True
        self.spoil()
        for state in self._states:
            # What compiled code writes to this rank's segment when it raises goes to the scratch memory.
            size = state[protocol.SIZE]
            state[protocol.SEEN + size : protocol.SEEN + 2 * size] = state[protocol.SCRATCH] - protocol.FAILED
        self._failures.clear()
        self._window.Free()


def memory(address: int, nbytes: int) -> np.ndarray:
    """Bytes at an address as an array."""
    content: Any = MPI.buffer.fromaddress(address, nbytes)
    return np.frombuffer(content, np.uint8)


def _words(failure):
    return failure[:_WORDS_NBYTES].view(np.int64)


def _aligned(address):
    return -(-address // protocol.LINE) * protocol.LINE


def cores_are_shared(comm: MPI.Comm) -> bool:
    """Whether ranks of a communicator on this machine, whatever MPI takes for its nodes, may run on fewer cores than
    they are.
    """
    machine = comm.Split(_machine_number(), comm.rank)
    cores: Any = machine.allgather(os.sched_getaffinity(0))
    machine.Free()
    return len(set().union(*cores)) < len(cores) or any(
        len(set().union(*cores[:place]) | mine) < place + 1 for place, mine in enumerate(cores)
    )


def _machine_number():
    """Return the same for all processes that one kernel runs, in containers and network namespaces too."""
    try:
        identity = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        identity = platform.node().encode()
    return zlib.crc32(identity) & 0x7FFFFFFF
