"""Objects that all ranks make, use and end together, and the ways in which one rank ends its part.

A rank can end its part by `close` or `free`, together with all ranks; or by an exception that leaves a ``with`` block
or ends the process on this rank alone: then the other ranks are notified, and raise a `RankError` in their next call;
or by a fork: threads, windows and communicators belong to the process that made them, so in the child the object is
closed.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import wraps
from threading import get_ident
from types import FrameType, TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from ..errors import BusyError, ClosedError, OverlapError, RankError, formatted, print_exception, shortened
from .objects import Described, Uncopied
from .watchdog import limited_to

P = ParamSpec("P")
T = TypeVar("T")
POLL_S = 1e-3  # between two looks at the calls of other threads
NOTIFIED_S = 2.0  # wait for ranks that leave the block by the same exception; a thread notifies later ones
MPI4PY_NOTIFIED_S = 0.25  # the same if mpi4py is about to end the job
MPI4PY_S = 0.75  # time to notify the others, if mpi4py ends the job when a failed process ends
SHOWN_S = 0.1  # after so long a wait for other ranks the exception is printed


class Calls:
    """The calls of an object that are under way, in any thread; nothing that they use is freed meanwhile."""

    def __init__(self) -> None:
        self._marks: dict[object, int] = {}  # the calling thread of each block that is `marked`
        self._closer: int | None = None  # the thread that closes the object, or waits until it can

    def check(self) -> None:
        """Raise a `BusyError` if another thread closes the object, unless this thread is in an outer call already."""
        me = get_ident()
        if self._closer is not None and self._closer != me and self._callers().count(me) < 2:
            raise BusyError(
                f"expected a call before or after the object is closed, received one in thread "
                f"{threading.current_thread().name!r} while thread {_name_of(self._closer)!r} is closing it"
            )

    @contextmanager
    def marked(self) -> Iterator[None]:
        """Return a ``with`` block that is a call; signals are held meanwhile."""
        mark = object()
        try:
            self._marks[mark] = get_ident()
            self.check()
            yield
        finally:
            self._marks.pop(mark, None)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Return a ``with`` block in which other threads begin no call."""
        before, self._closer = self._closer, get_ident()
        try:
            yield
        finally:
            self._closer = before

    def has_own(self) -> bool:
        """Return whether the calling thread is in a call."""
        return get_ident() in self._callers()

    def _callers(self) -> list[int]:
        """Return the threads of the calls that are under way."""
        found = list(self._marks.values())
        with _uncollected():
            for thread, top in sys._current_frames().items():
                frame: FrameType | None = top
                while frame is not None:
                    if frame.f_code is _MARKED and frame.f_locals.get("calls") is self:
                        found.append(thread)
                    frame = frame.f_back
        return found

    @contextmanager
    def closing(self, what: str) -> Iterator[None]:
        """Return a ``with`` block in which the object is closed and no call of it is under way.

        Raises
        ------
        BusyError
            Some thread, perhaps the calling one, is in a call; nothing is freed.
        """
        # Set before the callers are looked for, as a call can be found before it reads this: one of the two sees the
        # other.
        with self.ending():
            if callers := self._callers():
                raise BusyError(
                    f"expected {what} after all calls have ended, received it in thread "
                    f"{threading.current_thread().name!r} while thread {_name_of(callers[0])!r} is in a call"
                )
            yield


@contextmanager
def _uncollected() -> Iterator[None]:
    """Return a ``with`` block in which Python collects no garbage, in which other threads' frames can be read.

    `FrameType.f_back` makes a new object for each frame. Before Python 3.12 that may collect garbage, whose finalizers
    let other threads run: one that ends meanwhile takes away the frame that is being read, a segmentation fault.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _name_of(thread: int | None) -> str | None:
    """Return the name of the thread with a number."""
    return {one.ident: one.name for one in threading.enumerate()}.get(thread)


class HasCalls(Protocol):
    """An object whose calls are marked."""

    @property
    def _calls(self) -> Calls:
        """Return the calls under way of the object, and of others that close together with it."""


Called = TypeVar("Called", bound=HasCalls)


def marked_call(method: Callable[Concatenate[Called, P], T]) -> Callable[Concatenate[Called, P], T]:
    """Mark the calls of a method, so that nobody frees what they use.

    A call costs next to nothing: its mark is the frame of `call`, which whoever closes finds on the threads' stacks.
    """

    @wraps(method)
    def call(self: Called, /, *args: P.args, **kwargs: P.kwargs) -> T:
        calls = self._calls  # read by `Calls._callers` in this frame
        if calls._closer is not None:  # from the line before on whoever closes sees this call, or is seen here
            calls.check()
        return method(self, *args, **kwargs)

    return call


_MARKED = marked_call(Calls.check).__code__  # type: ignore[type-var]  # of the frames of all marked calls


class Telling(Protocol):
    """Waits until all other ranks are notified, without this one."""

    def join(self, timeout_s: float | None = None, /) -> None:
        """Wait until it is over, or for `timeout_s` seconds at most."""


class Resource(Uncopied, Described, ABC):
    """A context manager that all ranks enter and leave together."""

    _forked = False  # this process is a child of the one that made the object

    def __init__(self) -> None:
        # A constructor calls this once the object has what `_closed_by_fork` needs: an exception that ends it earlier
        # may keep the unfinished object in its traceback.
        _made[id(self)] = self

    @abstractmethod
    def _end(self) -> None:
        """End the object together with all other ranks (collective)."""

    @abstractmethod
    def _fail(self, error: BaseException) -> Telling | None:
        """End the object on this rank, because of an exception that other ranks may not know of, and notify them.

        Does not wait for them; returns what waits, if there is something. Does nothing if the object has ended.
        """

    def _closed_by_fork(self) -> None:
        """Close the object in a child of the process that made it, without touching anything that the parent uses."""
        self._forked = True

    @property
    def _user(self) -> int | None:
        """Return the thread that has used the object last, if known."""
        return None

    def _ending_calls(self) -> AbstractContextManager[bool]:
        """Return a ``with`` block in which other threads begin no call; whether the calling thread is in one itself."""
        return nullcontext(True)

    def _leave(self, error: BaseException) -> Telling | None:
        """End the object as `_fail` does, when the calls of other threads have ended."""
        with self._ending_calls() as inside:
            while True:
                try:
                    return self._fail(error)
                except BusyError:
                    if inside:  # that call raises the exception, and tells the other ranks
                        return None
                    time.sleep(POLL_S)

    def _begun(self) -> None:
        """Report, from now on, an exception that ends the process on this rank to the other ranks."""
        key = id(self)
        with _hooks_lock:
            _used[key] = weakref.ref(self, lambda _: _unused(key))
            _hooks.install()

    def _over(self) -> None:
        """Note that the object has ended."""
        _unused(id(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._end()
        else:
            with _showing(error):
                if (telling := _notified_of(self._leave, error)) is not None:
                    telling.join(MPI4PY_NOTIFIED_S if mpi4py_aborts(error) else NOTIFIED_S)


class CollectiveContext(Resource):
    """A context manager that closes itself.

    Attributes
    ----------
    closed : bool
        Set by `close`; later calls raise a `ClosedError`.
    """

    closed = False
    _ended = "closed"  # used in the text of `ClosedError`

    @abstractmethod
    def close(self) -> None:
        """Free the object's resources of MPI and of the operating system (collective)."""

    def free(self) -> None:
        """Close the object; MPI's name for `close` (collective)."""
        self.close()

    def check_open(self) -> None:
        """Raise a `ClosedError` that names the object if it was closed, or belongs to another process."""
        if self.closed:
            raise closed_error(type(self).__name__, self._ended, self._forked)

    def _end(self) -> None:
        self.close()

    def _has_ended(self) -> bool:
        return self.closed

    def __enter__(self) -> Self:
        self.check_open()
        return self

    def _closed_by_fork(self) -> None:
        self._forked = self.closed = True


def closed_error(name: str, ended: str, forked: bool = False) -> ClosedError:
    """Make the error for the use of an object that has `ended`, or that belongs to the parent of this process."""
    if forked:
        return ClosedError(
            f"expected a {name} in the process that made it, received a call in a child that was forked from it"
        )
    return ClosedError(f"expected an open {name}, received one that was {ended}")


def check_process(name: str) -> None:
    """Raise a `ClosedError` in a forked child, in which MPI cannot be used."""
    if _in_child:
        raise ClosedError(
            f"expected a {name} to be made in a process of MPI, received a child that was forked from one"
        )


# ---- exceptions that leave a ``with`` block ---------------------------------------------------------


@contextmanager
def _showing(error: BaseException) -> Iterator[None]:
    """Print an exception's traceback if the block takes long.

    Other ranks may be in calls of MPI that they can only leave if the job ends, with which an unprinted traceback ends.
    """
    timer = threading.Timer(SHOWN_S, _show, [error])
    timer.daemon = True
    with suppress(RuntimeError):  # at its end the interpreter starts no threads
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()


def _show(error: BaseException) -> None:
    with suppress(Exception):  # its attributes may be out of reach: it is printed once more then
        if isinstance(error, SystemExit) or getattr(error, "_overlap_shown", False):  # by another ``with`` block
            return
        error._overlap_shown = True  # type: ignore[attr-defined]
    if isinstance(error, OverlapError):
        text = shortened(error)
    else:
        text = (
            "overlap: this rank leaves a with block by an exception and notifies the other ranks.\n"
            f"{formatted(error)[1]}\n"
        )
    with suppress(Exception):  # there may be no standard error
        print(text, end="", file=sys.stderr, flush=True)


def _notified_of(fail: Callable[[BaseException], Telling | None], error: BaseException) -> Telling | None:
    """Have a resource fail, by `_fail` or `_leave`; where this waits for other ranks, no longer than mpi4py would."""
    if not mpi4py_aborts(error):
        return fail(error)
    with limited_to(MPI4PY_S, f"notifying the other ranks of {formatted(error)[0]}"):
        return fail(error)


def mpi4py_aborts(error: BaseException | None) -> bool:
    """Return whether mpi4py ends the job if this exception ends the process (``python -m mpi4py``)."""
    ends_well = error is None or (isinstance(error, SystemExit) and not error.code)
    return "mpi4py.run" in sys.modules and not ends_well


# ---- exceptions that end the process, or a thread --------------------------------------------------

_made: weakref.WeakValueDictionary[int, Resource] = weakref.WeakValueDictionary()
_used: dict[int, weakref.ref[Resource]] = {}  # objects of several ranks that have neither ended nor been collected
_hooks_lock = threading.RLock()  # an object may be collected while it is held


class _Hooks:
    """Hooks that Python calls when an exception ends the process or a thread, if others must be notified then."""

    def __init__(self) -> None:
        self.error: BaseException | None = None  # that has ended the process
        self._before: tuple[Callable[..., object], Callable[..., object]] | None = None
        self._own = self._of_process, self._of_thread  # bound once, so that they can be compared later

    def install(self) -> None:
        if self._before is None:
            self._before = sys.excepthook, threading.excepthook
            sys.excepthook, threading.excepthook = self._own

    def remove(self) -> None:
        """Restore the earlier hooks, except if a later hook has been installed, which still calls ours."""
        error = sys.exception()
        if isinstance(error, RankError):  # leaves a ``with`` block; if it ends the process, `ended_by` knows it
            weakref.finalize(error, _unused, None).atexit = False
            return
        if self._before is not None and (sys.excepthook, threading.excepthook) == self._own:
            sys.excepthook, threading.excepthook = self._before
            self._before = None

    def _of_process(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        try:
            (self._before or (print_exception,))[0](kind, error, traceback)
        finally:
            # An interactive interpreter goes on after an exception.
            if not (hasattr(sys, "ps1") or sys.flags.interactive):
                self.error = error
                alive = {thread.ident for thread in threading.enumerate() if not thread.daemon}
                self._notify(error, lambda user: user == threading.get_ident() or user not in alive)

    def _of_thread(self, args: Any) -> None:
        try:
            (self._before or (None, threading.__excepthook__))[1](args)
        finally:
            if args.exc_value is not None:
                self._notify(args.exc_value, lambda user: user == threading.get_ident())

    def _notify(self, error: BaseException, ends: Callable[[int | None], bool]) -> None:
        """Notify the other ranks of all objects whose last user has ended."""
        for reference in reversed(list(_used.values())):
            resource = reference()
            if resource is not None and ends(resource._user):
                with suppress(Exception):  # the object may be in the middle of a call, which the deadline ends
                    _notified_of(resource._fail, error)


_hooks = _Hooks()


def _unused(key: int | None) -> None:
    """Note that a resource has ended or was collected; after the last one the hooks are removed."""
    with _hooks_lock:
        if key is not None:
            _used.pop(key, None)
        if not _used:
            _hooks.remove()


def ended_by() -> BaseException | None:
    """Return the exception that ends this process, if one does."""
    return _hooks.error


_in_child = False


def _close_in_child() -> None:
    global _in_child
    _in_child = True
    _used.clear()
    _hooks.remove()
    for resource in list(_made.values()):
        resource._closed_by_fork()


os.register_at_fork(after_in_child=_close_in_child)
