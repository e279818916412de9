"""Recording calls: what time they take, and where the program makes them.

A call's row is written after the call, so that only two readings of the clock and the search for the call site come
around it. Nothing is communicated while the program runs.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from time import perf_counter
from types import CodeType, FrameType
from typing import Any

from .records import Communicator, RankRecord, Site

Arguments = tuple[Any, ...]  # of a method: its object comes first
# Writes the row of a call, from its site, begin, end, arguments and result; returns what the call returns.
Write = Callable[[int, float, float, Arguments, dict[str, Any], Any], Any]
Prepare = Callable[[Arguments, dict[str, Any]], tuple[Arguments, dict[str, Any]]]

_LIBRARIES = tuple(
    os.path.join(os.path.realpath(path), "")
    for path in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        os.path.join(os.path.dirname(__file__), "..", ".."),  # this library
    }
)


class Recorder:
    """Records the calls of this rank.

    Parameters
    ----------
    limit : int
        Number of rows after which calls are no longer recorded.
    """

    def __init__(self, limit: int) -> None:
        self.record = RankRecord()
        self.rows = self.record.rows
        self.dumped = self.loaded = 0  # pickled bytes since the last call
        self._full = limit
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._codes: dict[int, tuple[CodeType, bool]] = {}  # keeps code objects alive, so that their ids stay theirs
        self._made: dict[tuple[int, tuple[int, ...]], int] = {}
        self._world: Any = None

    def recording(self, name: str, method: Any, write: Write, prepare: Prepare | None = None) -> Any:
        """Make the method that calls a method of mpi4py and writes a row.

        Parameters
        ----------
        name : str
        method : callable
        write : callable
        prepare : callable, optional
            Changes the arguments before the call.

        Returns
        -------
        function
        """
        record, rows, full, clock, getframe = self.record, self.rows, self._full, perf_counter, sys._getframe
        numbers: dict[tuple[int, int], int] = {}  # of sites outside of libraries

        def call(*args: Any, **kwargs: Any) -> Any:
            if len(rows) >= full:
                record.cut = True
                return method(*args, **kwargs)
            frame = getframe(1)
            site = numbers.get((id(frame.f_code), frame.f_lasti))
            if site is None:
                site = self._site(name, frame)
                if not self._in_library(frame.f_code):
                    numbers[id(frame.f_code), frame.f_lasti] = site
            if prepare is not None:
                args, kwargs = prepare(args, kwargs)
            start_s = clock()
            result = method(*args, **kwargs)
            return write(site, start_s, clock(), args, kwargs, result)

        return like(call, method)

    def _site(self, operation: str, frame: FrameType) -> int:
        """Return the number of the site of a call: the frame's line, or that of the program which called the library
        of the frame."""
        user: FrameType | None = frame
        while user is not None and self._in_library(user.f_code):
            user = user.f_back
        user = user or frame
        key = operation, id(frame.f_code), frame.f_lasti, id(user.f_code), user.f_lasti
        number = self._numbers.get(key)
        if number is None:
            library = "" if user is frame else f"{frame.f_code.co_filename}:{frame.f_lineno}"
            site = Site(operation, user.f_code.co_filename, user.f_lineno or 0, library)
            if site not in self.record.sites:  # two instructions of one line are one site
                self.record.sites.append(site)
            number = self._numbers[key] = self.record.sites.index(site)
        return number

    def _in_library(self, code: CodeType) -> bool:
        known = self._codes.get(id(code))
        if known is None:
            name = code.co_filename
            known = self._codes[id(code)] = code, name[:1] == "<" or os.path.realpath(name).startswith(_LIBRARIES)
        return known[1]

    def number(self, comm: Any, parent: int) -> int:
        """Enter a communicator into the table; return its number.

        Parameters
        ----------
        comm : mpi4py.MPI.Intracomm
        parent : int
            Number of the communicator from which it was made, or UNKNOWN.

        Returns
        -------
        int
        """
        from mpi4py import MPI

        if self._world is None:
            self._world = MPI.COMM_WORLD.Get_group()
        group = comm.Get_group()
        members = tuple(MPI.Group.Translate_ranks(group, None, self._world))
        group.Free()
        index = self._made[parent, members] = self._made.get((parent, members), -1) + 1
        sources = tuple(comm.inedges) if comm.Get_topology() != MPI.UNDEFINED else ()
        self.record.communicators.append(Communicator(parent, members, index, sources))
        return len(self.record.communicators) - 1


def like(function: Any, method: Any) -> Any:
    """Give a function the name and the documentation of a method of mpi4py; return it."""
    function.__name__ = method.__name__
    function.__qualname__ = getattr(method, "__qualname__", method.__name__)
    function.__doc__ = method.__doc__
    return function
