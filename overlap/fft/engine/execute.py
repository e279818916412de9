"""The compiled loop that executes a `Program`, without the GIL.

A program is an array of instructions, one per row (see `program`, which writes them). Addresses are
those of the bases plus offsets, so one program serves all arrays of one shape and strides. The loop knows
nothing of arrays' bounds: what a program reads and writes is checked where it is written.
"""

from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from ...compiled import njit

COPY, ZERO, ADD, CALL, REPEAT = range(5)
# Columns of an instruction. Lengths count elements; of the innermost axis of a copy of runs, bytes.
OPERATION = 0
SOURCE, SOURCE_OFFSET, SOURCE_STEP = 1, 2, 3  # a base's number, and bytes
TARGET, TARGET_OFFSET, TARGET_STEP = 4, 5, 6
LENGTHS, SOURCE_STRIDES, TARGET_STRIDES = 7, 11, 15  # of four axes each
ELEMENT = 19  # bytes of an element, or 0 where the innermost axis is a contiguous run
SCALE = 20  # bits of a float64, in a copy of runs of real numbers of `PRECISION` bytes
PRECISION = 21  # 0: not scaled
FUNCTION, ARGUMENT = 7, 8  # of a call: ``function(argument, source, target)``
COUNT, BODY = 7, 8  # of a repetition: how often, and of how many instructions that follow
WIDTH = 22
TILE = 16  # elements along both innermost axes of a copy that transposes


@intrinsic
def call(typing, function, argument, source, target):
    """Call a C function of three addresses by its address."""

    def generate(context, builder, signature, arguments):
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word] * 3)
        address, *given = arguments
        builder.call(builder.inttoptr(address, kind.as_pointer()), given)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def _move(typing, target, source, nbytes):
    """Copy bytes from an address to another, where they do not overlap."""

    def generate(context, builder, signature, arguments):
        byte = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(address, byte) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _clear(typing, target, nbytes):
    """Set bytes to zero."""

    def generate(context, builder, signature, arguments):
        target = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        cgutils.memset(builder, target, arguments[1], 0)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _loads(kind):
    @intrinsic
    def load(typing, address):
        def generate(context, builder, signature, arguments):
            pointer = context.get_value_type(kind).as_pointer()
            return builder.load(builder.inttoptr(arguments[0], pointer))

        return kind(types.int64), generate

    return load


def _stores(kind):
    @intrinsic
    def store(typing, address, value):
        def generate(context, builder, signature, arguments):
            pointer = context.get_value_type(kind).as_pointer()
            builder.store(arguments[1], builder.inttoptr(arguments[0], pointer))
            return context.get_dummy_value()

        return types.void(types.int64, kind), generate

    return store


@intrinsic
def _bits_to_float(typing, bits):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def pointer(typing, address):
    """Take an address as numba's `carray` takes it."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


_load_word, _store_word = _loads(types.int64), _stores(types.int64)
_load_half, _store_half = _loads(types.int32), _stores(types.int32)
_load_double, _store_double = _loads(types.float64), _stores(types.float64)
_load_single, _store_single = _loads(types.float32), _stores(types.float32)


@njit(inline="always")
def _element(target, source, nbytes):
    if nbytes == 16:
        _store_word(target, _load_word(source))
        _store_word(target + 8, _load_word(source + 8))
    elif nbytes == 8:
        _store_word(target, _load_word(source))
    else:
        _store_half(target, _load_half(source))


@njit(inline="always")
def _scaled(target, source, nbytes, scale, precision):
    """Copy an element, times a number; complex ones have two of `precision` bytes."""
    if precision == 8:
        _store_double(target, scale * _load_double(source))
        if nbytes == 16:
            _store_double(target + 8, scale * _load_double(source + 8))
    else:
        factor = types.float32(scale)
        _store_single(target, factor * _load_single(source))
        if nbytes == 8:
            _store_single(target + 4, factor * _load_single(source + 4))


@njit
def _scaled_run(target, source, nbytes, scale, precision):
    if precision == 8:
        count = nbytes // 8
        there = carray(pointer(target), count, types.float64)
        here = carray(pointer(source), count, types.float64)
        for i in range(count):
            there[i] = scale * here[i]
    else:
        count = nbytes // 4
        factor = types.float32(scale)
        single = carray(pointer(target), count, types.float32)
        other = carray(pointer(source), count, types.float32)
        for i in range(count):
            single[i] = factor * other[i]


@njit
def _plane(target, source, line):
    """Copy the two innermost axes, tile by tile: one may be contiguous here and the other there."""
    rows, columns = line[LENGTHS + 2], line[LENGTHS + 3]
    by_row, by_column = line[SOURCE_STRIDES + 2], line[SOURCE_STRIDES + 3]
    to_row, to_column = line[TARGET_STRIDES + 2], line[TARGET_STRIDES + 3]
    nbytes, precision = line[ELEMENT], line[PRECISION]
    scale = _bits_to_float(line[SCALE])
    for top in range(0, rows, TILE):
        bottom = min(top + TILE, rows)
        for left in range(0, columns, TILE):
            right = min(left + TILE, columns)
            for row in range(top, bottom):
                here = source + row * by_row + left * by_column
                there = target + row * to_row + left * to_column
                if precision:
                    for _ in range(left, right):
                        _scaled(there, here, nbytes, scale, precision)
                        here += by_column
                        there += to_column
                elif nbytes == 16:
                    for _ in range(left, right):
                        _element(there, here, 16)
                        here += by_column
                        there += to_column
                else:
                    for _ in range(left, right):
                        _element(there, here, nbytes)
                        here += by_column
                        there += to_column


@njit
def _copy(target, source, line):
    nbytes, precision = line[LENGTHS + 3], line[PRECISION]
    scale = _bits_to_float(line[SCALE])
    for i in range(line[LENGTHS]):
        for j in range(line[LENGTHS + 1]):
            here = source + i * line[SOURCE_STRIDES] + j * line[SOURCE_STRIDES + 1]
            there = target + i * line[TARGET_STRIDES] + j * line[TARGET_STRIDES + 1]
            if line[ELEMENT]:
                _plane(there, here, line)
                continue
            for _ in range(line[LENGTHS + 2]):
                if precision:
                    _scaled_run(there, here, nbytes, scale, precision)
                else:
                    _move(there, here, nbytes)
                here += line[SOURCE_STRIDES + 2]
                there += line[TARGET_STRIDES + 2]


@njit
def _zero(target, line):
    nbytes = line[ELEMENT]
    for i in range(line[LENGTHS]):
        for j in range(line[LENGTHS + 1]):
            for k in range(line[LENGTHS + 2]):
                there = target + i * line[TARGET_STRIDES] + j * line[TARGET_STRIDES + 1] + k * line[TARGET_STRIDES + 2]
                if nbytes == 0:
                    _clear(there, line[LENGTHS + 3])
                    continue
                for _ in range(line[LENGTHS + 3]):
                    _clear(there, nbytes)
                    there += line[TARGET_STRIDES + 3]


@njit
def _add(target, source, line):
    """Add elements to others, where their numbers have `PRECISION` bytes."""
    nbytes, precision = line[ELEMENT], line[PRECISION]
    for i in range(line[LENGTHS]):
        for j in range(line[LENGTHS + 1]):
            for k in range(line[LENGTHS + 2]):
                here = source + i * line[SOURCE_STRIDES] + j * line[SOURCE_STRIDES + 1] + k * line[SOURCE_STRIDES + 2]
                there = target + i * line[TARGET_STRIDES] + j * line[TARGET_STRIDES + 1] + k * line[TARGET_STRIDES + 2]
                for _ in range(line[LENGTHS + 3]):
                    for at in range(0, nbytes, precision):
                        if precision == 8:
                            _store_double(there + at, _load_double(there + at) + _load_double(here + at))
                        else:
                            _store_single(there + at, _load_single(there + at) + _load_single(here + at))
                    here += line[SOURCE_STRIDES + 3]
                    there += line[TARGET_STRIDES + 3]


@njit
def execute(program, bases):
    """Execute a program.

    Parameters
    ----------
    program : ndarray of int64, (instructions, WIDTH)
    bases : ndarray of int64
        Addresses, by the numbers that the program's views were given.
    """
    at = 0
    while at < len(program):
        count, body = 1, 1
        if program[at, OPERATION] == REPEAT:
            count, body = program[at, COUNT], program[at, BODY]
            at += 1
        for turn in range(count):
            for number in range(at, at + body):
                line = program[number]
                source = bases[line[SOURCE]] + line[SOURCE_OFFSET] + turn * line[SOURCE_STEP]
                target = bases[line[TARGET]] + line[TARGET_OFFSET] + turn * line[TARGET_STEP]
                operation = line[OPERATION]
                if operation == COPY:
                    _copy(target, source, line)
                elif operation == CALL:
                    call(line[FUNCTION], line[ARGUMENT], source, target)
                elif operation == ZERO:
                    _zero(target, line)
                else:
                    _add(target, source, line)
        at += body


@intrinsic
def exchange_word(typing, address, value):
    """Store a word; the one that was there."""

    def generate(context, builder, signature, arguments):
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("xchg", place, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate
