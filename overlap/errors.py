"""The exceptions of `overlap`, which all derive from `OverlapError`; any exception as text; notes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

NOTES_VARIABLE = "OVERLAP_NOTES"
_printed: set[str] = set()


class OverlapError(Exception):
    """Base class of every exception raised by `overlap`."""

    _is_elsewhere = False  # another rank prints where its program has made the mistake
    _ranks = 0  # how many ranks have raised it together; its text names those that are wrong


class InputError(OverlapError, ValueError):
    """Bad or disagreeing input, found before any work was accepted.

    The check is collective: every rank of the communicator raises it with the same message,
    and nothing was computed, sent or overwritten.

    Attributes
    ----------
    disagreement : bool
        True if the ranks were about to do different things; the input of each may be correct.

    Examples
    --------
    >>> try:
    ...     overlap.FFT2(comm, (8, 16, 16), dtype="i8")
    ... except overlap.InputError as error:
    ...     print(error)
    rank 0: expected a dtype of float32, float64, complex64, complex128, received 'i8'
    """

    disagreement = False


class RankError(OverlapError, RuntimeError):
    """Something failed on one rank; every rank raises this with the same message.

    If an exception other than an `InputError` ends a constructor or planning on one rank, it ends on all ranks by this.
    On the rank where it was raised, the original exception is the cause. The next call raises it where an exception has
    ended the ``with`` block, or the process, of another rank.

    Attributes
    ----------
    rank : int
        Rank (in the runtime's communicator) on which it failed first.
    summary : str
        The original exception, one line.
    traceback_text : str
        Its traceback, formatted on the rank where it was raised.
    """

    def __init__(self, rank: int, summary: str, traceback_text: str) -> None:
        super().__init__(
            f"failed on rank {rank}: {summary}\n--- traceback on rank {rank} ---\n{traceback_text.rstrip()}"
        )
        self.rank = rank
        self.summary = summary
        self.traceback_text = traceback_text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.rank, self.summary, self.traceback_text), vars(self)


class SliceError(RankError):
    """A step of a pipeline failed on one rank; every rank raises this with the same message.

    Attributes
    ----------
    slice : str
        The slice whose step failed, as text (``"?"`` for a failure outside of any slice).
    rank, summary, traceback_text
        See `RankError`.

    Examples
    --------
    >>> with overlap.Runtime(comm) as rt:
    ...     @rt.pipelined
    ...     async def program(i):
    ...         await overlap.take_turn()
    ...         if i == 2:
    ...             raise ValueError("too small")
    ...     try:
    ...         program(range(4))
    ...     except overlap.SliceError as error:  # the same on every rank
    ...         print(f"slice {error.slice}: {error.summary}")
    slice 2: ValueError: too small
    """

    def __init__(self, rank: int, slice: str, summary: str, traceback_text: str) -> None:
        super().__init__(rank, summary, traceback_text)
        if slice != "?":
            self.args = (f"slice {slice} {self}",)
        self.slice = slice

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.rank, self.slice, self.summary, self.traceback_text), vars(self)


class RankLost(OverlapError, RuntimeError):
    """Processes have ended in the middle of the job; every survivor raises this, and can go on without them.

    Raised if the runtime was made with ``on_loss="raise"``. A call may have completed on some ranks and raise on
    others, so compute anew all results since the last step that all survivors have.

    Attributes
    ----------
    ranks : tuple of int
        The ranks that this rank knows to be lost, by their numbers in the runtime's communicator.
    what : str
        The call that was under way on this rank.
    """

    def __init__(
        self, ranks: tuple[int, ...], size: int, what: str, survivors: Callable[[], Any] | None = None
    ) -> None:
        named = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" if ranks else "some"
        super().__init__(f"{named} of {size} ranks lost, noticed in {what}")
        self.ranks, self.what = ranks, what
        self._size, self._survivors = size, survivors

    def survivors(self) -> Any:
        """Make a runtime of the ranks that are left, with the options of the one that has lost ranks.

        Collective over the survivors.

        Returns
        -------
        Runtime

        Raises
        ------
        RankLost
            Another rank was lost meanwhile; that exception names the survivors.
        """
        if self._survivors is None:
            raise ClosedError("expected a RankLost in the process that has raised it, received an unpickled one")
        return self._survivors()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ranks, self._size, self.what), {**vars(self), "_survivors": None}


class DataLost(OverlapError, RuntimeError):
    """So many ranks were lost at once that no copy of some part of the fields of `Protected` is left."""


class CommunicatorsExhausted(OverlapError, RuntimeError):
    """So many failures left messages behind that no more communicators may be replaced.

    Every rank raises it, for the call that failed last and for all later ones of the runtime.
    """


class ClosedError(OverlapError, RuntimeError):
    """A runtime, plan or another object was used after `close` or `free`, or in a forked child of its process.

    Examples
    --------
    >>> plan = overlap.FFT2(comm, (8, 16, 16))
    >>> plan.close()
    >>> try:
    ...     plan.describe()
    ... except overlap.ClosedError:
    ...     print("the plan was closed")
    the plan was closed
    """


class BusyError(OverlapError, RuntimeError):
    """A runtime or plan was used while another thread, or a pipeline of it, was using it; on the rank that did so.

    The call under way goes on; the rejected call has done nothing. Make it again when the other one has ended.
    """


class ThreadLevelError(OverlapError, RuntimeError):
    """The MPI library was initialised with too low a thread level."""


class LinksUnavailable(OverlapError, RuntimeError):
    """Shaped links cannot be made here; the message says why."""


# ---- as text, without ever raising -----------------------------------------------------------
# A failure is shown on ranks and in threads that could not handle a second one, and everything about a user's exception
# may raise: ``__str__``, ``__getattr__``, ``__bool__``, its notes, its cause, an odd offset of a `SyntaxError`. A part
# that cannot be shown is replaced by its type. The texts are instances of `str` itself, so they can always be pickled.


def formatted(error: BaseException) -> tuple[str, str]:
    """Return an exception's last lines (type and message) and its whole traceback; never raises."""

    def stack(error: BaseException) -> str:
        of_type: Any = BaseException.__traceback__  # no class of the user can override it
        frames = traceback.format_tb(of_type.__get__(error))
        return "Traceback (most recent call last):\n" + "".join(frames)

    def missing(error: BaseException) -> str:
        return f"{_type_of(error)} (its text is not available)"

    summary = _first_of(error, lambda error: "".join(traceback.format_exception_only(error)).strip(), missing)
    text = _first_of(
        error,
        lambda error: "".join(traceback.format_exception(error)),
        lambda error: f"{stack(error)}{summary}\n",
        lambda error: f"{summary}\n",
    )
    return portable(summary), portable(text)


def shortened(error: OverlapError) -> str:
    """Return what to print of an error that ends the program; never raises.

    On the rank on which it was raised, the lines of the user's code: of the call, then of what failed in it. On other
    ranks one line.
    """
    return _first_of(error, _in_users_lines, lambda error: formatted(error)[1])


def _in_users_lines(error: OverlapError) -> str:
    shown = traceback.TracebackException.from_exception(error)
    last_lines = "".join(shown.format_exception_only())
    if isinstance(error, RankError):
        last_lines = last_lines.splitlines(keepends=True)[0]  # without the traceback's text
    chained = [shown]
    for one in chained:
        one.stack = _users(one.stack)
        if one.__context__ is not None and not any(map(_is_users, one.__context__.stack)):
            one.__context__ = None  # the library has caught it
        chained += [another for another in (one.__cause__, one.__context__) if another is not None]
    if error._is_elsewhere or (isinstance(error, RankError) and error.__cause__ is None):
        return f"{last_lines.rstrip()} (the call here: {shown.stack[-1].filename}:{shown.stack[-1].lineno})\n"
    if (cause := shown.__cause__) is None:
        return "".join(shown.format())
    cause.stack = traceback.StackSummary.from_list([*shown.stack, *cause.stack])
    lines = list(cause.format())
    if isinstance(error.__cause__, InputError):  # says the same
        lines = lines[:-1]
    return f"{''.join(lines)}{last_lines}"


# The library, and what starts a program or stands between it and the library.
_NOT_USERS = (str(Path(__file__).parent) + "/", "<frozen ", "/mpi4py/", "/contextlib.py", "/threading.py")


def _is_users(frame: traceback.FrameSummary) -> bool:
    return not any(part in frame.filename for part in _NOT_USERS)


def _users(frames: traceback.StackSummary) -> traceback.StackSummary:
    """Return the frames of the user's code; if none is the user's, the one that has raised the exception."""
    return traceback.StackSummary.from_list([frame for frame in frames if _is_users(frame)] or frames[-1:])


def print_exception(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    """Print an exception that ends the process, as `sys.excepthook` does; an `OverlapError` shortly."""
    if isinstance(error, OverlapError):
        if not getattr(error, "_overlap_shown", False):  # by a ``with`` block
            print(shortened(error), end="", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, frames)


if sys.excepthook is sys.__excepthook__:  # a program's own hook prints as it likes
    sys.excepthook = print_exception


def portable(text: str) -> str:
    """Return the text with escapes for NUL and for what UTF-8 cannot encode: it reaches other ranks unchanged."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def text_of(value: object) -> str:
    """Return ``str(value)``, or the type of `value` if that fails; never raises."""
    return _first_of(value, str, lambda value: f"<{_type_of(value)} without a text>")


def repr_of(value: object) -> str:
    """Return ``repr(value)``, or the type of `value` if that fails; never raises."""
    return _first_of(value, repr, lambda value: f"<{_type_of(value)} without a repr>")


def _first_of(value: Any, *ways: Callable[[Any], str]) -> str:
    """Return the result of the first function that does not raise for a value; the last one must not raise."""
    for way in ways[:-1]:
        try:
            return str.__str__(way(value))
        except BaseException:
            pass
    return ways[-1](value)


def _type_of(value: object) -> str:
    """Return the name of a value's type, even if its metaclass raises."""
    name: str = type.__dict__["__qualname__"].__get__(type(value))
    return name


def note(text: str) -> None:
    """Print a line about what would make a program faster, once in this process.

    Nothing is printed if the environment variable OVERLAP_NOTES is empty.
    """
    if text not in _printed and os.environ.get(NOTES_VARIABLE) != "":
        _printed.add(text)
        print(f"overlap: {text}", file=sys.stderr, flush=True)
