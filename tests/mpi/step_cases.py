"""Tools of tests of plans: Python functions among a transform's steps, and other functions in place of MPI's."""

import ctypes
from contextlib import ExitStack, contextmanager
from unittest import mock

from overlap.compiled.mpi import mpi_function
from overlap.fft.engine import stage, staged
from overlap.fft.engine.steps import Call, Exchange, Split
from overlap.runtime import plan_call

WORDS = {"Alltoallv": 9, "Ialltoallv": 10}


def labels_of(step):
    """What a step is called; nothing for those that only wait."""
    parts = step.parts if isinstance(step, Split) else (step,)
    return {label for part in parts for label in getattr(part, "label", "").split(", ")}


def is_exchange(step):
    return isinstance(step, Exchange)


def forget(transform):
    """Let the next call of a transform be prepared anew."""
    transform.forget()


@contextmanager
def added(transform, at, do):
    """Meanwhile a transform calls ``do(task)``, on this rank, before each step with ``at(task, step)``."""
    steps_of = transform._steps_of

    def steps(task, slot, arrays):
        for step in steps_of(task, slot, arrays):
            if at(task, step):
                yield Call(lambda addresses: do(task), "test")
            yield step

    transform._steps_of = steps
    forget(transform)
    try:
        yield
    finally:
        del transform._steps_of
        forget(transform)


@contextmanager
def mpi_functions(replaced, *transforms):
    """Meanwhile transforms call ``replaced(name, real, *words)`` in place of MPI's functions for exchanges."""
    kinds = {name: ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * words) for name, words in WORDS.items()}
    functions = {}
    for name, kind in kinds.items():
        real = kind(mpi_function(name))
        functions[name] = kind(lambda *words, name=name, real=real: replaced(name, real, *words))

    def found(name):
        if name in functions:
            return ctypes.cast(functions[name], ctypes.c_void_p).value
        return mpi_function(name)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(plan_call, "mpi_function", found))
        for transform in transforms:
            forget(transform)
            stack.callback(forget, transform)
        yield


@contextmanager
def small_units(nbytes=2**16):
    """Small arrays have several units."""
    modules, before = (stage, staged), stage.UNIT_NBYTES
    for module in modules:
        module.UNIT_NBYTES = nbytes
    try:
        yield
    finally:
        for module in modules:
            module.UNIT_NBYTES = before


def grids(size):
    return [(P, size // P) for P in range(1, size + 1) if size % P == 0]
