"""Ending the job where nothing can be agreed on with the other ranks any more."""

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
MPI_GRACE_S = 2.0  # for MPI's own abort, which does not always return
PRINT_GRACE_S = 0.3  # for the launcher to forward what was printed, before it kills the job
EXIT_STATUS = 75


def abort(reason: str, others_s: float = 0.0) -> None:
    """End the job: nothing can be agreed on with the other ranks any more.

    Those that wait for the same have `others_s` seconds to find that as well, and to print their stacks.
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


@contextmanager
def limited_to(seconds: float, what: str) -> Iterator[None]:
    """Have a ``with`` block end within `seconds`, or abort the job with a message that names `what`.

    A thread of Python prints the stacks, holding the interpreter's lock. The timer of `faulthandler`
    does not: the frames that it reads change meanwhile, which can crash it. So it is armed to strike
    later, for code that never gives the lock back.
    """
    timer = threading.Timer(seconds, abort, [f"{what} has not completed in {seconds:g} s"])
    timer.daemon = True
    faulthandler.dump_traceback_later(seconds + ABORT_GRACE_S, exit=True, file=sys.__stderr__ or sys.stderr)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        faulthandler.cancel_dump_traceback_later()


def _stacks() -> str:
    """Return the stacks of all threads, as `faulthandler` prints them."""
    try:
        with open(os.memfd_create("stacks"), "w+b") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.seek(0)
            return file.read().decode(errors="replace")
    except OSError as error:  # the stacks come when the grace has run out
        return f"(no stacks: {error})\n"


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
