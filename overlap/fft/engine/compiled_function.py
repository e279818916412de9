"""A user's function, compiled by numba, as a part of the compiled loop over blocks of planes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core.base import BaseContext
from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.core.typing import Context, Signature

from ...compiled import Compilation, intrinsic
from ...compiled.memory import address_of, pointer
from ...errors import InputError


@dataclass(frozen=True)
class BlockPlaces:
    """The places of a block's planes in real space.

    Attributes
    ----------
    inputs, outputs, shared : int
        Numbers of input and output planes of the block, inputs first in memory, and of planes that all slices share.
    nx : int
        Points of a row; rows are contiguous.
    step, shared_step : int
        Bytes from a plane to the next one, in the block and in the shared planes.
    dtype : numpy.dtype
    """

    inputs: int
    outputs: int
    shared: int
    nx: int
    step: int
    shared_step: int
    dtype: np.dtype


class CompiledFunction:
    """A function of planes for the compiled loop.

    Attributes
    ----------
    address : int
        Address of a C function whose arguments are a number of rows, the address of the first of these rows in the
        shared planes, and the address of the block.
    """

    def __init__(self, function: Any, takes_out: bool, places: BlockPlaces) -> None:
        self._name = function.__name__
        self._failed = np.zeros(1, np.int64)
        self._callback = _callback(function, takes_out, places, address_of(self._failed))
        self.address: int = self._callback.address or 0

    def check(self) -> None:
        """Raise if the function has raised; a C function itself cannot raise."""
        if self._failed[0]:
            self._failed[0] = 0
            raise RuntimeError(
                f"expected {self._name} to return arrays of its arguments' shape, received an exception "
                f"from compiled code; call {self._name}.py_func, which is not compiled, to see it"
            )


def can_be_compiled(function: Any) -> bool:
    """Return whether a `Function` can be a part of the compiled loop: numba has compiled it, for arrays only."""
    return isinstance(function.function, Dispatcher) and function.simple


def compiled(function: Any, places: BlockPlaces) -> CompiledFunction | None:
    """Return the function for the compiled loop; None if it must be called from Python.

    Raises
    ------
    InputError
        It accepts only shared fields to which it can write.
    """
    if places not in function.compiled:
        function.compiled[places] = _compiled(function, places) if can_be_compiled(function) else None
    return function.compiled[places]


def _compiled(function: Any, places: BlockPlaces) -> CompiledFunction | None:
    returned = _returned(function, places, True)
    if returned is None and places.shared and _returned(function, places, False) is not None:
        raise InputError(
            f"expected a function of shared fields that are read-only, received {function.function.__name__}, which "
            "writes to one, or was compiled for writeable ones; use types.Array(..., readonly=True) in its signature"
        )
    if returned is None or (function.takes_out and returned != types.none):
        return None  # only Python code can check whether the returned array is `out` itself
    try:
        return CompiledFunction(function.function, function.takes_out, places)
    except NumbaError:  # it returns values that only Python code can use
        return None


def _returned(function: Any, places: BlockPlaces, read_only: bool) -> types.Type | None:
    """Return the type that a `Function` returns for its planes; None if it cannot be compiled for them."""
    plane = types.Array(numba.from_dtype(places.dtype), 2, "C")
    out = plane if places.outputs == 1 else types.UniTuple(plane, places.outputs)
    argument_types = (
        (plane,) * places.inputs + (plane.copy(readonly=read_only),) * places.shared + (out,) * function.takes_out
    )
    try:
        return (
            types.Dispatcher(function.function).get_call_type(cpu_target.typing_context, argument_types, {}).return_type
        )
    except (NumbaError, TypeError, AttributeError):  # numba raises the last for `shared *= 2`
        return None


@intrinsic
def _read_only(typing: Context, array: types.Array) -> Compilation:
    """Return the array as one to which compiled code cannot write."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        return arguments[0]

    return array.copy(readonly=True)(array), generate


@intrinsic
def _as_it_is(typing: Context, array: types.Array) -> Compilation:
    """Return the array as it is."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        return arguments[0]

    return array(array), generate


def _planes(count: int, step: int, kind: types.Type, access: Any = _as_it_is) -> Dispatcher:
    """Make a compiled function that returns `count` planes at an address as a tuple of arrays."""
    if count == 0:
        return numba.njit(lambda address, shape: ())
    fewer, offset = _planes(count - 1, step, kind, access), (count - 1) * step
    return numba.njit(
        lambda address, shape: fewer(address, shape) + (access(carray(pointer(address + offset), shape, kind)),)
    )


def _callback(function: Any, takes_out: bool, places: BlockPlaces, failed: int) -> CFunc:
    kind = numba.from_dtype(places.dtype)
    fields = _planes(places.inputs, places.step, kind)
    shared = _planes(places.shared, places.shared_step, kind, _read_only)
    results = _planes(places.outputs, places.step, kind)
    after, nx, outputs, single = (places.inputs * places.step, places.nx, places.outputs, places.outputs == 1)

    @numba.njit
    def copied(targets: np.ndarray, returned: np.ndarray) -> None:
        # A loop, because numba takes seconds to compile an assignment of arrays.
        if targets.shape != returned.shape:
            raise ValueError("shape")
        for row in range(targets.shape[0]):
            for column in range(targets.shape[1]):
                targets[row, column] = returned[row, column]

    if takes_out and single:

        @numba.njit
        def fill(given: tuple[np.ndarray, ...], targets: tuple[np.ndarray, ...]) -> None:
            function(*(given + (targets[0],)))
    elif takes_out:

        @numba.njit
        def fill(given: tuple[np.ndarray, ...], targets: tuple[np.ndarray, ...]) -> None:
            function(*(given + (targets,)))
    elif single:

        @numba.njit
        def fill(given: tuple[np.ndarray, ...], targets: tuple[np.ndarray, ...]) -> None:
            copied(targets[0], function(*given))
    else:

        @numba.njit
        def fill(given: tuple[np.ndarray, ...], targets: tuple[np.ndarray, ...]) -> None:
            returned = function(*given)
            for number in range(outputs):
                copied(targets[number], returned[number])

    @numba.cfunc(types.void(types.int64, types.int64, types.int64))
    def call(rows: int, shared_address: int, block_address: int) -> None:
        shape = (rows, nx)
        given = fields(block_address, shape) + shared(shared_address, shape)
        try:
            fill(given, results(block_address + after, shape))
        except Exception:
            carray(pointer(failed), 1, types.int64)[0] = 1

    return call
