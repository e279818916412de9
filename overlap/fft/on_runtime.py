"""`OnRuntime`: the base class of plans, on a runtime of their own or a shared one, made and closed by all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import fields
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from ..errors import repr_of
from ..ranks.resource import Calls, Resource, Telling, closed_error
from ..runtime import AsyncComm, Runtime
from .planning.settings import Settings

_CLOSING = "closing a plan"
_SETTINGS = {field.name for field in fields(Settings)}
_RUNTIME_OPTIONS = signature(Runtime).parameters.keys()

P = ParamSpec("P")
Made = TypeVar("Made", bound="OnRuntime")

PlanComm = Any
"""The first argument of a plan: an mpi4py.MPI.Intracomm, a `Runtime` or an `AsyncComm`."""


def of_plan(init: Callable[Concatenate[Made, P], None]) -> Callable[Concatenate[Made, P], None]:
    """Decorate a plan's constructor, so that it says where the options of a runtime, and the settings, belong."""

    @wraps(init)
    def made(self: Made, /, *args: P.args, **options: P.kwargs) -> None:
        own = signature(init).parameters
        for name, value in options.items():
            if name not in own and name in _SETTINGS:
                raise TypeError(f"{self._kind} has no argument {name!r}: pass settings={{{name!r}: {repr_of(value)}}}")
            if name not in own and name in _RUNTIME_OPTIONS:
                raise TypeError(
                    f"{self._kind} has no argument {name!r}, which a runtime has: make the plan of one, "
                    f"{self._kind}(Runtime(comm, {name}={repr_of(value)}), ...)"
                )
            if name not in own:
                raise TypeError(
                    f"{self._kind}() got an unexpected keyword argument {name!r}; its arguments are "
                    f"{', '.join(list(own)[1:])}"
                )
        init(self, *args, **options)

    return made


class OnRuntime(Resource):
    """An object on a runtime, which it closes if it has made the runtime."""

    _kind: str  # name of the class for users

    def __init__(self, comm: PlanComm) -> None:
        super().__init__()
        self.closed = False
        self._owns_runtime = not isinstance(comm, Runtime | AsyncComm)
        if self._owns_runtime:
            self.runtime = Runtime(comm)  # raises if `comm` is no communicator
            self._comm = self.runtime.comm
        else:
            self.runtime, self._comm = (comm, comm.comm) if isinstance(comm, Runtime) else (comm.runtime, comm)
            self.runtime.check_open()
        self.comm = self._comm.source  # the ranks over which the arrays are split

    def __enter__(self) -> Self:
        self._check_in_use()
        return self

    def _has_ended(self) -> bool:
        return self.closed or self.runtime.closed

    def close(self) -> None:
        """Free what the plan holds (collective); closes the runtime if the plan made it.

        Raises
        ------
        BusyError
            A call of the plan or of its runtime is under way; nothing is freed.
        """
        if self.closed:
            return
        # ExitStack runs all steps, even if one of them raises.
        with self.runtime.coordinator.closing(_CLOSING), ExitStack() as closing:
            self.closed = True
            if self._owns_runtime:
                closing.callback(self.runtime.close)
            self._release(closing)

    def _release(self, closing: ExitStack) -> None:
        """Have `closing` release, as its last steps, what belongs to this object."""

    def _end(self) -> None:
        self.close()

    def _fail(self, error: BaseException) -> Telling | None:
        if self.closed:
            return None
        with self.runtime.coordinator.closing(_CLOSING):
            self.closed = True
            with ExitStack() as closing:
                self._release(closing)
            # A runtime that others use, too, stays open; it only notifies the other ranks.
            return self.runtime._fail(error) if self._owns_runtime else self.runtime.coordinator.notify(error)

    @property
    def _calls(self) -> Calls:
        return self.runtime.coordinator.calls

    def _ending_calls(self) -> AbstractContextManager[bool]:
        return self.runtime.coordinator.ending_calls()

    def _closed_by_fork(self) -> None:
        super()._closed_by_fork()
        self.closed = True

    @contextmanager
    def _making(self) -> Iterator[None]:
        """Return the ``with`` block of the constructor: a failure on one rank is one on all, and closes the plan."""
        with self.runtime.collective_section(f"making a plan, {self._kind}", self.close):
            self._number = self.runtime.coordinator.next_number()
            yield

    def _compared(self) -> str:
        """Return a description of the plan that is the same on all ranks of the runtime."""
        return self._kind

    @property
    def _known_as(self) -> str:
        """A text that is the same on all ranks of the runtime, and different for any two of its plans."""
        return f"{self._compared()}, plan {self._number} of the runtime"

    def _check_in_use(self) -> None:
        if self.closed:
            raise closed_error(self._kind, "closed", self._forked)

    def _check_ranks(self) -> str | None:
        """Return what is wrong with the communicator, or None."""
        if self.runtime.comm.same_ranks(self.comm):
            return None
        return (
            f"expected a communicator of all {self.runtime.comm.size} ranks of the runtime, in "
            f"their order, received another one, of {self.comm.size} rank(s)"
        )

    def _sharers(self) -> str:
        return f"over {self.comm.size} rank(s), {self.runtime.workers} worker(s) each"
