"""The window of a node: its segments, and the state that a rank's compiled code works on."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from mpi4py import MPI

from . import protocol
from .combine import KERNELS

SPINS = 1000          # polls of a flag before a rank lets others have its core
SPINS_SHARED = 20     # the same where ranks share cores
FLAT_RANKS = 8        # up to so many ranks of a node, every collective takes one step
_SCRATCH_NBYTES = 3 * protocol.LINE
_MARK, _FOLLOWS, _LENGTH = range(3)  # of a failure: is there one, is it another rank's, length of its text
_FAILURE_NBYTES = (protocol.SLOTS - protocol.FAILED) // 2


class Window:
    """A shared window with a segment for each rank of a node, and this rank's state.

    Collective over `comm`, whose ranks share memory. Free it together, too.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    capacity : int
        Bytes of a slot, a multiple of a cache line for each rank.

    Attributes
    ----------
    address : int
        Where the state stands.
    state : ndarray of int64
    closed : bool
    """

    def __init__(self, comm: MPI.Intracomm, capacity: int) -> None:
        rank, size = comm.rank, comm.size
        self.closed = False
        nbytes = protocol.segment_nbytes(capacity)
        self._window = MPI.Win.Allocate_shared(nbytes + protocol.LINE, 1, comm=comm)
        bases = [_aligned(self._window.Shared_query(other)[0].address) for other in range(size)]
        self._failures = [_memory(base + protocol.FAILED, _FAILURE_NBYTES) for base in bases]
        memory = np.zeros((protocol.SEEN + 2 * size) * 8 + _SCRATCH_NBYTES + protocol.LINE, np.uint8)
        shift = -memory.ctypes.data % protocol.LINE
        self.state = memory[shift:shift + (memory.nbytes - protocol.LINE) // 8 * 8].view(np.int64)
        self.address = self.state.ctypes.data
        scratch = self.address + self.state.nbytes - _SCRATCH_NBYTES
        for place, value in ((protocol.RANK, rank), (protocol.SIZE, size), (protocol.CAPACITY, capacity),
                             (protocol.POLLS, SPINS_SHARED if cores_are_shared(comm) else SPINS),
                             (protocol.FLAT, FLAT_RANKS), (protocol.KERNELS, KERNELS.ctypes.data),
                             (protocol.NODES, 1), (protocol.SCRATCH, scratch), (protocol.SELF, self.address)):
            self.state[place] = value
        self.state[protocol.SEEN + size:protocol.SEEN + 2 * size] = bases
        _memory(bases[rank], nbytes)[:] = 0
        comm.Barrier()  # nobody writes to a segment that is not empty yet

    def fail(self, text: str) -> None:
        """Tell the ranks that wait for this one that it does not come, and why."""
        mine = self._failures[self.state[protocol.RANK]]
        content = np.frombuffer(text.encode(errors="replace"), np.uint8)[:_FAILURE_NBYTES - 3 * 8]
        mine[3 * 8:3 * 8 + len(content)] = content
        words = mine[:3 * 8].view(np.int64)
        words[_LENGTH] = len(content)
        words[_MARK] = 1  # last; compiled code does the same where it is left by an exception
        self.state[protocol.BROKEN] = 1

    def failure(self) -> tuple[int, str] | None:
        """The rank of the node that has failed first by itself, and why; None while there is none."""
        marked = [rank for rank, one in enumerate(self._failures) if one[:8].view(np.int64)[_MARK]]
        for rank in marked:
            one = self._failures[rank]
            words = one[:3 * 8].view(np.int64)
            if not words[_FOLLOWS]:
                text = bytes(one[3 * 8:3 * 8 + int(words[_LENGTH])]).decode(errors="replace")
                self._failures[self.state[protocol.RANK]][:3 * 8].view(np.int64)[_FOLLOWS] = (
                    rank != self.state[protocol.RANK])
                return rank, text
        return None

    def free(self) -> None:
        """Free the window (collective)."""
        self.closed = True
        self.state[protocol.BROKEN] = 1
        # What compiled code writes to this rank's segment when it raises goes to the scratch memory.
        size = self.state[protocol.SIZE]
        self.state[protocol.SEEN + size:protocol.SEEN + 2 * size] = self.state[protocol.SCRATCH] - protocol.FAILED
        self._failures.clear()
        self._window.Free()


def _memory(address, nbytes):
    """Bytes at an address as an array."""
    return np.frombuffer(MPI.buffer.fromaddress(address, nbytes), np.uint8)


def _aligned(address):
    return -(-address // protocol.LINE) * protocol.LINE


def cores_are_shared(comm: MPI.Comm) -> bool:
    """Whether the ranks of a node may run on fewer cores than they are."""
    cores: Any = comm.allgather(os.sched_getaffinity(0))
    return len(set().union(*cores)) < comm.size or any(
        len(set().union(*cores[:place]) | mine) < place + 1 for place, mine in enumerate(cores))
