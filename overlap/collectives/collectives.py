"""`Collectives`: mpi4py's names for collectives by remote writes; `NodeCollectives`: those of an object on one node."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn, Self

import numpy as np
from mpi4py import MPI
from numba.core.errors import NumbaError

from ..checks import count_problem, mask_problem, number_problem
from ..compiled.memory import LINE, address_of, whole_lines
from ..errors import InputError, RankError, repr_of
from ..ranks.door import enter
from ..ranks.failures import RankFailure, heard, identity_of
from ..ranks.holding import DropWarning, Holding, free_dropped
from ..ranks.interrupts import held_signals
from ..ranks.losses import detecting_loss, guarded
from ..ranks.rendezvous import polls_of
from ..ranks.resource import CollectiveContext, Telling
from ..ranks.standalone_coordinator import StandaloneCoordinator
from ..ranks.watchdog import Watchdog
from . import calls, protocol
from .combine import SUM, Op
from .long_messages import LongMessages
from .nodes import Nodes, SeveralNodes
from .slow_path import SlowPath, busy_error
from .window import Window

_SMALLEST = 1024  # bytes of a slot; each rank has a cache line of it at least
OPERATIONS = tuple((getattr(MPI, op.name), op) for op in Op)
_SEND, _RECEIVE = range(2)  # indices of the two arrays
_IN_PLACE = {calls.Scatter: _RECEIVE}  # the array that may be `MPI.IN_PLACE`; in other collectives the first
# The array that matters on the root alone.
_ROOTS_OWN = {calls.Scatter: _SEND, calls.Gather: _RECEIVE, calls.Reduce: _RECEIVE}
_WHOLE = (calls.Reduce, calls.Allreduce)  # collectives whose two arrays are equally long
# Raised for types that numba cannot compile, and numbers that are too large.
_UNKNOWN = NumbaError, NotImplementedError, OverflowError
_MAKING = "making collectives"
_ABSENT = object()  # an argument that a collective does not have
_AS_BYTES = "egG"  # numeric types that are passed as bytes: half and long precision


class Collectives(CollectiveContext):
    """Collectives of a communicator, prepared once and called any number of times.

    Between ranks of a node data pass through a window of shared memory, by a store and a flag, without MPI. Between
    nodes one rank of each node exchanges messages for all ranks of the node. Long messages of collectives that move
    data go through MPI if that is faster. The methods have the names and arguments of mpi4py's. Compiled code
    (`numba.njit`) may call them on an instance that it receives as an argument, so that a solver's whole loop is
    compiled with its reductions.

    Results of reductions are the same to the last bit on all ranks and in every run: the order in which the ranks'
    values are combined depends only on the number of ranks.

    All ranks call the same collectives in the same order, from one thread at a time: a second thread gets a
    `BusyError`, and the first one's call goes on. So do not call them in a loop of `numba.prange`, whose threads lose
    exceptions: their results would be wrong. If a rank makes another call, or passes other sizes, types, roots or
    operations, an `InputError` is raised, and the instance cannot be used any more.
    Every rank that waits for the bad rank raises in that very call: in `Barrier`, `Allgather`, `Allreduce` and
    `allreduce` all ranks wait for all; in `Bcast` and `Scatter` they wait for the root; in `Gather` and `Reduce` the
    root waits for all. A rank that does not wait completes its call, and raises in the first later call that needs the
    bad rank. No call before the bad one raises. The same holds for an exception of a signal handler
    (`KeyboardInterrupt` on the rank that was interrupted, `RankError` on the others), and for an exception that leaves
    a ``with`` block on one rank.

    Arrays must be contiguous, in C or in Fortran order (items are taken in the order of memory), and contain numbers.
    Arrays that are only read may be read-only. Masked arrays are refused. `MPI.IN_PLACE`, or None for it as in mpi4py,
    is accepted wherever MPI allows it.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Making and freeing the instance is collective over it. Messages on the communicator are not affected.
    max_nbytes : int
        Bytes of each of a rank's two slots in the window. Longer messages pass in pieces.
    deadline_s : float or None
        Seconds that a rank waits for another one, before it prints the stacks of all its threads and aborts
        the job; None sets no limit.

    Attributes
    ----------
    rank, size : int
        This rank in the communicator, and its number of ranks.
    nodes : int
        Number of nodes of the ranks, according to `MPI.COMM_TYPE_SHARED`.

    Raises
    ------
    InputError
        On all ranks, if an argument is not valid or differs between ranks.
    RankError
        On all ranks, if a node has not enough shared memory for the window.

    Examples
    --------
    >>> import numba
    >>> from overlap.collectives import Collectives
    >>> @numba.njit
    ... def norm2(fast, x):
    ...     return fast.allreduce(np.sum(x * x))
    >>> with Collectives(comm) as fast:
    ...     norm2(fast, np.ones(3)) == 3 * comm.size
    True
    """

    def __init__(self, comm: MPI.Intracomm, *, max_nbytes: int = 2**16, deadline_s: float | None = 60.0) -> None:
        if not isinstance(comm, MPI.Intracomm):
            raise InputError(f"expected an intracommunicator, received {repr_of(comm)}")
        nbytes_problem = count_problem("max_nbytes", max_nbytes)
        problem = nbytes_problem or number_problem("deadline_s", deadline_s, positive=True, none=True)
        watchdog = Watchdog(60.0 if problem else deadline_s, covers_entries=True)
        with self._making(comm):
            self._door = enter(comm, watchdog, _MAKING, problem, max_nbytes=None if nbytes_problem else int(max_nbytes))
            watchdog.close()
            self._make(comm, int(max_nbytes), deadline_s)

    def _title(self) -> str:
        return f"Collectives over {self.size} rank(s) on {self.nodes} node(s), here rank {self.rank}"

    def _renewed(self, comm: MPI.Intracomm) -> Self:
        """Make others like these, which have ended and were freed, for the same ranks (collective)."""
        other = type(self).__new__(type(self))
        other._door = self._door
        with other._making(comm):
            other._make(comm, *self._options)
        return other

    @contextmanager
    def _making(self, comm: MPI.Intracomm) -> Iterator[None]:
        """Return a ``with`` block in which the instance is made."""
        try:
            with held_signals(), detecting_loss(comm, _MAKING):
                yield
        except BaseException as error:
            # A signal handler may have raised after the other ranks have made their instances.
            if hasattr(self, "_slow_path"):
                self._slow_path.left_by(error)
            raise

    def _make(self, comm: MPI.Intracomm, max_nbytes: int, deadline_s: float | None) -> None:
        """Make the window and the messages between the ranks (collective)."""
        self._options = max_nbytes, deadline_s
        self.rank, self.size = comm.rank, comm.size
        self.holding = holding = Holding(comm.size, DropWarning("a Collectives"))
        free_dropped(comm.allgather, holding)
        # Not `node_of`, which may return `comm` itself: long messages need a communicator that the user does not use.
        node: Any = guarded(comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank), comm)
        members = Nodes(comm, node)
        self.nodes = len(members.ranks)
        capacity = whole_lines(max(max_nbytes, _SMALLEST, node.size * LINE))
        try:
            own_ranks, answer = members.ranks[members.mine], self._door.answer
            self._window = window = Window(comm, node, capacity, own_ranks, polls_of(comm), holding.identity, answer)
        except RankError:  # on all ranks
            node.Free()
            raise
        super().__init__()
        state = window.state
        self._carrier: LongMessages | SeveralNodes
        if self.nodes == 1:
            self._carrier = LongMessages(node, window, deadline_s)
        else:
            node.Free()
            state = window.state_of_all(self.rank, self.size)
            self._carrier = SeveralNodes(comm, members, state, window.state)
            # Compiled code calls it by its address: it must live as long as the window.
            own = members.ranks[members.mine]
            self._on_node = SlowPath(window, window.state, state, deadline_s, self._carrier, own)
        self._slow_path = SlowPath(window, state, state, deadline_s, self._carrier, range(self.size))
        self._address = address_of(state)
        holding.add(self._carrier.free, 1)
        holding.drop_with(self)
        self._door.tell_too(self)
        if self.size > 1:
            self._begun()

    # Each method first calls compiled code with its arguments as they are. If they are of other types (a subclass of
    # ndarray, an operation given in another form), `_again` converts them. A signal handler may raise before or after
    # the compiled code; then the other ranks are notified, too. Holding signals would take longer than a collective.

    def Barrier(self) -> None:
        """Wait until all ranks have made this call."""
        try:
            calls.Barrier(self._address)
        except BaseException as error:
            self._slow_path.left_by(error)
            raise

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Copy the root's array to all ranks.

        Parameters
        ----------
        buf : ndarray
            Contiguous, of the same size and type on all ranks; read on the root, written on the others.
        root : int
        """
        try:
            if type(buf) is np.ndarray and type(root) is int:
                return calls.Bcast(self._address, buf, root)
        except BaseException as error:
            self._caught(error)
        self._again(calls.Bcast, buf, root=root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Copy piece i of the root's array to rank i.

        Parameters
        ----------
        sendbuf : ndarray or None
            On the root, with `size` times as many items as `recvbuf`. Ignored on the other ranks.
        recvbuf : ndarray
            An array of the same size on all ranks.
        root : int
        """
        try:
            if type(sendbuf) is np.ndarray and type(recvbuf) is np.ndarray and type(root) is int:
                return calls.Scatter(self._address, sendbuf, recvbuf, root)
        except BaseException as error:
            self._caught(error)
        self._again(calls.Scatter, sendbuf, recvbuf, root=root)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Copy the arrays of all ranks into the root's, in the order of ranks.

        Parameters
        ----------
        sendbuf : ndarray
            An array of the same size on all ranks.
        recvbuf : ndarray or None
            On the root, with `size` times as many items as `sendbuf`. Ignored on the other ranks.
        root : int
        """
        try:
            if type(sendbuf) is np.ndarray and type(recvbuf) is np.ndarray and type(root) is int:
                return calls.Gather(self._address, sendbuf, recvbuf, root)
        except BaseException as error:
            self._caught(error)
        self._again(calls.Gather, sendbuf, recvbuf, root=root)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Copy the arrays of all ranks into every rank's, in the order of ranks.

        Parameters
        ----------
        sendbuf : ndarray
            An array of the same size on all ranks.
        recvbuf : ndarray
            With `size` times as many items.
        """
        try:
            if type(sendbuf) is np.ndarray and type(recvbuf) is np.ndarray:
                return calls.Allgather(self._address, sendbuf, recvbuf)
        except BaseException as error:
            self._caught(error)
        self._again(calls.Allgather, sendbuf, recvbuf)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op | int | MPI.Op = SUM, root: int = 0) -> None:
        """Combine the arrays of all ranks, item by item, on the root.

        Parameters
        ----------
        sendbuf : ndarray
            With the same size and type on all ranks.
        recvbuf : ndarray or None
            On the root, with the size and type of `sendbuf`. Ignored on the other ranks.
        op : Op, int or mpi4py.MPI.Op
        root : int
        """
        try:
            if type(sendbuf) is np.ndarray and type(recvbuf) is np.ndarray and type(op) is int and type(root) is int:
                return calls.Reduce(self._address, sendbuf, recvbuf, op, root)
        except BaseException as error:
            self._caught(error)
        self._again(calls.Reduce, sendbuf, recvbuf, op=op, root=root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op | int | MPI.Op = SUM) -> None:
        """Combine the arrays of all ranks, item by item, on all ranks.

        Parameters
        ----------
        sendbuf, recvbuf : ndarray
            With the same size and type on all ranks.
        op : Op, int or mpi4py.MPI.Op
        """
        try:
            if type(sendbuf) is np.ndarray and type(recvbuf) is np.ndarray and type(op) is int:
                return calls.Allreduce(self._address, sendbuf, recvbuf, op)
        except BaseException as error:
            self._caught(error)
        self._again(calls.Allreduce, sendbuf, recvbuf, op=op)

    def allreduce(self, value: Any, op: Op | int | MPI.Op = SUM) -> Any:
        """Combine the numbers of all ranks; an int is one of 64 bits, whose sums and products wrap, as in numpy.

        Parameters
        ----------
        value : number, or (value, index)
            With the same type on all ranks: an int is not a float. `MAXLOC` and `MINLOC` take pairs.
        op : Op, int or mpi4py.MPI.Op

        Returns
        -------
        Like `value`.
        """
        try:
            return calls.allreduce(self._address, value, op if type(op) is int else self._number_of(op))
        except BaseException as error:
            self._caught(error)
            if problem := mask_problem(value=value):
                self._slow_path.refuse(f"{problem} (rank {self.rank})")
            if isinstance(value, np.ndarray):
                self._refuse("an array, for which there is Allreduce")
            self._refuse(repr_of(value) if isinstance(error, NumbaError) else error)

    @property
    def broken(self) -> bool:
        """Return whether an exception has ended a collective on this rank, so that no other one can be made."""
        return self._slow_path.broken

    @property
    def _ended_elsewhere(self) -> bool:
        """Return whether a failure has ended them that a rank has had outside of them, so that it will free them."""
        return self.broken and self._window.failure().stays

    def close(self) -> None:
        """Free the window (collective). Later calls raise `ClosedError`.

        Raises
        ------
        BusyError
            Another thread is in a collective, which goes on.
        RankError
            Another rank has left by an exception since the last collective. The communicator remains until the process
            ends.
        """
        with held_signals():
            if self._window.lost is not None:  # the other ranks cannot take part in freeing it
                self._window.close()
                self.holding.forget()
                self.closed = True
                self._over()
            if not self._window.closed:
                if not protocol.take(self._address):
                    raise busy_error("close()")
                count = len(heard)
                try:
                    if self.size > 1 and not self.broken:
                        self._before_close()  # detects a rank that has left by an exception, for which MPI would wait
                except BaseException:
                    if not self._ended_elsewhere:
                        self._window.close()
                        self.holding.forget()
                        self.closed = True
                        self._over()
                        raise
                    if len(heard) > count:  # the first time: the rank that has failed does not free them now
                        self.holding.warning = None
                        raise
                self.closed = True
                self._over()
                self._window.free()
                self.holding.free()

    def _before_close(self) -> None:
        try:
            calls.before_close(self._address)
        except BaseException as error:
            self._slow_path.left_by(error)
            raise

    def _ending_calls(self) -> AbstractContextManager[bool]:
        return nullcontext(False)  # whoever is in a collective leaves it soon, as it has failed

    def _tell(self, failure: RankFailure) -> None:
        self._slow_path.end(failure)

    def _fail(self, error: BaseException) -> Telling | None:
        self._fail_alone(error)
        return self._door.notify(error, self._options[1])

    def _fail_alone(self, error: BaseException) -> None:
        """End them on this rank alone: an exception has left the ``with`` block of what they belong to (local)."""
        if not self._window.uncaught:  # it was not raised in a collective, or has the identity of that already
            identity_of(error)
        self._slow_path.left_by(error)
        if self.size == 1:
            self.close()
        self.holding.warning = None
        self.holding.drop()

    def _closed_by_fork(self) -> None:
        super()._closed_by_fork()
        self.holding.detach()
        self._window.close(forked=True)

    def _caught(self, error: BaseException) -> None:
        """Notify the other ranks of an exception, unless it says that compiled code cannot take an argument."""
        if not isinstance(error, _UNKNOWN):
            self._slow_path.left_by(error)
            raise error

    def _again(self, function: Any, *arrays: Any, op: Any = _ABSENT, root: Any = _ABSENT) -> None:
        """Convert arguments that compiled code cannot take, and call it."""
        try:
            numbers = [] if op is _ABSENT else [self._number_of(op)]
            is_root = True
            if root is not _ABSENT:
                numbers.append(self._root(root))
                is_root = numbers[-1] == self.rank
            in_place = _IN_PLACE.get(function, _SEND) if is_root and len(arrays) > 1 else None
            plain = [
                None
                if (place == _ROOTS_OWN.get(function) and not is_root) or (place == in_place and _is_in_place(array))
                else self._array(array, whole=function in _WHOLE)
                for place, array in enumerate(arrays)
            ]
            if in_place is not None and _is_in_place(arrays[in_place]):
                other = plain[1 - in_place]
                plain[in_place] = other if function in _WHOLE else self._own_piece(other)
            try:
                function(self._address, *plain, *numbers)
            except (*_UNKNOWN, TypeError) as error:
                self._refuse(error)
        except BaseException as error:
            self._slow_path.left_by(error)
            raise

    def _array(self, array: Any, whole: bool) -> np.ndarray | None:
        """Return an argument as a plain array of the same memory; if `whole`, its numbers are to be combined."""
        if array is None and not whole:
            return None
        if problem := mask_problem(array=array):
            self._slow_path.refuse(f"{problem} (rank {self.rank})")
        try:
            converted = array if isinstance(array, np.ndarray) else np.asarray(memoryview(array))
            if array is MPI.IN_PLACE or array is MPI.BOTTOM:  # buffers of no bytes
                raise TypeError
        except Exception:  # a user's object can raise anything
            self._refuse(f"{type(array).__name__}, which has no memory of its own")
        plain: np.ndarray = converted.view(np.ndarray)
        if plain.flags.f_contiguous and not plain.flags.c_contiguous:
            plain = plain.T  # the items in the order of memory
        movable = not whole and plain.dtype.char in _AS_BYTES and plain.ndim and plain.flags.c_contiguous
        return plain.view(np.uint8) if movable else plain

    def _own_piece(self, array: np.ndarray | None) -> np.ndarray | None:
        """Return this rank's piece of an array with a piece for each rank, for which `MPI.IN_PLACE` stands."""
        if array is None or not array.flags.c_contiguous:
            return array
        count = array.size // self.size
        return array.reshape(-1)[self.rank * count : (self.rank + 1) * count]

    def _root(self, root: Any) -> int:
        """Return a root as an int; raise on all ranks if it is no rank."""
        try:
            number = operator.index(root)
        except Exception:  # a user's object can raise anything
            number = None
        if number is None or not 0 <= number < self.size:
            self._slow_path.refuse(
                f"expected a root from 0 to {self.size - 1}, received {repr_of(root)} (rank {self.rank})"
            )
        return number

    def _number_of(self, op: Any) -> int:
        """Return the number of an operation; raise on all ranks if it is none."""
        try:
            return operation_number(op)
        except Exception:  # a user's object can raise anything
            self._refuse(f"the operation {repr_of(op)}")

    def _refuse(self, what: BaseException | str) -> NoReturn:
        """Raise an `InputError` on all ranks."""
        if isinstance(what, BaseException):
            lines = str(what).strip().splitlines() or [type(what).__name__]
            what = next((line for line in lines if line.startswith(("non-precise", "- argument"))), lines[-1])
        self._slow_path.refuse(f"expected arrays or numbers of a numeric type, received {what} (rank {self.rank})")


def _is_in_place(array: Any) -> bool:
    """Return whether an argument says, as mpi4py reads it, that the data are in the other array."""
    return array is None or array is MPI.IN_PLACE


def operation_number(op: Op | int | MPI.Op) -> int:
    """Return the number of an operation given as `Op`, int or MPI's; raise `TypeError` for anything else."""
    if isinstance(op, MPI.Op):
        for known, number in OPERATIONS:
            if op == known:
                return int(number)
    given: Any = op
    return operator.index(given)


class NodeCollectives:
    """Collectives of an object with a coordinator, made anew after a failure elsewhere has ended them."""

    def __init__(self, coordinator: StandaloneCoordinator) -> None:
        self._coordinator = coordinator
        with coordinator.watching("making collectives") as comm:
            self._made = Collectives(comm, deadline_s=coordinator.deadline_s)
        self._made.holding.warning = None  # a part of the coordinator's object

    @classmethod
    def of(cls, coordinator: StandaloneCoordinator) -> Self | None:
        """Make collectives; None if the ranks are on several nodes, or if there is only one rank (collective)."""
        if coordinator.size == 1:
            return None
        made = cls(coordinator)
        if made._made.nodes > 1:
            made.free()
            return None
        return made

    def call(self, collective: Callable[..., None], *arrays: np.ndarray) -> None:
        """Call a method of `Collectives` (collective)."""
        count = len(heard)
        try:
            collective(self._made, *arrays)
        except RankError:
            if not self._made._ended_elsewhere or len(heard) > count:
                raise
            # All ranks have raised this before, and do the same here.
            self._made.close()
            self._made = self._made._renewed(self._coordinator.comm)
            self._made.holding.warning = None
            collective(self._made, *arrays)

    def fail(self, error: BaseException) -> None:
        """End them on this rank alone, by an exception that leaves the object's block."""
        self._made._fail_alone(error)

    def free(self) -> None:
        """Free them (collective)."""
        self._made.close()
