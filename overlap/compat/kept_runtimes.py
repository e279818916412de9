"""The runtimes that all objects of a client library share on a communicator.

`RUNTIMES` has one for each communicator, `SHARED` one for each number of workers. The latter are kept for later plans
when no plan uses them, because making a runtime's communicators, its threads and its measurements takes longer than
making a plan. They are closed with their communicator or, if a process has hundreds of communicators, with their last
plan.
"""

from __future__ import annotations

import atexit

from mpi4py import MPI

from ..ranks.kept_with import KeptWith
from ..runtime import Runtime


class Shared:
    """The runtimes of a communicator, one per number of workers."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._runtimes: dict[int, Runtime] = {}  # number of workers -> runtime
        self._plans: dict[int, int] = {}  # number of plans on each
        self._freed = False

    def runtime(self, workers: int, deadline_s: float | None, problem: str | None) -> Runtime:
        """Return the runtime for one more plan (collective); raise an `InputError` on all ranks if one has a `problem`
        with its arguments, or another number of workers."""
        first = next(iter(self._runtimes.values()), None)
        if first is None:
            first = Runtime(self._comm, workers=workers, deadline_s=deadline_s)
            try:
                first.preflight(problem, threads=workers)
            except BaseException:
                first.close()
                raise
            self._runtimes[workers], self._plans[workers] = first, 1
            return first
        first.preflight(problem, threads=workers)
        if workers not in self._runtimes:
            self._runtimes[workers] = Runtime(self._comm, workers=workers, deadline_s=deadline_s)
        elif not self._plans[workers]:
            self._runtimes[workers].resume(deadline_s)
        self._plans[workers] = self._plans.get(workers, 0) + 1
        return self._runtimes[workers]

    def runtime_of(self, workers: int) -> Runtime:
        """Return the runtime of the plans with this number of workers."""
        return self._runtimes[workers]

    def leave(self, workers: int) -> None:
        """Note that a plan has ended (collective)."""
        self._plans[workers] -= 1
        if self._plans[workers]:
            return
        if self._freed or self._runtimes[workers].coordinator.crowded:
            self._runtimes.pop(workers).close()
        else:
            self._runtimes[workers].pause()

    def close(self) -> None:
        """Close the runtimes, those in use when their last plan ends (collective)."""
        self._freed = True
        for workers, plans in self._plans.items():
            if not plans and workers in self._runtimes:
                self._runtimes.pop(workers).close()


SHARED = KeptWith(Shared)


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
