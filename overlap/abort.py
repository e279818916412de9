"""Ending the job when the ranks cannot agree on an error any more; saying for whom a rank waits."""

import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mpi4py import MPI

ABORT_GRACE_S = 5.0
MPI_GRACE_S = 2.0  # time for MPI's own abort, which does not always return
PRINT_GRACE_S = 0.3  # time for the launcher to forward the output before it kills the job
EXIT_STATUS = 75
NOTICE_S = 60.0  # then a rank prints for whom it waits, deadline or not


def abort(reason: str, others_s: float = 0.0) -> None:
    """End the job, because the ranks cannot agree on an error any more.

    Other ranks that wait for the same event have `others_s` seconds to detect that, too, and to print their stacks.
    """
    faulthandler.dump_traceback_later(ABORT_GRACE_S, exit=True, file=sys.__stderr__ or sys.stderr)
    report = (
        f"overlap: rank {MPI.COMM_WORLD.rank} ({socket.gethostname()}): {reason}. "
        f"All threads' stacks follow; the job is aborted.\n{_stacks()}"
    )
    error_stream = sys.__stderr__ or sys.stderr
    error_stream.flush()
    _write(error_stream.fileno(), report.encode(errors="backslashreplace"))
    time.sleep(PRINT_GRACE_S + others_s)
    faulthandler.dump_traceback_later(MPI_GRACE_S, exit=True, file=sys.__stderr__ or sys.stderr)
    MPI.COMM_WORLD.Abort(EXIT_STATUS)


def print_wait(what: str, waited_s: float, whom: str) -> None:
    """Print that this rank waits, in `what`, for other ranks."""
    text = f"overlap: rank {MPI.COMM_WORLD.rank} has waited for {waited_s:.0f} s in {what} for {whom}\n"
    _write((sys.__stderr__ or sys.stderr).fileno(), text.encode(errors="backslashreplace"))


@contextmanager
def limited_to(seconds: float, what: str) -> Iterator[None]:
    """Have a ``with`` block end within `seconds`, or abort the job with a message that names `what`.

    A Python thread prints the stacks while it holds the interpreter's lock. The timer of `faulthandler` does not hold
    the lock: the frames that it reads change meanwhile, which can crash it. So that timer is armed for a later time, in
    case other code never releases the lock. Blocks may be nested.
    """
    timer = threading.Timer(seconds, abort, [f"{what} has not completed in {seconds:g} s"])
    timer.daemon = True
    end = time.monotonic() + seconds
    _ends.append(end)
    _arm()
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        _ends.remove(end)
        _arm()


_ends: list[float] = []  # of the blocks under way


def _arm() -> None:
    """Arm the timer of `faulthandler`, of which a process has only one, for the block that has to end first."""
    if _ends:
        left_s = max(0.0, min(_ends) - time.monotonic()) + ABORT_GRACE_S
        faulthandler.dump_traceback_later(left_s, exit=True, file=sys.__stderr__ or sys.stderr)
    else:
        faulthandler.cancel_dump_traceback_later()


def _stacks() -> str:
    """Return the stacks of all threads, as `faulthandler` prints them."""
    try:
        with open(os.memfd_create("stacks"), "w+b") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.seek(0)
            return file.read().decode(errors="replace")
    except OSError as error:  # `faulthandler` prints the stacks when the grace has run out
        return f"(no stacks: {error})\n"


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
