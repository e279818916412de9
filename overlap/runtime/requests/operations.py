"""MPI calls that slices await: operations, operations started now and awaited later, persistent operations.

    await comm.Alltoall(a, b)              # start it, and go on when it has completed
    pending = await comm.Ialltoall(a, b)   # start it and go on at once
    ...
    await pending                          # go on when it has completed

Each of these awaits has its place in the issue order. A slice that ends with an operation pending fails.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial, wraps
from itertools import starmap
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np
from mpi4py import MPI

from ...errors import text_of
from . import signatures

P = ParamSpec("P")
T = TypeVar("T")


class _Steps(threading.local):
    """The step of a slice that the current thread runs."""

    owner: object | None = None  # the slice's identity; None: no step runs
    dropped: str | None = None  # the first request that the slice has made in this step and dropped without an await


steps = _Steps()
OUTSIDE = object()  # the owner of a user's request that was made outside of slice programs
_NO_BYTES = bytearray()


class Request:
    """Anything a slice program can await."""

    __slots__ = ("_owner", "awaited")

    awaited: bool
    _owner: object | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        request = super().__new__(cls)
        request._owner = steps.owner
        return request

    def __await__(self) -> Generator[Request, Any, Any]:
        self.awaited = True
        return (yield self)

    def __del__(self) -> None:
        # A request left by another slice that failed may be garbage-collected in any step.
        owner = getattr(self, "_owner", None)  # a signal may have come before it was set
        if owner is OUTSIDE and not getattr(self, "awaited", False):
            warnings.warn(
                f"{self} was never awaited, so nothing was done: outside of slice programs call mpi4py's communicator",
                RuntimeWarning,
                stacklevel=2,
            )
        elif (
            owner is not None and owner is steps.owner and steps.dropped is None and not getattr(self, "awaited", False)
        ):
            steps.dropped = str(self)


class Several(Request):
    """The requests of a coroutine of the library's, to be awaited in its place."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Request, Any, Any]) -> None:
        self._coroutine: Any = coroutine  # a `Coroutine` has a name only at run time

    def __await__(self) -> Generator[Request, Any, Any]:
        return self.begun().__await__()

    def begun(self) -> Coroutine[Request, Any, Any]:
        """Return the coroutine itself, which the caller runs."""
        self.awaited = True
        return self._coroutine

    def __del__(self) -> None:
        # Outside of slice programs Python itself warns of a coroutine that was never awaited.
        if not getattr(self, "awaited", False) and getattr(self, "_owner", None) is not None:
            super().__del__()
            self._coroutine.close()

    def __str__(self) -> str:
        return f"{self._coroutine.__qualname__}()"


def of_slices(function: Callable[P, Coroutine[Request, Any, T]]) -> Callable[P, Awaitable[T]]:
    """Have a slice fail that calls a coroutine function of the library and forgets the ``await`` (decorator)."""

    @wraps(function)
    def several(*args: P.args, **kwargs: P.kwargs) -> Several:
        return Several(function(*args, **kwargs))

    return several


def not_awaited(dropped: str) -> RuntimeError:
    """Make the error of a step that has made a request and not awaited it."""
    return RuntimeError(f"expected `await` before every call, received {dropped} that was never awaited")


class Operation(Request):
    """One MPI call of a slice program, not yet made."""

    __slots__ = ("args", "comm", "kwargs", "name", "requests")

    def __init__(self, comm: signatures.Ranks, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.comm: Any = comm
        self.name = name
        self.args = args
        self.kwargs = kwargs
        # What the call has returned, stored at once: if an exception follows, for instance from a signal handler, the
        # call must not be made twice.
        self.requests: list[Any] = []

    def make(self, blocking: bool) -> None:
        """Make the blocking call, or start its nonblocking form, whose `MPI.Request` is then in `requests`."""
        function = getattr(self.comm._handle, self.name if blocking else "I" + self.name.lower())
        if self.kwargs:
            function = partial(function, **self.kwargs)
        # `extend` calls the function from C and keeps its result before any Python code can run.
        self.requests.extend(starmap(function, (self.args,)))

    full_signature = signatures.full_signature
    alike = signatures.alike
    collective_signature = signatures.collective_signature
    described = signatures.described
    sent = signatures.sent
    problem = signatures.problem

    def on_scratch(self, resources: object = None) -> Operation:
        """Make an equivalent operation, for the slot with these buffers, on scratch buffers, not on the user's data."""
        return type(self)(self.comm, self.name, _copied(self.args), _copied(self.kwargs))

    def __str__(self) -> str:
        return f"{self.name} on communicator {self.comm.number}"


class Collective(Operation):
    """A collective by remote writes, of an `AsyncCollectives`, which runs when it is issued, in every way to wait."""

    __slots__ = ()

    def __init__(
        self, comm: signatures.Ranks, name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        super().__init__(comm, name, args, kwargs or {})

    def make(self, blocking: bool) -> None:
        # An exception raised here is not a rejected call: other ranks have seen the collective begin.
        self.requests.append(None if blocking else self.comm.source.Irecv(_NO_BYTES, MPI.PROC_NULL))
        getattr(self.comm.made_by, self.name)(*self.args)


def _copied(argument: Any) -> Any:
    """Copy the arrays inside an mpi4py buffer argument; keep counts, types and ranks."""
    if isinstance(argument, np.ndarray):
        return np.array(argument)
    if isinstance(argument, (list, tuple)):
        return type(argument)(_copied(part) for part in argument)
    if isinstance(argument, dict):
        return {key: _copied(part) for key, part in argument.items()}
    return argument


class Start(Request):
    """A request to start an operation and go on at once with a `Pending`, which is awaited later."""

    __slots__ = ("operation",)

    def __init__(self, operation: Operation) -> None:
        operation.awaited = True
        self.operation = operation

    def __str__(self) -> str:
        return f"the start of {self.operation}"


class Pending(Request):
    """An operation that has been started: ``await`` it before the slice ends."""

    __slots__ = ("done", "error", "number", "operation", "request", "slot", "waited")

    def __init__(self, operation: Operation, number: int) -> None:
        self.operation = operation
        self.number = number  # its index among the operations that its slice has started
        self.done = False  # MPI has completed it
        self.error: BaseException | None = None  # raised when the operation was started or completed
        self.request: Any = None  # MPI's, if the issuing thread waits for it by itself
        self.slot: Any = None  # the slot that waits for it
        self.waited = False  # the slice has awaited it

    def __del__(self) -> None:
        """Do nothing: if the operation was not awaited, the end of its slice reports it."""

    def __str__(self) -> str:
        return f"{self.operation}, which was started"


class Persistent(Operation):
    """An operation whose arguments are passed to MPI once, and which can be awaited any number of times.

    Made by ``comm.Send_init`` and the like outside of slice programs. It belongs to one slice at a time.
    """

    __slots__ = ("_to_nobody", "of_slots", "refused", "request")

    def __init__(self, comm: signatures.Ranks, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(comm, name, args, kwargs)
        self._to_nobody = signatures.has_nobody(self)
        # If it was made with the buffers of a slot: the corresponding request of every slot of the pipeline, by the
        # `id` of the slot's buffers.
        self.of_slots: dict[int, Persistent] = {}
        self.awaited = True  # making a persistent request without using it is no error
        self.request: Any = None
        self.refused: Exception | None = None
        self.renew()

    def renew(self) -> None:
        """Pass the arguments to MPI, for the current duplicate of the communicator."""
        try:
            self.request = getattr(self.comm._handle, self.name + "_init")(*self.args, **self.kwargs)
        except Exception as error:  # the first call that awaits the request reports it on all ranks
            self.refused = error

    def free(self) -> None:
        """Free MPI's request."""
        if self.request is not None and self.request != MPI.REQUEST_NULL:
            self.request.Free()
        self.request = None

    def make(self, blocking: bool) -> None:
        if self.refused is not None:
            raise self.refused
        # As in `Operation.make`, no Python code runs between the call and storing its result.
        if self._to_nobody:
            # MPICH's Testsome, by which a runtime polls, never reports a persistent request to PROC_NULL.
            self.requests.extend(starmap(self.comm._handle.Irecv, ((_NO_BYTES, MPI.PROC_NULL),)))
        else:
            self.requests.extend(starmap(_started, ((self.request,),)))
        if blocking:
            self.requests[0].Wait()

    def on_scratch(self, resources: object = None) -> Operation:
        """Make an operation on scratch buffers that matches the other ranks' requests, for the slot with these buffers.

        A message can be received by any kind of call. A persistent collective matches only the request that the other
        ranks made at the same time: the slot's own request if every slot has one, else this one.
        """
        if signatures.is_send(self) or signatures.is_receive(self):
            return Operation(self.comm, self.name, _copied(self.args), _copied(self.kwargs))
        return self.of_slots.get(id(resources), self)

    def __str__(self) -> str:
        return f"{self.name}_init on communicator {self.comm.number}"


def _started(request: MPI.Prequest) -> MPI.Prequest:
    request.Start()
    return request


def label_of(operation: object, key: object) -> str:
    """Return the name of an operation of a slice, for the watchdog and the trace."""
    return f"{operation} of slice {text_of(key)}"


def start(operation: Operation) -> Start:
    """Start an operation now, to be awaited later: ``pending = await start(request)``.

    Parameters
    ----------
    operation : Operation
        Such as ``comm.Allreduce(a, b)``, for which ``comm.Iallreduce(a, b)`` is the same; or a persistent
        request.

    Returns
    -------
    Start
        Await it: the operation starts in its turn, and the result is the `Pending`.

    Raises
    ------
    TypeError
        `operation` is not an operation of one of the runtime's communicators.

    Examples
    --------
    >>> received = np.empty(1)
    >>> with overlap.Runtime(comm) as rt:
    ...     @rt.pipelined
    ...     async def program(i):
    ...         pending = await overlap.start(rt.comm.Allreduce(np.ones(1), received))
    ...         await pending
    ...     program(range(1))
    """
    if not isinstance(operation, Operation):
        raise TypeError(f"expected an operation such as comm.Allreduce(a, b), received {type(operation).__name__}")
    return Start(operation)


@of_slices
async def all_of(*operations: Operation) -> None:
    """Start several operations, those that receive first, and wait for all: ``await all_of(a, b)``.

    Parameters
    ----------
    operations : Operation
        Calls of communicators, or persistent requests.

    Examples
    --------
    >>> sent, received = np.ones(3), np.empty(3)
    >>> with overlap.Runtime(comm) as rt:
    ...     @rt.pipelined
    ...     async def program(i):
    ...         here = comm.rank
    ...         await overlap.all_of(rt.comm.Send(sent, here), rt.comm.Recv(received, here))
    ...     program(range(1))
    >>> received
    array([1., 1., 1.])
    """
    started = [start(operation) for operation in operations]
    started.sort(key=lambda request: request.operation.name != "Recv")
    for pending in [await request for request in started]:
        await pending
