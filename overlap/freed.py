"""Objects that all ranks make, use and end together, and the ways in which one rank ends its part.

By `close` or `free`, on all ranks together. By an exception, for instance the user's own, that leaves a ``with`` block
or ends the process on this rank alone: the other ranks are notified, and raise a `RankError` in their next call. And by
a fork: threads, windows and communicators belong to the process that made them, so in the child the object is closed.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from .errors import ClosedError
from .uncopied import Uncopied

TOLD_S = 2.0  # for other ranks that leave the same block by the same exception; a thread notifies later ones


class Resource(Uncopied, ABC):
    """A context manager that all ranks enter and leave together."""

    _forked = False  # this process is a child of the one that made it

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        resource = super().__new__(cls)
        _made[id(resource)] = resource
        return resource

    @abstractmethod
    def _end(self) -> None:
        """End it with all other ranks (collective)."""

    def _fail(self, error: BaseException) -> threading.Thread | None:
        """End it on this rank, because of an exception that other ranks may know nothing of, and tell them.

        Does not wait for them. Returns the thread that does, if any; does nothing where it has ended.
        """
        return None

    def _closed_by_fork(self) -> None:
        """Be closed: this process is a child of the one that made it. Touches nothing that the parent uses."""
        self._forked = True

    @property
    def _user(self) -> int | None:
        """The thread that has used it last, if that is known."""
        return None

    def _begun(self) -> None:
        """Report, from now on, an exception that ends the process on this rank to the other ranks."""
        key = id(self)
        with _hooks_lock:
            _used[key] = weakref.ref(self, lambda _: _unused(key))
            _hooks.install()

    def _over(self) -> None:
        """Note that it has ended."""
        _unused(id(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._end()
        elif (telling := self._fail(error)) is not None:
            telling.join(TOLD_S)


class CollectiveContext(Resource):
    """A context manager that frees itself.

    Attributes
    ----------
    freed : bool
        Set by `free`; what is called from then on raises a `ClosedError`.
    """

    freed = False
    _ended = "freed"  # how

    @abstractmethod
    def free(self) -> None:
        """Free what MPI and the operating system keep for it (collective)."""

    def check_open(self) -> None:
        """Raise a `ClosedError` that names the object if it was freed, or belongs to another process."""
        if self.freed:
            raise closed_error(type(self).__name__, self._ended, self._forked)

    def _end(self) -> None:
        self.free()

    def __enter__(self) -> Self:
        self.check_open()
        return self

    def _closed_by_fork(self) -> None:
        self._forked = self.freed = True


def closed_error(name: str, ended: str, forked: bool = False) -> ClosedError:
    """Make what to raise when something is used that has `ended`, or that belongs to the parent of this process."""
    if forked:
        return ClosedError(
            f"expected a {name} in the process that made it, received a call in a child that was forked from it"
        )
    return ClosedError(f"expected an open {name}, received one that was {ended}")


def check_process(name: str) -> None:
    """Raise a `ClosedError` where one cannot be made: MPI belongs to the process that this one was forked from."""
    if _in_child:
        raise ClosedError(
            f"expected a {name} to be made in a process of MPI, received a child that was forked from one"
        )


# ---- exceptions that end the process, or a thread --------------------------------------------------

_made: weakref.WeakValueDictionary[int, Resource] = weakref.WeakValueDictionary()
_used: dict[int, weakref.ref[Resource]] = {}  # by several ranks, and neither ended nor collected
_hooks_lock = threading.RLock()  # an object may be collected while it is held


class _Hooks:
    """Hooks that Python calls when an exception ends the process or a thread, installed while others must be notified.

    Attributes
    ----------
    error : BaseException or None
        What has ended the process.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._before: tuple[Callable[..., object], Callable[..., object]] | None = None
        self._own = self._of_process, self._of_thread  # these objects, to be known again

    def install(self) -> None:
        if self._before is None:
            self._before = sys.excepthook, threading.excepthook
            sys.excepthook, threading.excepthook = self._own

    def remove(self) -> None:
        """Put back what was there before, where no other hook was put on top: that one still calls ours."""
        if self._before is not None and (sys.excepthook, threading.excepthook) == self._own:
            sys.excepthook, threading.excepthook = self._before
            self._before = None

    def _of_process(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        try:
            (self._before or (sys.__excepthook__,))[0](kind, error, traceback)
        finally:
            # An interpreter that asks for the next command goes on.
            if not (hasattr(sys, "ps1") or sys.flags.interactive):
                self.error = error
                alive = {thread.ident for thread in threading.enumerate() if not thread.daemon}
                self._tell(error, lambda user: user == threading.get_ident() or user not in alive)

    def _of_thread(self, args: Any) -> None:
        try:
            (self._before or (None, threading.__excepthook__))[1](args)
        finally:
            if args.exc_value is not None:
                self._tell(args.exc_value, lambda user: user == threading.get_ident())

    def _tell(self, error: BaseException, ends: Callable[[int | None], bool]) -> None:
        """Tell the other ranks of everything whose last user has ended."""
        for made in reversed(list(_used.values())):
            resource = made()
            if resource is not None and ends(resource._user):
                with suppress(Exception):  # one that is in the middle of something; the deadline ends that
                    resource._fail(error)


_hooks = _Hooks()


def _unused(key: int) -> None:
    """Note that a resource has ended, or was collected: the hooks go with the last one."""
    with _hooks_lock:
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
