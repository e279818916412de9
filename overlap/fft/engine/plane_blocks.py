"""A user's function of planes between two exchanges, block by block: to real space, the function, and back.

A block is a few rows of all fields of one plane, or all rows of a few small planes. On it are done the last FFTs to
real space, the function, and the first FFTs back. A function that numba compiled is a part of the compiled loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
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

from ...arrays import chunks, length_of
from ...compiled import Compilation, Values, intrinsic
from ...compiled.memory import address_of, pointer
from ...errors import InputError
from ...runtime import worker_index
from ...runtime.loop.words import ASIDE, SCRATCH, TARGET
from .axis import Axis, Direction, modes_dtype
from .fftw import ALIGNMENT, REQUIRED_ALIGNMENT
from .plane_composition import Arrays, PlaneComposition, SlotBuffers
from .program import CompiledProgram, View
from .stage import Stage
from .steps import AnyStep, Call, Run
from .sweep import Sweep


@dataclass(frozen=True)
class BlockPlaces:
    """The places of a block's planes in real space."""

    inputs: int  # input planes of the block, first in memory
    outputs: int  # output planes of the block
    shared: int  # planes that all slices share
    nx: int  # points of a row; rows are contiguous
    step: int  # bytes from a plane to the next one, in the block
    shared_step: int  # the same in the shared planes
    dtype: np.dtype


class CompiledFunction:
    """A function of planes for the compiled loop."""

    def __init__(self, function: Any, takes_out: bool, places: BlockPlaces) -> None:
        self._name = function.__name__
        self._failed = np.zeros(1, np.int64)
        self._callback = _callback(function, takes_out, places, address_of(self._failed))
        # Of a C function whose arguments are a number of rows, the address of the first of these rows in the shared
        # planes, and the address of the block.
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

    If it accepts only shared fields to which it can write, this is an `InputError`.
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


def _unchanged(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
    return arguments[0]


@intrinsic
def _read_only(typing: Context, array: types.Array) -> Compilation:
    """Return the array as one to which compiled code cannot write."""
    return array.copy(readonly=True)(array), _unchanged


@intrinsic
def _as_it_is(typing: Context, array: types.Array) -> Compilation:
    return array(array), _unchanged


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


COMPILED_NBYTES = 256 * 1024  # of a block's fields in real space, for the second-level cache
CALLED_NBYTES = 2 * 1024 * 1024  # the same if every block costs a call from Python, and the GIL
X = 2


class PlaneBlocks(PlaneComposition):
    """The stages around a function of real-space planes on this rank, and the blocks in between."""

    def __init__(
        self,
        stages: Sequence[Stage],
        scales: tuple[float, float],
        kept: np.ndarray,
        lines: dict[int, Axis],
        function: Any,  # a `Function`
        batch: tuple[int, ...],  # shape of the batch
        effort: str | None,
        workers: int,
        whole: bool,  # a block is a plane, whatever its size
    ) -> None:
        counts = function.inputs, function.outputs
        super().__init__(stages, counts, scales, kept)
        self._function, self._batch = function, batch
        _, rows, nx = self.back.target_shape
        dtype = self.back.target_dtype
        row_nbytes = max(1, nx) * dtype.itemsize
        nbytes = COMPILED_NBYTES if can_be_compiled(function) else CALLED_NBYTES
        fitting = max(1, nbytes // (sum(counts) * row_nbytes))  # rows
        self._rows = chunks(rows, max(1, rows if whole else min(rows, fitting)))  # of every block
        self._height = max(map(length_of, self._rows), default=0)
        self._height_nbytes = self._height * row_nbytes
        self._together = 1  # planes of a block, at most
        several = function.simple and not (function.shared or whole)
        if several and rows and self._height_nbytes % REQUIRED_ALIGNMENT == 0:
            self._together = max(1, fitting // rows)
        self._nx, self._dtype = nx, dtype
        self._field_nbytes = -(-self._together * self._height_nbytes // ALIGNMENT) * ALIGNMENT
        after = sum(counts) * self._field_nbytes
        first_slice = slice(0, 1)
        self._sweeps = {}
        for height in set(map(length_of, self._rows)) if nx else ():
            inside, spectral = slice(0, height), modes_dtype(dtype, {X: lines[X]})
            rows_box = [(first_slice, inside, slice(0, nx))]
            received, sent = (
                [(first_slice, inside, box[X]) for box in boxes]
                for boxes in (self.back.message(first_slice).received, self.forth.message(first_slice).sent)
            )
            modes = (1, height, lines[X].length(True))
            self._sweeps[height] = (
                Sweep(modes, {X: lines[X]}, spectral, Direction(False, effort), received, rows_box, after),
                Sweep((1, height, nx), {X: lines[X]}, dtype, Direction(True, effort), rows_box, sent, after),
            )
        needing: tuple[Any, ...] = self.back, self.forth, *(sweep for pair in self._sweeps.values() for sweep in pair)
        self._allocate(max([after, *(each.scratch_nbytes for each in needing)]), workers)
        self._arrays: list[dict[Any, Any]] = [{} for _ in range(workers)]  # of every worker: (rows, planes) -> arrays
        self._compiled = compiled(
            function, BlockPlaces(*counts, function.shared, nx, self._field_nbytes, kept.strides[0], dtype)
        )

    def _view(self, number: int, height: int, plane: int = 0) -> View:
        """Return the view of one plane, of `height` rows, of a block's input or output `number` in scratch memory."""
        plane_view = View.contiguous(SCRATCH, (1, height, self._nx), self._dtype)
        return replace(plane_view, offset=number * self._field_nbytes + plane * self._height_nbytes)

    def _fields(self, rows: slice, planes: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return this worker's real-space fields of a block, (planes * rows, nx): inputs, and outputs."""
        worker, height = worker_index(), length_of(rows)
        fields_of_block = self._arrays[worker].get((height, planes))
        if fields_of_block is None:
            memory, inputs = self._scratch[worker], self.counts[0]
            fields = [self._view(number, planes * height).array(memory)[0] for number in range(sum(self.counts))]
            fields_of_block = self._arrays[worker][height, planes] = fields[:inputs], fields[inputs:]
        return fields_of_block

    def _between(self, part: slice, slot: SlotBuffers, arrays: Arrays, planning: bool) -> Iterator[AnyStep]:
        count, function = length_of(part), self._compiled

        def run(label: str, write: Callable[..., None], *args: Any) -> Run:
            key = (label, count, *((arg.start, arg.stop) if isinstance(arg, slice) else arg for arg in args))
            return Run(self._codes.find((), key, write, count, *args), slot.middle.bases, label)

        if function is not None and not planning:
            yield run("apply", self._write_apply)
            yield Call(lambda addresses: function.check(), "check what was compiled")
            return
        for first in range(0, count, self._together):
            planes = slice(first, min(first + self._together, count))
            for block, rows in enumerate(self._rows):
                yield run("to real", self._write_to_real, planes, block)
                yield Call(partial(self._call, planning, length_of(planes), rows, part.start + first), "apply")
                yield run("to modes", self._write_to_modes, planes, block)

    def _call(self, planning: bool, planes: int, rows: slice, first: int, addresses: Any) -> None:
        """Call the user's function for a block of some slices."""
        fields, results = self._fields(rows, planes)
        if planning:  # the user's function might fail for zeros, or count its calls
            for result in results:
                np.multiply(fields[0], fields[-1], out=result)
        else:
            self._function.fill(results, fields, list(self.kept[:, rows]), self._batch, first, rows)

    def _write_to_real(self, program: CompiledProgram, count: int, planes: slice, block: int) -> None:
        inputs, rows = self.counts[0], self._rows[block]
        height = length_of(rows)
        pieces = self.back.pieces_received(count * inputs)
        for place, plane in enumerate(range(planes.start, planes.stop)):
            for number, at in enumerate(range(plane * inputs, (plane + 1) * inputs)):
                sources = [piece[at : at + 1, rows].stepping(0, inputs) for piece in pieces]
                self._sweeps[height][0].write_block(program, sources, None, self._view(number, height, place))

    def _write_to_modes(self, program: CompiledProgram, count: int, planes: slice, block: int) -> None:
        (inputs, outputs), rows = self.counts, self._rows[block]
        height = length_of(rows)
        pieces = self.forth.pieces_to_send(count * outputs, TARGET)
        for place, plane in enumerate(range(planes.start, planes.stop)):
            for number, at in enumerate(range(plane * outputs, (plane + 1) * outputs)):
                targets = [piece[at : at + 1, rows].stepping(0, outputs) for piece in pieces]
                physical = self._view(inputs + number, height, place)
                self._sweeps[height][1].write_block(program, None, targets, physical, self.scales[1])

    def _write_apply(self, program: CompiledProgram, count: int) -> None:
        body, first = CompiledProgram(), slice(0, 1)
        assert self._compiled is not None
        kept = View.of(ASIDE, self.kept)
        for block, rows in enumerate(self._rows):
            self._write_to_real(body, count, first, block)
            body.call(self._compiled.address, length_of(rows), self._view(0, length_of(rows)), kept[:, rows])
            self._write_to_modes(body, count, first, block)
        program.repeat(body, count)
