"""The collectives with arrays and scalars for arguments: what Python and other compiled code call.

The first argument is the address of the state of a `Collectives`. Arrays are contiguous in C order, with any
number of dimensions; on ranks where MPI ignores an array, None may stand for it. What is wrong with an argument
is told by `attention.Attention`, on all ranks.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload
from numba.np.numpy_support import as_dtype

from ..compiled import njit
from ..lowlevel.memory import address_of, load, store, words
from . import node
from .chains import elsewhere
from .combine import OPERATIONS, OTHER_TYPE, code_of
from .protocol import (
    ALLGATHER,
    ALLREDUCE,
    BARRIER,
    BCAST,
    EXPECTED,
    GATHER,
    KERNELS,
    LIMITS,
    LINE,
    PREPARE,
    RANK,
    RECEIVED,
    REDUCE,
    REFUSED,
    SCATTER,
    SCRATCH,
    SIZE,
    ask,
    signature,
)

# Why an argument is refused.
NOT_CONTIGUOUS, READ_ONLY, OTHER_DTYPE, OTHER_SIZE, NO_ROOT, NO_OPERATION, OVERLAPPING = range(7)


def _code(value):
    """Return the code of a scalar's type, or of an array's items; `OTHER_TYPE` where there are no reductions of it."""
    raise NotImplementedError


def _nbytes(value):
    """Size of a scalar, or of an array; 0 of None."""
    raise NotImplementedError


def _number(value):
    """Return a number, or a pair of them, as it is."""
    raise NotImplementedError


def _place(state, value):
    """Address of an array's first item; 0 of None."""
    raise NotImplementedError


def _place_to_write(state, value):
    """Return the same of an array that can be written to."""
    raise NotImplementedError


def _dtype_of(kind):
    if isinstance(kind, types.BaseTuple):
        return np.dtype([("value", as_dtype(kind[0])), ("index", as_dtype(kind[1]))], align=True)
    return as_dtype(kind.dtype if isinstance(kind, types.Array) else kind)


@overload(_code)
def _code_compiled(value):
    found = None if isinstance(value, types.NoneType) else code_of(_dtype_of(value))
    code = OTHER_TYPE if found is None else found
    return lambda value: code


@overload(_nbytes)
def _nbytes_compiled(value):
    if isinstance(value, types.Array):
        return lambda value: value.size * value.itemsize
    nbytes = 0 if isinstance(value, types.NoneType) else _dtype_of(value).itemsize
    return lambda value: nbytes


@overload(_number)
def _number_compiled(value):
    if not isinstance(value, types.Array):  # else there is no such function
        return lambda value: value


@overload(_place)
def _place_compiled(state, value):
    if isinstance(value, types.NoneType):
        return lambda state, value: 0
    if value.layout in "CF":  # one after the other as they are in memory
        return lambda state, value: address_of(value)
    return lambda state, value: _refuse(state, NOT_CONTIGUOUS, 0, 0)


@overload(_place_to_write)
def _place_to_write_compiled(state, value):
    if isinstance(value, types.NoneType) or value.mutable:
        return lambda state, value: _place(state, value)
    return lambda state, value: _refuse(state, READ_ONLY, 0, 0)


@njit
def _refuse(state, reason, expected, received):
    state[EXPECTED] = expected
    state[RECEIVED] = received
    ask(state, REFUSED, reason)
    return 0


@njit
def _kernel(state, code, op):
    """Address of the kernel of an operation on a type."""
    if code == OTHER_TYPE or op < 0 or op >= OPERATIONS:
        _refuse(state, NO_OPERATION, code, op)
    place = code * OPERATIONS + op
    kernels = words(state[KERNELS])
    if kernels[place] == 0:
        ask(state, PREPARE, place)
    return kernels[place]


@njit
def _check_root(state, root):
    if root < 0 or root >= state[SIZE]:
        _refuse(state, NO_ROOT, state[SIZE], root)


@njit
def _check_alike(state, expected, received, code, other):
    if expected != received:
        _refuse(state, OTHER_SIZE, expected, received)
    if code != other:
        _refuse(state, OTHER_DTYPE, code, other)


@njit
def _check_apart(state, piece, nbytes, place, whole, whole_nbytes):
    """Refuse a piece that stands in the other array, but not at its own place: the other array is written or
    read meanwhile.
    """
    if piece != place and piece < whole + whole_nbytes and whole < piece + nbytes:
        _refuse(state, OVERLAPPING, 0, 0)


@njit
def Barrier(address):
    """Wait until all ranks have called it."""
    state = words(address)
    agreed = signature(BARRIER, 0, 0, 0, 0)
    if state[LIMITS + BARRIER] < 0:
        elsewhere(state, BARRIER, 0, 0, 0, 0, 0, 0, agreed)
    else:
        node.barrier(address, agreed)


@njit
def Bcast(address, buf, root):
    """Copy the root's array into those of all ranks."""
    state = words(address)
    nbytes, code = _nbytes(buf), _code(buf)
    _check_root(state, root)
    place = _place(state, buf) if state[RANK] == root else _place_to_write(state, buf)
    agreed = signature(BCAST, 0, code, root, nbytes)
    if nbytes > state[LIMITS + BCAST]:
        elsewhere(state, BCAST, place, place, 0, nbytes, root, 0, agreed)
    else:
        node.bcast(address, place, nbytes, root, agreed)


@njit
def Scatter(address, sendbuf, recvbuf, root):
    """Copy piece i of the root's array into that of rank i."""
    state = words(address)
    nbytes, code, target = _nbytes(recvbuf), _code(recvbuf), _place_to_write(state, recvbuf)
    _check_root(state, root)
    send = 0
    if state[RANK] == root:
        send = _place(state, sendbuf)
        _check_alike(state, nbytes * state[SIZE], _nbytes(sendbuf), code, _code(sendbuf))
        _check_apart(state, target, nbytes, send + root * nbytes, send, nbytes * state[SIZE])
    agreed = signature(SCATTER, 0, code, root, nbytes)
    if nbytes > state[LIMITS + SCATTER]:
        elsewhere(state, SCATTER, send, target, 0, nbytes, root, 0, agreed)
    else:
        node.scatter(address, send, target, nbytes, root, agreed)


@njit
def Gather(address, sendbuf, recvbuf, root):
    """Copy the arrays of all ranks into pieces of the root's, in the order of ranks."""
    state = words(address)
    nbytes, code, send = _nbytes(sendbuf), _code(sendbuf), _place(state, sendbuf)
    _check_root(state, root)
    target = 0
    if state[RANK] == root:
        target = _place_to_write(state, recvbuf)
        _check_alike(state, nbytes * state[SIZE], _nbytes(recvbuf), code, _code(recvbuf))
        _check_apart(state, send, nbytes, target + root * nbytes, target, nbytes * state[SIZE])
    agreed = signature(GATHER, 0, code, root, nbytes)
    if nbytes > state[LIMITS + GATHER]:
        elsewhere(state, GATHER, send, target, 0, nbytes, root, 0, agreed)
    else:
        node.gather(address, send, target, nbytes, root, agreed)


@njit
def Allgather(address, sendbuf, recvbuf):
    """Copy the arrays of all ranks into pieces of every rank's, in the order of ranks."""
    state = words(address)
    nbytes, code, send = _nbytes(sendbuf), _code(sendbuf), _place(state, sendbuf)
    others_nbytes, others_code, target = _nbytes(recvbuf), _code(recvbuf), _place_to_write(state, recvbuf)
    _check_alike(state, nbytes * state[SIZE], others_nbytes, code, others_code)
    _check_apart(state, send, nbytes, target + state[RANK] * nbytes, target, nbytes * state[SIZE])
    agreed = signature(ALLGATHER, 0, code, 0, nbytes)
    if nbytes > state[LIMITS + ALLGATHER]:
        elsewhere(state, ALLGATHER, send, target, 0, nbytes, 0, 0, agreed)
    else:
        node.allgather(address, send, target, nbytes, agreed)


@njit
def Reduce(address, sendbuf, recvbuf, op, root):
    """Combine the arrays of all ranks, item by item, into the root's."""
    state = words(address)
    nbytes, code, send = _nbytes(sendbuf), _code(sendbuf), _place(state, sendbuf)
    count = sendbuf.size
    _check_root(state, root)
    target = 0
    if state[RANK] == root:
        target = _place_to_write(state, recvbuf)
        _check_alike(state, nbytes, _nbytes(recvbuf), code, _code(recvbuf))
        _check_apart(state, send, nbytes, target, target, nbytes)
    kernel = _kernel(state, code, op)
    agreed = signature(REDUCE, op, code, root, nbytes)
    if nbytes > state[LIMITS + REDUCE]:
        elsewhere(state, REDUCE, send, target, count, nbytes, root, kernel, agreed)
    else:
        node.reduce(address, send, target, count, nbytes, root, kernel, agreed)


@njit
def Allreduce(address, sendbuf, recvbuf, op):
    """Combine the arrays of all ranks, item by item, into every rank's."""
    state = words(address)
    nbytes, code, send = _nbytes(sendbuf), _code(sendbuf), _place(state, sendbuf)
    others_nbytes, others_code, target = _nbytes(recvbuf), _code(recvbuf), _place_to_write(state, recvbuf)
    count = sendbuf.size
    _check_alike(state, nbytes, others_nbytes, code, others_code)
    kernel = _kernel(state, code, op)
    _check_apart(state, send, nbytes, target, target, nbytes)
    _combined(address, send, target, count, nbytes, kernel, signature(ALLREDUCE, op, code, 0, nbytes))


@njit
def allreduce(address, value, op):
    """All ranks' numbers, or pairs (value, index), combined."""
    state = words(address)
    nbytes, code = _nbytes(value), _code(value)
    kernel = _kernel(state, code, op)
    send = state[SCRATCH]
    result = send + LINE
    store(send, _number(value))
    _combined(address, send, result, 1, nbytes, kernel, signature(ALLREDUCE, op, code, 0, nbytes))
    return load(result, value)


@njit
def _combined(address, send, target, count, nbytes, kernel, agreed):
    state = words(address)
    if nbytes > state[LIMITS + ALLREDUCE]:
        elsewhere(state, ALLREDUCE, send, target, count, nbytes, 0, kernel, agreed)
    else:
        node.allreduce(address, send, target, count, nbytes, kernel, agreed)
