"""Long messages on one node: in the window, or by MPI if that is faster, as measured once on this machine.

A window copies every byte twice, into a slot and out of it, in pieces that overlap; an MPI library may copy it only
once. Which way is faster depends on machine, library, number of ranks and length. So before the first message above
`FROM_NBYTES` of a collective that moves data, both ways are measured, which takes about a tenth of a second; the result
is kept in the user's cache (`files.user_folder`). Reductions stay in the window, where they are faster and the order of
sums is known.

MPI is called only after all ranks have entered the collective and agree on it, so no rank waits in MPI for a rank that
does something else.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from time import perf_counter

import numpy as np
from mpi4py import MPI

from .. import files
from ..compiled.memory import address_of
from ..ranks.wait import wait_for
from ..ranks.watchdog import BoundedWait
from . import node, protocol
from .protocol import ALLGATHER, BARRIER, BCAST, CAPACITY, EVERYBODY, GATHER, LIMITS, NAMES, SCATTER, signature
from .slow_path import CollectiveTransport
from .window import NO_LIMIT, Window, memory

FROM_NBYTES = 2**15
SIZES = tuple(2**power for power in range(16, 23))  # measured lengths; the next longer one decides for a message
KINDS = (BCAST, SCATTER, GATHER, ALLGATHER)
_ROUNDS, _ROUND_S = 5, 0.001
_SLOW_S = 0.02  # a call that takes longer is timed once only
_CLEARLY = 0.95  # MPI is used if its time is below this share of the window's


class LongMessages(CollectiveTransport):
    """Transports messages above a limit, which it sets in the window's state, in the window or by MPI.

    The communicator, of the ranks of the node, is freed with this.
    """

    def __init__(self, comm: MPI.Intracomm, window: Window, deadline_s: float | None) -> None:
        self._comm, self._window, self._bounded = comm, window, BoundedWait(deadline_s)
        self._state = state = window.state
        self._address = address_of(state)
        self.by_mpi: dict[int, tuple[bool, ...]] = {}  # for each measured kind, and each size: whether MPI is faster
        for kind in KINDS if comm.size > 1 else ():
            state[LIMITS + kind] = FROM_NBYTES

    def carry(self, kind: int, arguments: list[int]) -> None:
        """Make a collective."""
        send, target, _, nbytes, root, _, agreed = arguments
        if kind not in self.by_mpi:
            self._barrier(agreed)
            self._learn(kind)
        place = min(int(np.searchsorted(SIZES, nbytes)), len(SIZES) - 1)
        (self._by_mpi if self.by_mpi[kind][place] else self._by_window)(kind, send, target, nbytes, root, agreed)

    def free(self) -> None:
        """Free the communicator (collective)."""
        self._comm.Free()

    def _barrier(self, agreed: int) -> None:
        node.collective(self._address, BARRIER, 0, 0, 0, 0, EVERYBODY, 0, agreed)

    def _by_window(self, kind: int, send: int, target: int, nbytes: int, root: int, agreed: int) -> None:
        node.collective(
            self._address, kind, send, target, 0, nbytes, EVERYBODY if kind == ALLGATHER else root, 0, agreed
        )

    def _by_mpi(self, kind: int, send: int, target: int, nbytes: int, root: int, agreed: int) -> None:
        self._barrier(agreed)
        comm = self._comm
        offset, whole = comm.rank * nbytes, comm.size * nbytes
        if kind == BCAST:
            request = comm.Ibcast(_memory(send, nbytes), root)
        elif kind == SCATTER:
            piece = MPI.IN_PLACE if target == send + offset else _memory(target, nbytes)
            request = comm.Iscatter(_memory(send, whole), piece, root)
        else:
            piece = MPI.IN_PLACE if send == target + offset else _memory(send, nbytes)
            everybodys = _memory(target, whole)
            request = comm.Iallgather(piece, everybodys) if kind == ALLGATHER else comm.Igather(piece, everybodys, root)
        self._complete(request)

    def _complete(self, request: MPI.Request) -> None:
        """Wait for MPI in a round of its own, which tells a rank that fails in the wait from one that fails later."""
        number = protocol.begin(self._state, protocol.NOTHING)

        def attend(_: float) -> None:
            for rank in range(self._comm.size):
                done = protocol.segment(self._state, rank) + protocol.DONE
                if protocol.never(self._state, rank, done, number):
                    self._window.follow(rank)
            self._bounded.check(number, "a collective", lambda: "another rank of the node")

        wait_for(request.Test, hot_s=inf, attend=attend)
        protocol.finish(self._state, number, False)

    def _learn(self, kind: int) -> None:
        """Find out which way is faster for this kind (collective)."""
        path = self._path(kind)
        cached = np.zeros(1 + len(SIZES))  # whether the cache has results, and the results
        if path and self._comm.rank == 0 and (kept := _read(path)):
            cached[:] = 1, *kept
        is_cached, *each = self._greatest(cached)
        known = [bool(faster) for faster in each]
        if not is_cached:
            known = [self._mpi_is_faster(kind, nbytes) for nbytes in SIZES]
            if path and self._comm.rank == 0:
                with suppress(OSError):
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    files.write(path, json.dumps({"sizes": SIZES, "by_mpi": known}))
        self.by_mpi[kind] = tuple(known)
        # Messages shorter than the first size at which MPI is faster stay in compiled code.
        shorter = known.index(True) if any(known) else len(known)
        self._state[LIMITS + kind] = (FROM_NBYTES, *SIZES[:-1], NO_LIMIT)[shorter]

    def _mpi_is_faster(self, kind: int, nbytes: int) -> bool:
        """Return whether MPI is clearly faster, by the median over rounds of the slowest rank's time.

        Each rank is the root in turn.
        """
        comm = self._comm
        # Not zeros, which the system maps to one page until something is written.
        arrays = np.ones((2, nbytes * (1 if kind == BCAST else comm.size)), np.uint8)
        send, target = map(address_of, arrays)
        if kind == BCAST:
            target = send
        agreed = signature(kind, 0, 0, 0, nbytes)

        def seconds(way: Callable[[int, int, int, int, int, int], None], calls: int) -> float:
            self._barrier(agreed)
            started = perf_counter()
            for number in range(calls):
                way(kind, send, target, nbytes, number % comm.size, agreed)
            return (perf_counter() - started) / calls

        def round_s(calls: int) -> np.ndarray:
            # Both ways one after the other, so that other load on the machine disturbs both.
            return self._greatest(np.array([seconds(way, calls) for way in (self._by_mpi, self._by_window)]))

        once_s = round_s(comm.size)
        calls = comm.size * max(1, int(_ROUND_S / once_s.max() / comm.size))
        by_mpi, by_window = np.transpose([round_s(calls) for _ in range(_ROUNDS if once_s.max() < _SLOW_S else 1)])
        return bool(np.median(by_mpi / by_window) < _CLEARLY)

    def _greatest(self, values: np.ndarray) -> np.ndarray:
        """Reduce values to the maximum over all ranks, in place."""
        self._complete(self._comm.Iallreduce(MPI.IN_PLACE, values, MPI.MAX))
        return values

    def _path(self, kind: int) -> Path | None:
        """Return the cache file with the results of a kind, or None if nothing is kept."""
        folder = files.user_folder()
        if folder is None:
            return None
        facts = (
            NAMES[kind],
            platform.processor() or platform.machine(),
            platform.node(),
            os.cpu_count(),
            self._comm.size,
            int(self._state[CAPACITY]),
            MPI.Get_library_version(),
            _CLEARLY,
        )
        return folder / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.collectives.json"


def _memory(address: int, nbytes: int) -> np.ndarray | None:
    """Return the bytes at an address; None for address 0, as on ranks that are not the root."""
    return memory(address, nbytes) if address else None


def _read(path: Path) -> list[bool] | None:
    """Return for each size whether MPI is faster, or None if there is no valid file."""
    try:
        content = json.loads(files.read(path, 2**12))
        known = content["by_mpi"]
        good = (
            content["sizes"] == list(SIZES)
            and len(known) == len(SIZES)
            and all(type(faster) is bool for faster in known)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return known if good else None
