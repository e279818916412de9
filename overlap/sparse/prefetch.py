"""Cache lines that are fetched ahead.

A processor fetches what it is going to read by itself, but stops at the end of each page of 4 KiB.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ..compiled import intrinsic

FAR = 576  # numbers: 64 blocks of 3 x 3, 4.6 KB


def fetched(builder: Any, pointer: Any) -> None:
    """Write the instruction that has the cache line at a pointer brought from memory; it need not exist."""
    address, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [address, flag, flag, flag])
    fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(fetch, [builder.bitcast(pointer, address), flag(0), flag(3), flag(1)])  # to read, keep, data


@intrinsic
def prefetch(typingctx: Any, array: Any, place: Any) -> Any:
    """Have the cache line of an item brought from memory, by its place in C order, in the array or outside."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        fetched(builder, builder.gep(data, [context.cast(builder, arguments[1], signature.args[1], types.int64)]))
        return context.get_dummy_value()

    return types.void(array, place), codegen
