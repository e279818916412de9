"""`Collectives` as an argument of compiled code: the same methods, with arrays and numbers as arguments.

Importing this module registers the type with numba. In compiled code an instance is the address of its state, which is
valid as long as the Python object exists; the caller of the compiled code holds a reference to it.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.base import BaseContext
from numba.core.datamodel import DataModelManager
from numba.core.pythonapi import _UnboxContext
from numba.core.typing import Context, Signature
from numba.extending import NativeValue, models, overload, overload_method, register_model, typeof_impl, unbox

from ..compiled import Compilation, Values, intrinsic, source_digest
from . import calls
from .collectives import Collectives
from .combine import SUM


class CollectivesType(types.Type):
    """numba's type of all instances.

    The type's name contains the version of this library's code. numba's own cache (``cache=True``) keeps that code as
    part of the user's functions, and finds these by the names of their argument types.
    """

    def __init__(self) -> None:
        super().__init__(name=f"overlap.Collectives({source_digest(calls.Allreduce)})")


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
    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        return arguments[0]

    return types.int64(instance), codegen


def _number(op: Any) -> int:
    """Return the number of an operation, an `Op` or an integer."""
    return int(op)


@overload(_number)
def _number_of_type(op: Any) -> Any:
    # numba compares the signatures of the functions, with their annotations.
    if isinstance(op, types.IntEnumMember):  # numba's `int` takes none

        def number(op: Any) -> Any:
            return op.value
    else:

        def number(op: Any) -> Any:
            return int(op)

    return number


_METHODS: dict[str, Any] = {
    "Barrier": lambda self: calls.Barrier(_address(self)),
    "Bcast": lambda self, buf, root=0: calls.Bcast(_address(self), buf, root),
    "Scatter": lambda self, sendbuf, recvbuf, root=0: calls.Scatter(_address(self), sendbuf, recvbuf, root),
    "Gather": lambda self, sendbuf, recvbuf, root=0: calls.Gather(_address(self), sendbuf, recvbuf, root),
    "Allgather": lambda self, sendbuf, recvbuf: calls.Allgather(_address(self), sendbuf, recvbuf),
    "Reduce": lambda self, sendbuf, recvbuf, op=SUM, root=0: calls.Reduce(
        _address(self), sendbuf, recvbuf, _number(op), root
    ),
    "Allreduce": lambda self, sendbuf, recvbuf, op=SUM: calls.Allreduce(_address(self), sendbuf, recvbuf, _number(op)),
    "allreduce": lambda self, value, op=SUM: calls.allreduce(_address(self), value, _number(op)),
}


def _register(name: str, method: Any) -> None:
    # numba compares the signature of the method with that of the function that it compiles.
    @overload_method(CollectivesType, name)
    @wraps(method)  # gives the wrapper the method's arguments
    def for_types(*types: Any, **named_types: Any) -> Any:
        return method


for _name, _method in _METHODS.items():
    _register(_name, _method)
