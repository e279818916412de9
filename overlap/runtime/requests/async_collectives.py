"""`AsyncCollectives`: collectives by remote writes that slice programs await, in the issue order like MPI's.

A collective of `overlap.collectives` has no nonblocking form. So it runs when it is issued, in every way to wait: the
thread that calls MPI waits for the other ranks, which issue it at the same place in the order. With ``wait="poll"``
exchanges in flight are not polled meanwhile.

Arguments are checked when the request is made, in the slice's own step. If they are wrong on one rank, the slice fails
there before the other ranks wait for it. If they differ between the ranks, the collective itself and the agreement of
the job detect it; then all ranks make a new window.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any, SupportsIndex

import numpy as np
from mpi4py import MPI

from ...collectives import Collectives, Op
from ...collectives.collectives import OPERATIONS, operation_number
from ...collectives.combine import code_of, operations_of
from ...ranks.objects import Described
from .agreement import weight
from .operations import Collective, of_slices


class AsyncCollectives(Described):
    """The collectives of a communicator whose calls are awaited: see `Runtime.collectives`.

    The names and arguments are those of `overlap.collectives.Collectives`; arrays are numpy's, contiguous in C order.
    A call starts nothing; it returns a request to be awaited.

    Attributes
    ----------
    rank, size : int
        This rank in the communicator, and its number of ranks.
    """

    owns_source = False

    def __init__(self, source: MPI.Intracomm, number: int, max_nbytes: int) -> None:
        self.source, self.number = source, number
        self.rank, self.size = source.rank, source.size
        self.weight = weight(source.rank, source.size)
        self._max_nbytes = max_nbytes
        self._fast: Collectives | None = None
        self.renew()

    @property
    def broken(self) -> bool:
        """Return whether an exception has ended a collective here: no rank can use the window any more."""
        return self.made_by.broken

    @property
    def made_by(self) -> Collectives:
        """Return the object that runs the collectives."""
        assert self._fast is not None
        return self._fast

    def _title(self) -> str:
        return f"AsyncCollectives over {self.size} rank(s), here rank {self.rank}"

    def _has_ended(self) -> bool:
        return self.made_by.closed

    def renew(self) -> None:
        """Make a new window (collective)."""
        if self._fast is None:
            # No deadline here: the runtime's watchdog watches these collectives.
            self._fast = Collectives(self.source, max_nbytes=self._max_nbytes, deadline_s=None)
        else:
            self._fast.free()
            self._fast = self._fast._renewed(self.source)
        self._fast.holding.warning = None  # a part of the runtime, which frees it

    def free(self) -> None:
        """Free the window (collective)."""
        self.made_by.free()

    def Barrier(self) -> Collective:
        """Wait until all ranks have issued it."""
        return Collective(self, "Barrier", ())

    def Bcast(self, buf: Any, root: int = 0) -> Collective:
        """Copy the root's array to all ranks."""
        root = self._root(root)
        _array(buf, written=self.rank != root)
        return Collective(self, "Bcast", (buf, root))

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Collective:
        """Copy piece i of the root's array to rank i."""
        root = self._root(root)
        _array(recvbuf, written=True)
        if self.rank == root:
            _alike(_array(sendbuf), recvbuf, self.size)
        return Collective(self, "Scatter", (sendbuf if self.rank == root else None, recvbuf, root))

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Collective:
        """Copy the arrays of all ranks into the root's, in the order of ranks."""
        root = self._root(root)
        _array(sendbuf)
        if self.rank == root:
            _alike(_array(recvbuf, written=True), sendbuf, self.size)
        return Collective(self, "Gather", (sendbuf, recvbuf if self.rank == root else None, root))

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> Collective:
        """Copy the arrays of all ranks into every rank's, in the order of ranks."""
        _alike(_array(recvbuf, written=True), _array(sendbuf), self.size)
        return Collective(self, "Allgather", (sendbuf, recvbuf))

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op | int | MPI.Op = MPI.SUM, root: int = 0) -> Collective:
        """Combine the arrays of all ranks, item by item, on the root."""
        root = self._root(root)
        op = _operation(_array(sendbuf), op)
        if self.rank == root:
            _alike(_array(recvbuf, written=True), sendbuf, 1)
        return Collective(self, "Reduce", (sendbuf, recvbuf if self.rank == root else None, op, root))

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op | int | MPI.Op = MPI.SUM) -> Collective:
        """Combine the arrays of all ranks, item by item, on all ranks."""
        op = _operation(_array(sendbuf), op)
        _alike(_array(recvbuf, written=True), sendbuf, 1)
        return Collective(self, "Allreduce", (sendbuf, recvbuf, op))

    @of_slices
    async def allreduce(self, value: complex, op: Op | int | MPI.Op = MPI.SUM) -> Any:
        """Combine the numbers of all ranks; the await gives the result in numpy's type."""
        send = np.array([value])
        result = np.empty_like(send)
        await self.Allreduce(send, result, op)
        return result[0]

    def _root(self, root: SupportsIndex) -> int:
        root = index(root)
        if not 0 <= root < self.size:
            raise ValueError(f"expected a root from 0 to {self.size - 1}, received {root}")
        return root


def making(max_nbytes: int) -> Callable[..., AsyncCollectives]:
    """Return the `kind` by which `Coordinator.wrap` makes an `AsyncCollectives`."""
    return lambda source, number, wrap, owned: AsyncCollectives(source, number, max_nbytes)


def _array(array: Any, written: bool = False) -> np.ndarray:
    """Check that compiled code can use an array as it is, and return the array."""
    if type(array) is not np.ndarray:
        raise TypeError(f"expected a numpy array, received an object of {type(array).__name__}")
    if not array.flags.c_contiguous:
        raise ValueError(f"expected an array that is contiguous in C order, received one with strides {array.strides}")
    if code_of(array.dtype) is None:
        raise TypeError(f"expected an array of a numeric type, received one of {array.dtype}")
    if written and not array.flags.writeable:
        raise ValueError("expected an array to receive in, received a read-only one")
    return array


def _alike(long: np.ndarray, short: np.ndarray, times: int) -> None:
    """Check that `long` has the type of `short` and `times` as many items."""
    if long.dtype != short.dtype or long.size != times * short.size:
        raise ValueError(f"expected {times * short.size} items of {short.dtype}, received {long.size} of {long.dtype}")


def _operation(array: np.ndarray, op: Op | int | MPI.Op) -> MPI.Op:
    """Return the MPI operation; raise if there is none for the array's type."""
    number, code = operation_number(op), code_of(array.dtype)
    assert code is not None  # `_array` accepts only types that have one
    possible = operations_of(code)
    if number not in possible:
        raise ValueError(
            f"expected an operation for {array.dtype} ({', '.join(known.name for known in possible)}), received {op}"
        )
    return next(spelled for spelled, code_of_it in OPERATIONS if code_of_it == number)
