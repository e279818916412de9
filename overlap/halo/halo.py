"""`Halo`: exchange ghost cells or other ranks' entries, and compute meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from math import inf
from threading import get_ident
from typing import Any, NoReturn, Self

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike

from ..arrays.blocks import Blocks
from ..compiled.memory import address_of
from ..errors import InputError, OverlapError, RankLost
from ..ranks.failures import FailureChannel, RankFailure, heard, identity_of
from ..ranks.holding import DropWarning
from ..ranks.interrupts import holding_signals
from ..ranks.objects import Described
from ..ranks.rendezvous import node_of
from ..ranks.resource import CollectiveContext, Telling, marked_call
from ..ranks.segments import unusable
from ..ranks.standalone_coordinator import StandaloneCoordinator
from ..ranks.wait import wait_for
from ..ranks.watchdog import BoundedWait
from ..runtime.requests.operations import of_slices
from ..runtime.requests.requests import AsyncComm
from . import remote_writes
from .point_to_point import Awaited, Begun, Messages, Requests
from .remote_writes import LinkWindow
from .traffic import Entries, LocalArrays, RoundArrays, Traffic, numbers_of, of_blocks, of_indices, problem_of, types_of

FAILURES_TAG = 8
_ROUND = "a halo exchange"
_FREEING = "freeing a halo"
_WORD = 8  # bytes of the round's number in a failure message


class _AgainError(Exception):
    """The round begins once more."""


class Halo(CollectiveContext):
    """Exchanges copies of other ranks' entries: the ghost cells of blocks, or any entries (`from_indices`).

    `start` sends and returns. Compute the cells that see no ghost cell (`Blocks.inner`), and call `PendingHalo.test`
    now and then. `PendingHalo.wait` returns when the ghost cells have arrived; compute the other cells (`Blocks.outer`)
    then. `exchange` does all of it at once. In slice programs make the halo of the runtime's communicator and write
    ``await halo(u)``, or ``pending = await halo.begin(u)`` and, later, ``await pending``.

    All arrays of a round travel in one message per neighbour. Ranks of one node write into each other's memory,
    straight into the ghost cells if the array is one of `empty`. Ranks of different nodes send by persistent requests
    of MPI, without a copy if the cells are one run of bytes of an array (a slab of planes). From `start` to the end of
    `wait` do not write to the ghost cells, nor to the cells that neighbours need; you may read the latter.

    All ranks call `start` and `wait` in the same order, from one thread at a time. A failure on one rank, such as a
    wrong argument, raises the same error on all ranks as soon as they wait. A rank that is no neighbour of the failed
    rank may be ahead of it: it completes its round, and one more for each further neighbour in between, before it
    raises. When all ranks have raised, the next round starts afresh.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm or AsyncComm
        The communicator is duplicated. Making and freeing a halo is collective over it.
    parts : Blocks
        Says which rank holds what; every rank passes the same blocks. For any entries instead use `from_indices`.
    dtypes : data type, or list of them
        The type of each array of a round. Components of an item are a part of its type: ``("f8", (3,))`` for three
        numbers per cell, the last axis of the array.
    transport : {"auto", "window", "messages"}
        "window" raises if a neighbour is on another node; "messages" never writes to other ranks' memory.
    exchange : {None, "f4"}
        ``"f4"``: doubles are sent as singles, half the bytes between nodes; numbers of other types as they are. A ghost
        cell gets its owner's number rounded to a single, also from the same node or the same rank, where nothing is
        sent: results do not depend on which ranks share a node.
    deadline_s : float or None
        Seconds that a rank waits for others, in a round or while a halo is made or freed, before it prints the stacks
        of all its threads and aborts the job.

    Attributes
    ----------
    comm : mpi4py.MPI.Intracomm
        The duplicate.
    local_shape : tuple of int
        Shape of each array, without the components of an item.
    exchange_dtypes : tuple of dtype
        The types in which the numbers of the arrays of a round travel.
    transports : dict
        "window" or "messages" for the rank of each neighbour.
    reason : str or None
        Why the halo does not write to neighbours' memory, if it has chosen the transport itself.

    Raises
    ------
    InputError
        On all ranks, if an argument is not valid or differs between ranks.

    Examples
    --------
    >>> blocks = overlap.Blocks((8, 8), grid=(comm.size, 1), width=1, periodic=True)
    >>> with overlap.Halo(comm, blocks) as halo:
    ...     (u,) = halo.empty()
    ...     u[blocks.own(comm.rank)] = 1.0
    ...     pending = halo.start(u)
    ...     inner = u[blocks.inner(comm.rank)].sum()  # meanwhile
    ...     pending.wait()
    ...     float(u.sum())  # with the ghost cells
    100.0
    """

    @holding_signals
    def __init__(
        self,
        comm: MPI.Intracomm | AsyncComm | StandaloneCoordinator,
        parts: Blocks | Entries,
        dtypes: DTypeLike | Sequence[DTypeLike] = np.float64,
        *,
        transport: str = "auto",
        exchange: str | None = None,
        deadline_s: float | None = 60.0,
    ) -> None:
        asynchronous = comm if isinstance(comm, AsyncComm) else None
        source = comm.source if isinstance(comm, AsyncComm) else comm
        self.coordinator = StandaloneCoordinator.of(source, deadline_s, "a Halo")
        super().__init__()
        self.comm, self._calls = self.coordinator.comm, self.coordinator._calls
        self._runtime: Any = None if asynchronous is None else asynchronous.runtime
        self._window: LinkWindow | None = None
        self._sets: dict[tuple[int, ...], int] = {}
        self._active = self._messages_left = False
        self._pending = PendingHalo(self)
        with self.coordinator.collective_section("making a halo", self._undo):
            types, problem = types_of(dtypes)
            self.coordinator.check(
                "making a halo",
                problem or problem_of(self.comm, parts, transport, exchange, types),
                dtypes=[(dtype.str, components) for dtype, components in types],
                transport=transport,
                exchange=exchange,
                blocks=vars(parts) if isinstance(parts, Blocks) else None,
            )
            if isinstance(parts, Blocks):
                self.local_shape, traffic = parts.local_shape(self.comm.rank), of_blocks(parts, self.comm.rank)
            else:
                self.local_shape, traffic = parts.local_shape, list(parts.traffic)
            self._arrays = RoundArrays(self.local_shape, types, exchange)
            self.exchange_dtypes = self._arrays.exchange_dtypes
            local = self._arrays.local
            self._chosen: tuple[int, ...] = ()
            self._failures = FailureChannel(self.comm, FAILURES_TAG)
            self._failure: BaseException | None = None  # the failure of the last round, on this or another rank
            self._bounded = BoundedWait(self.coordinator.deadline_s)
            self._heard = len(heard)
            self._rounds = self._rounds_before = 0  # rounds begun, and those before the last failure
            self._reported: list[tuple[int, bytes]] = []  # failures of other ranks, with the numbers of their rounds
            far = self._make_window(traffic, local, transport)
            self.transports = {one.rank: "messages" if one in far else "window" for one in traffic}
            self._messages = Messages(far, local)
            self._requests = Requests(self.comm, self._messages)
            self._far = bool(far)
            self._awaited = (
                Awaited(asynchronous, self.coordinator, Messages(traffic, local)) if asynchronous is not None else None
            )
        # Here all ranks have made them: what a rank frees, all ranks must free.
        self.coordinator.holding.add(self._requests.end)
        self.coordinator.holding.add(self._failures.end)
        if self.comm.size > 1:
            self._begun()
            self.coordinator.door.tell_too(self)
        if self.coordinator.guard is not None:
            self.coordinator.guard.register(self)

    def _title(self) -> str:
        kinds = ", ".join(map(str, dict.fromkeys(dtype for _, dtype in self._arrays.kinds)))
        return (
            f"Halo of local shape {self.local_shape} {kinds} over {self.coordinator.size} rank(s), here of "
            f"{len(self.transports)} neighbour(s)"
        )

    @classmethod
    @holding_signals
    def from_indices(
        cls,
        comm: MPI.Intracomm | AsyncComm,
        owned: Any,
        needed: Any,
        dtypes: DTypeLike | Sequence[DTypeLike] = np.float64,
        *,
        transport: str = "auto",
        exchange: str | None = None,
        deadline_s: float | None = 60.0,
    ) -> Self:
        """Make a halo of entries that are identified by global numbers. Collective.

        In the local array the owned entries come first and then the needed ones, both in the order given.

        Parameters
        ----------
        comm : mpi4py.MPI.Intracomm or AsyncComm
        owned : array of int
            Global numbers >= 0 of the entries of this rank; every entry has one owner.
        needed : array of int
            Global numbers of the entries of other ranks that this rank needs, each once.
        dtypes, transport, exchange, deadline_s
            See `Halo`.

        Returns
        -------
        Halo

        Raises
        ------
        InputError
            On all ranks, if a number is not valid, or if an entry has no owner or more than one.
        """
        source = comm.source if isinstance(comm, AsyncComm) else comm
        coordinator = StandaloneCoordinator(source, deadline_s, DropWarning("a Halo"))
        with coordinator.collective_section("finding the owners of entries", coordinator.close):
            (mine, others), problem = numbers_of(owned, needed)
            coordinator.check("finding the owners of entries", problem)
            entries = of_indices(coordinator, mine, others)
        made_of: AsyncComm | StandaloneCoordinator = coordinator
        if isinstance(comm, AsyncComm):
            coordinator.close()
            made_of = comm
        return cls(made_of, entries, dtypes, transport=transport, exchange=exchange, deadline_s=deadline_s)

    def _make_window(self, traffic: list[Traffic], local: LocalArrays, transport: str) -> list[Traffic]:
        """Make the links to neighbours on this node, if there are any; return the traffic that they do not carry."""
        self.reason = "transport='messages'" if transport == "messages" else None
        if transport == "auto" and self.comm.size == 1 and not traffic:
            self.reason = "no neighbours"
        if self.reason is not None:
            return traffic
        with self.coordinator.watching("finding the ranks of a node") as comm:
            node, free = node_of(comm)
            self.reason = unusable(node)
            ranks = node.allgather(self.comm.rank)
        peers = {rank: place for place, rank in enumerate(ranks)} if self.reason is None else {}
        near = [one for one in traffic if one.rank in peers]
        far = [one for one in traffic if one.rank not in peers]
        problem = None
        if transport == "window" and far:
            problem = (
                f"expected all neighbours on one node for transport='window', received rank {far[0].rank} on "
                f"another one{': ' + self.reason if self.reason else ''}"
            )
        with self.coordinator.collective_section("choosing the transport", free, problem):
            pass
        if self.reason is not None:
            with self.coordinator.watching("freeing the ranks of a node"):
                free()
            return far
        self.coordinator.holding.add(free, 1)
        self._window = LinkWindow(self.coordinator, node, peers, near, local, self._poll)
        return far

    def _undo(self) -> None:
        """Free the parts of a halo that some rank could not make. Collective."""
        self.closed = True
        self._over()
        if self._window is not None:
            self._window.end()
        self.coordinator.close()

    # ---- arrays ------------------------------------------------------------------------------

    @marked_call
    def empty(self) -> tuple[np.ndarray, ...]:
        """Make the arrays of a round, zeros, in memory that neighbours of the node write to. Collective.

        They are ordinary arrays, which outlive the halo and may be used in any order. Other arrays can be exchanged,
        too, with one more copy.

        Returns
        -------
        tuple of ndarray
            One for each data type.
        """
        self.check_open()
        self._recover()
        with self.coordinator.collective_section("making the arrays of a halo"):
            if self._window is None:
                return tuple(np.zeros(shape, dtype) for shape, dtype in self._arrays.kinds)
            number = self._window.count
            arrays = tuple(self._window.new_set(self._arrays.kinds))
            self._sets[tuple(map(address_of, arrays))] = number
        return arrays

    # ---- without a runtime -------------------------------------------------------------------

    @marked_call
    def start(self, *arrays: np.ndarray) -> PendingHalo:
        """Begin a round: send the entries that other ranks need, request those that this rank needs.

        Parameters
        ----------
        *arrays : ndarray
            Arrays of the local shape, each with the components of its type; contiguous in C order.

        Returns
        -------
        PendingHalo
            Wait for it before the next round begins.

        Raises
        ------
        InputError
            Here and, as soon as they wait, on all other ranks: an array does not fit, or a round has not ended.
        """
        return self._start(arrays)

    def _start(self, arrays: tuple[np.ndarray, ...]) -> PendingHalo:
        self.check_open()
        self._recover()
        self._rounds += 1
        try:
            if self._active:
                raise InputError("expected wait() for the round before, received the start of another one")
            self._begin(self._arrays.addresses(arrays))
        except InputError as error:
            self.fail(InputError(f"rank {self.comm.rank}: {error}"))
        except BaseException as error:
            self.fail(error)
        return self._pending

    def _begin(self, addresses: tuple[int, ...]) -> None:
        """Send and request the entries of the arrays at these addresses."""
        if addresses is not self._chosen:
            self._choose(addresses)
        if self._far:
            self._active = self._messages_left = True
            self._requests.start()
        if self._window is not None:
            self._active = True
            remote_writes.start(self._window.address, self._set)
            self._arrays.local.check()
        self._active = True

    def _choose(self, addresses: tuple[int, ...]) -> None:
        """Use the arrays at these addresses in the next rounds."""
        self._requests.choose(addresses)
        if self._window is not None:
            self._window.sources[:] = addresses
            self._set = self._sets.get(addresses, remote_writes.NO_SET)
        self._chosen = addresses

    @marked_call
    def exchange(self, *arrays: np.ndarray) -> None:
        """Make a whole round: `start` and `wait`.

        Parameters
        ----------
        *arrays : ndarray
            See `start`.

        Raises
        ------
        InputError, RankError
            A rank has failed; the same error is raised on all ranks that wait for it.
        """
        self._start(arrays)
        self._complete()

    @marked_call
    def _progress(self) -> bool:
        """Send and receive what is possible now; return whether the round has ended."""
        if not self._active:
            self.check_open()
            return True
        try:
            self._active = not self._advance()
            if self._active:
                try:
                    self._listen(self._rounds)
                except _AgainError:
                    self._begin_again(self._chosen)
            if self._active and self.coordinator.guard is not None:
                self.coordinator.guard.poll(_ROUND)
        except BaseException as error:
            self.fail(error)
        return not self._active

    def _advance(self) -> bool:
        if self._messages_left and self._requests.test():
            self._messages_left = False
        left = self._window is not None and remote_writes.progress(self._window.address)
        self._arrays.local.check()
        return not (left or self._messages_left)

    @marked_call
    def _wait(self) -> None:
        self._complete()

    def _complete(self) -> None:
        if not self._active:
            self.check_open()
            if self._failure is not None:
                raise self._failure
            return
        try:
            while True:
                try:
                    if self._messages_left:
                        wait_for(self._advance, hot_s=inf, attend=lambda _: self._poll())
                    elif self._window is not None:
                        remote_writes.complete(self._window.address)
                    break
                except _AgainError:
                    self._begin_again(self._chosen)
        except BaseException as error:
            self.fail(error)
        self._active = False

    def _begin_again(self, addresses: tuple[int, ...]) -> None:
        """Begin the round once more, with the next one of the ranks that have raised."""
        self._active = False
        self._recover()
        self._rounds += 1
        self._begin(addresses)

    def _waiting_for(self) -> str:
        far = self._requests.waiting_for if self._messages_left else []
        near = self._window.waiting_for if self._window is not None else []
        return f"rank {', '.join(map(str, sorted(far + near)))}"

    def _poll(self, raised: int = 0, *_: int) -> None:
        """Raise another rank's failure and apply the deadline; a rank that waits calls this now and then.

        When it has `raised`, compiled code calls it once more, which does nothing.
        """
        if raised:
            return
        self._arrays.local.check()
        self._listen(self._rounds)
        self._bounded.check(self._rounds, _ROUND, self._waiting_for)

    def _listen(self, last: int) -> None:
        """Raise another rank's failure, which the rounds up to number `last` cannot do without; an `_AgainError` if
        this rank has raised it before, in a call of another object."""
        for _rank, content in self._failures.received():
            self._reported.append((int.from_bytes(content[:_WORD], "little"), content[_WORD:]))
        for number, content in self._reported:
            # A rank that has failed in a later round has done its part of this one, so this round ends without an
            # error.
            if number <= last - self._rounds_before:
                failure = RankFailure.unpacked(content)
                is_known = failure.identity in heard
                self._failure = failure.error()
                if is_known and failure.stays:
                    raise _AgainError
                self.coordinator.door.answer(failure)
                raise self._failure

    def fail(self, error: BaseException) -> NoReturn:
        """Raise an error here and, as soon as they wait, on all other ranks; the next round then starts afresh."""
        if self.coordinator.guard is not None and (lost := self.coordinator.guard.loss(error, _ROUND)):
            raise lost from (None if lost is error else error)
        self.check_open()
        self._active = False
        self._notify(error, self._rounds)
        raise error

    def _tell(self, failure: RankFailure) -> None:
        if not self.closed and self._user in (None, get_ident()):
            self._notify(failure.error(), self._rounds + (not self._active), failure)
            self._active = False

    def _notify(self, error: BaseException, number: int, failure: RankFailure | None = None) -> None:
        """Notify all ranks of a failure here, with the number of the round."""
        if self._failure is None:
            self._failure = error
            content = (number - self._rounds_before).to_bytes(_WORD, "little")
            content += (failure or RankFailure.of(self.comm.rank, error)).packed()
            for other in range(self.comm.size):
                if other != self.comm.rank:
                    self._failures.notify(other, content)

    def _recover(self) -> None:
        """Start afresh if the last round has failed, or if some rank has failed elsewhere, as all know. Collective."""
        if self._heard != len(heard):
            self._heard = len(heard)
            with suppress(_AgainError):
                self._listen(self._rounds + 1)
        if self._failure is None:
            return
        what = "the end of messages of a round that has failed"
        self.coordinator.synchronize(what)  # raises if a rank has left, so that no rank waits for it below
        with self.coordinator.watching(what):
            self._failures.end()
            self._requests.end()
        if self._window is not None:
            self._window.begin_anew()
        self._requests.begin()
        self._messages_left, self._chosen, self._failure = False, (), None
        self._reported, self._rounds_before = [], self._rounds

    # ---- in slice programs -------------------------------------------------------------------

    @of_slices
    async def __call__(self, *arrays: np.ndarray) -> None:
        """Make a whole round in a slice program: ``await halo(u)``. One slice at a time may use a halo.

        Parameters
        ----------
        *arrays : ndarray
            See `start`.
        """
        await (await self._begin_round(arrays))

    @of_slices
    async def begin(self, *arrays: np.ndarray) -> Begun:
        """Begin a round in a slice program; await the result before the slice ends.

        Parameters
        ----------
        *arrays : ndarray
            See `start`.

        Raises
        ------
        InputError
            The halo was not made of a runtime's communicator.
        """
        return await self._begin_round(arrays)

    async def _begin_round(self, arrays: tuple[np.ndarray, ...]) -> Begun:
        self.check_open()
        if self._awaited is None:
            raise InputError(
                "expected a halo of a runtime's communicator (Halo(rt.comm, ...)), received an await on one "
                "without a runtime"
            )
        return await self._awaited.begin(self._arrays.addresses(arrays))

    # ---- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Free requests and windows (collective). Later calls raise `ClosedError`.

        Raises
        ------
        BusyError
            A call of the halo, or of a pipeline that awaits it, is under way; nothing is freed.
        """
        if self.closed:
            return
        with self._closing():
            if self.coordinator.left is not None:  # a rank that has left by an exception takes no part in freeing
                self.abandon()
                return
            try:
                if self._active and self._failure is None:
                    self._wait()
                self.coordinator.synchronize("freeing a halo")
            except OverlapError:
                if self.coordinator.left is not None:
                    self.abandon()
                raise
            self._undo()

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Return a ``with`` block in which the halo is freed and no call is under way."""
        with ExitStack() as none:
            if self._runtime is not None and not self._runtime.closed:
                none.enter_context(self._runtime.coordinator.closing(_FREEING))
            none.enter_context(self.coordinator.closing(_FREEING))
            yield

    def _ending_calls(self) -> AbstractContextManager[bool]:
        return self.coordinator.ending_calls()

    def lose(self, lost: RankLost) -> None:
        """Note that a rank is lost: there is no next round."""
        if not self.closed:
            self._ended = f"closed by a loss ({lost})"
            self.abandon()

    def abandon(self) -> None:
        """End this rank's part without the others, because a rank has left."""
        self.closed, self._active = True, False
        self.coordinator.abandon()
        self._over()

    def _fail(self, error: BaseException) -> Telling | None:
        if self.closed:
            return None
        with self._closing():
            return self._failed(error)

    def _failed(self, error: BaseException) -> Telling | None:
        if error is self._failure:  # raised by a call, so the other ranks raise it, too, and call `free`
            with suppress(OverlapError):  # the exception that ends the block must not be hidden
                self.close()
            return None
        if self.comm.size == 1:
            self.close()
            return None
        if self.coordinator.left is not None:
            self.abandon()
            return None
        # This notifies ranks that wait in a round (the current one if it has not ended here); the header below notifies
        # ranks in any other call.
        identity_of(error)
        self._notify(error, self._rounds + (not self._active))
        self.closed, self._active = True, False
        return self.coordinator.leave(error, self._over)

    def _closed_by_fork(self) -> None:
        super()._closed_by_fork()
        self._active = False
        self.coordinator.close_in_child()

    @property
    def _user(self) -> int | None:
        return self.coordinator.exclusive.last


class PendingHalo(Described):
    """A round of a halo exchange that is under way.

    Parameters
    ----------
    halo : Halo
        `Halo.start` makes the object.

    Examples
    --------
    >>> blocks = overlap.Blocks((comm.size, 8), grid=(comm.size, 1), periodic=True)
    >>> with overlap.Halo(comm, blocks) as halo:
    ...     (u,) = halo.empty()
    ...     pending = halo.start(u)
    ...     ended = pending.test()  # between pieces of computing
    ...     pending.wait()
    """

    __slots__ = ("_halo",)

    def __init__(self, halo: Halo) -> None:
        self._halo = halo

    def _title(self) -> str:
        return f"PendingHalo of a {self._halo._title()}"

    def _has_ended(self) -> bool:
        return self._halo.closed

    def test(self) -> bool:
        """Let the round progress, and return whether it has ended. Call it between pieces of computing."""
        return self._halo._progress()

    def wait(self) -> None:
        """Wait until the ghost cells have arrived and the cells that were sent may be written to.

        Raises
        ------
        InputError, RankError
            A rank has failed; the same error on all ranks.
        """
        self._halo._wait()
