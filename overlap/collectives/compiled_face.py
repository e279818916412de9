"""`Collectives` as an argument of compiled code: the same methods, with arrays and numbers as arguments.

Importing this module tells numba. An instance is the address of its state there; it lives as long as the Python
object, which the caller of the compiled code holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.base import BaseContext
from numba.core.datamodel import DataModelManager
from numba.core.pythonapi import _UnboxContext
from numba.core.typing import Context, Signature
from numba.extending import (
    NativeValue,
    models,
    overload_method,
    register_model,
    typeof_impl,
    unbox,
)

from ..compiled import Compilation, intrinsic, source_digest
from . import buffers
from .collectives import Collectives
from .combine import SUM


class CollectivesType(types.Type):
    """numba's type of all instances.

    Its name tells the version of our code: numba's own cache (``cache=True``) keeps that as part of its users'
    functions, and finds them by the names of their types.
    """

    def __init__(self) -> None:
        super().__init__(name=f"overlap.Collectives({source_digest(buffers.Allreduce)})")


_TYPE = CollectivesType()


@typeof_impl.register(Collectives)
def _type_of(value: Collectives, context: Any) -> CollectivesType:
    return _TYPE


@register_model(CollectivesType)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: DataModelManager, kind: CollectivesType) -> None:
        super().__init__(manager, kind, ir.IntType(64))


@unbox(CollectivesType)
def _unbox(kind: CollectivesType, instance: ir.Value, context: _UnboxContext) -> NativeValue:
    number = context.pyapi.object_getattr_string(instance, "_address")
    address = context.pyapi.long_as_longlong(number)
    context.pyapi.decref(number)
    return NativeValue(address)


@intrinsic
def _address(typingctx: Context, instance: CollectivesType) -> Compilation:
    def codegen(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        return arguments[0]

    return types.int64(instance), codegen


# numba compares the signature of each method with that of what it compiles.


@overload_method(CollectivesType, "Barrier")
def _barrier(self: Any) -> Callable[..., None]:
    def run(self: Any) -> None:
        buffers.Barrier(_address(self))

    return run


@overload_method(CollectivesType, "Bcast")
def _bcast(self: Any, buf: Any, root: Any = 0) -> Callable[..., None]:
    def run(self: Any, buf: Any, root: Any = 0) -> None:
        buffers.Bcast(_address(self), buf, root)

    return run


@overload_method(CollectivesType, "Scatter")
def _scatter(self: Any, sendbuf: Any, recvbuf: Any, root: Any = 0) -> Callable[..., None]:
    def run(self: Any, sendbuf: Any, recvbuf: Any, root: Any = 0) -> None:
        buffers.Scatter(_address(self), sendbuf, recvbuf, root)

    return run


@overload_method(CollectivesType, "Gather")
def _gather(self: Any, sendbuf: Any, recvbuf: Any, root: Any = 0) -> Callable[..., None]:
    def run(self: Any, sendbuf: Any, recvbuf: Any, root: Any = 0) -> None:
        buffers.Gather(_address(self), sendbuf, recvbuf, root)

    return run


@overload_method(CollectivesType, "Allgather")
def _allgather(self: Any, sendbuf: Any, recvbuf: Any) -> Callable[..., None]:
    def run(self: Any, sendbuf: Any, recvbuf: Any) -> None:
        buffers.Allgather(_address(self), sendbuf, recvbuf)

    return run


@overload_method(CollectivesType, "Reduce")
def _reduce(self: Any, sendbuf: Any, recvbuf: Any, op: Any = SUM, root: Any = 0) -> Callable[..., None]:
    def run(self: Any, sendbuf: Any, recvbuf: Any, op: Any = SUM, root: Any = 0) -> None:
        buffers.Reduce(_address(self), sendbuf, recvbuf, int(op), root)

    return run


@overload_method(CollectivesType, "Allreduce")
def _allreduce_arrays(self: Any, sendbuf: Any, recvbuf: Any, op: Any = SUM) -> Callable[..., None]:
    def run(self: Any, sendbuf: Any, recvbuf: Any, op: Any = SUM) -> None:
        buffers.Allreduce(_address(self), sendbuf, recvbuf, int(op))

    return run


@overload_method(CollectivesType, "allreduce")
def _allreduce(self: Any, value: Any, op: Any = SUM) -> Callable[..., Any]:
    def run(self: Any, value: Any, op: Any = SUM) -> Any:
        return buffers.allreduce(_address(self), value, int(op))

    return run
