"""`Collectives` as an argument of compiled code: the same methods, with arrays and numbers as arguments.

Importing this module tells numba. An instance is the address of its state there; it lives as long as the Python
object, which the caller of the compiled code holds.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import (
    NativeValue,
    intrinsic,
    models,
    overload_method,
    register_model,
    typeof_impl,
    unbox,
)

from ..compiled import source_digest
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
    def __init__(self, manager, kind):
        super().__init__(manager, kind, ir.IntType(64))


@unbox(CollectivesType)
def _unbox(kind, instance, context):
    number = context.pyapi.object_getattr_string(instance, "_address")
    address = context.pyapi.long_as_longlong(number)
    context.pyapi.decref(number)
    return NativeValue(address)


@intrinsic
def _address(typingctx, instance):
    def codegen(context, builder, signature, arguments):
        return arguments[0]

    return types.int64(instance), codegen


@overload_method(CollectivesType, "Barrier")
def _barrier(self):
    return lambda self: buffers.Barrier(_address(self))


@overload_method(CollectivesType, "Bcast")
def _bcast(self, buf, root=0):
    return lambda self, buf, root=0: buffers.Bcast(_address(self), buf, root)


@overload_method(CollectivesType, "Scatter")
def _scatter(self, sendbuf, recvbuf, root=0):
    return lambda self, sendbuf, recvbuf, root=0: buffers.Scatter(_address(self), sendbuf, recvbuf, root)


@overload_method(CollectivesType, "Gather")
def _gather(self, sendbuf, recvbuf, root=0):
    return lambda self, sendbuf, recvbuf, root=0: buffers.Gather(_address(self), sendbuf, recvbuf, root)


@overload_method(CollectivesType, "Allgather")
def _allgather(self, sendbuf, recvbuf):
    return lambda self, sendbuf, recvbuf: buffers.Allgather(_address(self), sendbuf, recvbuf)


@overload_method(CollectivesType, "Reduce")
def _reduce(self, sendbuf, recvbuf, op=SUM, root=0):
    return lambda self, sendbuf, recvbuf, op=SUM, root=0: buffers.Reduce(
        _address(self), sendbuf, recvbuf, int(op), root
    )


@overload_method(CollectivesType, "Allreduce")
def _allreduce_arrays(self, sendbuf, recvbuf, op=SUM):
    return lambda self, sendbuf, recvbuf, op=SUM: buffers.Allreduce(_address(self), sendbuf, recvbuf, int(op))


@overload_method(CollectivesType, "allreduce")
def _allreduce(self, value, op=SUM):
    return lambda self, value, op=SUM: buffers.allreduce(_address(self), value, int(op))
