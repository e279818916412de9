"""What compiled code asks Python for: attention while a rank waits, kernels, and words for what is wrong.

A rank that waits for long comes here every few milliseconds: here signal handlers run, here it is noticed that
another rank has failed, and here the deadline is kept. Whatever is raised leaves the compiled code as it is. The
instance is unusable from then on, and the other ranks are told, as soon as they wait.
"""

from __future__ import annotations

import time
from typing import NoReturn, Protocol

import numpy as np
from mpi4py import MPI

from ..errors import InputError
from . import buffers, protocol
from .combine import DTYPES, OPERATIONS, OTHER_TYPE, Op, operations_of, prepare
from .patience import Patience
from .window import Window


class Carrier(Protocol):
    """Who takes collectives that do not pass through the node's window alone."""

    def carry(self, kind: int, arguments: list[int]) -> None:
        """Do one, or prepare it (`chains.elsewhere`)."""

    def look(self) -> None:
        """See whether ranks that do not see the window have failed."""

    def tell(self, text: str, origin: int | None = None) -> None:
        """Tell ranks that do not see the window of this rank's failure."""


class Attention:
    """The Python side of compiled code that works on one state; called with a reason and a number.

    Parameters
    ----------
    window : Window
    state : ndarray of int64
    patience : Patience
    carrier : Carrier
    """

    def __init__(self, window: Window, state: np.ndarray, patience: Patience, carrier: Carrier) -> None:
        self._window = window
        self._state = state
        self._patience = patience
        self._carrier = carrier
        self._round = 0
        self._since = 0.0
        state[protocol.ATTEND] = id(self)

    def __call__(self, reason: int, detail: int) -> None:
        if reason == protocol.WAITING:
            self._wait(f"rank {detail} of the node")
        elif reason == protocol.FAR:
            self._wait(f"rank {detail} of another node")
        elif reason == protocol.ELSEWHERE:
            begin = protocol.ARGUMENTS
            self._carrier.carry(detail, self._state[begin : begin + 7].tolist())
        elif reason == protocol.PREPARE:
            self._prepare(*divmod(detail, OPERATIONS))
        elif reason == protocol.UNUSABLE:
            self._patience.raise_failure()
        elif reason == protocol.DIFFERENT:
            self.refuse(self._difference(detail))
        elif reason == protocol.FAILURE:
            self._window.spoil()
            self._tell()
        elif reason == protocol.FAULT:
            if (error := MPI.Exception(detail)).Get_error_class() != MPI.ERR_TRUNCATE:
                raise error
        else:
            self.refuse(self._problem(detail))

    @property
    def broken(self) -> bool:
        """Whether an exception has left the compiled code."""
        return bool(self._state[protocol.BROKEN])

    def refuse(self, text: str) -> NoReturn:
        """Raise an `InputError`, here and on the ranks that wait."""
        self._window.fail(text)
        self._tell()
        raise InputError(text)

    def _tell(self):
        """Tell ranks that do not see the window of what has failed here."""
        if self._window.closed:
            return
        failure = self._window.failure()
        self._carrier.tell(*(failure[::-1] if failure else ("", None)))

    def _wait(self, who):
        self._carrier.look()
        self._patience.raise_failure()
        now = time.monotonic()
        number = self._state[protocol.ROUND]
        if number != self._round:
            self._round, self._since = number, now
        self._patience.limit(now - self._since, f"collective {number}", who)

    def _prepare(self, code, op):
        possible = operations_of(code)
        if op not in possible:
            self.refuse(_no_operation(code, op))
        prepare(code, op)

    def _difference(self, rank):
        state = self._state
        mine, other = (described(int(state[place])) for place in (protocol.EXPECTED, protocol.RECEIVED))
        return (
            f"expected the same collective on all ranks, received {mine} on rank {state[protocol.RANK]} "
            f"and {other} on rank {rank}"
        )

    def _problem(self, number):
        expected, received = (int(self._state[place]) for place in (protocol.EXPECTED, protocol.RECEIVED))
        return f"{self._text(number, expected, received)} (rank {self._state[protocol.RANK]})"

    def _text(self, number, expected, received):
        if number == buffers.OTHER_SIZE:
            return f"expected an array of {expected} bytes, received one of {received} bytes"
        if number == buffers.OTHER_DTYPE:
            return f"expected arrays of one type, received {_type_name(expected)} and {_type_name(received)}"
        if number == buffers.NO_ROOT:
            return f"expected a root from 0 to {expected - 1}, received {received}"
        if number == buffers.NO_OPERATION:
            return _no_operation(expected, received)
        if number == buffers.READ_ONLY:
            return "expected an array to receive in, received a read-only one"
        if number == buffers.OVERLAPPING:
            return (
                "expected arrays that do not overlap, or a piece at its own place in the other array, received others"
            )
        return "expected an array that is contiguous in C order, received another one"


def _no_operation(code, op):
    if code == OTHER_TYPE:
        return "expected a type that there are reductions of, received another one"
    possible = ", ".join(one.name for one in operations_of(code))
    name = Op(op).name if 0 <= op < OPERATIONS else op
    return f"expected an operation for {_type_name(code)} ({possible}), received {name}"


def _type_name(code):
    return "a type without reductions" if code == OTHER_TYPE else str(DTYPES[code])


def described(signature: int) -> str:
    """Show a signature as text."""
    if signature == protocol.NOTHING:  # of a letter that is longer than its room MPI copies nothing
        return "another one, of more bytes,"
    kind, op, code = signature & 15, signature >> 4 & 15, signature >> 8 & 255
    root, nbytes = signature >> 16 & 0xFFFF, signature >> 32 & 0xFFFFFFFF
    if kind == protocol.BARRIER:
        return "Barrier()"
    parts = [f"{nbytes} bytes", _type_name(code)]
    if kind in (protocol.BCAST, protocol.SCATTER, protocol.GATHER, protocol.REDUCE):
        parts.append(f"root={root}")
    if kind in (protocol.REDUCE, protocol.ALLREDUCE):
        parts.append(f"op={Op(op).name}")
    return f"{protocol.NAMES[kind]}({', '.join(parts)})"
