"""Tools of tests of plans: Python functions among a transform's steps, and other functions in place of MPI's."""

import ctypes
from contextlib import ExitStack, contextmanager
from unittest import mock

from mpi4py import MPI

from overlap.compiled.mpi import mpi_function
from overlap.fft.engine import stage, staged
from overlap.fft.engine.steps import Call, Exchange, Split
from overlap.runtime import plan_call

EXCHANGES = {"Alltoallv": 9, "Ialltoallv": 10}  # numbers of arguments
REDUCTIONS = {"Allreduce": 6, "Iallreduce": 7}


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
def mpi_functions(replaced, *transforms, names=EXCHANGES):
    """Meanwhile transforms call ``replaced(name, real, *words)`` in place of MPI's functions with these names."""
    kinds = {name: ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * words) for name, words in names.items()}
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


# ---- failures ----


class Boom(Exception):
    """Injected."""


@contextmanager
def failing(kind, name, when, make=None):
    """Let a function of a class or module raise once, at a call with ``when(number, *args)``: a Boom, or ``make()``."""
    original = getattr(kind, name)
    state = {"calls": 0, "raised": 0}

    def method(*args, **kwargs):
        number = state["calls"]
        state["calls"] += 1
        if not state["raised"] and when(number, *args):
            state["raised"] += 1
            raise make() if make else Boom(f"{name}, call {number}")
        return original(*args, **kwargs)

    setattr(kind, name, method)
    try:
        yield state
    finally:
        setattr(kind, name, original)


@contextmanager
def step_fails(transform, label, when=lambda task: True):
    """Let a step with this label raise once, of a slice with ``when(task)``; without a label, an exchange."""
    state = {"raised": 0}

    def at(task, step):
        named = is_exchange(step) if label is None else label in labels_of(step)
        return named and when(task)

    def fail(task):
        if not state["raised"]:
            state["raised"] += 1
            raise Boom(f"{label}, {task}")

    with added(transform, at, fail):
        yield state


@contextmanager
def mpi_fails(transform, number):
    """Let MPI reject an exchange once, the one with this number in the next call."""
    state = {"calls": 0, "raised": 0}

    def rejected(name, real, *words):
        state["calls"] += 1
        if state["calls"] == number + 1:
            state["raised"] += 1
            return MPI.ERR_COUNT
        return real(*words)

    with mpi_functions(rejected, transform):
        yield state


@contextmanager
def nothing_fails():
    yield {"raised": 0}


def sites_of(transform, z):
    """Places in which a transform can fail at slice `z`, as context managers by name."""

    def has(task):
        return task.part.start <= z < task.part.stop

    if transform.runtime.comm.size == 1:
        yield "local", lambda: step_fails(transform, "local", has), True
        return
    for name in ("pack", "unpack"):
        yield name, lambda name=name: step_fails(transform, name, has), True
    yield "exchange", lambda: step_fails(transform, None, has), False
    yield "MPI call", lambda: mpi_fails(transform, z), False
