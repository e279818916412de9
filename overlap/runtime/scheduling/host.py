"""The system calls of waiting: sleep, MPI calls, a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

from mpi4py import MPI

from ...ranks.wait import HOT_S
from ..requests.operations import Operation

# Error classes that a call raises before it sends anything; other errors may come after.
ARGUMENT_ERRORS = frozenset(
    (
        MPI.ERR_ARG,
        MPI.ERR_BUFFER,
        MPI.ERR_COMM,
        MPI.ERR_COUNT,
        MPI.ERR_OP,
        MPI.ERR_RANK,
        MPI.ERR_ROOT,
        MPI.ERR_TAG,
        MPI.ERR_TYPE,
    )
)


class WakeEvent:
    """Wakes one sleeping thread; if the thread is not asleep, a ring ends its next sleep at once.

    Not a `queue.SimpleQueue`: its ``get(timeout=)`` can sleep for ever in CPython 3.11, when a token
    left from an earlier item wakes it and the timeout has just run out.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """End the current or the next sleep."""
        try:  # noqa: SIM105 (takes a fraction of the time)
            self._lock.release()
        except RuntimeError:
            pass  # a ring is pending already

    def sleep(self, seconds: float = -1) -> bool:
        """Sleep until a ring, at most `seconds` if given; return whether there was a ring."""
        return self._lock.acquire(timeout=seconds)


class NotIssued(Exception):
    """An operation was not issued: MPI was not called, or has rejected the arguments; the cause tells why."""


@dataclass(frozen=True)
class Host:
    """The system calls of waiting, which tests replace."""

    # Returns the indices in a list of the requests that have completed; None if none is active.
    test_some: Callable[[list[Any]], list[int] | None] = MPI.Request.Testsome
    hot_s: float = HOT_S  # for which a short exchange is polled without sleep


HOST = Host()


def issue(operation: Operation, blocking: bool = True) -> BaseException | None:
    """Make an operation; return an exception raised after MPI may have sent something, or None.

    Raises `NotIssued` if nothing was sent, so that the other ranks still wait for this operation.
    """
    operation.requests = []
    try:
        operation.make(blocking)
    except BaseException as error:
        # The call was made and an exception from elsewhere followed, or MPI itself failed in the middle.
        if operation.requests or (isinstance(error, MPI.Exception) and error.Get_error_class() not in ARGUMENT_ERRORS):
            return error
        raise NotIssued from error
    return None


def try_start(operation: Operation) -> tuple[list[Any], BaseException | None]:
    """Start an operation while learning, when all ranks find out whether it starts.

    Returns a list of MPI's request, if there is one, and the exception raised, or None.
    """
    error = None
    operation.requests = []
    try:
        operation.make(blocking=False)
    except BaseException as caught:
        error = caught
    requests, operation.requests = operation.requests, []
    return requests, error
