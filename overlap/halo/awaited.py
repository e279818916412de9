"""Halos in slice programs: messages awaited on a communicator of a runtime."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from mpi4py import MPI

from ..runtime.control.own_control import OwnControl
from ..runtime.requests.requests import AsyncComm
from .messages import Messages


class Begun:
    """A round that a slice has begun: await it."""

    def __init__(self, operations: list[Any], then: Callable[[], None]) -> None:
        self._operations, self._then = operations, then

    def __await__(self) -> Generator[Any, Any, None]:
        for pending in self._operations:
            yield from pending.__await__()
        self._then()


class Awaited:
    """The messages of a halo as operations of a runtime, equally many on all ranks, receives first.

    Ranks at a border have fewer neighbours; they receive from and send to nobody instead, so that all await the same.
    """

    def __init__(self, comm: AsyncComm, control: OwnControl, messages: Messages) -> None:
        self.messages = messages
        most = control.maximum(np.array([len(messages.receives), len(messages.sends)]))
        # One tag for all halos: slices must await the same, and the issue order keeps their messages apart.
        nobody = np.zeros(1, np.uint8)
        self._comm = comm
        self._receives = messages.receives + [(MPI.PROC_NULL, nobody)] * int(most[0] - len(messages.receives))
        self._sends = messages.sends + [(MPI.PROC_NULL, nobody)] * int(most[1] - len(messages.sends))

    @property
    def operations(self) -> list[Any]:
        """What a slice awaits in a round."""
        # Not persistent: MPICH (5.0.2 measured) never reports a persistent request to nobody by Testsome, by which a
        # runtime polls, or by Testany; Test, Testall, Get_status and Wait see it complete at once.
        return [
            *(self._comm.Recv([buffer, MPI.BYTE], peer, 0) for peer, buffer in self._receives),
            *(self._comm.Send([buffer, MPI.BYTE], peer, 0) for peer, buffer in self._sends),
        ]
