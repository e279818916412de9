"""The compiled loop that executes a `CompiledProgram`, without the GIL.

A program is an array of instructions, one per row (see `fft.engine.program`, which writes them): rows of copies, as in
`copy_table`, and others of the same form. Addresses are those of the bases plus offsets, so one program serves
all arrays of one shape and strides. The loop does not know the bounds of arrays; they are checked when a program is
written.
"""

from typing import Any

import numpy as np
from numba import types

from . import CFunction, njit
from .copy_table import (
    ELEMENT,
    LENGTHS,
    OPERATION,
    OTHERS,
    PRECISION,
    SOURCE,
    SOURCE_OFFSET,
    SOURCE_STEP,
    SOURCE_STRIDES,
    TARGET,
    TARGET_OFFSET,
    TARGET_STEP,
    TARGET_STRIDES,
    WIDTH,
    copied,
)
from .memory import call_function, carray, clear, load, store, words

ZERO, ADD, CALL, REPEAT = range(OTHERS, OTHERS + 4)
FUNCTION, ARGUMENT = 7, 8  # columns of a call: ``function(argument, source, target)``
COUNT, BODY = 7, 8  # columns of a repetition: the count, and the number of instructions that follow and are repeated


@njit
def _zero(target: int, line: np.ndarray) -> None:
    nbytes = line[ELEMENT]
    for i in range(line[LENGTHS]):
        for j in range(line[LENGTHS + 1]):
            for k in range(line[LENGTHS + 2]):
                to_at = target + i * line[TARGET_STRIDES] + j * line[TARGET_STRIDES + 1] + k * line[TARGET_STRIDES + 2]
                if nbytes == 0:
                    clear(to_at, line[LENGTHS + 3])
                    continue
                for _ in range(line[LENGTHS + 3]):
                    clear(to_at, nbytes)
                    to_at += line[TARGET_STRIDES + 3]


@njit
def _add(target: int, source: int, line: np.ndarray) -> None:
    """Add elements, whose real numbers have `PRECISION` bytes, to others."""
    nbytes, precision = line[ELEMENT], line[PRECISION]
    for i in range(line[LENGTHS]):
        for j in range(line[LENGTHS + 1]):
            for k in range(line[LENGTHS + 2]):
                from_at = (
                    source + i * line[SOURCE_STRIDES] + j * line[SOURCE_STRIDES + 1] + k * line[SOURCE_STRIDES + 2]
                )
                to_at = target + i * line[TARGET_STRIDES] + j * line[TARGET_STRIDES + 1] + k * line[TARGET_STRIDES + 2]
                for _ in range(line[LENGTHS + 3]):
                    for at in range(0, nbytes, precision):
                        if precision == 8:
                            store(to_at + at, load(to_at + at, 0.0) + load(from_at + at, 0.0))
                        else:
                            store(to_at + at, load(to_at + at, np.float32(0)) + load(from_at + at, np.float32(0)))
                    from_at += line[SOURCE_STRIDES + 3]
                    to_at += line[TARGET_STRIDES + 3]


@njit
def execute(program: np.ndarray, bases: np.ndarray) -> None:
    """Execute a program.

    Parameters
    ----------
    program : ndarray of int64, (instructions, WIDTH)
    bases : ndarray of int64
        Addresses of the bases, by their numbers.
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
                if operation < OTHERS:
                    copied(line, source, target)
                elif operation == CALL:
                    call_function(line[FUNCTION], line[ARGUMENT], source, target, 0)
                elif operation == ZERO:
                    _zero(target, line)
                else:
                    _add(target, source, line)
        at += body


def _executed(program: Any, count: Any, bases: Any) -> None:
    execute(carray(words(program), (count, WIDTH)), carray(words(bases), (1 << 20,)))


# `execute` for callers that call it by its address, given the addresses of instructions, their number and the address
# of the bases: numba would compile it anew in each function that calls it.
EXECUTE = CFunction(_executed, types.void(types.int64, types.int64, types.int64))
