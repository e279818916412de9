"""The deadline: an MPI operation that takes longer ends the job, with all stacks printed.

A collective that another rank never enters cannot be cancelled, so the call cannot return. The watchdog prints which
call has waited and the stack of every thread, and aborts the job. It arms `faulthandler` first, so that the process
ends even if ``MPI_Abort`` itself blocks.

A wait for ranks that have not entered a call may have no deadline. After a minute the watchdog prints, once, in which
call this rank waits for whom.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic, perf_counter, sleep
from typing import Any

from mpi4py import MPI

from ..errors import formatted
from .losses import DetectingLoss, Guard
from .wait import LONGEST_SLEEP_S

ABORT_GRACE_S = 5.0
MPI_GRACE_S = 2.0  # time for MPI's own abort, which does not always return
PRINT_GRACE_S = 0.3  # time for the launcher to forward the output before it kills the job
EXIT_STATUS = 75
NOTICE_S = 60.0  # then a rank prints for whom it waits, deadline or not
_PAUSE_S = 1.0  # if the watchdog wakes later by more, the process was stopped or had no core
_SHORT_S = 0.02  # a rank sleeps in waits that are longer


def abort(reason: str, others_s: float = 0.0) -> None:
    """End the job, because the ranks cannot agree on an error any more.

    Other ranks that wait for the same event have `others_s` seconds to detect that, too, and to print their stacks.
    """
    faulthandler.dump_traceback_later(ABORT_GRACE_S, exit=True, file=sys.__stderr__ or sys.stderr)
    report = (
        f"overlap: rank {MPI.COMM_WORLD.rank} ({socket.gethostname()}): {reason}. "
        f"All threads' stacks follow; the job is aborted.\n{_stacks()}"
    )
    error_stream = sys.__stderr__ or sys.stderr
    error_stream.flush()
    _write(error_stream.fileno(), report.encode(errors="backslashreplace"))
    sleep(PRINT_GRACE_S + others_s)
    faulthandler.dump_traceback_later(MPI_GRACE_S, exit=True, file=sys.__stderr__ or sys.stderr)
    MPI.COMM_WORLD.Abort(EXIT_STATUS)


def print_wait(what: str, waited_s: float, whom: str) -> None:
    """Print that this rank waits, in `what`, for other ranks."""
    text = f"overlap: rank {MPI.COMM_WORLD.rank} has waited for {waited_s:.0f} s in {what} for {whom}\n"
    _write((sys.__stderr__ or sys.stderr).fileno(), text.encode(errors="backslashreplace"))


@contextmanager
def limited_to(seconds: float, what: str) -> Iterator[None]:
    """Have a ``with`` block end within `seconds`, or abort the job with a message that names `what`.

    A Python thread prints the stacks while it holds the interpreter's lock. The timer of `faulthandler` does not hold
    the lock: the frames that it reads change meanwhile, which can crash it. So that timer is armed for a later time, in
    case other code never releases the lock. Blocks may be nested. If no thread can be started, a block has no limit.
    """
    timer = threading.Timer(seconds, abort, [f"{what} has not completed in {seconds:g} s"])
    timer.daemon = True
    end = monotonic() + seconds
    _ends.append(end)
    with suppress(RuntimeError):
        _arm()
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        _ends.remove(end)
        with suppress(RuntimeError):
            _arm()


_ends: list[float] = []  # of the blocks under way


def _arm() -> None:
    """Arm the timer of `faulthandler`, of which a process has only one, for the block that has to end first."""
    if _ends:
        left_s = max(0.0, min(_ends) - monotonic()) + ABORT_GRACE_S
        faulthandler.dump_traceback_later(left_s, exit=True, file=sys.__stderr__ or sys.stderr)
    else:
        faulthandler.cancel_dump_traceback_later()


def _stacks() -> str:
    """Return the stacks of all threads, as `faulthandler` prints them."""
    try:
        with open(os.memfd_create("stacks"), "w+b") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.seek(0)
            return file.read().decode(errors="replace")
    except OSError as error:  # `faulthandler` prints the stacks when the grace has run out
        return f"(no stacks: {error})\n"


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


class Watchdog:
    """Watches `outstanding` and `entries` (label -> start, `time.perf_counter`) from a thread.

    Anything outstanding may take `deadline_s` seconds, and ranks wait `entry_deadline_s` seconds for others at the
    beginning of a call, which `deadline_s` covers, too, if it `covers_entries`; None sets no limit.
    """

    def __init__(
        self, deadline_s: float | None, entry_deadline_s: float | None = None, *, covers_entries: bool = False
    ) -> None:
        self.guard: Guard | None = None  # of the communicators that are used while they are watched
        self._calls: list[weakref.ref[Any]] = []
        self._too: list[weakref.ref[Watchdog]] = []
        # Lists the ranks that have not entered the call in which this rank waits, as far as they are known.
        self.absent: Callable[[], Sequence[int]] | None = None
        self.outstanding: dict[object, float] = _Outstanding(self._calls, self._too, None if covers_entries else False)
        self.entries: dict[object, float] = self.outstanding
        if not covers_entries:
            self.entries = _Outstanding(self._calls, self._too, True)
        self._entry_deadline_s = entry_deadline_s
        self.start(deadline_s)

    def start(self, deadline_s: float | None) -> None:
        """Watch again after `close`, with this deadline."""
        deadlines = [
            ("deadline_s", deadline_s, self.outstanding),
            ("entry_deadline_s", self._entry_deadline_s, self.entries),
        ]
        self.deadline_s = deadline_s
        self._closed = threading.Event()
        watched = [(name, limit_s, under_way) for name, limit_s, under_way in deadlines if limit_s is not None]
        notice = Notice(self)
        self._thread = threading.Thread(
            target=_watch, args=(watched, self._closed, notice), daemon=True, name="watchdog"
        )
        self.refused: RuntimeError | None = None  # there can be no more threads: whoever makes the object raises it
        try:
            self._thread.start()
        except RuntimeError as error:
            self.refused = error

    def stop(self) -> None:
        """Have the thread end, without waiting for it."""
        self._closed.set()

    def close(self) -> None:
        self.stop()
        if self.refused is None:
            self._thread.join()

    def watch(self, call: Any) -> None:
        """Watch a call that knows itself whether it waits: by its ``under_way()``, as that of `PlanCall`."""
        self._calls[:] = [reference for reference in self._calls if reference() is not None]
        self._calls.append(weakref.ref(call))

    def watch_too(self, other: Watchdog) -> None:
        """Apply the deadlines to what another watchdog watches, too."""
        self._too.append(weakref.ref(other))

    def watching(self, label: object, entry: bool = False) -> Watched:
        """Return a ``with`` block that is watched."""
        return Watched(self.entries if entry else self.outstanding, self.guard, label)


class _Outstanding(dict[object, float]):
    """A dictionary label -> start, of its own entries and of the calls given to `Watchdog.watch`.

    Of other watchdogs it lists entries (True), what is outstanding (False), or both (None).
    """

    def __init__(self, calls: list[weakref.ref[Any]], too: list[weakref.ref[Watchdog]], entries: bool | None) -> None:
        super().__init__()
        self._calls, self._too, self._entries = calls, too, entries

    def items(self) -> Any:
        """List all labels, with their starts."""
        entries = self.own()
        for reference in list(self._too):
            if (other := reference()) is not None:
                entries += () if self._entries is False else other.entries.items()
                entries += () if self._entries else other.outstanding.items()
        return entries

    def own(self) -> list[Any]:
        """List the labels without those of other watchdogs."""
        entries: list[Any] = list(super().items())
        for reference in list(self._calls):
            call = reference()
            state = call and call.under_way()
            if state and self._entries in (state[0], None):
                entries.append(state[1:])
        return entries


class Notice:
    """Prints in which call this rank waits for whom, once for each wait; does not keep the watchdog alive."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = weakref.ref(watchdog)
        self._printed: tuple[object, float] | None = None

    def check(self, now: float) -> None:
        """Print if a wait for ranks that have not entered a call has taken a minute."""
        watchdog = self._watchdog()
        if watchdog is None:
            return
        entries: Any = watchdog.entries
        for label, started in entries.own():
            if now - started < NOTICE_S or (label, started) == self._printed:
                continue
            self._printed = label, started
            ranks = [] if watchdog.absent is None else list(watchdog.absent())
            whom = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" if ranks else "other ranks"
            print_wait(str(label), now - started, whom)


class Watched(DetectingLoss):
    """A ``with`` block that is entered, with its start, in a dictionary that a `Watchdog` watches."""

    __slots__ = ("_outstanding",)

    def __init__(self, outstanding: dict[object, float], guard: Guard | None, label: object) -> None:
        self._outstanding, self._guard, self._what = outstanding, guard, label

    def __enter__(self) -> None:
        self._outstanding[self._what] = perf_counter()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        del self._outstanding[self._what]
        if error is not None:
            super().__exit__(kind, error, traceback)


def _watch(
    deadlines: list[tuple[str, float, dict[object, float]]], closed: threading.Event, notice: Notice | None = None
) -> None:
    """Check now and then what is under way. Keeps nothing alive but the dictionaries.

    Time in which this process did not run does not count, because a batch system may suspend a whole job and resume it.
    If one rank alone is stopped, the deadlines of the others, which run, still hold.
    """
    interval_s = min([1.0, NOTICE_S / 4, *(limit_s / 4 for _, limit_s, _ in deadlines)])
    pauses: list[tuple[float, float]] = []  # (end, seconds)
    checked = perf_counter()
    while not closed.wait(interval_s):
        now = perf_counter()
        if now - checked - interval_s > _PAUSE_S:
            pauses.append((now, now - checked - interval_s))
        checked = oldest = now
        if notice is not None:
            notice.check(now)
        for name, limit_s, watched in deadlines:
            for label, started in list(watched.items()):
                oldest = min(oldest, started)
                took_s = now - started - sum(seconds for end, seconds in pauses if end > started)
                if took_s > limit_s:
                    abort(
                        f"{label} has not completed in {took_s:.1f} s "
                        f"({name}={limit_s:g}): some rank does not take part",
                        interval_s,
                    )
                del label  # it keeps an operation's arrays alive
        pauses = [pause for pause in pauses if pause[0] > oldest]


def abort_on(error: BaseException) -> None:
    """End the job because of an exception in one of our own threads."""
    abort("an error in the runtime itself, or in a skeleton:\n" + formatted(error)[1].rstrip())


class BoundedWait:
    """A rank's wait for others: it sleeps between polls, says after a minute for whom, and aborts after a deadline."""

    def __init__(self, deadline_s: float | None) -> None:
        self._deadline_s = deadline_s
        self._number: object = None  # number of the event that the rank waits for
        self._since = 0.0
        self._printed = False

    def check(self, number: object, what: str, who: Callable[[], str]) -> None:
        """Abort the job if the wait for `what` exceeds the deadline; sleep a little if the wait is long.

        A wait begins with the first check of its number.
        """
        now = monotonic()
        if number != self._number:
            self._number, self._since, self._printed = number, now, False
        waited_s = now - self._since
        if self._deadline_s is not None and waited_s > self._deadline_s:
            abort(
                f"{what} has not completed in {waited_s:.1f} s (deadline_s={self._deadline_s:g}): "
                f"{who()} does not take part"
            )
        if waited_s > NOTICE_S and not self._printed:
            self._printed = True
            print_wait(what, waited_s, who())
        if waited_s > _SHORT_S:
            sleep(LONGEST_SLEEP_S)
