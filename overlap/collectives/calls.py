"""The collectives with arrays and scalars as arguments, for calls from Python and from compiled code.

The first argument is the address of the state of a `Collectives`. Arrays are contiguous in C order, with any number of
dimensions; on ranks where MPI ignores an array, it may be None. If an argument is wrong, `slow_path.SlowPath` raises on
all ranks. If another thread is in a collective, it raises in the calling thread, and that collective goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numba.np.numpy_support import as_dtype

from ..compiled import njit
from ..compiled.memory import LINE, Words, address_of, load, store, words
from . import protocol
from .chains import collective
from .combine import OPERATIONS, OTHER_TYPE, code_of
from .protocol import (
    ALLGATHER,
    ALLREDUCE,
    BARRIER,
    BCAST,
    EVERYBODY,
    GATHER,
    REDUCE,
    SCATTER,
    ask,
    enter,
    give_back,
    signature,
)

Array = np.ndarray | None
"""An array, or None on ranks where MPI ignores it."""

Number = complex | tuple[complex, int]
"""A number, or a pair of a number and an index."""

Memory = tuple[int, int, int, int, int]
"""The result of `_memory`."""

# Reasons for which an argument is rejected.
NOT_CONTIGUOUS, READ_ONLY, OTHER_DTYPE, OTHER_SIZE, NO_ROOT, NO_OPERATION, OVERLAPPING = range(7)
ANY_USE, CLOSE = range(2)  # what a barrier is for
_WRITABLE, _CONTIGUOUS = 1, 2  # flags of an array: not writable, not contiguous


def _memory(value: Array) -> Memory:
    """Return an array's address, bytes, number of items, type code, and flags (`_WRITABLE`, `_CONTIGUOUS`).

    For None all are 0; the code is `OTHER_TYPE` if there are no reductions of the type. Everything is an integer, so
    that the functions that use it are compiled once for arrays of all types.
    """
    raise NotImplementedError


def _scalar(value: Number) -> tuple[int, int]:
    """Return the bytes and the type code of a number or of a pair."""
    raise NotImplementedError


@overload(_memory)
def _memory_compiled(value: Any) -> Callable[..., Memory] | None:
    if isinstance(value, types.NoneType):

        def nothing(value: Any) -> Memory:  # numba compares signatures
            return 0, 0, 0, OTHER_TYPE, 0

        return nothing
    if not isinstance(value, types.Array):
        return None
    code = _code(as_dtype(value.dtype))
    contiguous = value.layout in "CF"  # the items are adjacent in memory, in either order
    missing = (0 if value.mutable else _WRITABLE) | (0 if contiguous else _CONTIGUOUS)

    def compiled(value: Any) -> Memory:
        return address_of(value), value.size * value.itemsize, value.size, code, missing

    return compiled


@overload(_scalar)
def _scalar_compiled(value: Any) -> Callable[..., tuple[int, int]] | None:
    if isinstance(value, types.Array):  # None: no compiled function accepts an array here
        return None
    if isinstance(value, types.BaseTuple):
        dtype = np.dtype([("value", as_dtype(value[0])), ("index", as_dtype(value[1]))], align=True)
    else:
        dtype = as_dtype(value)
    nbytes, code = dtype.itemsize, _code(dtype)

    def compiled(value: Any) -> tuple[int, int]:
        return nbytes, code

    return compiled


def _code(dtype: np.dtype[Any]) -> int:
    found = code_of(dtype)
    return OTHER_TYPE if found is None else found


@njit
def _refuse(state: Words, reason: int, expected: int, received: int) -> None:
    state[protocol.EXPECTED] = expected
    state[protocol.RECEIVED] = received
    ask(state, protocol.REFUSED, reason)


@njit
def _allowed(state: Words, memory: Memory, written: bool) -> tuple[int, int, int, int]:
    """Return address, bytes, items and type code of an array; reject one that must not be used so."""
    address, nbytes, items, code, missing = memory
    if missing & _WRITABLE and written:
        _refuse(state, READ_ONLY, 0, 0)
    if missing & _CONTIGUOUS:
        _refuse(state, NOT_CONTIGUOUS, 0, 0)
    return address, nbytes, items, code


@njit
def _kernel(state: Words, code: int, op: int) -> int:
    """Return the address of the kernel of an operation on a type."""
    if code == OTHER_TYPE or op < 0 or op >= OPERATIONS:
        _refuse(state, NO_OPERATION, code, op)
    place = code * OPERATIONS + op
    kernels = words(state[protocol.KERNELS])
    if kernels[place] == 0:
        ask(state, protocol.PREPARE, place)
    return kernels[place]


@njit
def _check_root(state: Words, root: int) -> None:
    if root < 0 or root >= state[protocol.SIZE]:
        _refuse(state, NO_ROOT, state[protocol.SIZE], root)


@njit
def _check_whole(
    state: Words,
    piece: int,
    nbytes: int,
    code: int,
    whole: int,
    whole_nbytes: int,
    whole_code: int,
    place: int,
    pieces: int,
) -> None:
    """Reject an array that does not have `pieces` times the bytes of a piece and the piece's type.

    Also reject a piece that lies inside of the array but not at its own place, because the collective would read and
    write overlapping memory.
    """
    if nbytes * pieces != whole_nbytes:
        _refuse(state, OTHER_SIZE, nbytes * pieces, whole_nbytes)
    if code != whole_code:
        _refuse(state, OTHER_DTYPE, code, whole_code)
    if piece != whole + place * nbytes and piece < whole + whole_nbytes and whole < piece + nbytes:
        _refuse(state, OVERLAPPING, 0, 0)


@njit
def Barrier(address: int) -> None:
    """Wait until all ranks have made this call."""
    enter(address)
    _barrier(address, ANY_USE)
    give_back(address)


@njit
def before_close(address: int) -> None:
    """Wait until all ranks close the instance; the calling thread has taken it."""
    _barrier(address, CLOSE)


@njit
def _barrier(address: int, use: int) -> None:
    collective(address, BARRIER, 0, 0, 0, 0, EVERYBODY, 0, signature(BARRIER, use, 0, 0, 0))


@njit
def Bcast(address: int, buf: np.ndarray, root: int) -> None:
    """Copy the root's array into those of all ranks."""
    _bcast(address, _memory(buf), root)


@njit
def _bcast(address: int, buf: Memory, root: int) -> None:
    state = enter(address)
    _check_root(state, root)
    place, nbytes, _, code = _allowed(state, buf, state[protocol.RANK] != root)
    agreed = signature(BCAST, 0, code, root, nbytes)
    collective(address, BCAST, place, place, 0, nbytes, root, 0, agreed)
    give_back(address)


@njit
def Scatter(address: int, sendbuf: Array, recvbuf: np.ndarray, root: int) -> None:
    """Copy piece i of the root's array into that of rank i."""
    _scatter(address, _memory(sendbuf), _memory(recvbuf), root)


@njit
def _scatter(address: int, sendbuf: Memory, recvbuf: Memory, root: int) -> None:
    state = enter(address)
    target, nbytes, _, code = _allowed(state, recvbuf, True)
    _check_root(state, root)
    send = 0
    if state[protocol.RANK] == root:
        send, whole_nbytes, _, whole_code = _allowed(state, sendbuf, False)
        _check_whole(state, target, nbytes, code, send, whole_nbytes, whole_code, root, state[protocol.SIZE])
    agreed = signature(SCATTER, 0, code, root, nbytes)
    collective(address, SCATTER, send, target, 0, nbytes, root, 0, agreed)
    give_back(address)


@njit
def Gather(address: int, sendbuf: np.ndarray, recvbuf: Array, root: int) -> None:
    """Copy the arrays of all ranks into pieces of the root's, in the order of ranks."""
    _gather(address, GATHER, _memory(sendbuf), _memory(recvbuf), root)


@njit
def Allgather(address: int, sendbuf: np.ndarray, recvbuf: np.ndarray) -> None:
    """Copy the arrays of all ranks into pieces of every rank's, in the order of ranks."""
    _gather(address, ALLGATHER, _memory(sendbuf), _memory(recvbuf), EVERYBODY)


@njit
def _gather(address: int, kind: int, sendbuf: Memory, recvbuf: Memory, root: int) -> None:
    state = enter(address)
    if kind == GATHER:
        _check_root(state, root)
    send, nbytes, _, code = _allowed(state, sendbuf, False)
    target = 0
    if state[protocol.RANK] == root or root == EVERYBODY:
        target, whole_nbytes, _, whole_code = _allowed(state, recvbuf, True)
        _check_whole(
            state, send, nbytes, code, target, whole_nbytes, whole_code, state[protocol.RANK], state[protocol.SIZE]
        )
    collective(address, kind, send, target, 0, nbytes, root, 0, signature(kind, 0, code, max(root, 0), nbytes))
    give_back(address)


@njit
def Reduce(address: int, sendbuf: np.ndarray, recvbuf: Array, op: int, root: int) -> None:
    """Combine the arrays of all ranks, item by item, into the root's."""
    _reduce(address, REDUCE, _memory(sendbuf), _memory(recvbuf), op, root)


@njit
def Allreduce(address: int, sendbuf: np.ndarray, recvbuf: np.ndarray, op: int) -> None:
    """Combine the arrays of all ranks, item by item, into every rank's."""
    _reduce(address, ALLREDUCE, _memory(sendbuf), _memory(recvbuf), op, EVERYBODY)


@njit
def _reduce(address: int, kind: int, sendbuf: Memory, recvbuf: Memory, op: int, root: int) -> None:
    state = enter(address)
    if kind == REDUCE:
        _check_root(state, root)
    send, nbytes, items, code = _allowed(state, sendbuf, False)
    target = 0
    if state[protocol.RANK] == root or root == EVERYBODY:
        target, whole_nbytes, _, target_code = _allowed(state, recvbuf, True)
        _check_whole(state, send, nbytes, code, target, whole_nbytes, target_code, 0, 1)
    kernel = _kernel(state, code, op)
    agreed = signature(kind, op, code, max(root, 0), nbytes)
    collective(address, kind, send, target, items, nbytes, root, kernel, agreed)
    give_back(address)


@njit
def allreduce(address: int, value: Number, op: int) -> Number:
    """Combine the numbers, or the pairs (value, index), of all ranks."""
    state = enter(address)
    nbytes, code = _scalar(value)
    kernel = _kernel(state, code, op)
    send = state[protocol.SCRATCH]
    store(send, value)
    agreed = signature(ALLREDUCE, op, code, 0, nbytes)
    collective(address, ALLREDUCE, send, send + LINE, 1, nbytes, EVERYBODY, kernel, agreed)
    result = load(send + LINE, value)
    give_back(address)
    return result
