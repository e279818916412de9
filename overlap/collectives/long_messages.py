"""Long messages on one node: through the window, or by MPI where that is faster, as measured once on this machine.

A window copies every byte twice, into a slot and out of it, in pieces that overlap; an MPI library may have a way to
copy it once. Which is faster depends on machine, library, number of ranks and length. So the first message above
`FROM_NBYTES` of a collective that moves data is preceded by a measurement of both ways, a tenth of a second or so; what
it found is kept in the user's cache (`files.user_folder`). Reductions stay in the window: there they are faster, and
the order of their sums is known.

MPI is called when all ranks have come to the collective and agree on it, so nobody waits in it for a rank that
does something else.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import numpy as np
from mpi4py import MPI

from .. import files
from ..failures import BoundedWait, wait_until
from ..lowlevel.memory import address_of
from . import node, protocol
from .protocol import ALLGATHER, BARRIER, BCAST, CAPACITY, EVERYBODY, GATHER, LIMITS, NAMES, SCATTER, signature
from .slow_path import CollectiveTransport
from .window import NO_LIMIT, Window, memory

FROM_NBYTES = 2**15
SIZES = tuple(2**power for power in range(16, 23))  # measured ones; a message counts as the next longer of them
KINDS = (BCAST, SCATTER, GATHER, ALLGATHER)
_ROUNDS, _ROUND_S = 5, 0.001
_SLOW_S = 0.02  # where a call takes so long, one is enough
_CLEARLY = 0.95  # MPI's time over the window's, for MPI to be called


class LongMessages(CollectiveTransport):
    """What takes messages above a limit.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The ranks of the node; freed with this.
    window : Window
        The limits of this rank's state are set here.
    deadline_s : float or None
    """

    def __init__(self, comm: MPI.Intracomm, window: Window, deadline_s: float | None) -> None:
        self._comm, self._window, self._bounded = comm, window, BoundedWait(deadline_s)
        self._state = state = window.state
        self._address = address_of(state)
        self.by_mpi: dict[int, tuple[bool, ...]] = {}  # for each kind that is known and each size
        for kind in KINDS if comm.size > 1 else ():
            state[LIMITS + kind] = FROM_NBYTES

    def carry(self, kind: int, arguments: list[int]) -> None:
        """Do a collective."""
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
        mine, whole = comm.rank * nbytes, comm.size * nbytes
        if kind == BCAST:
            request = comm.Ibcast(_memory(send, nbytes), root)
        elif kind == SCATTER:
            piece = MPI.IN_PLACE if target == send + mine else _memory(target, nbytes)
            request = comm.Iscatter(_memory(send, whole), piece, root)
        else:
            piece = MPI.IN_PLACE if send == target + mine else _memory(send, nbytes)
            everybodys = _memory(target, whole)
            request = comm.Iallgather(piece, everybodys) if kind == ALLGATHER else comm.Igather(piece, everybodys, root)
        self._complete(request)

    def _complete(self, request: MPI.Request) -> None:
        """Wait for MPI. That is a round: so a rank that has failed in it is told from one that has failed after it."""
        number = protocol.begin(self._state, protocol.NOTHING)

        def poll() -> None:
            for rank in range(self._comm.size):
                done = protocol.segment(self._state, rank) + protocol.DONE
                if protocol.never(self._state, rank, done, number):
                    self._window.follow(rank)
            self._bounded.check(number, "a collective", lambda: "another rank of the node")

        wait_until(request.Test, poll)
        protocol.finish(self._state, number, False)

    def _learn(self, kind: int) -> None:
        """Find out which way is faster for this kind (collective)."""
        path = self._path(kind)
        found = np.zeros(1 + len(SIZES))  # whether it is known, and what
        if path and self._comm.rank == 0 and (kept := _read(path)):
            found[:] = 1, *kept
        there, *each = self._greatest(found)
        known = [bool(one) for one in each]
        if not there:
            known = [self._mpi_is_faster(kind, nbytes) for nbytes in SIZES]
            if path and self._comm.rank == 0:
                with suppress(OSError):
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    files.write(path, json.dumps({"sizes": SIZES, "by_mpi": known}))
        self.by_mpi[kind] = tuple(known)
        # Up to where MPI is first faster nothing leaves the compiled code any more.
        shorter = known.index(True) if any(known) else len(known)
        self._state[LIMITS + kind] = (FROM_NBYTES, *SIZES[:-1], NO_LIMIT)[shorter]

    def _mpi_is_faster(self, kind: int, nbytes: int) -> bool:
        """Tell whether MPI is clearly faster: by the slowest rank's time, in the median of rounds of both ways.

        Each rank is the root in turn.
        """
        comm = self._comm
        # No zeros, for which the system has one page until something is written there.
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

        def round_s(
            calls: int,
        ) -> np.ndarray:  # of both ways beside each other: another load on the machine disturbs both
            return self._greatest(np.array([seconds(way, calls) for way in (self._by_mpi, self._by_window)]))

        once_s = round_s(comm.size)
        calls = comm.size * max(1, int(_ROUND_S / once_s.max() / comm.size))
        by_mpi, by_window = np.transpose([round_s(calls) for _ in range(_ROUNDS if once_s.max() < _SLOW_S else 1)])
        return bool(np.median(by_mpi / by_window) < _CLEARLY)

    def _greatest(self, values: np.ndarray) -> np.ndarray:
        """Find the greatest ones of all ranks, in place."""
        self._complete(self._comm.Iallreduce(MPI.IN_PLACE, values, MPI.MAX))
        return values

    def _path(self, kind: int) -> Path | None:
        """Return the file of the cache that knows, or None where nothing is kept."""
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
    """Bytes at an address; None where there is none, as on ranks that are not the root."""
    return memory(address, nbytes) if address else None


def _read(path: Path) -> list[bool] | None:
    """For each size whether MPI is faster, or None where no good file says so."""
    try:
        content = json.loads(files.read(path, 2**12))
        known = content["by_mpi"]
        good = content["sizes"] == list(SIZES) and len(known) == len(SIZES) and all(type(one) is bool for one in known)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return known if good else None
