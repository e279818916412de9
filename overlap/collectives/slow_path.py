"""Python code that compiled collectives call: in long waits, to compile kernels, and to raise errors.

In a long wait a rank calls this code every few milliseconds. Signal handlers run here, a failure of the rank waited for
is detected, and the deadline is applied. An exception raised here ends the compiled code. The instance is then
unusable, and the other ranks learn of the failure as soon as they wait for this rank.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from mpi4py import MPI

from ..compiled.memory import address_of
from ..errors import BusyError, InputError
from ..ranks.failures import RankFailure, identity_of
from ..ranks.losses import DetectingLoss
from ..ranks.resource import closed_error
from ..ranks.watchdog import BoundedWait
from . import calls, protocol
from .combine import DTYPES, OPERATIONS, OTHER_TYPE, Op, operations_of, prepare
from .window import Window

_WAITS = protocol.WAITING, protocol.COMING, protocol.LEAVING


class CollectiveTransport:
    """Base class of the transports of collectives that do not use the node's window alone."""

    def carry(self, kind: int, arguments: list[int]) -> None:
        """Make or prepare a collective, with the arguments that `chains.collective` names."""
        raise NotImplementedError

    def poll(self) -> None:
        """Answer questions of ranks that do not share the window."""

    def never(self, rank: int, coming: bool) -> RankFailure | int | None:
        """Return why a message from a rank never arrives, or why one to it is never received."""
        return None

    def notify(self, failure: RankFailure) -> None:
        """Notify, once, ranks that do not share the window of a failure here."""

    def free(self) -> None:
        """Free the transport's communicator (collective)."""
        raise NotImplementedError


class SlowPath:
    """The Python side of compiled code that works on one state; called with a reason and a number."""

    def __init__(
        self,
        window: Window,
        state: np.ndarray,
        taken: np.ndarray,  # the state that a thread takes for a collective; between nodes that of all ranks
        deadline_s: float | None,
        carrier: CollectiveTransport,
        ranks: Sequence[int],  # the numbers of the state's ranks in error messages
    ) -> None:
        self._window, self._ranks = window, ranks
        self._rank = ranks[int(state[protocol.RANK])]
        self._state, self._taken = state, taken
        self._bounded = BoundedWait(deadline_s)
        self._carrier = carrier
        state[protocol.ATTEND] = id(self)

    def __call__(self, reason: int, detail: int) -> None:
        guard = self._window.guard
        if reason in _WAITS:
            if self.broken:  # by another thread
                self._raise_own()
            if guard is not None:
                guard.poll("a collective")
        if reason == protocol.WAITING:
            self._wait(f"rank {self._ranks[detail]} of the node")
        elif reason == protocol.GONE:
            self._window.follow(detail)
        elif reason in (protocol.COMING, protocol.LEAVING):
            self._wait_far(detail, reason == protocol.COMING)
        elif reason == protocol.ELSEWHERE:
            begin = protocol.ARGUMENTS
            self._carrier.carry(detail, self._state[begin : begin + 7].tolist())
        elif reason == protocol.PREPARE:
            self._prepare(*divmod(detail, OPERATIONS))
        elif reason == protocol.UNUSABLE:
            self._raise_own()
        elif reason == protocol.DIFFERENT:
            self.refuse(self._difference(detail))
        elif reason == protocol.FAILURE:
            self._window.fail_unknown()
            self._notify()
            protocol.give_back(address_of(self._taken))  # the exception leaves the collective
        elif reason == protocol.BUSY:
            raise busy_error("a call of Collectives")
        elif reason == protocol.REFUSED_BUSY:
            pass
        elif reason == protocol.FAULT:
            if (error := MPI.Exception(detail)).Get_error_class() != MPI.ERR_TRUNCATE:
                with DetectingLoss(guard, "a collective"):
                    raise error
        else:
            self.refuse(f"{self._problem(detail)} (rank {self._rank})")

    @property
    def broken(self) -> bool:
        """Return whether an exception has ended the compiled code."""
        return bool(self._state[protocol.BROKEN])

    def refuse(self, text: str) -> NoReturn:
        """Raise an `InputError` here and on the ranks that wait; if this rank has failed before, raise that error."""
        if self.broken:
            self._raise_own()
        error = InputError(text)
        self.left_by(error)
        raise error

    def left_by(self, error: BaseException) -> None:
        """Notify the ranks that wait of an exception that ends a call, perhaps before compiled code is reached."""
        if isinstance(error, BusyError):  # raised instead of a call, beside one of another thread
            return
        uncaught, self._window.uncaught = self._window.uncaught, False
        identity_of(error, self._window.identity if uncaught or not self.broken else "")
        self.end(RankFailure.of(self._rank, error))

    def end(self, failure: RankFailure) -> None:
        """Notify the ranks that wait of a failure here; the instance cannot be used any more."""
        if not self.broken:
            self._window.fail(failure)
            self._notify()

    def _raise_own(self) -> NoReturn:
        """Raise the error that has made the instance unusable."""
        if self._window.closed:
            raise closed_error("Collectives", "closed", self._window.forked)
        if self._window.lost is not None:
            raise closed_error("Collectives", f"closed by a loss ({self._window.lost})")
        raise self._window.failure().error()

    def _notify(self) -> None:
        """Notify ranks that do not share the window of the failure here."""
        self._window.spoil()
        if not self._window.closed and self._window.lost is None:
            self._carrier.notify(self._window.failure())

    def _wait_far(self, rank: int, coming: bool) -> None:
        why = self._carrier.never(rank, coming)
        if isinstance(why, RankFailure):
            self._window.end(why)
        if why is not None:
            self._state[protocol.EXPECTED] = self._state[protocol.ARGUMENTS + 6]
            self._state[protocol.RECEIVED] = why
            self.refuse(self._difference(rank))
        self._wait(f"rank {rank} of another node")

    def _wait(self, who: str) -> None:
        self._carrier.poll()
        number = int(self._state[protocol.ROUND])
        self._bounded.check(number, f"collective {number}", lambda: who)

    def _prepare(self, code: int, op: int) -> None:
        possible = operations_of(code)
        if op not in possible:
            self.refuse(_no_operation(code, op))
        prepare(code, op)

    def _difference(self, rank: int) -> str:
        state = self._state
        own_call, peer_call = (described(int(state[place])) for place in (protocol.EXPECTED, protocol.RECEIVED))
        return (
            f"expected the same collective on all ranks, received {own_call} on rank {self._rank} "
            f"and {peer_call} on rank {self._ranks[rank]}"
        )

    def _problem(self, number: int) -> str:
        expected, received = (int(self._state[place]) for place in (protocol.EXPECTED, protocol.RECEIVED))
        if number == calls.NO_OPERATION:
            return _no_operation(expected, received)
        if number == calls.OTHER_DTYPE:
            return f"expected arrays of one type, received {_type_name(expected)} and {_type_name(received)}"
        return {
            calls.OTHER_SIZE: f"expected an array of {expected} bytes, received one of {received} bytes",
            calls.NO_ROOT: f"expected a root from 0 to {expected - 1}, received {received}",
            calls.READ_ONLY: "expected an array to receive in, received a read-only one",
            calls.OVERLAPPING: "expected arrays that do not overlap, or a piece at its own place in the other array, "
            "received others",
            calls.NOT_CONTIGUOUS: "expected an array that is contiguous in memory, received another one",
        }[number]


def busy_error(what: str) -> BusyError:
    """Return the error for a call, or for closing, while another thread is in a collective."""
    return BusyError(
        f"expected {what} while no thread is in a collective, received it in thread "
        f"{threading.current_thread().name!r} while another thread is in one"
    )


def _no_operation(code: int, op: int) -> str:
    if code == OTHER_TYPE:
        return "expected an array of a type that can be reduced, received another type"
    possible = ", ".join(operation.name for operation in operations_of(code))
    name = Op(op).name if 0 <= op < OPERATIONS else op
    return f"expected an operation for {_type_name(code)} ({possible}), received {name}"


def _type_name(code: int) -> str:
    return "a type without reductions" if code == OTHER_TYPE else str(DTYPES[code])


def described(signature: int) -> str:
    """Return a signature as text."""
    if signature == protocol.NOTHING:  # MPI copies nothing of a message that is longer than its buffer
        return "another one"
    kind, op, code = signature & 15, signature >> 4 & 15, signature >> 8 & 255
    root, nbytes = signature >> 16 & 0xFFFF, signature >> 32 & 0xFFFFFFFF
    if kind == protocol.BARRIER:
        return "close()" if op == calls.CLOSE else "Barrier()"
    parts = [f"{nbytes} bytes", _type_name(code)]
    if kind in (protocol.BCAST, protocol.SCATTER, protocol.GATHER, protocol.REDUCE):
        parts.append(f"root={root}")
    if kind in (protocol.REDUCE, protocol.ALLREDUCE):
        parts.append(f"op={Op(op).name}")
    return f"{protocol.NAMES[kind]}({', '.join(parts)})"
