"""`OnRuntime`: what plans of all kinds are: on a runtime of their own or a shared one, made and closed by all ranks."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from threading import Thread
from typing import Any, Self

from ..freed import Resource, closed_error
from ..interrupts import held_signals
from ..runtime import AsyncComm, Runtime

PlanComm = Any
"""What a plan runs on: an mpi4py.MPI.Intracomm, a `Runtime` or an `AsyncComm`."""


class OnRuntime(Resource):
    """What is made on a runtime, which it closes if it has made it.

    Attributes
    ----------
    runtime : Runtime
    comm : mpi4py.MPI.Comm
        The ranks over which the arrays are split, for collectives of your own.
    closed : bool
    """

    _kind: str  # how users name it

    def __init__(self, comm: PlanComm) -> None:
        self.closed = False
        self._owns_runtime = not isinstance(comm, Runtime | AsyncComm)
        if self._owns_runtime:
            self.runtime = Runtime(comm)  # which refuses what is no communicator
            self._comm = self.runtime.comm
        else:
            self.runtime, self._comm = (comm, comm.comm) if isinstance(comm, Runtime) else (comm.runtime, comm)
            self.runtime.check_open()
        self.comm = self._comm.source

    def __enter__(self) -> Self:
        self._check_in_use()
        return self

    def __repr__(self) -> str:
        return f"<{self._title()}{', closed' if self.closed else ''}>"

    def close(self) -> None:
        """Free what the plan holds (collective); closes the runtime if the plan made it."""
        if self.closed:
            return
        self.closed = True
        with held_signals(), ExitStack() as closing:  # which goes on where a step of it raises
            if self._owns_runtime:
                closing.callback(self.runtime.close)
            self._release(closing)

    def _release(self, closing: ExitStack) -> None:
        """Let go of what is its own, at the end of `closing`."""

    def _end(self) -> None:
        self.close()

    def _fail(self, error: BaseException) -> Thread | None:
        if self.closed:
            return None
        self.closed = True
        with held_signals(), ExitStack() as closing:
            self._release(closing)
        # A runtime that others use too stays open: it only tells what has happened here.
        return self.runtime._fail(error) if self._owns_runtime else self.runtime.coordinator.notify(error)

    def _closed_by_fork(self) -> None:
        super()._closed_by_fork()
        self.closed = True

    def _making(self) -> AbstractContextManager[None]:
        """While the constructor runs: what fails on one rank fails on all, and frees what was made."""
        return self.runtime.collective_section(f"making a plan, {self._kind}", self.close)

    def _check_in_use(self) -> None:
        if self.closed:
            raise closed_error(self._kind, "closed", self._forked)

    def _check_ranks(self) -> str | None:
        """Say what is wrong with the communicator, or None."""
        if self.runtime.comm.same_ranks(self.comm):
            return None
        return (
            f"expected a communicator of all {self.runtime.comm.size} ranks of the runtime, in "
            f"their order, received another one, of {self.comm.size} rank(s)"
        )

    def _sharers(self) -> str:
        return f"over {self.comm.size} rank(s), {self.runtime.workers} worker(s) each"

    def _title(self) -> str:
        """Tell what it is, in a line."""
        raise NotImplementedError
