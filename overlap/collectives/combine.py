"""Reductions of scalars and arrays, in compiled code: the operations, their numbers, and for which types they are.

Every reduction combines the ranks' values one after the other in the order of ranks, or by halves of aligned
groups of ranks, the lower ones first: the same order on all ranks, whoever comes first. So the result is the
same to the last bit on all of them and in every run.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic, overload, register_jitable
from numba.np.numpy_support import from_dtype

from ..compiled import njit


class Op(enum.IntEnum):
    """Operations of reductions; compiled code takes them as well.

    Logical operations are of truth values and give 0 or 1, bitwise ones are for integers, complex numbers are
    only added and multiplied, truth values neither. `MAXLOC` and `MINLOC` are for pairs (value, index): of
    equal values that with the lowest index counts.
    """

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3
    LAND = 4
    LOR = 5
    LXOR = 6
    BAND = 7
    BOR = 8
    BXOR = 9
    MAXLOC = 10
    MINLOC = 11


SUM, PROD, MIN, MAX, LAND, LOR, LXOR, BAND, BOR, BXOR, MAXLOC, MINLOC = (int(op) for op in Op)


def _land(a, b):
    return (a != 0) & (b != 0)


def _lor(a, b):
    return (a != 0) | (b != 0)


def _lxor(a, b):
    return (a != 0) != (b != 0)


def _min(a, b):
    return b if b < a else a


def _max(a, b):
    return b if b > a else a


OPERATIONS = len(Op)

_ARITHMETIC = {SUM: operator.add, PROD: operator.mul}
_ORDER = {MIN: _min, MAX: _max}
_LOGICAL = {LAND: _land, LOR: _lor, LXOR: _lxor}
_BITWISE = {BAND: operator.and_, BOR: operator.or_, BXOR: operator.xor}
_OF_KIND: dict[str, dict[int, Callable[..., Any]]] = {
    "b": _ORDER | _LOGICAL | _BITWISE,
    "i": _ARITHMETIC | _ORDER | _LOGICAL | _BITWISE,
    "u": _ARITHMETIC | _ORDER | _LOGICAL | _BITWISE,
    "f": _ARITHMETIC | _ORDER | _LOGICAL,
    "c": _ARITHMETIC,
}


_PAIRS = [
    np.dtype([("value", value), ("index", index)], align=True)
    for value, index in (("f8", "i8"), ("f4", "i4"), ("i8", "i8"), ("i4", "i4"), ("f8", "i4"), ("i8", "i4"))
]
DTYPES = [np.dtype(code) for code in "?bhilqBHILQfdFD"] + _PAIRS  # a type's code is its place
OTHER_TYPE = 63
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)} | {
    tuple(dtype[name] for name in dtype.names or ()): code for code, dtype in enumerate(DTYPES) if dtype.names
}


def code_of(dtype: np.dtype[Any]) -> int | None:
    """Return the code of a type; None where there are no reductions of it. Names of fields do not matter."""
    if not dtype.names:
        return _CODES.get(dtype)
    code = _CODES.get(tuple(dtype[name] for name in dtype.names))
    return code if code is not None and dtype.itemsize == DTYPES[code].itemsize else None


def operations_of(code: int) -> tuple[Op, ...]:
    """Return the operations that there are for a type."""
    return tuple(map(Op, _functions_of(code)))


def _functions_of(code):
    dtype = DTYPES[code]
    if dtype.names:
        return {MAXLOC: _maxloc(*dtype.names), MINLOC: _minloc(*dtype.names)}
    return _OF_KIND[dtype.kind]


@intrinsic(prefer_literal=True)
def _typed(typingctx, address, code):
    """Take an address as a pointer to items of a type."""
    kind = types.CPointer(from_dtype(DTYPES[code.literal_value]))

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.int64, code), codegen


def _apply(code, op, first, second):
    raise NotImplementedError


@overload(_apply, prefer_literal=True)
def _applied(code, op, first, second):
    function = register_jitable(_functions_of(code.literal_value)[op.literal_value])
    return lambda code, op, first, second: function(first, second)


@njit
def _kernel(target, first, second, count, code, op):
    """``target = first op second`` for so many items at three addresses; the first two may be the same."""
    out = carray(_typed(target, code), count)
    b = carray(_typed(second, code), count)
    if target == first:  # seen by the compiler, so that it need not look for other overlaps
        for place in range(count):
            out[place] = _apply(code, op, out[place], b[place])
    else:
        a = carray(_typed(first, code), count)
        for place in range(count):
            out[place] = _apply(code, op, a[place], b[place])


# For each type and operation the address of its kernel, 0 until it is asked for; compiled code reads it.
KERNELS = np.zeros(len(DTYPES) * OPERATIONS, np.int64)


def prepare(code: int, op: int) -> None:
    """Compile the kernel of an operation on a type, unless it is there."""
    number = code * OPERATIONS + op
    if not KERNELS[number]:
        kinds = (*(types.int64,) * 4, types.literal(code), types.literal(int(op)))
        _kernel.compile(kinds)
        result = _kernel.overloads[kinds]
        KERNELS[number] = result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name)


def _maxloc(value, index):
    def run(a, b):
        if b[value] > a[value] or (b[value] == a[value] and b[index] < a[index]):
            return b
        return a

    return run


def _minloc(value, index):
    def run(a, b):
        if b[value] < a[value] or (b[value] == a[value] and b[index] < a[index]):
            return b
        return a

    return run
