"""Loads and stores by address in compiled code: of flags, which order the memory accesses around them, and of data.

A compiler may move a plain load of a flag out of the loop that waits for it, and processors other than x86 may reorder
plain stores. So flags are read by `load_acquire` (no later access is done before it) and written by `store_release`
(every earlier store is visible before it): LLVM's ``load atomic acquire`` and ``store atomic release``, which are plain
moves on x86 and ``ldar`` and ``stlr`` on ARM. Data are read and written by plain loads and stores, because a flag
orders their writer and every reader.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from llvmlite import ir
from mpi4py import MPI
from numba import carray as carray  # imported from here by other modules
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing import Context, Signature
from numba.extending import overload

from . import Compilation, Values, intrinsic, njit

LINE = 64  # bytes of a cache line
INTERVAL_NS = 5_000_000  # between two calls of Python in a wait; counted in time, because a yield may take any time
_MONOTONIC = 1  # the monotonic clock of clock_gettime
_WORD = ir.IntType(64)
# The number of the kernel's call `futex`, on which threads sleep until a word changes; 0: unknown.
_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_FUTEX = _NUMBERS.get(platform.machine(), 0) if sys.platform == "linux" else 0
_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # of threads of one process
_HALF, _LOWER_HALF = 2**32 - 1, 0 if sys.byteorder == "little" else 4

# Functions of the C library: yield the processor to another process.
sched_yield = types.ExternalFunction("sched_yield", types.int32())
# Sleep for some microseconds.
usleep = types.ExternalFunction("usleep", types.int32(types.int32))
# Call the kernel.
syscall = types.ExternalFunction("syscall", types.int64(*(types.int64,) * 7))
# Write the time of a clock, seconds and nanoseconds, to an address.
clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))


class Words(Protocol):
    """Words at an address; in compiled code a pointer, without a length."""

    def __getitem__(self, place: int, /) -> int: ...

    def __setitem__(self, place: int, value: int, /) -> None: ...


def _pointer(builder: ir.IRBuilder, address: ir.Value, pointee: ir.Type) -> ir.Value:
    return builder.inttoptr(address, ir.PointerType(pointee))


@intrinsic
def load_acquire(typingctx: Context, address: types.Type) -> Compilation:
    """Read the word at an address; later memory accesses of the program are done after it."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        return builder.load_atomic(_pointer(builder, arguments[0], _WORD), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def store_release(typingctx: Context, address: types.Type, value: types.Type) -> Compilation:
    """Store a word; a thread that reads it by `load_acquire` sees everything that was stored before it."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        builder.store_atomic(arguments[1], _pointer(builder, arguments[0], _WORD), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def pause(typingctx: Context) -> Compilation:
    """Hint to the processor that this loop waits."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        name, values = {
            "x86_64": ("llvm.x86.sse2.pause", ()),
            "aarch64": ("llvm.aarch64.hint", (ir.Constant(ir.IntType(32), 1),)),
        }.get(builder.module.triple.partition("-")[0], (None, ()))
        if name:
            kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def call_python(
    typingctx: Context,
    function: types.Type,
    first: types.Type,
    second: types.Type,
    failed: types.Type,
    mark: types.Type,
    other_mark: types.Type,
) -> Compilation:
    """Call a Python function at an address (its `id`) with two integers.

    If the function raises, or a signal handler before its first line, the exception is raised here. Before that, 1 is
    stored at both marks, by a release, and the function is called once more, with `failed` as its first integer.
    """

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        python = context.get_python_api(builder)
        gil = python.gil_ensure()
        error = [cgutils.alloca_once(builder, python.pyobj) for _ in range(3)]

        def keep(name: str, kind: ir.Type, values: Sequence[ir.Value]) -> None:  # keep the error that is raised
            builder.call(
                cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), (kind,) * 3), name),
                values,
            )

        def call(number: ir.Value) -> ir.Value:
            integers = [python.long_from_longlong(value) for value in (number, arguments[2])]
            result = python.call_function_objargs(builder.inttoptr(arguments[0], python.pyobj), integers)
            for value in integers:
                python.decref(value)
            return result

        result = call(arguments[1])
        with builder.if_else(cgutils.is_null(builder, result)) as (raised, returned):
            with raised:
                for address in arguments[4:]:
                    builder.store_atomic(ir.Constant(_WORD, 1), _pointer(builder, address, _WORD), "release", 8)
                keep("PyErr_Fetch", ir.PointerType(python.pyobj), error)
                python.decref(call(arguments[3]))  # Py_XDECREF
                python.err_clear()
                keep("PyErr_Restore", python.pyobj, [builder.load(value) for value in error])
                python.gil_release(gil)
                context.call_conv.return_exc(builder)
            with returned:
                python.decref(result)
                python.gil_release(gil)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 6), codegen


@intrinsic
def copy(typingctx: Context, target: types.Type, source: types.Type, nbytes: types.Type) -> Compilation:
    """Copy bytes between addresses; the two ranges must not overlap."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        byte = ir.IntType(8)
        cgutils.raw_memcpy(builder, *(_pointer(builder, address, byte) for address in arguments[:2]), arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def clear(typingctx: Context, target: types.Type, nbytes: types.Type) -> Compilation:
    """Set bytes to zero."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        cgutils.memset(builder, _pointer(builder, arguments[0], ir.IntType(8)), arguments[1], 0)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _read_modify_write(operation: str) -> Compilation:
    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        return builder.atomic_rmw(operation, _pointer(builder, arguments[0], _WORD), arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def exchange_word(typingctx: Context, address: types.Type, value: types.Type) -> Compilation:
    """Store a word; return the word that was there."""
    return _read_modify_write("xchg")


@intrinsic
def add_word(typingctx: Context, address: types.Type, value: types.Type) -> Compilation:
    """Add to a word; return the word that was there."""
    return _read_modify_write("add")


@intrinsic
def replace_word(typingctx: Context, address: types.Type, expected: types.Type, value: types.Type) -> Compilation:
    """Store a word if the word that is there is the expected one; return whether it was."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        pair = builder.cmpxchg(_pointer(builder, arguments[0], _WORD), arguments[1], arguments[2], "seq_cst", "acquire")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic
def store(typingctx: Context, address: types.Type, value: types.Type) -> Compilation:
    """Store a scalar."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        data = context.data_model_manager[signature.args[1]].as_data(builder, arguments[1])
        builder.store(data, _pointer(builder, arguments[0], data.type))
        return context.get_dummy_value()

    return types.void(types.int64, value), codegen


@intrinsic
def load(typingctx: Context, address: types.Type, like: types.Type) -> Compilation:
    """Load a scalar of the type of `like`."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        model = context.data_model_manager[signature.args[1]]
        data = builder.load(_pointer(builder, arguments[0], model.get_data_type()))
        return model.from_data(builder, data)

    return like(types.int64, like), codegen


@intrinsic
def words(typingctx: Context, address: types.Type) -> Compilation:
    """Return an address as a pointer to words."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        return _pointer(builder, arguments[0], _WORD)

    return types.CPointer(types.int64)(types.int64), codegen


@intrinsic
def pointer(typingctx: Context, address: types.Type) -> Compilation:
    """Return an address as the pointer that numba's `carray` takes."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        return _pointer(builder, arguments[0], ir.IntType(8))

    return types.voidptr(types.int64), codegen


@intrinsic
def bits_to_float(typingctx: Context, bits: types.Type) -> Compilation:
    """Return the float64 with these bits."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), codegen


def address_of(array: np.ndarray) -> int:
    """Return the address of an array's first item, in Python and in compiled code."""
    try:
        address: int = MPI.Get_address(array)  # a tenth of the time that NumPy's interface takes
    except BufferError:  # the array is not contiguous
        address = array.__array_interface__["data"][0]
    return address


def line_zeros(nbytes: int) -> np.ndarray:
    """Make an array of zeros, of type uint8, that begins with a cache line."""
    room = np.zeros(nbytes + LINE, np.uint8)
    begin = -address_of(room) % LINE
    return room[begin : begin + nbytes]


def whole_lines(nbytes: int) -> int:
    """Round up to whole cache lines."""
    return -(-nbytes // LINE) * LINE


@overload(address_of)
def _address_compiled(array: Any) -> Callable[..., int]:
    def run(array: Any) -> int:
        return _address_of(array)

    return run


@intrinsic
def _address_of(typingctx: Context, array: types.Type) -> Compilation:
    """Return the address of an array, or of what `words` returns.

    No reference to the array is counted, which would cost as much as a flag.
    """

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        kind, content = signature.args[0], arguments[0]
        if not isinstance(kind, types.CPointer):
            content = context.make_array(kind)(context, builder, content).data
        return builder.ptrtoint(content, _WORD)

    return types.int64(array), codegen


@intrinsic
def call_function(
    typingctx: Context,
    function: types.Type,
    target: types.Type,
    first: types.Type,
    second: types.Type,
    count: types.Type,
) -> Compilation:
    """Call a C function at an address with four words, of which the function may take fewer."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        kind = ir.FunctionType(ir.VoidType(), (_WORD,) * 6)
        unused = ir.Constant(_WORD, 0)
        builder.call(_pointer(builder, arguments[0], kind), (*arguments[1:], unused, unused))
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 5), codegen


@intrinsic
def call_mpi(typingctx: Context, function: types.Type, words: types.Type) -> Compilation:
    """Call a function of the MPI library at an address, with a tuple of words: numbers, addresses and handles.

    Returns the function's error code. A function reads only as many words, and as many bytes of each word, as it takes,
    so a handle may be an integer or a pointer.
    """

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        address, given_words = arguments
        kind = ir.FunctionType(ir.IntType(32), (_WORD,) * len(words))
        values = [
            context.cast(builder, builder.extract_value(given_words, place), word_type, types.int64)
            for place, word_type in enumerate(words)
        ]
        return builder.sext(builder.call(_pointer(builder, address, kind), values), _WORD)

    return types.int64(types.int64, words), codegen


@intrinsic
def load_int(typingctx: Context, address: types.Type) -> Compilation:
    """Read the int of C at an address."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        number = ir.IntType(32)
        return builder.sext(builder.load(_pointer(builder, arguments[0], number), align=4), _WORD)

    return types.int64(types.int64), codegen


@njit
def sleep_while(address: int, word: int) -> None:
    """Sleep while a word, of which the lower half counts, is this one, until `wake` is called for it, or for no reason.

    On systems without a futex the sleep lasts 0.2 ms.
    """
    if _FUTEX:
        syscall(_FUTEX, address + _LOWER_HALF, _FUTEX_WAIT, word & _HALF, 0, 0, 0)
    else:
        usleep(200)


@njit
def wake(address: int, threads: int) -> None:
    """Wake up to `threads` threads that sleep in `sleep_while` on the word at an address."""
    if _FUTEX:
        syscall(_FUTEX, address + _LOWER_HALF, _FUTEX_WAKE, threads, 0, 0, 0)


@njit
def copy_item(target: int, source: int, nbytes: int) -> None:
    """Copy bytes; fast for eight of them."""
    if nbytes == 8:
        store(target, load(source, nbytes))
    else:
        copy(target, source, nbytes)


@njit
def clock_ns(place: int) -> int:
    """Return the nanoseconds of a monotonic clock; `place` is memory for two words."""
    clock_gettime(_MONOTONIC, place)
    time: Words = words(place)
    return time[0] * 1_000_000_000 + time[1]


@njit
def begin_wait(clock: int) -> None:
    """Begin to wait; `clock` is memory for three words."""
    words(clock)[2] = clock_ns(clock)


@njit
def waited(clock: int) -> bool:
    """Yield the core; return whether it is time to call Python again."""
    sched_yield()
    now = clock_ns(clock)
    if now - words(clock)[2] <= INTERVAL_NS:
        return False
    words(clock)[2] = now
    return True


# ---- prefetching ---------------------------------------------------------------------------------
#
# Prefetches cache lines.
#
# A processor prefetches by itself what a loop reads next, but stops at the end of each page of 4 KiB.

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
