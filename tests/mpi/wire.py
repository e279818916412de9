"""What goes over the wire: communicators that write down every MPI call that is made on them.

`Recorded` is an mpi4py communicator, and so are the duplicates and parts that the library makes of it. Each call is one
line: the communicator's number, in the order in which they were made, the function's name, and what the call is about
(bytes of its buffers, its root, its reduction), as far as that is the same in every run. Waiting for requests is not
written down: it sends nothing, and how often one looks is nobody's concern.
"""

from __future__ import annotations

import ctypes
from itertools import groupby
from typing import Any

import numpy as np
from mpi4py import MPI

from overlap.compiled.mpi import handle_of, mpi_function
from overlap.runtime.requests.signatures import PARAMETERS

_OPS = {getattr(MPI, name).handle: name for name in ("MAX", "MIN", "SUM")}
_PICKLED = ("allgather", "allreduce", "bcast", "gather", "barrier")
_PARTS = ("Split", "Split_type")


class Recorded(MPI.Intracomm):
    """A communicator that appends what is called on it to a list.

    Made of another one with `recorded`; shares its handle.
    """

    lines: list[str]
    names: list[int]  # of all that share the list: how many there are
    number: int

    def _made(self, comm: MPI.Intracomm) -> Any:
        return comm if comm == MPI.COMM_NULL else recorded(comm, self.lines, self.names)

    def Dup(self, *args: Any) -> Any:
        self.note("Dup", ())
        return self._made(super().Dup(*args))

    def note(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        """Write a call down."""
        described = [_described(value) for value in (*args, *(kwargs or {}).values())]
        self.lines.append(" ".join([f"{self.number} {name}", *filter(None, described)]))


def recorded(comm: MPI.Intracomm, lines: list[str], names: list[int] | None = None) -> Recorded:
    """Make a communicator that writes down the calls on it, and on those that are made of it."""
    made = Recorded(comm)
    made.lines, made.names = lines, [0] if names is None else names
    made.number = made.names[0]
    made.names[0] += 1
    _by_handle[handle_of(comm) % 2**64] = made
    return made


def compact(lines: list[str]) -> list[str]:
    """The lines, each with how often it follows itself."""
    return [line if (count := len(list(same))) == 1 else f"{line} x{count}" for line, same in groupby(lines)]


def _described(value: Any) -> str:
    """An argument, without what may differ between runs."""
    if value is MPI.IN_PLACE:
        return "in-place"
    if isinstance(value, MPI.Op):
        return _OPS.get(value.handle, "op")
    if value is None or isinstance(value, MPI.Status):
        return ""
    if isinstance(value, list | tuple):
        if len(value) > 2 and isinstance(value[1], list):  # of a vector collective: the counts say it all
            return " ".join(map(str, value[1]))
        return "[" + " ".join(filter(None, map(_described, value))) + "]"
    if isinstance(value, MPI.Datatype):
        return f"of {value.Get_size()}"
    if isinstance(value, int | np.integer):
        return str(value)
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        return "text"  # the report of what failed, with a traceback
    try:
        return f"{memoryview(value).nbytes}B"
    except TypeError:
        return ""  # an object that travels pickled


def _noted(name: str) -> Any:
    def method(self: Recorded, *args: Any, **kwargs: Any) -> Any:
        self.note(name, () if name in _PICKLED else args, {} if name in _PICKLED else kwargs)
        return getattr(MPI.Intracomm, name)(self, *args, **kwargs)

    return method


def _noted_part(name: str) -> Any:
    def method(self: Recorded, *args: Any, **kwargs: Any) -> Any:
        self.note(name, ())
        return self._made(getattr(MPI.Intracomm, name)(self, *args, **kwargs))

    return method


# ---- what compiled code calls by address -------------------------------------------------------

_WORDS = {"Allreduce": 6, "Iallreduce": 7, "Alltoallv": 9, "Ialltoallv": 10}
_by_handle: dict[int, Recorded] = {}
_kept: list[Any] = []  # functions whose addresses have been given away


def recording_function(name: str) -> int:
    """Address of a function of the MPI library, as of `mpi_function`, that writes down what it is called with."""
    if name not in _WORDS:
        return mpi_function(name)
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * _WORDS[name])
    real = kind(mpi_function(name))

    def called(*words: int) -> int:
        is_reduction = name.endswith("reduce")
        comm = _by_handle[words[5 if is_reduction else 8]]
        if is_reduction:
            op = next(one for one in (MPI.MIN, MPI.SUM) if handle_of(one) % 2**64 == words[4])
            comm.lines.append(f"{comm.number} {name} in-place {8 * words[2]}B {_OPS[op.handle]}")
        else:
            counts = [(ctypes.c_int * comm.size).from_address(words[place]) for place in (1, 5)]
            comm.lines.append(" ".join([f"{comm.number} {name}", *(str(count) for some in counts for count in some)]))
        return real(*words)

    function = kind(called)
    _kept.append(function)
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


# ---- what Python calls --------------------------------------------------------------------------


class _Kept(MPI.Prequest):
    """A persistent request whose starts are written down."""

    line = ""
    lines: list[str]

    def Start(self) -> None:
        self.lines.append(self.line)
        super().Start()


def _noted_kept(name: str) -> Any:
    def method(self: Recorded, *args: Any, **kwargs: Any) -> Any:
        self.note(f"{name}_init", args, kwargs)
        request = _Kept(getattr(MPI.Intracomm, f"{name}_init")(self, *args, **kwargs))
        request.lines, request.line = self.lines, f"{self.number} Start {name}"
        return request

    return method


for _name in PARAMETERS:
    setattr(Recorded, _name, _noted(_name))
    setattr(Recorded, "I" + _name.lower(), _noted("I" + _name.lower()))
    if hasattr(MPI.Intracomm, f"{_name}_init"):
        setattr(Recorded, f"{_name}_init", _noted_kept(_name))
for _name in _PICKLED:
    setattr(Recorded, _name, _noted(_name))
for _name in _PARTS:
    setattr(Recorded, _name, _noted_part(_name))
