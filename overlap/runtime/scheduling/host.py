"""What waiting rests on: sleeping, MPI's calls, a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from typing import Any

from mpi4py import MPI

from ..coordinator.hot_wait import HOT_S
from ..requests.operations import Operation

# Raised by a blocking call before anything was sent; any other error class comes after.
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
    """Wakes one sleeping thread; a ring while nobody sleeps ends the next sleep at once.

    Not a `queue.SimpleQueue`: its ``get(timeout=)`` can sleep for ever in CPython 3.11, when a token
    left from an earlier item wakes it and the timeout has just run out.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """End the sleep, or the next one."""
        try:  # noqa: SIM105 (takes a fraction of the time)
            self._lock.release()
        except RuntimeError:
            pass  # it has been rung already

    def sleep(self, seconds: float = -1) -> bool:
        """Sleep until a ring, at most `seconds` if given; True if it rang."""
        return self._lock.acquire(timeout=seconds)


class NotIssued(Exception):
    """MPI was not asked for an operation, or has refused its arguments; the cause says why."""


@dataclass(frozen=True)
class Host:
    """What waiting rests on: tests have one with a virtual clock, which `overlap.timing.simulate` is held to.

    Attributes
    ----------
    clock : callable
        Seconds, as `time.perf_counter`.
    make_event : callable
        Makes the `WakeEvent` of the issuing thread.
    test_some : callable
        Gives the places of the requests that have completed, of a list; None if none is active.
    hot_s : float
        Seconds that a short exchange is polled for without sleep.
    """

    clock: Callable[[], float] = perf_counter
    make_event: Callable[[], Any] = WakeEvent
    test_some: Callable[[list[Any]], list[int] | None] = MPI.Request.Testsome
    hot_s: float = HOT_S


HOST = Host()


def issue(operation: Operation, blocking: bool = True) -> BaseException | None:
    """Make an operation; returns an exception that came when MPI may have sent something, or None.

    Raises
    ------
    NotIssued
        Nothing was sent: the other ranks still wait for this operation.
    """
    operation.requests = []
    try:
        operation.make(blocking)
    except BaseException as error:
        # Made, and then an exception from elsewhere; or MPI itself failed in the middle.
        if operation.requests or (isinstance(error, MPI.Exception) and error.Get_error_class() not in ARGUMENT_ERRORS):
            return error
        raise NotIssued from error
    return None


def try_start(operation: Operation) -> tuple[list[Any], BaseException | None]:
    """Start an operation while all ranks learn whether it starts.

    Returns
    -------
    list, BaseException or None
        What MPI has returned, one request or none; what was raised.
    """
    error = None
    operation.requests = []
    try:
        operation.make(blocking=False)
    except BaseException as caught:
        error = caught
    requests, operation.requests = operation.requests, []
    return requests, error
