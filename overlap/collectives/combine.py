"""Reductions of scalars and arrays in compiled code: the operations, their numbers and types.

Every reduction combines the ranks' values one after the other in the order of ranks, or pairwise by halves of aligned
groups of ranks, lower ranks first. This order does not depend on which rank arrives first, so the result is the same to
the last bit on all ranks and in every run.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core.base import BaseContext
from numba.core.typing import Context, Signature
from numba.extending import overload, register_jitable
from numba.np.numpy_support import from_dtype

from ..compiled import Compilation, Values, intrinsic, njit

Function = Callable[[Any, Any], Any]
"""A function that combines two values."""


class Op(enum.IntEnum):
    """Operations of reductions; compiled code takes them as well.

    Logical operations combine truth values and give 0 or 1; bitwise operations are for integers. Complex numbers can
    only be added and multiplied, truth values neither. `MAXLOC` and `MINLOC` are for pairs (value, index); if values
    are equal, the lowest index counts.

    Examples
    --------
    >>> from overlap.collectives import Collectives, Op
    >>> with Collectives(comm) as fast:
    ...     fast.allreduce(3, Op.MAX)
    3
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


def _land(a: Any, b: Any) -> Any:
    return (a != 0) & (b != 0)


def _lor(a: Any, b: Any) -> Any:
    return (a != 0) | (b != 0)


def _lxor(a: Any, b: Any) -> Any:
    return (a != 0) != (b != 0)


def _min(a: Any, b: Any) -> Any:
    return b if b < a else a


def _max(a: Any, b: Any) -> Any:
    return b if b > a else a


OPERATIONS = len(Op)

_ARITHMETIC = {SUM: operator.add, PROD: operator.mul}
_ORDER = {MIN: _min, MAX: _max}
_LOGICAL = {LAND: _land, LOR: _lor, LXOR: _lxor}
_BITWISE = {BAND: operator.and_, BOR: operator.or_, BXOR: operator.xor}
_OF_KIND: dict[str, dict[int, Function]] = {
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
DTYPES = [np.dtype(code) for code in "?bhilqBHILQfdFD"] + _PAIRS  # the code of a type is its index here
OTHER_TYPE = 63
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)} | {
    tuple(dtype[name] for name in dtype.names or ()): code for code, dtype in enumerate(DTYPES) if dtype.names
}


def code_of(dtype: np.dtype[Any]) -> int | None:
    """Return the code of a type; None if it has no reductions. Names of fields do not matter."""
    if not dtype.names:
        return _CODES.get(dtype)
    code = _CODES.get(tuple(dtype[name] for name in dtype.names))
    return code if code is not None and dtype.itemsize == DTYPES[code].itemsize else None


def operations_of(code: int) -> tuple[Op, ...]:
    """Return the operations for a type."""
    return tuple(map(Op, _functions_of(code)))


def _functions_of(code: int) -> dict[int, Function]:
    dtype = DTYPES[code]
    if dtype.names:
        return {MAXLOC: _extreme(operator.gt, *dtype.names), MINLOC: _extreme(operator.lt, *dtype.names)}
    return _OF_KIND[dtype.kind]


def _extreme(better: Function, value: str, index: str) -> Function:
    """Return the better one of two pairs; of equal values the pair with the lower index."""

    def run(a: Any, b: Any) -> Any:
        if better(b[value], a[value]) or (b[value] == a[value] and b[index] < a[index]):
            return b
        return a

    return run


@intrinsic(prefer_literal=True)
def _typed(typingctx: Context, address: types.Type, code: types.Literal) -> Compilation:
    """Convert an address to a pointer to items of a type."""
    kind = types.CPointer(from_dtype(DTYPES[code.literal_value]))

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.int64, code), codegen


def _apply(code: int, op: int, first: Any, second: Any) -> Any:
    raise NotImplementedError


@overload(_apply, prefer_literal=True)
def _applied(code: Any, op: Any, first: Any, second: Any) -> Callable[..., Any]:
    function = register_jitable(_functions_of(code.literal_value)[op.literal_value])

    def apply(code: Any, op: Any, first: Any, second: Any) -> Any:  # numba compares signatures
        return function(first, second)

    return apply


@njit
def _kernel(target: int, first: int, second: int, count: int, code: int, op: int) -> None:
    """Compute ``target = first op second`` for `count` items at three addresses; `target` may be `first`."""
    out = carray(_typed(target, code), count)
    b = carray(_typed(second, code), count)
    if target == first:  # a separate branch, so that the compiler need not check for other overlaps
        for place in range(count):
            out[place] = _apply(code, op, out[place], b[place])
    else:
        a = carray(_typed(first, code), count)
        for place in range(count):
            out[place] = _apply(code, op, a[place], b[place])


# For each type and operation the address of its kernel, 0 until it is compiled; compiled code reads it.
KERNELS = np.zeros(len(DTYPES) * OPERATIONS, np.int64)


def prepare(code: int, op: int) -> None:
    """Compile the kernel of an operation on a type, unless that has been done."""
    number = code * OPERATIONS + op
    if not KERNELS[number]:
        kinds = (*(types.int64,) * 4, types.literal(code), types.literal(int(op)))
        _kernel.compile(kinds)
        result = _kernel.overloads[kinds]
        KERNELS[number] = result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name)
