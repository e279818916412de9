"""The deadline: an MPI operation that takes longer ends the job, with all stacks printed.

A collective that another rank never enters cannot be cancelled, so there is nothing to return to:
the watchdog prints what has waited and every thread's stack, and aborts the job. It arms
`faulthandler` first, so that the process ends even where ``MPI_Abort`` itself blocks.
"""

import faulthandler
import socket
import sys
import threading
from time import perf_counter

from mpi4py import MPI

from ..errors import formatted

ABORT_GRACE_S = 5.0
EXIT_STATUS = 75


class Watchdog:
    """Watches `outstanding` (label -> start, `time.perf_counter`) from a thread of its own."""

    def __init__(self, outstanding, deadline_s):
        self._outstanding = outstanding
        self._deadline_s = deadline_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")
        self._thread.start()

    def close(self):
        self._closed.set()
        self._thread.join()

    def _watch(self):
        while not self._closed.wait(min(1.0, self._deadline_s / 4)):
            now = perf_counter()
            for label, started in list(self._outstanding.items()):
                if now - started > self._deadline_s:
                    self._abort(label, now - started)

    def _abort(self, label, waited_s):
        abort(f"{label} has not completed in {waited_s:.1f} s (deadline_s={self._deadline_s:g}): "
              "some rank does not take part")


def abort(reason):
    """End the job: nothing can be agreed on with the other ranks any more."""
    sys.__stderr__.write(
        f"overlap: rank {MPI.COMM_WORLD.rank} ({socket.gethostname()}): {reason}. "
        "All threads' stacks follow; the job is aborted.\n")
    sys.__stderr__.flush()
    faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
    faulthandler.dump_traceback_later(ABORT_GRACE_S, exit=True, file=sys.__stderr__)
    MPI.COMM_WORLD.Abort(EXIT_STATUS)


def abort_on(error):
    """End the job because of an exception in one of our own threads."""
    abort("an error in the runtime itself, or in a skeleton:\n"
          + formatted(error)[1].rstrip())
