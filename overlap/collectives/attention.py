"""What compiled code asks Python for: attention while a rank waits, kernels, and words for what is wrong.

A rank that waits for long comes here every few milliseconds: here signal handlers run, here it is noticed that
another rank has failed, and here the deadline is kept. Whatever is raised leaves the compiled code as it is. The
instance is unusable from then on, and the other ranks are told, as soon as they wait.
"""

from __future__ import annotations

import time
from typing import NoReturn

from ..abort import abort
from ..errors import ClosedError, InputError, RankError
from . import buffers, protocol
from .combine import DTYPES, OPERATIONS, OTHER_TYPE, Op, operations_of, prepare
from .window import Window

_PATIENCE_S = 0.02      # a wait that is longer gives its core away
_SLEEP_S = 0.0005


class Attention:
    """The Python side of one instance's compiled code; called with a reason and a number.

    Parameters
    ----------
    window : Window
    deadline_s : float or None
        Seconds that a rank may wait for another one.
    """

    def __init__(self, window: Window, deadline_s: float | None) -> None:
        self._window = window
        self._deadline_s = deadline_s
        self._round = 0
        self._since = 0.0

    def __call__(self, reason: int, detail: int) -> None:
        if reason == protocol.WAITING:
            self._wait(detail)
        elif reason == protocol.PREPARE:
            self._prepare(*divmod(detail, OPERATIONS))
        elif reason == protocol.UNUSABLE:
            self.raise_failure()
        elif reason == protocol.DIFFERENT:
            self.refuse(self._difference(detail))
        else:
            self.refuse(self._problem(detail))

    def refuse(self, text: str) -> NoReturn:
        """Raise an `InputError`, here and on the ranks that wait."""
        self._window.fail(text)
        raise InputError(text)

    def raise_failure(self) -> None:
        """Raise what has made the instance unusable, if anything has."""
        if self._window.closed:
            raise ClosedError("expected open collectives, received a call after free()")
        if (failure := self._window.failure()) is None:
            return
        rank, text = failure
        if text:
            raise InputError(text)
        raise RankError(rank, "it has left a collective by an exception", "(raised on that rank)")

    def _wait(self, rank):
        self.raise_failure()
        now = time.monotonic()
        number = self._window.state[protocol.ROUND]
        if number != self._round:
            self._round, self._since = number, now
        waited_s = now - self._since
        if self._deadline_s is not None and waited_s > self._deadline_s:
            abort(f"collective {number} has not completed in {waited_s:.1f} s (deadline_s={self._deadline_s:g}): "
                  f"rank {rank} of the node does not take part")
        if waited_s > _PATIENCE_S:
            time.sleep(_SLEEP_S)

    def _prepare(self, code, op):
        possible = operations_of(code)
        if op not in possible:
            self.refuse(_no_operation(code, op))
        prepare(code, op)

    def _difference(self, rank):
        state = self._window.state
        mine, other = (_described(int(state[place])) for place in (protocol.EXPECTED, protocol.RECEIVED))
        return (f"expected the same collective on all ranks, received {mine} on rank {state[protocol.RANK]} "
                f"and {other} on rank {rank}")

    def _problem(self, number):
        expected, received = (int(self._window.state[place])
                              for place in (protocol.EXPECTED, protocol.RECEIVED))
        return f"{self._text(number, expected, received)} (rank {self._window.state[protocol.RANK]})"

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
        return "expected an array that is contiguous in C order, received another one"


def _no_operation(code, op):
    if code == OTHER_TYPE:
        return "expected a type that there are reductions of, received another one"
    possible = ", ".join(one.name for one in operations_of(code))
    name = Op(op).name if 0 <= op < OPERATIONS else op
    return f"expected an operation for {_type_name(code)} ({possible}), received {name}"


def _type_name(code):
    return "a type without reductions" if code == OTHER_TYPE else str(DTYPES[code])


def _described(signature):
    """A signature as text."""
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
