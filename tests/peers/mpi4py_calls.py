"""pytest's plugin that runs mpi4py's tests of collectives on `Collectives`, or on slice programs of one slice.

``OVERLAP_CALLS`` says which: "collectives", or a runtime's way to wait.
"""

import os
from functools import partial

from mpi4py import MPI

import overlap
from overlap.collectives import Collectives

KIND = os.environ["OVERLAP_CALLS"]


class OnCollectives:
    """A communicator whose calls are those of `Collectives`, which take arrays without MPI's types."""

    def __init__(self, comm):
        self.comm, self.fast = comm, Collectives(comm)

    def __getattr__(self, name):
        call = getattr(self.fast, name)
        return lambda *messages, **named: call(*map(_array_of, messages), **named)

    def close(self):
        self.fast.free()


class OnSlices:
    """A communicator each of whose calls is awaited by a slice program of one slice."""

    def __init__(self, comm):
        self.comm, self.runtime = comm, overlap.Runtime(comm, wait=KIND)

    def __getattr__(self, name):
        call = getattr(self.runtime.comm, name)
        if name.endswith("_init"):
            return lambda *arguments, **named: _Persistent(self.runtime, call(*arguments, **named))
        if name.startswith("I"):
            return lambda *arguments, **named: _Started(self.runtime, partial(call, *arguments, **named))
        return lambda *arguments, **named: _run(self.runtime, partial(call, *arguments, **named))

    def close(self):
        self.runtime.close()


class _Started:
    """The request of a nonblocking call: a slice program starts it and awaits it later."""

    def __init__(self, runtime, call):
        self.runtime, self.call = runtime, call

    def Wait(self):
        _run(self.runtime, self.call, twice=True)


class _Persistent:
    """A persistent request, which a slice program awaits."""

    def __init__(self, runtime, request):
        self.runtime, self.request = runtime, request

    def Start(self):
        pass

    def Wait(self):
        _run(self.runtime, lambda: self.request)

    def Free(self):
        self.runtime.comm.persistent.remove(self.request)
        self.request.free()


def _run(runtime, call, twice=False):
    @runtime.pipelined
    async def program(number):
        pending = await call()
        if twice:
            await pending

    program(range(1))


def _array_of(message):
    return message[0] if isinstance(message, tuple) else message


class Communicator:
    """What stands for the attribute ``COMM`` of a class of tests, whichever communicator its tests set."""

    def __init__(self, comm):
        self.forward = _made(comm)

    def __get__(self, test, kind):
        return self.forward

    def __set__(self, test, comm):
        self.forward = _made(comm)


open_ones = []


def _made(comm):
    forward = (OnCollectives if KIND == "collectives" else OnSlices)(comm)
    forward.Get_size, forward.Get_rank = comm.Get_size, comm.Get_rank

    def free():
        open_ones.remove(forward)
        forward.close()
        comm.Free()

    forward.Free = free
    open_ones.append(forward)
    return forward


def pytest_collection_modifyitems(items):
    classes = {item.cls: item.cls.COMM for item in items if hasattr(item.cls, "COMM")}
    kept = {}
    for kind, comm in classes.items():
        if comm.handle not in kept:
            kept[comm.handle] = Communicator(comm)
        kind.COMM = kept[comm.handle] if "Dup" not in kind.__name__ else Communicator(comm)


def pytest_runtest_setup(item):
    """Leave out GPU arrays, and what `Collectives` refuses: arrays that are no buffers, long double in reductions."""
    arrays = item.module.arrayimpl
    arrays.ArrayBackends[:] = [one for one in arrays.ArrayBackends if one.backend not in ("numba", "cupy")]
    if KIND == "collectives":
        arrays.ArrayBackends[:] = [arrays.ArrayArray, arrays.ArrayNumPy]
        wide = {} if "educe" in item.name else {"g": MPI.LONG_DOUBLE, "G": MPI.C_LONG_DOUBLE_COMPLEX}
        for name in "gG":
            arrays.ArrayNumPy.TypeMap.pop(name, None)
        arrays.ArrayNumPy.TypeMap.update(wide)


def pytest_sessionfinish():
    while open_ones:
        open_ones.pop().close()
