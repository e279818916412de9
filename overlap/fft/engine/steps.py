"""The steps of a plan's slices, as data.

A slice is a list of steps: `Run` and `Call` compute, `Split` lets several workers compute, `Exchange` is an MPI
operation; a request of `overlap.runtime` (`wait_for_slices`, `take_turn`) is a step, too.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...compiled.execute import execute
from ...runtime import take_turn, wait_for_slices
from ...runtime.loop.words import SCRATCH
from ...runtime.requests.operations import Operation
from ...runtime.requests.requests import TakeTurn, WaitForSlices, starts_late
from .program import ArrayReference

if TYPE_CHECKING:
    from ...runtime.requests.requests import AsyncComm
    from .message import Message, WireFormat


@dataclass(frozen=True, slots=True)
class Run:
    """Execute a program."""

    code: np.ndarray  # see `CompiledProgram.code`
    bases: Any  # the addresses of its bases; the thread that runs it supplies the scratch memory
    label: str

    def execute(self, scratch: int) -> None:
        """Execute the program now, with scratch memory at an address."""
        bases = np.array(self.bases)
        bases[SCRATCH] = scratch
        execute(self.code, bases)


@dataclass(frozen=True, slots=True)
class Split:
    """Execute programs in any order, on any workers."""

    parts: list[Run]


@dataclass(frozen=True, slots=True)
class Call:
    """Call a Python function with the addresses of the call's arrays."""

    function: Callable[[array[int]], None]
    label: str

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True, slots=True)
class Exchange:
    """Exchange a message."""

    comm: AsyncComm
    message: Message | Any  # or an object with its places and type
    send: ArrayReference  # the array with the pieces that are sent
    receive: ArrayReference  # the same for those that are received

    def operation(self, send: Any = None, receive: Any = None) -> Operation:
        """Make the operation, between other buffers if they are given."""
        message = self.message
        send = self.send.array if send is None else send
        receive = self.receive.array if receive is None else receive
        sent = [send, message.counts_sent, message.starts_sent, message.mpi_type]
        received = [receive, message.counts_received, message.starts_received, message.mpi_type]
        return Operation(self.comm, "Alltoallv", (sent, received), {})

    def on_scratch(self) -> Operation:
        """Make the operation on scratch buffers."""
        return self.operation(*(np.zeros(side.array.nbytes, np.uint8) for side in (self.send, self.receive)))


AnyStep = Run | Split | Call | Exchange | WaitForSlices | TakeTurn
"""A step of a slice of a plan."""


def checked(wire: WireFormat) -> Sequence[Call]:
    """Return a step, between packing and exchanging, that raises if a number is too large for the wire format."""
    if not wire.rounds:
        return ()
    return (Call(lambda addresses: wire.overflow.check(), "check what was rounded"),)


def ended(tasks: range, first: int) -> WaitForSlices:
    """Make the request to wait until some tasks have ended; task 0 is slice `first`."""
    return wait_for_slices(first + tasks.stop, first + tasks.start)


def staggered(number: int, depth: int) -> Iterator[TakeTurn]:
    """Yield the requests that `overlap.runtime.stagger` awaits."""
    if starts_late(number, depth):
        yield take_turn()
