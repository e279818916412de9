"""Requests that a slice program can await, and the communicators on which it awaits them.

A slice program is a coroutine. Every `await` in it hands one request to the runtime:

* `Operation`: an MPI call, made by the communicator on one of the runtime's communicators;
* `Start`: start an operation, which gives a `Pending` to be awaited later (both in `operations`);
* `Barrier`: wait until every slice of this rank has arrived (or ended);
* `Parallel`: split a heavy step of one slice over idle workers;
* `WaitForSlices`: wait until the first slices of the call have ended;
* `TakeTurn`: take a place in the issue order without an MPI call.

`AsyncComm` has mpi4py's own upper-case names and arguments; calling a method makes no MPI call but
returns the `Operation` to await.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ...compiled.mpi import handle_of
from ...errors import InputError, repr_of
from ...ranks.interrupts import holding_signals
from ...ranks.losses import detecting_loss, guarded
from ...ranks.objects import Described, Uncopied
from ...ranks.resource import Calls, marked_call
from ...ranks.together import together
from . import signatures
from .agreement import weight
from .operations import OUTSIDE, Operation, Persistent, Request, Start, of_slices, steps

# Calls that have a nonblocking form with the same arguments: ``Name`` and ``Iname``.
_CHECKING = "the check of a communicator's arguments"
CALLS = tuple(signatures.PARAMETERS)
# Calls that have a persistent form: ``Name_init``.
PERSISTENT = tuple(name for name in CALLS if hasattr(MPI.Intracomm, f"{name}_init"))


class Barrier(Request):
    """A request to wait until all slices of this rank have arrived here or have ended."""

    __slots__ = ()

    def __str__(self) -> str:
        return "barrier()"


def barrier() -> Barrier:
    """Wait, inside a slice program, until every slice of this rank has arrived or ended.

    The barrier is local; ``await comm.Barrier()`` is the one across ranks. A waiting slice keeps
    its slot, so a program with slot buffers can use it only when all slices fit into the slots;
    a program without slot buffers makes room for the next slice while it waits.

    Examples
    --------
    >>> arrived = []
    >>> with overlap.Runtime(comm, depth=4) as rt:
    ...     @rt.pipelined
    ...     async def program(i):
    ...         arrived.append(i)
    ...         await overlap.barrier()
    ...         assert len(arrived) == 4
    ...     program(range(4))
    """
    return Barrier()


class Parallel(Request):
    """A request to call one function on several parts, on whichever workers are idle."""

    __slots__ = ("function", "parts")

    def __init__(self, function: Callable[[Any], object], parts: Iterable[Any]) -> None:
        self.function = function
        self.parts = list(parts)


def parallel(function: Callable[[Any], object], parts: Iterable[Any]) -> Parallel:
    """Split one slice's heavy step over idle workers.

    ``await parallel(function, parts)`` calls ``function(part)`` for every part, in any order and on any workers, and
    resumes the slice when all have returned. The first exception is raised from the await; parts that have not begun by
    then are skipped.

    Parameters
    ----------
    function : callable
        Called as ``function(part)``.
    parts : iterable
        One part for each call.

    Examples
    --------
    >>> squares = np.empty(100)
    >>> def square(part):
    ...     squares[part] = np.arange(100)[part] ** 2
    >>> with overlap.Runtime(comm, workers=2) as rt:
    ...     @rt.pipelined
    ...     async def program(i):
    ...         await overlap.parallel(square, [slice(0, 50), slice(50, 100)])
    ...     program(range(1))
    >>> int(squares[99])
    9801
    """
    return Parallel(function, parts)


class WaitForSlices(Request):
    """A request to wait until slices `start` to `stop` - 1 of the call have ended on this rank."""

    __slots__ = ("start", "stop")

    def __init__(self, stop: int, start: int) -> None:
        self.stop, self.start = stop, start

    def __str__(self) -> str:
        return f"wait_for_slices({self.stop}, start={self.start})"

    def is_open(self, ended: bytearray) -> bool:
        """Return whether all these slices have ended, given which slices of the call have."""
        return ended.find(0, self.start, self.stop) < 0


def wait_for_slices(stop: int, start: int = 0) -> WaitForSlices:
    """Wait, inside a slice program, until the call's slices `start` to ``stop - 1`` have ended.

    The slice keeps its slot but no worker. If a slice has failed, the wait ends at once. A wait that can never end (for
    the slice itself, or for a slice that waits at a barrier for this one) ends with a `SliceError` on all ranks as soon
    as nothing else is left to do.

    Order rule: operations are issued in a fixed rotation of the slots. If every slice awaits exactly one operation (or
    `take_turn`), this is the order of the slices: all operations of earlier slices are issued before a slice's own, so
    a wait for earlier slices, wherever in the slice, cannot block them and there is no deadlock. Two consequences: what
    a slice does after its operation comes after everything that earlier slices do before theirs; and a wait for a later
    slice, or for an earlier slice whose operation comes later, ends with a `SliceError`.

    Parameters
    ----------
    stop : int
        The index in the call of the first slice that is not waited for.
    start : int
        The index of the first slice that is waited for.

    Raises
    ------
    ValueError
        `stop` or `start` is negative.

    Examples
    --------
    >>> ended = []
    >>> with overlap.Runtime(comm) as rt:
    ...     @rt.pipelined
    ...     async def program(i):
    ...         await overlap.take_turn()
    ...         await overlap.wait_for_slices(i)  # all slices before this one
    ...         ended.append(i)
    ...     program(range(4))
    >>> ended
    [0, 1, 2, 3]
    """
    start, stop = index(start), index(stop)
    if start < 0 or stop < 0:
        raise ValueError(f"expected slices from 0 on, received wait_for_slices({stop}, start={start})")
    return WaitForSlices(stop, start)


class TakeTurn(Request):
    """A request for the slice's place in the issue order, with nothing to issue."""

    __slots__ = ()

    def __str__(self) -> str:
        return "take_turn()"


def take_turn() -> TakeTurn:
    """Take a place in the issue order without an MPI call: for slices without one, see `wait_for_slices`.

    Examples
    --------
    >>> with overlap.Runtime(comm) as rt:
    ...     @rt.pipelined
    ...     async def program(i):
    ...         await overlap.take_turn()
    ...     program(range(4))
    """
    return TakeTurn()


@of_slices
async def stagger(number: int, depth: int) -> None:
    """Delay every second slot by one operation: await it first in a slice program.

    If every slice has two operations and the slots run in step, all first operations are issued and then all second
    ones, and the link is idle in between. With the delay the two kinds alternate. The program needs a `skeleton` that
    awaits `stagger`, too, because slices then await different numbers of operations.

    Parameters
    ----------
    number : int
        The slice's index in the call.
    depth : int
        Slots of the pipeline.

    Raises
    ------
    ValueError
        `number` is negative, or `depth` is less than 1.

    Examples
    --------
    >>> a, b = np.empty((2, 8))
    >>> async def exchanges(i):
    ...     await overlap.stagger(i, 4)
    ...     await rt.comm.Allreduce(np.ones(1), a[i : i + 1])
    ...     await rt.comm.Allreduce(np.ones(1), b[i : i + 1])
    >>> with overlap.Runtime(comm, depth=4) as rt:
    ...     rt.pipelined(exchanges, skeleton=exchanges)(range(8))
    """
    number, depth = index(number), index(depth)
    if number < 0 or depth < 1:
        raise ValueError(f"expected a slice from 0 on and a depth of at least 1, received stagger({number}, {depth})")
    if starts_late(number, depth):
        await take_turn()


def starts_late(number: int, depth: int) -> bool:
    """Return whether a slice starts one operation late; see `stagger`."""
    return number < depth and number % 2 == 1


class AsyncComm(Uncopied, Described):
    """An MPI communicator whose upper-case calls are awaited inside slice programs.

    Attributes
    ----------
    rank, size : int
        As in mpi4py.

    Examples
    --------
    >>> with overlap.Runtime(comm) as rt:
    ...     row = rt.comm.Split(color=0)
    ...     received = np.empty(1)
    ...     @rt.pipelined
    ...     async def ask(i):
    ...         pending = await row.Iallreduce(np.ones(1), received)
    ...         await pending
    ...     ask(range(1))
    >>> received[0] == comm.size
    np.True_
    """

    # `_handle` is the duplicate that carries the messages of slice programs. Only `Operation` uses it: the library's
    # own collectives go through `Coordinator`, which the deadline watches.

    rank: int
    size: int
    persistent: list[Persistent]  # the persistent requests made on this communicator
    broken = False  # an exception has made it unusable

    if TYPE_CHECKING:  # the calls of `CALLS`, which are made below

        def __getattr__(self, name: str) -> Callable[..., Operation]: ...

    def __init__(self, source: MPI.Comm, number: int, wrap: Callable[..., Any], owns_source: bool) -> None:
        self._source = source  # never carries a pipeline's traffic: a fresh duplicate can be made
        self.owns_source = owns_source
        self._wrap = wrap
        self.weight = weight(source.rank, source.size)
        self.number = number
        self.persistent = []
        self._handle: Any = None
        self.word = array("Q", (0,))  # the library's handle, for compiled code
        self.renew()

    @property
    def runtime(self) -> Any:
        """Return the `Runtime` that owns the communicator."""
        return getattr(self._wrap, "__self__").runtime()  # noqa: B009

    def _title(self) -> str:
        return f"AsyncComm over {self.size} rank(s), here rank {self.rank}"

    def _has_ended(self) -> bool:
        runtime = self.runtime
        return runtime is None or runtime.closed

    @property
    def _calls(self) -> Calls:
        calls: Calls = self.runtime.coordinator._calls
        return calls

    @property
    def source(self) -> Any:
        """Return the mpi4py communicator from which this one was made; slice programs send nothing on it."""
        return self._source

    def renew(self) -> None:
        """Make a new duplicate (collective); an old one is left behind, unused and not freed.

        If it were freed, MPI would give its context to a later communicator, which could then receive messages that are
        still under way in the old one.
        """
        self._handle = guarded(self._source.Dup(), self._source)
        self._handle.Set_errhandler(MPI.ERRORS_RETURN)
        self.word[0] = handle_of(self._handle) % 2**64
        self.rank = self._handle.rank
        self.size = self._handle.size
        for request in self.persistent:
            request.renew()

    def free(self) -> None:
        """Free the persistent requests, the duplicate, and the source if it was made here (collective)."""
        for request in self.persistent:
            request.free()
        self.persistent.clear()
        self._handle.Free()
        if self.owns_source:
            self._source.Free()

    def same_ranks(self, comm: MPI.Comm) -> bool:
        """Return whether `comm` is an intracommunicator of the same ranks in the same order."""
        return isinstance(comm, MPI.Intracomm) and MPI.Comm.Compare(comm, self._handle) in (MPI.IDENT, MPI.CONGRUENT)

    @holding_signals
    def Split(self, color: int = 0, key: int = 0) -> AsyncComm | None:
        """Split into sub-communicators, as `MPI.Comm.Split` (collective, outside of pipelines).

        Returns None on ranks whose color is ``MPI.UNDEFINED``.

        Parameters
        ----------
        color : int
            Ranks with the same color share a communicator.
        key : int
            Orders the ranks of a communicator; ranks with equal keys keep their order.

        Returns
        -------
        AsyncComm or None
            Freed with the runtime.

        Raises
        ------
        InputError
            On all ranks, if an argument of any rank is not an integer or is out of its range.
        """
        getattr(self._wrap, "__self__").check_idle()  # noqa: B009
        colour, place = self._together(partial(_split_arguments, color, key))
        return self._wrap(lambda: self._source.Split(colour, place), AsyncComm)

    def _together(self, check: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
        """Return what a check of arguments returns; if it raises on one rank, raise on all of them (collective)."""
        getattr(self._wrap, "__self__").synchronize_members(self._source)  # noqa: B009
        with detecting_loss(self._source, _CHECKING):
            return together(self._source, check)

    def _agree(self, operation: Operation) -> None:
        """Raise an `InputError` on all ranks if the operation of one is wrong or if they differ (collective)."""

        def check() -> tuple[Any, Any]:
            if problem := signatures.problem(operation):
                raise InputError(problem)
            return signatures.collective_signature(operation), signatures.pieces(operation)

        own = self._together(check)
        with detecting_loss(self._source, _CHECKING):
            answers = self._source.allgather(own)
        # MPI does not check this. Some libraries number their persistent collectives, so after a difference the ranks'
        # numbers would never match again.
        if len({shared for shared, _ in answers}) > 1:
            listed = ", ".join(f"{shared} (rank {rank})" for rank, (shared, _) in enumerate(answers))
            raise InputError(f"expected the same collective on all ranks, received {listed}")
        if different := signatures.pieces_problem([piece for _, piece in answers]):
            raise InputError(different)

    @holding_signals
    @marked_call
    def _kept(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Persistent:
        """Make a persistent request: outside of pipelines, by the calling thread."""
        self.runtime.coordinator.check_idle()
        if name not in ("Send", "Ssend", "Recv"):
            operation = Operation(self, name, args, kwargs)
            self._agree(operation)
        request = Persistent(self, name, args, kwargs)
        self.persistent.append(request)
        return request


def _split_arguments(color: Any, key: Any) -> tuple[int, int]:
    """Return the arguments of `AsyncComm.Split` as integers; raise an `InputError` on this rank if they are none."""
    try:
        color, key = index(color), index(key)
    except Exception:
        raise InputError(f"expected integers as color and key, received {repr_of(color)} and {repr_of(key)}") from None
    if not (color == MPI.UNDEFINED or 0 <= color < 2**31) or not -(2**31) <= key < 2**31:
        raise InputError(f"expected a color from 0 on, or MPI.UNDEFINED, and a key, received {color} and {key}")
    return color, key


def _awaitable(name: str) -> tuple[str, Callable[..., Any]]:
    def method(self: AsyncComm, *args: Any, **kwargs: Any) -> Operation:
        operation = Operation(self, name, args, kwargs)
        if steps.owner is None:
            operation._owner = OUTSIDE
        return operation

    method.__doc__ = f"Awaitable `MPI.Comm.{name}`, same arguments."
    return name, method


def _startable(name: str) -> tuple[str, Callable[..., Any]]:
    def method(self: AsyncComm, *args: Any, **kwargs: Any) -> Start:
        return Start(Operation(self, name, args, kwargs))

    method.__doc__ = (
        f"`MPI.Comm.I{name.lower()}`, same arguments: its await starts the call and gives a `Pending` to await."
    )
    return "I" + name.lower(), method


def _keepable(name: str) -> tuple[str, Callable[..., Any]]:
    def method(self: AsyncComm, *args: Any, **kwargs: Any) -> Persistent:
        return self._kept(name, args, kwargs)

    method.__doc__ = (
        f"`MPI.Comm.{name}_init`, same arguments: a persistent request, which slices can await "
        "any number of times; made outside of pipelines, and by all ranks if it is a collective. "
        "Freed with the communicator."
    )
    return f"{name}_init", method


for _makes, _names in ((_awaitable, CALLS), (_startable, CALLS), (_keepable, PERSISTENT)):
    for _name, _method in map(_makes, _names):
        _method.__name__ = _name
        _method.__qualname__ = f"AsyncComm.{_name}"
        setattr(AsyncComm, _name, _method)
