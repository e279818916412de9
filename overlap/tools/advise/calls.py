"""Communicators and requests of mpi4py that record their calls.

The classes are subclasses of mpi4py's, made when mpi4py has been imported. What is made from a recording communicator
records, too.
"""

from __future__ import annotations

import copyreg
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from .recorder import Arguments, Recorder, like
from .records import (
    ALL,
    COMPLETION,
    END,
    FROM_ROOT,
    LOCAL,
    NEIGHBOURS,
    PART,
    PREFIX,
    RECEIVE,
    SEND,
    SITE,
    START,
    TO_ROOT,
    UNKNOWN,
)


class _Replacing(type):
    """The type of classes that stand in place of mpi4py's: they are equal to these, and have the same instances."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__dict__.get("_original", ())) or super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: Any) -> bool:
        return issubclass(subclass, cls.__dict__.get("_original", ())) or super().__subclasscheck__(subclass)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.__dict__.get("_original", cls)

    def __hash__(cls) -> int:
        return type.__hash__(cls.__dict__.get("_original", cls))


def replacing(base: type, slots: tuple[str, ...], methods: dict[str, Any]) -> type:
    """Make a class that stands in place of one of mpi4py's."""
    own = {"__module__": base.__module__, "__doc__": base.__doc__, "__slots__": slots, "_original": base}
    return _Replacing(base.__name__, (base,), own | methods)


# Collectives by the ranks for which they wait, and the position of the root among their arguments.
COLLECTIVES = {
    **dict.fromkeys(("Barrier", "Allgather", "Allgatherv", "Alltoall", "Alltoallv", "Alltoallw", "Allreduce"), ALL),
    **dict.fromkeys(("Reduce_scatter_block", "Reduce_scatter"), ALL),
    **dict.fromkeys(("Bcast", "Scatter", "Scatterv"), FROM_ROOT),
    **dict.fromkeys(("Gather", "Gatherv", "Reduce"), TO_ROOT),
    **dict.fromkeys(("Scan", "Exscan"), PREFIX),
    **dict.fromkeys((f"Neighbor_{name}" for name in ("allgather", "allgatherv")), NEIGHBOURS),
    **dict.fromkeys((f"Neighbor_{name}" for name in ("alltoall", "alltoallv", "alltoallw")), NEIGHBOURS),
}
ROOTS = {"Bcast": 2, "Gather": 3, "Gatherv": 3, "Scatter": 3, "Scatterv": 3, "Reduce": 4}
PICKLED_ROOTS = {"bcast": 2, "gather": 2, "scatter": 2, "reduce": 3}
SENDS = ("Send", "Bsend", "Ssend", "Rsend")
RECEIVES = (  # positions of the status and of the source
    *(("Recv", 4, 2), ("recv", 4, 2)),
    *(("Sendrecv", 7, 5), ("sendrecv", 7, 5), ("Sendrecv_replace", 6, 4)),
)
CREATIONS = {
    **dict.fromkeys(("Dup", "Dup_with_info", "Clone", "Create", "Split", "Split_type", "Sub"), ALL),
    **dict.fromkeys(("Create_cart", "Create_graph", "Create_dist_graph_adjacent", "Create_dist_graph"), ALL),
    **dict.fromkeys(("Create_group", "Create_intercomm", "Merge", "Shrink"), LOCAL),  # not all ranks, or not in order
    **dict.fromkeys(("Spawn", "Spawn_multiple", "Accept", "Connect"), LOCAL),
}
OF_NO_RANK = ("Probe", "Mprobe", "probe", "mprobe")
BUFFERS = ("sendbuf", "buf", "recvbuf")

# Which of the requests a call has completed, by what it has returned.
COMPLETED: dict[str, Callable[[Any, Any], Any]] = {
    "Wait": lambda requests, result: requests,
    "wait": lambda requests, result: requests,
    "Test": lambda requests, result: requests if result else (),
    "test": lambda requests, result: requests if result[0] else (),
    "Waitall": lambda requests, result: requests,
    "waitall": lambda requests, result: requests,
    "Testall": lambda requests, result: requests if result else (),
    "testall": lambda requests, result: requests if result[0] else (),
    "Waitany": lambda requests, result: _at(requests, [result]),
    "waitany": lambda requests, result: _at(requests, [result[0]]),
    "Testany": lambda requests, result: _at(requests, [result[0]]) if result[1] else (),
    "testany": lambda requests, result: _at(requests, [result[0]]) if result[1] else (),
    "Waitsome": lambda requests, result: _at(requests, result or ()),
    "waitsome": lambda requests, result: _at(requests, result[0] or ()),
    "Testsome": lambda requests, result: _at(requests, result or ()),
    "testsome": lambda requests, result: _at(requests, result[0] or ()),
}
OF_SEVERAL = {name for name in COMPLETED if name[4:]} | {"Startall"}  # methods of the class


def _at(requests: Any, indices: Any) -> list[Any]:
    return [requests[index] for index in indices if 0 <= index < len(requests)]


def nbytes(message: Any) -> int:
    """Count the bytes of a buffer as mpi4py takes it: an object with a buffer, or a list of it, counts and types.

    Parameters
    ----------
    message : object

    Returns
    -------
    int
    """
    if not isinstance(message, (list, tuple)):
        if message is None:
            return 0
        return int(message.nbytes if hasattr(message, "nbytes") else memoryview(message).nbytes)
    buffer, *rest = message
    types: Any = rest.pop() if rest and _is_type(rest[-1]) else None
    counts: Any = rest[0] if rest else None
    if isinstance(counts, tuple):
        counts = counts[0]  # (counts, displacements)
    if counts is None:
        return sum(map(_size, types)) if _is_sequence(types) else nbytes(buffer)  # one item of each type
    if _is_sequence(types):
        return sum(int(count) * _size(each) for count, each in zip(counts, types))
    size = memoryview(buffer).itemsize if types is None else _size(types)
    return (counts if isinstance(counts, int) else int(sum(counts))) * size


def _is_type(value: Any) -> bool:
    return hasattr(value, "Get_size") or isinstance(value, str) or (_is_sequence(value) and _is_type(value[0]))


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple, np.ndarray)) and len(value) > 0


def _size(datatype: Any) -> int:
    return np.dtype(datatype).itemsize if isinstance(datatype, str) else int(datatype.Get_size())


_NAMED = ("COMM_WORLD", "COMM_SELF")
LONGEST_PAUSE_S = 1e-5  # between two calls of `Test` that count as one wait

Ranks = tuple[int, int, int, int]  # of a row, from the kind on
Description = tuple[float, int, int, int, int]  # and the number of bytes before it
About = Callable[[Arguments, dict[str, Any]], Ranks | None]  # None: the call is to no rank, and does nothing
Describe = Callable[[Arguments, dict[str, Any]], Description]
NO_RANKS: Ranks = (LOCAL, UNKNOWN, UNKNOWN, 0)
NOTHING: Description = (0, *NO_RANKS)


def _argument(args: Arguments, kwargs: dict[str, Any], position: int, name: str, default: Any = None) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def _number(comm: Any) -> int:
    """Return the number of a communicator, which one that was made in an unknown way has not."""
    return getattr(comm, "_number", UNKNOWN)


class Classes:
    """Classes that record, for one `Recorder`, and their installation in `mpi4py.MPI`.

    Parameters
    ----------
    MPI : module
    recorder : Recorder
    """

    def __init__(self, MPI: Any, recorder: Recorder) -> None:
        self.MPI = MPI
        self.recorder = recorder
        self.rows = recorder.rows
        self.persistent = self._request_class(MPI.Prequest)
        self.request = self._request_class(MPI.Request)
        names = ("Intracomm", "Cartcomm", "Graphcomm", "Distgraphcomm", "Intercomm")
        self.comms = {getattr(MPI, name): self._comm_class(getattr(MPI, name)) for name in names}

    def install(self, fresh: bool) -> None:
        """Replace the classes of requests of `mpi4py.MPI`, and count what it pickles.

        Parameters
        ----------
        fresh : bool
            Nobody can have changed the functions with which mpi4py pickles.
        """
        self._replace(Request=self.request, Prequest=self.persistent)
        if fresh:
            self._count_pickles()

    def begin(self) -> None:
        """Replace COMM_WORLD and COMM_SELF of `mpi4py.MPI`; MPI must have been initialized."""
        recording = self.comms[self.MPI.Intracomm]
        for name in _NAMED:
            comm = recording(getattr(self.MPI, name))
            self._replace(**{name: comm})
            comm._number = self.recorder.number(comm, UNKNOWN)
        copyreg.pickle(self.MPI.Intracomm, self._reduced)

    def _replace(self, **objects: Any) -> None:
        """Replace objects of `mpi4py.MPI` there, and in all modules that have imported them."""
        for name, new in objects.items():
            old = getattr(self.MPI, name)
            for module in list(sys.modules.values()):
                names: Any = getattr(module, "__dict__", None)
                for own, value in list(names.items()) if isinstance(names, dict) else ():
                    if value is old:
                        names[own] = new

    def _count_pickles(self) -> None:
        """Let mpi4py's pickles be counted; the functions are those that it uses by default."""
        recorder = self.recorder

        def dumps(obj: Any, *options: Any) -> bytes:
            data = pickle.dumps(obj, *options)
            recorder.dumped += len(data)
            return data

        def loads(data: Any) -> Any:
            recorder.loaded += len(data)
            return pickle.loads(data)

        self.MPI.pickle.__init__(dumps, loads, self.MPI.pickle.PROTOCOL)

    # ---- communicators

    def _comm_class(self, base: type) -> type:
        methods = {name: make(name, getattr(base, name)) for name, make in self._methods() if hasattr(base, name)}

        def free(comm: Any) -> None:
            if not any(comm is getattr(self.MPI, name) for name in _NAMED):  # mpi4py keeps its constants
                base.free(comm)  # type: ignore[attr-defined]

        methods |= {"__reduce__": self._reduced, "free": like(free, base.free)}  # type: ignore[attr-defined]
        return replacing(base, ("_number",), methods)

    def _reduced(self, comm: Any) -> Any:
        """Say how a communicator is pickled: by its name in `mpi4py.MPI`, or as a copy of the one that has a name.

        mpi4py knows only its own objects by these names.
        """
        MPI = self.MPI
        for name in _NAMED:
            named = getattr(MPI, name)
            if comm == named:
                return name if comm is named else (MPI.Intracomm, (named,))
        raise ValueError(f"cannot serialize 'mpi4py.MPI.{type(comm).__name__}' instance")

    def _methods(self) -> Iterator[tuple[str, Callable[[str, Any], Any]]]:
        """Name the methods that record, and the functions that make them from mpi4py's."""
        for name, kind in COLLECTIVES.items():
            about = self._collective(kind, ROOTS.get(name))
            yield from self._ways(name, about)
            yield name.lower(), self._blocking(self._collective(kind, PICKLED_ROOTS.get(name.lower())))
        for name in SENDS:
            yield from self._ways(name, self._send)
            yield name.lower(), self._blocking(self._send)
            yield f"i{name.lower()}", self._starting(self._send)
        yield from (("Irecv", self._starting(self._receive)), ("irecv", self._starting(self._receive)))
        yield "Recv_init", self._making(self._receive)
        for name, *positions in RECEIVES:
            yield name, self._receiving(*positions)
        yield from ((name, self._starting(self._unknown)) for name in ("Isendrecv", "Isendrecv_replace"))
        yield from ((name, self._blocking(self._unknown)) for name in OF_NO_RANK)
        yield from ((name, self._creating(kind)) for name, kind in CREATIONS.items())

    def _ways(self, name: str, about: About) -> Iterator[tuple[str, Callable[[str, Any], Any]]]:
        """Name the blocking, the nonblocking and the persistent form of an operation."""
        yield name, self._blocking(about)
        yield f"I{name.lower()}", self._starting(about)
        yield f"{name}_init", self._making(about)

    def _blocking(self, about: About) -> Callable[[str, Any], Any]:
        append = self.rows.append

        def make(name: str, method: Any) -> Any:
            describe = self._describing(name, about)

            def write(site: int, start_s: float, end_s: float, args: Arguments, kwargs: Any, result: Any) -> Any:
                append((site, start_s, end_s, *describe(args, kwargs)))
                return result

            return self.recorder.recording(name, method, write)

        return make

    def _starting(self, about: About) -> Callable[[str, Any], Any]:
        rows, request = self.rows, self.request

        def make(name: str, method: Any) -> Any:
            describe = self._describing(name, about)

            def write(site: int, start_s: float, end_s: float, args: Arguments, kwargs: Any, result: Any) -> Any:
                started = request(result)
                started._row = len(rows)
                rows.append((site, start_s, end_s, *describe(args, kwargs)))
                return started

            return self.recorder.recording(name, method, write)

        return make

    def _making(self, about: About) -> Callable[[str, Any], Any]:
        """Make the maker of methods that make persistent requests, whose starts are recorded."""

        def make(name: str, method: Any) -> Any:
            describe, persistent = self._describing(name, about), self.persistent

            def made(*args: Any, **kwargs: Any) -> Any:
                request = persistent(method(*args, **kwargs))
                request._call = describe(args, kwargs)
                return request

            return like(made, method)

        return make

    def _receiving(self, status_at: int, source_at: int) -> Callable[[str, Any], Any]:
        """Make the maker of methods that receive, with or without a send; the status names the sender."""
        MPI, rows = self.MPI, self.rows

        def with_status(args: Arguments, kwargs: dict[str, Any]) -> tuple[Arguments, dict[str, Any]]:
            if _argument(args, kwargs, status_at, "status") is not None:
                return args, kwargs
            if len(args) > status_at:
                return (*args[:status_at], MPI.Status()), kwargs
            return args, kwargs | {"status": MPI.Status()}

        def make(name: str, method: Any) -> Any:
            sends = name.lower().startswith("sendrecv")
            describe = self._describing(name, self._sendrecv if sends else self._receive)

            def write(site: int, start_s: float, end_s: float, args: Arguments, kwargs: Any, result: Any) -> Any:
                description = describe(args, kwargs)
                came: Ranks = NO_RANKS
                if _argument(args, kwargs, source_at, "source", MPI.ANY_SOURCE) != MPI.PROC_NULL:
                    status = _argument(args, kwargs, status_at, "status")
                    came = RECEIVE, _number(args[0]), status.Get_source(), status.Get_tag()
                if sends:
                    rows.append((site, start_s, end_s, *description))
                    rows.append((PART, start_s, end_s, 0, *came))
                else:
                    rows.append((site, start_s, end_s, description[0], *came))
                return result

            return self.recorder.recording(name, method, write, with_status)

        return make

    def _creating(self, kind: int) -> Callable[[str, Any], Any]:
        rows = self.rows

        def make(name: str, method: Any) -> Any:
            def write(site: int, start_s: float, end_s: float, args: Arguments, kwargs: Any, result: Any) -> Any:
                rows.append((site, start_s, end_s, 0, kind, _number(args[0]), UNKNOWN, 0))
                return self._made(result, args[0])

            return self.recorder.recording(name, method, write)

        return make

    def _made(self, comm: Any, parent: Any) -> Any:
        """Let a communicator that was made from another one record, too; return it."""
        if comm:
            recording = self.comms.get(type(comm), type(comm))
            comm = comm if type(comm) is recording else recording(comm)
            if isinstance(comm, self.MPI.Intracomm):
                with suppress(Exception):  # a communicator that cannot be asked is not tabulated
                    comm._number = self.recorder.number(comm, _number(parent))
        return comm

    # ---- what a call is about

    def _describing(self, name: str, about: About) -> Describe:
        """Make the function that describes a call without ever failing."""
        recorder, in_place, pickled = self.recorder, self.MPI.IN_PLACE, name.islower()

        def size(args: Arguments, kwargs: dict[str, Any]) -> float:
            """Count the bytes of the first buffer, or of the second if the first is none (in place, not the root)."""
            for message in (*args[1:3], *[kwargs[name] for name in BUFFERS if name in kwargs]) if kwargs else args[1:3]:
                if message is not None and message is not in_place:
                    return nbytes(message)
            return 0

        def describe(args: Arguments, kwargs: dict[str, Any]) -> Description:
            try:
                ranks = about(args, kwargs)
                if pickled:
                    bytes_of = recorder.dumped or recorder.loaded
                    recorder.dumped = recorder.loaded = 0
                    return bytes_of, *(ranks or NO_RANKS)
                return NOTHING if ranks is None else (size(args, kwargs), *ranks)
            except Exception:  # mpi4py has taken the arguments, whatever they are
                return NOTHING

        return describe

    def _collective(self, kind: int, root: int | None) -> About:
        def about(args: Arguments, kwargs: dict[str, Any]) -> Ranks:
            at = UNKNOWN if root is None else _argument(args, kwargs, root, "root", 0)
            return kind, _number(args[0]), at, 0

        return about

    def _send(self, args: Arguments, kwargs: dict[str, Any], tag: str = "tag") -> Ranks | None:
        peer = _argument(args, kwargs, 2, "dest")
        if peer == self.MPI.PROC_NULL:
            return None
        return SEND, _number(args[0]), peer, _argument(args, kwargs, 3, tag, 0)

    def _sendrecv(self, args: Arguments, kwargs: dict[str, Any]) -> Ranks | None:
        return self._send(args, kwargs, "sendtag")

    def _receive(self, args: Arguments, kwargs: dict[str, Any]) -> Ranks | None:
        MPI = self.MPI
        peer = _argument(args, kwargs, 2, "source", MPI.ANY_SOURCE)
        tag = _argument(args, kwargs, 3, "tag", MPI.ANY_TAG)
        if peer == MPI.PROC_NULL:
            return None
        peer = UNKNOWN if peer == MPI.ANY_SOURCE else peer
        return RECEIVE, _number(args[0]), peer, UNKNOWN if tag == MPI.ANY_TAG else tag

    def _unknown(self, args: Arguments, kwargs: dict[str, Any]) -> Ranks:
        return NO_RANKS

    # ---- requests

    def _request_class(self, base: type) -> type:
        methods = {name: self._completing(name, getattr(base, name), which) for name, which in COMPLETED.items()}
        if base is self.MPI.Prequest:
            methods |= {name: self._restarting(name, getattr(base, name)) for name in ("Start", "Startall")}
        methods |= {name: self._from_handle(getattr(base, name)) for name in ("fromhandle", "fromint", "f2py")}
        return replacing(base, ("_row", "_call"), methods)

    def _from_handle(self, method: Any) -> Any:
        def made(cls: type, handle: int) -> Any:
            return cls(method(handle))

        return classmethod(like(made, method))

    def _of_requests(self, name: str, method: Any, write: Any) -> Any:
        """Make the recording method of a request, or of its class if it takes several.

        ``write`` takes the requests in place of the arguments. mpi4py's methods of the class are bound to it already.
        """
        several = name in OF_SEVERAL

        def write_requests(site: int, start_s: float, end_s: float, args: Arguments, kwargs: Any, result: Any) -> Any:
            requests = _argument(args, kwargs, 0, "requests", ()) if several else args[:1]
            write(site, start_s, end_s, requests, result)
            return result

        recording = self.recorder.recording(name, method, write_requests)
        return staticmethod(recording) if several else recording

    def _completing(self, name: str, method: Any, completed: Any) -> Any:
        """Make the method that records for which requests a call has waited."""
        recorder, rows, tests = self.recorder, self.rows, name.lower().startswith("test")

        def write(site: int, start_s: float, end_s: float, requests: Any, result: Any) -> None:
            done = completed(requests, result)
            recorder.dumped = recorder.loaded = 0  # pickles are counted where they are sent
            if tests and not done and rows and rows[-1][SITE] == site and start_s - rows[-1][END] < LONGEST_PAUSE_S:
                rows[-1] = (site, rows[-1][START], end_s, *NOTHING)
                return
            rows.append((site, start_s, end_s, *NOTHING))
            for request in done:
                row = getattr(request, "_row", None)
                if row is not None:
                    request._row = None
                    rows.append((PART, start_s, end_s, 0, COMPLETION, UNKNOWN, UNKNOWN, row))

        return self._of_requests(name, method, write)

    def _restarting(self, name: str, method: Any) -> Any:
        """Make the method that records the start of persistent requests."""
        rows = self.rows

        def write(site: int, start_s: float, end_s: float, requests: Any, result: Any) -> None:
            for request in requests:
                call = getattr(request, "_call", None)
                if call is not None:
                    request._row = len(rows)
                    rows.append((site, start_s, end_s, *call))
                    site = PART

        return self._of_requests(name, method, write)
