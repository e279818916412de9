"""The runtime that all objects of a client library share on a communicator."""

from __future__ import annotations

import atexit

from mpi4py import MPI

from ..ranks.kept_with import KeptWith
from ..runtime import Runtime


class KeptRuntime:
    """The runtime of a communicator, made when the first object needs it."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._runtime: Runtime | None = None

    def runtime(self) -> Runtime:
        """Return the runtime; make it if need be (collective)."""
        if self._runtime is None:
            self._runtime = Runtime(self._comm)
        return self._runtime

    def close(self) -> None:
        """Close the runtime (collective), and so all objects on it."""
        if self._runtime is not None:
            try:
                self._runtime.close()
            finally:
                if self._runtime.closed:  # else it is in a call
                    self._runtime = None


RUNTIMES = KeptWith(KeptRuntime)


def close_runtimes() -> None:
    """Close the runtimes of clients' objects (collective); called automatically at the end of the program."""
    for kept in RUNTIMES.every:
        kept.close()


atexit.register(close_runtimes)
