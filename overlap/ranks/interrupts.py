"""Signals while a call of the library is under way: held back until all ranks agree.

If a handler raised (Ctrl-C, an alarm, ``sys.exit`` on SIGTERM), it would end the call in the middle of an MPI operation
or of a running job, for which the other ranks would wait. So every Python-level handler is wrapped during the call. The
wrapper calls the user's handler at the usual time and catches its exceptions: the first one fails the running job, and
is reported to the other ranks by the next header (`Coordinator.synchronize`). It is raised on this rank when the call
has ended. A handler that does not raise is not affected. Python runs handlers on the main thread only, so on other
threads there is nothing to do.
"""

from __future__ import annotations

# The functions that `signal` wraps: without its enumerations they take 50 ns instead of 1 us.
from _signal import NSIG, SIGKILL, SIGSTOP, getsignal  # type: ignore[import-not-found]  # typeshed has none
from _signal import signal as set_handler
from collections.abc import Callable
from functools import wraps
from os import register_at_fork
from threading import get_ident, main_thread
from types import FrameType, TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_NUMBERS = tuple(number for number in range(1, NSIG) if number not in (SIGKILL, SIGSTOP))


class Failing(Protocol):
    """A job or a call that an exception of a signal handler fails."""

    def fail(self, key: Any, error: BaseException) -> None:
        """Keep the error, which is that of slice `key` or of no slice."""


class _Held:
    """The main thread's signals, held while any call is under way; calls may be nested."""

    def __init__(self) -> None:
        self.error: BaseException | None = None  # the first that a handler has raised and that was not raised again yet
        self._depth = 0
        self._handlers: dict[int, Callable[..., Any]] = {}  # handlers that are wrapped
        self._found: list[Any] = []  # all handlers as the last call found them,
        self._callable: list[tuple[int, Callable[..., Any]]] = []  # and those of them that can raise
        self._job: Failing | None = None
        self._wrapper = self._handle  # bound once, so that it can be compared later

    def __enter__(self) -> Self:
        if self._depth == 0:
            try:
                handlers = list(map(getsignal, _NUMBERS))
                if handlers != self._found:
                    self._callable = [
                        (number, handler) for number, handler in zip(_NUMBERS, handlers) if callable(handler)
                    ]
                    self._found = handlers
                for number, handler in self._callable:
                    self._handlers[number] = handler
                    set_handler(number, self._wrapper)
            except BaseException:  # from a handler that was not wrapped yet: the call has not begun
                self._restore()
                self.error = None
                raise
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._restore()
            held, self.error = self.error, None
            if held is not None and held is not error:
                raise held from error

    def keep(self, error: BaseException | None) -> None:
        """Keep an exception that a handler has raised just before, as if the signal had been held."""
        if self.error is None:
            self.error = error

    def fail(self, job: Failing | None) -> Failing | None:
        """Let exceptions of handlers, later ones and one that is kept already, fail `job`.

        Returns the job that they failed before, or None, to be restored afterwards.
        """
        before, self._job = self._job, job
        if self.error is not None and job is not None:
            job.fail(None, self.error)
        return before

    def _handle(self, number: int, frame: FrameType | None) -> None:
        try:
            self._handlers[number](number, frame)
        except BaseException as error:
            if self.error is None:
                self.error = error
                if self._job is not None:
                    self._job.fail(None, error)

    def _restore(self) -> None:
        while self._handlers:
            try:
                for number, handler in tuple(self._handlers.items()):
                    if getsignal(number) is self._wrapper:  # unless the program has set another
                        set_handler(number, handler)
                    self._handlers.pop(number, None)
            except BaseException as error:  # from a handler that has been restored
                self.error = error if self.error is None else self.error


class _Nothing:
    """Stands for the signals of threads other than the main one, which get none."""

    error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def keep(self, error: BaseException | None) -> None:
        """Keep nothing."""

    def fail(self, job: Failing | None) -> Failing | None:
        """Fail nothing."""
        return None


_held = _Held()
_nothing = _Nothing()
_main = main_thread().ident


def _forked() -> None:
    """Note that in a child process the thread that has forked is the main one."""
    global _main
    _main = get_ident()


register_at_fork(after_in_child=_forked)


def held_signals() -> _Held | _Nothing:
    """Return the signals of the calling thread, to be held in a ``with`` block."""
    return _held if get_ident() == _main else _nothing


def holding_signals(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a collective function that synchronizes several times, so that it holds signals from start to end.

    Without it, an exception of a signal handler could leave the function between two of them: this rank would call it
    anew while the others wait in its middle.
    """

    @wraps(function)
    def held(*args: P.args, **kwargs: P.kwargs) -> T:
        with held_signals():
            return function(*args, **kwargs)

    return held
