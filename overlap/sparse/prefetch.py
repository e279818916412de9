"""Prefetches cache lines.

A processor prefetches by itself what a loop reads next, but stops at the end of each page of 4 KiB.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ..compiled import intrinsic

FAR = 576  # distance in numbers: 64 blocks of 3 x 3, 4.6 KB


def fetched(builder: Any, pointer: Any) -> None:
    """Write the instruction that prefetches the cache line at a pointer, which may point outside of any array."""
    address, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [address, flag, flag, flag])
    fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(fetch, [builder.bitcast(pointer, address), flag(0), flag(3), flag(1)])  # for reading, to be kept, data


@intrinsic
def prefetch(typingctx: Any, array: Any, place: Any) -> Any:
    """Prefetch the cache line of an item, given by its place in C order, which may be outside of the array."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        fetched(builder, builder.gep(data, [context.cast(builder, arguments[1], signature.args[1], types.int64)]))
        return context.get_dummy_value()

    return types.void(array, place), codegen
