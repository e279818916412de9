"""`Collectives`: mpi4py's names for collectives by remote writes."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from mpi4py import MPI
from numba.core.errors import NumbaError

from ..errors import InputError
from ..freed import Freed
from . import buffers, protocol
from .attention import Attention
from .combine import SUM, Op
from .long_messages import LongMessages
from .nodes import Nodes, SeveralNodes
from .patience import Patience
from .post import Post
from .window import SPINS, SPINS_SHARED, Window, cores_are_shared

_SMALLEST = 1024  # bytes of a slot; each rank has a cache line of it at least
OPERATIONS = (
    (MPI.SUM, Op.SUM),
    (MPI.PROD, Op.PROD),
    (MPI.MIN, Op.MIN),
    (MPI.MAX, Op.MAX),
    (MPI.LAND, Op.LAND),
    (MPI.LOR, Op.LOR),
    (MPI.LXOR, Op.LXOR),
    (MPI.BAND, Op.BAND),
    (MPI.BOR, Op.BOR),
    (MPI.BXOR, Op.BXOR),
    (MPI.MAXLOC, Op.MAXLOC),
    (MPI.MINLOC, Op.MINLOC),
)
_WHOLE = (buffers.Reduce, buffers.Allreduce)  # of whose arrays one is as long as the other
_UNKNOWN = NumbaError, NotImplementedError  # what numba says of types that it cannot compile
_AS_BYTES = "egG"  # of these types that are numbers: half and long precision


class Collectives(Freed):
    """Collectives of a communicator, prepared once and called any number of times.

    Between ranks of a node data pass through a window of shared memory, by a store and a flag, without MPI. Between
    nodes one rank of each exchanges messages for all of them, see `nodes`. Long messages of collectives that move data
    go by MPI where that is faster, see `long_messages`. The methods have the names and arguments of mpi4py's; compiled
    code (`numba.njit`) may call them too, of an instance that it is given as an argument, so that a solver's whole loop
    is compiled with its reductions.

    Results of reductions are the same to the last bit on all ranks and in every run: the order in which
    the ranks' values are combined depends on the number of ranks alone, see `combine`.

    All ranks call the same collectives in the same order, from one thread at a time. What a rank calls
    differently, or with other sizes, types, roots or operations, raises `InputError` on all ranks that take part,
    and the instance cannot be used any more. So does an exception of a signal handler: `KeyboardInterrupt` on
    the rank that was interrupted, `RankError` on the others as soon as they wait.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Collective over it; its own messages are not touched.
    max_nbytes : int
        Bytes of a rank's two slots in the window each. Longer messages pass in pieces.
    deadline_s : float or None
        Seconds that a rank waits for another one, before it prints the stacks of all its threads and aborts
        the job; None sets no limit.

    Attributes
    ----------
    rank, size : int
        As of the communicator.
    nodes : int
        How many nodes its ranks are on, as `MPI.COMM_TYPE_SHARED` has them.

    Raises
    ------
    InputError
        On all ranks, where an argument makes no sense or differs between ranks.
    """

    def __init__(self, comm: MPI.Intracomm, *, max_nbytes: int = 2**16, deadline_s: float | None = 60.0) -> None:
        _check(comm, max_nbytes, deadline_s)
        self.rank, self.size = comm.rank, comm.size
        node: Any = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
        members = Nodes(comm, node)
        self.nodes = len(members.ranks)
        line = protocol.LINE
        self._window = window = Window(
            node,
            -(-max(max_nbytes, _SMALLEST, node.size * line) // line) * line,
            members.ranks[members.mine],
            SPINS_SHARED if cores_are_shared(comm) else SPINS,
        )
        state, patience = window.state, Patience(window, deadline_s)
        self._carrier: LongMessages | SeveralNodes
        if self.nodes == 1:
            self._carrier = LongMessages(node, state, patience)
        else:
            node.Free()
            state = window.state_of_all(self.rank, self.size)
            self._carrier = SeveralNodes(members, Post(comm, window), state, window.state)
            self._on_node = Attention(window, window.state, patience, self._carrier)
        self._attention = Attention(window, state, patience, self._carrier)
        self._address = state.ctypes.data

    # Each method begins with what compiled code can take as it is; whatever else it is given, a subclass of
    # ndarray or another operation's spelling, is brought into that form by `_again`.

    def Barrier(self) -> None:
        """Wait until all ranks have called it."""
        buffers.Barrier(self._address)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Copy the root's array to all ranks.

        Parameters
        ----------
        buf : ndarray
            Contiguous, of one size and type on all ranks; read on the root, written on the others.
        root : int
        """
        if type(buf) is not np.ndarray or type(root) is not int:
            return self._again(buffers.Bcast, buf, root=root)
        try:
            buffers.Bcast(self._address, buf, root)
        except _UNKNOWN:
            self._again(buffers.Bcast, buf, root=root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Copy piece i of the root's array to rank i.

        Parameters
        ----------
        sendbuf : ndarray or None
            On the root, of `size` times as many items as `recvbuf`; not looked at on the others.
        recvbuf : ndarray
            With one size on all ranks.
        root : int
        """
        if type(recvbuf) is not np.ndarray or type(root) is not int or type(sendbuf) is not np.ndarray:
            return self._again(buffers.Scatter, sendbuf, recvbuf, root=root)
        try:
            buffers.Scatter(self._address, sendbuf, recvbuf, root)
        except _UNKNOWN:
            self._again(buffers.Scatter, sendbuf, recvbuf, root=root)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Copy the arrays of all ranks into the root's, in the order of ranks.

        Parameters
        ----------
        sendbuf : ndarray
            With one size on all ranks.
        recvbuf : ndarray or None
            On the root, of `size` times as many items; not looked at on the others.
        root : int
        """
        if type(sendbuf) is not np.ndarray or type(root) is not int or type(recvbuf) is not np.ndarray:
            return self._again(buffers.Gather, sendbuf, recvbuf, root=root)
        try:
            buffers.Gather(self._address, sendbuf, recvbuf, root)
        except _UNKNOWN:
            self._again(buffers.Gather, sendbuf, recvbuf, root=root)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Copy the arrays of all ranks into every rank's, in the order of ranks.

        Parameters
        ----------
        sendbuf : ndarray
            With one size on all ranks.
        recvbuf : ndarray
            With `size` times as many items.
        """
        if type(sendbuf) is not np.ndarray or type(recvbuf) is not np.ndarray:
            return self._again(buffers.Allgather, sendbuf, recvbuf)
        try:
            buffers.Allgather(self._address, sendbuf, recvbuf)
        except _UNKNOWN:
            self._again(buffers.Allgather, sendbuf, recvbuf)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op | int | MPI.Op = SUM, root: int = 0) -> None:
        """Combine the arrays of all ranks, item by item, on the root.

        Parameters
        ----------
        sendbuf : ndarray
            With one size and type on all ranks.
        recvbuf : ndarray or None
            The same on the root; not looked at on the others.
        op : Op, int or mpi4py.MPI.Op
        root : int
        """
        if (
            type(sendbuf) is not np.ndarray
            or type(op) is not int
            or type(root) is not int
            or type(recvbuf) is not np.ndarray
        ):
            return self._again(buffers.Reduce, sendbuf, recvbuf, op=op, root=root)
        try:
            buffers.Reduce(self._address, sendbuf, recvbuf, op, root)
        except _UNKNOWN as error:
            self._refuse(error)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op | int | MPI.Op = SUM) -> None:
        """Combine the arrays of all ranks, item by item, on all ranks.

        Parameters
        ----------
        sendbuf, recvbuf : ndarray
            With one size and type on all ranks.
        op : Op, int or mpi4py.MPI.Op
        """
        if type(sendbuf) is not np.ndarray or type(recvbuf) is not np.ndarray or type(op) is not int:
            return self._again(buffers.Allreduce, sendbuf, recvbuf, op=op)
        try:
            buffers.Allreduce(self._address, sendbuf, recvbuf, op)
        except _UNKNOWN as error:
            self._refuse(error)

    def allreduce(self, value: Any, op: Op | int | MPI.Op = SUM) -> Any:
        """Combine the numbers of all ranks.

        Parameters
        ----------
        value : number, or (value, index)
            With one type on all ranks: an int is no float. `MAXLOC` and `MINLOC` take pairs.
        op : Op, int or mpi4py.MPI.Op

        Returns
        -------
        Like `value`.
        """
        try:
            return buffers.allreduce(self._address, value, op if type(op) is int else self._number_of(op))
        except (*_UNKNOWN, OverflowError) as error:
            self._refuse(error)

    @property
    def broken(self) -> bool:
        """Whether an exception has left a collective here: then no other one can be made."""
        return self._attention.broken

    def free(self) -> None:
        """Free the window (collective). Later calls raise `ClosedError`."""
        if not self._window.closed:
            self._window.free()
            self._carrier.free()

    def _again(self, function, *arrays, op=None, root=None):
        """Call compiled code with arguments that it cannot take as they are."""
        plain = [self._array(array) for array in arrays]
        if function not in _WHOLE:
            plain = [
                array.view(np.uint8)
                if array is not None and array.dtype.char in _AS_BYTES and array.ndim and array.flags.c_contiguous
                else array
                for array in plain
            ]
        for place, array in enumerate(arrays):
            if array is MPI.IN_PLACE:
                other = plain[1 - place]
                plain[place] = other if function in _WHOLE else self._own_piece(other)
        more = [] if op is None else [self._number_of(op)]
        try:
            more += [] if root is None else [operator.index(root)]
            function(self._address, *plain, *more)
        except (*_UNKNOWN, TypeError, OverflowError) as error:
            self._refuse(error)

    def _array(self, array):
        """Take an argument as an ndarray of the same memory, where it is any."""
        if array is None or array is MPI.IN_PLACE:
            return None
        try:
            found = array if isinstance(array, np.ndarray) else np.asarray(memoryview(array))
        except TypeError:
            self._refuse(f"{type(array).__name__}, which has no memory of its own")
        return found.view(np.ndarray)

    def _own_piece(self, array):
        """Tell what `MPI.IN_PLACE` stands for where the other array has a piece for each rank."""
        if array is None or not array.flags.c_contiguous:
            return array
        count = array.size // self.size
        return array.reshape(-1)[self.rank * count : (self.rank + 1) * count]

    def _number_of(self, op):
        """Return the number of an operation, however it is spelled."""
        try:
            return operation_number(op)
        except TypeError:
            self._refuse(f"the operation {op!r}")

    def _refuse(self, what):
        """Raise an `InputError` on all ranks."""
        if isinstance(what, BaseException):
            lines = str(what).strip().splitlines()
            what = next((line for line in lines if line.startswith(("non-precise", "- argument"))), lines[-1])
        self._attention.refuse(f"expected arrays or numbers of a numeric type, received {what} (rank {self.rank})")


def operation_number(op: Op | int | MPI.Op) -> int:
    """Return the number of an operation, however it is spelled; `TypeError` if it is none."""
    if isinstance(op, MPI.Op):
        for other, number in OPERATIONS:
            if op == other:
                return int(number)
    given: Any = op
    return operator.index(given)


def _check(comm, max_nbytes, deadline_s):
    """Raise an `InputError` on all ranks, unless all have the same arguments, and good ones."""
    if not isinstance(comm, MPI.Intracomm):
        raise InputError(f"expected an intracommunicator, received {type(comm).__name__}")
    problem = None
    if not isinstance(max_nbytes, (int, np.integer)) or not 0 < max_nbytes < 2**31:
        problem = f"expected max_nbytes to be a number of bytes below 2**31, received {max_nbytes!r}"
    elif deadline_s is not None and not (isinstance(deadline_s, (int, float)) and deadline_s > 0):
        problem = f"expected deadline_s to be a positive number of seconds or None, received {deadline_s!r}"
    found = comm.allgather((problem, None if problem else int(max_nbytes)))
    for rank, (text, _) in enumerate(found):
        if text:
            raise InputError(f"{text} (rank {rank})")
    if len({nbytes for _, nbytes in found}) > 1:
        raise InputError(
            f"expected the same max_nbytes on all ranks, received {', '.join(str(nbytes) for _, nbytes in found)}"
        )
