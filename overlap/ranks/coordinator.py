"""`Coordinator`: all MPI calls that the library makes for itself, in one place.

What slice programs await travels on `AsyncComm`; every other collective of the library is made here, on a communicator
of its own. Each begins with the same small reduction, the *header*: the minimum over all ranks of three integers,
``(ok, signature, -signature)``, where the signature is a checksum of the call that the rank is about to make. Whatever
two ranks do, their headers match each other, so no rank waits for a rank that does something else:

* if a rank has failed, it sends ``ok = 0``: all ranks exchange reports of what has failed and raise one and the same
  exception (`InputError` if the input is at fault, else `RankError`);
* if ranks are about to make different calls, the signatures differ: all ranks exchange their headers and raise one
  `InputError` that names the difference.

The last header of a rank states that the rank leaves: see `departure`.

The deadline covers all of this except the header with which a public call (of a pipeline, of a constructor) begins. A
rank may wait there for another rank that still computes or writes a file outside of the library, so the deadline starts
when all ranks have entered. ``entry_deadline_s`` of `Runtime` limits this wait, too.
"""

from __future__ import annotations

import copy
import pickle
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
from mpi4py import MPI

from ..errors import BusyError, InputError, OverlapError, RankLost, formatted
from . import departure
from .exclusive import IN_SLICES, exclusive_use, note_thread_level
from .header import Header, disagreement
from .holding import DropWarning, Holding, free_dropped
from .interrupts import held_signals, holding_signals
from .losses import Guard, guard_of
from .rendezvous import Rendezvous
from .resource import Calls, check_process, closed_error, marked_call
from .together import Exchange, Report, common_error, failure_report, hear, is_old, report_between_calls
from .watchdog import Watchdog

T = TypeVar("T")  # the type of any value


class _Mark(NamedTuple):
    """Marks an exception as known to all ranks of a coordinator since a header; pickled, the exception has no mark."""

    coordinator: Coordinator
    header: int

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class Coordinator:
    """The library's own collectives over the ranks of a runtime.

    Every method that communicates is collective, and raises the same exception on all ranks.

    The communicator `comm` is duplicated (collective). The `watchdog` applies the deadline to what is under way, the
    `guard` (by default that of `comm`) detects lost ranks, and the `warning` is given when the object is dropped that
    has made the coordinator.

    Attributes
    ----------
    comm : mpi4py.MPI.Intracomm
        The duplicate; for modules of `overlap.runtime` only.
    holding : Holding
        The communicators, and whatever else must be freed with them.
    comms : list of AsyncComm
        The communicators that slice programs may use.
    runtime : weakref.ref
        Refers to the runtime that owns this coordinator.
    calls : Calls
        The calls of all objects on the runtime, of which some need no other rank, and so no MPI.
    left : OverlapError or None
        The error raised here when another rank left by an exception, or when its process ended: the next calls raise
        it, too. If a rank is lost, `RankLost` is raised once, and then the coordinator is closed.
    crowded : bool
        When this coordinator was made, some rank had so many communicators open that none should be kept for later use.
    """

    frees_after_failure = True  # if exceptions have ended all ranks, they may free the communicators

    def __init__(
        self, comm: MPI.Intracomm, watchdog: Watchdog, guard: Guard | None = None, warning: DropWarning | None = None
    ) -> None:
        check_process("runtime")
        self.watchdog = watchdog
        self.guard = watchdog.guard = guard or guard_of(comm)
        self.running = False  # a job runs: only the job's communicator thread may call MPI
        self.nested = 0  # how many `collective_section` blocks the calling thread is in
        self.crowded = False
        self.runtime: weakref.ref[Any] | None = None
        self.closed = self.forked = False
        self.left: OverlapError | None = None
        self.exclusive = exclusive_use("this runtime")
        self._calls = Calls()
        self.is_worker: Callable[[], bool] = lambda: False  # whether the calling thread is a worker of the library
        self.comms: list[Any] = []
        self._wrapped = 0
        self._headers = self._made = 0
        self._all_leave = False  # true if all ranks have left, according to the last header
        self._departure: departure.Departure | None = None  # set if this rank has failed between two calls
        self._reported = ""  # the failure that was reported last
        with watchdog.watching("duplicating the communicator on all ranks", entry=True):
            self.comm = comm.Dup()
        note_thread_level(self.comm)
        if self.guard is None:
            self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        else:
            self.guard.add(self.comm)
        self.rank = self.comm.rank
        self.size = self.comm.size
        self.holding = Holding(self.size, warning)
        self.holding.add(self.comm.Free, 1)
        with watchdog.watching("finding the ranks of a node"):
            self.rendezvous = Rendezvous(self.comm)
        watchdog.absent = self.rendezvous.absent
        self._member = departure.enter(self, watchdog.deadline_s)
        self.holding.add(self.rendezvous.end)
        self.holding.add(partial(departure.end, self._member))
        self._numbers = array("q", (0, 0, 0))
        if self.guard is not None:
            self.guard.register(self)  # last: a loss ends what has been made above

    # ---- agreement ---------------------------------------------------------------------------

    def synchronize(
        self,
        call: str,
        agreed: dict[str, Any] | None = None,
        *,
        error: BaseException | None = None,
        entry: bool = False,
    ) -> None:
        """Exchange headers with all ranks: if one has failed, or if their calls differ, all raise.

        The call that this rank is about to make has the name `call`. Values `agreed` must be equal on all ranks, such
        as 4 and ``np.int64(4)``, or a list and a tuple of the same values. By `error` this rank has failed. At the
        `entry` of a public call the deadline does not cover the wait for the other ranks.

        Raises
        ------
        InputError
            A rank failed with an `InputError`, or the ranks are about to make different calls.
        RankError
            A rank failed with another exception, which is the cause of the `RankError` on that rank. If it is no
            `Exception` (`KeyboardInterrupt`, `SystemExit`), or if a signal handler raised it, it is itself raised on
            that rank.
        """
        try:
            header = Header(call, agreed)
        except Exception as problem:
            header = Header(call)
            if error is None:
                error = InputError(
                    "expected values that can be written as text, received one for which this fails: "
                    f"{formatted(problem)[0]}"
                )
        self.synchronize_for(header, error, entry)

    def synchronize_for(self, header: Header, error: BaseException | None = None, entry: bool = False) -> None:
        """Synchronize as `synchronize` does, with a `Header` made before: for calls that are made again and again."""
        with held_signals(), self.exclusive.used(header.call):
            self.check_idle()
            self.synchronize_here(header, error, entry)

    def synchronize_here(self, header: Header, error: BaseException | None, entry: bool, leaving: bool = False) -> None:
        """Synchronize as `synchronize_for`, when no other thread is in a call; `leaving`: with the last header."""
        if error is None and not leaving:  # an error or the last header is sent even so; what a handler raised follows
            error = held_signals().error
        call, numbers = header.call, self._numbers
        watched = self.watchdog.entries if entry else self.watchdog.outstanding
        while True:
            numbers[0], numbers[1], numbers[2] = error is None, header.signature, -header.signature
            try:
                watched[call] = perf_counter()
                try:
                    self.rendezvous.minimum(numbers)
                finally:
                    del watched[call]
            except MPI.Exception as broken:
                raise self.failed(broken, call) from broken
            if self.check_header(header, error, numbers, leaving):
                return

    def count_header(self) -> None:
        """Count a header that all ranks have reached: earlier marks of `mark` become void."""
        self._headers += 1

    def check_header(
        self, header: Header, error: BaseException | None, numbers: Sequence[int], leaving: bool = False
    ) -> bool:
        """Raise the error of any rank after a header, given the `numbers` that it has reduced.

        Returns False if the header is void, because some rank has only reported there what every rank has raised
        already: all other ranks send theirs again.
        """
        self._headers += 1
        ok, agreed = numbers[0], numbers[1] == -numbers[2]
        if ok and agreed:
            return True
        signals = held_signals()
        try:
            report = Report(leaving, header=header.values) if ok else failure_report(error, leaving)
            with self.watchdog.watching(f"the report of what failed in {header.call}"):
                reports = Exchange(self.comm, report).wait()
        except MPI.Exception as broken:
            self.mark(broken)
            raise
        if is_old(reports):
            return False
        hear(reports)
        common = self._judged(reports, leaving)
        if common is None:
            return True
        if error is None:
            raise common
        if error is signals.error or not isinstance(error, Exception):
            raise self.mark(error) from common
        cause = error if error.__traceback__ is not None else None
        if isinstance(error, StopIteration):  # contextlib drops a RuntimeError whose cause is a StopIteration
            cause = RuntimeError("raised a StopIteration")
            cause.__cause__ = error
        raise common from cause

    def _judged(self, reports: list[Report], leaving: bool) -> BaseException | None:
        """Return the error to raise on all ranks, or None: some rank has failed, makes another call, or leaves."""
        failed = any(report.failure is not None for report in reports)
        self._all_leave = all(report.leaving for report in reports) and (self.frees_after_failure or not failed)
        if reports[0].header is not None:
            differing = InputError(disagreement([report.header or {} for report in reports]))
            differing.disagreement, differing._is_elsewhere = True, self.rank != 0
            common: OverlapError | None = differing
        else:
            common = common_error(reports, self.rank)
        if common is None:
            return None
        if not leaving and any(report.leaving for report in reports):
            self.lose(common)  # all ranks know that one has left
        return self.mark(common)

    def failed(self, error: MPI.Exception, what: str) -> BaseException:
        """Return the error to raise if MPI has failed, so that the other ranks cannot be notified here any more."""
        lost = None if self.guard is None else self.guard.loss(error, what)
        self.count_header()
        return self.mark(lost or error)

    def lose(self, lost: OverlapError) -> None:
        """Note that a rank is lost or has left: no header follows."""
        self.left = lost
        departure.leave(self._member)
        if isinstance(lost, RankLost):
            self.holding.forget()

    def mark(self, error: BaseException) -> BaseException:
        """Mark an exception as known to all ranks, and return it."""
        with suppress(Exception):  # if the mark cannot be set, the error is reported once more
            error._overlap_header = _Mark(self, self._headers)  # type: ignore[attr-defined]  # the exception carries it
        return error

    def is_known(self, error: BaseException) -> bool:
        """Return whether all ranks have failed with this exception, and no header has followed."""
        try:
            return getattr(error, "_overlap_header", None) == _Mark(self, self._headers)
        except Exception:  # its attributes cannot be read: without a mark it is reported once more
            return False

    def enter(self, call: str, agreed: dict[str, Any], error: BaseException | None = None) -> None:
        """Begin a public call: `synchronize`, without a deadline unless inside of `collective_section`."""
        self.synchronize(call, agreed, error=error, entry=not self.nested)

    @contextmanager
    def collective_section(
        self,
        what: str,
        undo: Callable[[], object] | None = None,
        problem: str | None = None,
        at_end: dict[str, Any] | None = None,
        **agreed: Any,
    ) -> Iterator[None]:
        """Let a block end well on all ranks or fail on all of them: see `Runtime.collective_section`.

        The block may fill `at_end` with values that must be equal on all ranks. Then an inner block has no header at
        its beginning, because that of the outer block has shown that all ranks have come.
        """
        with held_signals(), self.exclusive.used(what):
            entry, self.nested = not self.nested, self.nested + 1
            try:
                if entry or at_end is None:
                    self.synchronize(what, agreed, entry=entry, error=None if problem is None else InputError(problem))
                yield
                if entry or at_end is not None:  # the end of an outer block has a header of its own
                    self.synchronize(f"the end of {what}", at_end)
            except BaseException as error:
                try:
                    # An inner block may have ended the coordinator, with the same error on all ranks.
                    if not self.closed and self.left is None and not self.is_known(error):
                        self.synchronize(what, error=error)
                    raise
                finally:
                    if undo is not None:
                        undo()
            finally:
                self.nested -= 1

    @contextmanager
    def watching(self, what: str) -> Iterator[MPI.Intracomm]:
        """Return a ``with`` block that gives the communicator and watches any MPI calls made on it."""
        with self.exclusive.used(what), self.watchdog.watching(what):
            yield self.comm

    def next_number(self) -> int:
        """Return a number for what all ranks make, equal on all of them: the first call in a `collective_section`."""
        self._made += 1
        return self._made

    # ---- collectives -------------------------------------------------------------------------

    def barrier(self) -> None:
        """Wait until all ranks have made this call."""
        self.synchronize("barrier")

    def allgather(self, value: T) -> list[T]:
        """Gather the values of all ranks as a list in the order of ranks; they can be anything that pickles."""
        return [
            pickle.loads(data) for data in self._talk("allgather", {}, lambda data: self.comm.allgather(data), value)
        ]

    def gather(self, value: T, root: int = 0) -> list[T] | None:
        """Gather the values of all ranks on rank `root`, as a list; None on the others."""
        gathered = self._talk("gather", {"root": root}, lambda data: self.comm.gather(data, root), value)
        return None if gathered is None else [pickle.loads(data) for data in gathered]

    def bcast(self, value: Any, root: int = 0) -> Any:
        """Return the value of rank `root`, on all ranks."""
        return pickle.loads(
            self._talk(
                "bcast", {"root": root}, lambda data: self.comm.bcast(data, root), value if self.rank == root else None
            )
        )

    def maximum(self, value: T) -> T:
        """Find the largest of all ranks' values, element by element: of a number, or of an array."""
        return self._reduced("maximum", MPI.MAX, value)

    def minimum(self, value: T) -> T:
        """Find the smallest of all ranks' values, element by element: of a number, or of an array."""
        return self._reduced("minimum", MPI.MIN, value)

    @marked_call
    @holding_signals
    def alltoall_s(self, nbytes: int) -> float:
        """Measure how many seconds an all-to-all takes that sends `nbytes` bytes from every rank to every rank."""
        send, receive = np.zeros((2, self.size * nbytes), np.uint8)
        self.synchronize("all-to-all", {"nbytes": nbytes})
        with self.exclusive.used("all-to-all"), self.watchdog.watching("all-to-all"):
            started = perf_counter()
            self.comm.Alltoall(send, receive)
            return perf_counter() - started

    @marked_call
    @holding_signals
    def _talk(self, call: str, agreed: dict[str, Any], collective: Callable[[Any], Any], value: object) -> Any:
        error = data = None
        try:
            data = pickle.dumps(value)
        except Exception as problem:
            error = problem
        self.synchronize(call, agreed, error=error)
        return self._confirmed(call, lambda: collective(data))

    def _confirmed(self, call: str, collective: Callable[[], T]) -> T:
        """Make an MPI collective; if ranks may be lost, a header confirms that every rank has taken part."""
        error: Exception | None = None
        with self.exclusive.used(call), self.watchdog.watching(call):
            if self.guard is None:
                return collective()
            try:
                result = collective()
            except MPI.Exception:
                raise
            except Exception as broken:  # the received data cannot be decoded
                error = broken
        # If a rank dies during a collective, Open MPI 5.0.11 may report success on ranks that have received nothing. A
        # lost rank does not reach this header, so no rank accepts such a result.
        self.synchronize(f"the end of {call}", error=error)
        return result

    @marked_call
    @holding_signals
    def _reduced(self, call: str, operation: MPI.Op, value: T) -> T:
        values = np.array(value)
        self.synchronize(call, {"shape": values.shape, "dtype": values.dtype.str})
        self._confirmed(call, lambda: self.comm.Allreduce(MPI.IN_PLACE, values, operation))
        kind: Any = type(value)
        result: Any = values if isinstance(value, np.ndarray) else kind(values[()])
        return result

    def ranks_of(self, comm: object) -> tuple[int, ...] | None:
        """Return the ranks here of the ranks of `comm`, or None if it is no intracommunicator or has other ranks."""
        if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
            return None
        group, own_group = comm.Get_group(), self.comm.Get_group()
        translated = tuple(group.Translate_ranks(None, own_group))
        group.Free()
        own_group.Free()
        return None if MPI.UNDEFINED in translated else translated

    # ---- communicators -----------------------------------------------------------------------

    @marked_call
    @holding_signals
    def wrap(self, comm: Any, kind: Callable[..., Any]) -> Any:
        """Make an awaitable communicator from one of mpi4py's; collective over the latter.

        `kind` is its class. `comm` can be a function that makes a communicator, which the library then frees. On ranks
        for which that function returns none, the result is None.
        """
        owned = callable(comm)
        with self.exclusive.used("making a communicator"):
            self.check_idle()
            if not owned:
                self.synchronize_members(comm)
        with self.watching("making a communicator on all its ranks"):
            # Every rank counts, even one that gets none: so the number names the same communicator on all ranks.
            number = self._wrapped
            self._wrapped += 1
            source = comm() if owned else comm
            if source == MPI.COMM_NULL:
                return None
            if owned and self.guard is not None:
                self.guard.add(source)
            wrapped = kind(source, number, self.wrap, owned)
        self.comms.append(wrapped)
        self.holding.add(wrapped.free, 1 + owned)
        return wrapped

    def synchronize_members(self, comm: object) -> None:
        """Exchange headers if `comm`, on which MPI is about to be called, has all ranks (collective over `comm`).

        A header shows that a rank has failed. In MPI's own call the others would wait for that rank.
        """
        if isinstance(comm, MPI.Intracomm) and comm != MPI.COMM_NULL and self.size > 1 and comm.size == self.size:
            self.synchronize_for(Header("making a communicator"), entry=not self.nested)

    def drop(self) -> None:
        """Keep the communicators, which this rank does not use any more, until all ranks can free them."""
        self.closed = True
        if not self.frees_after_failure:
            self.holding.forget()
        self.holding.drop()

    def free_dropped(self) -> None:
        """Free what objects have held that all their ranks have dropped: see `holding` (collective)."""
        self.crowded = free_dropped(self.allgather, self.holding, self.watchdog.watching)

    @contextmanager
    def closing(self, what: str) -> Iterator[None]:
        """Return a ``with`` block in which the runtime, or an object on it, is closed.

        Raises
        ------
        BusyError
            A call of the runtime is under way, in another thread or in the calling one (a slice, a pointwise function,
            a solver's callback). Nothing is freed.
        """
        with held_signals(), self.exclusive.used(what), self._calls.closing(what):
            self.check_not_running()
            yield

    @contextmanager
    def ending_calls(self) -> Iterator[bool]:
        """Return a ``with`` block in which other threads begin no call; whether the calling thread is in one itself."""
        with held_signals(), self.exclusive.ending(), self._calls.ending():
            yield self._calls.has_own() or (self.running and (self.exclusive.is_own or self.is_worker()))

    def close(self) -> None:
        """Free the communicator and end the watchdog (collective)."""
        if not self.closed:
            try:
                with self.exclusive.used("freeing a communicator"):
                    self.end("freeing a communicator")
            finally:
                self.watchdog.close()

    def end(self, call: str) -> None:
        """Send the last header and free the communicators (collective).

        Raises
        ------
        RankError
            Another rank has left by an exception. This rank has released the communicators nevertheless.
        """
        self._all_leave = True
        try:
            if self.left is None and self.size > 1 and not MPI.Is_finalized():
                self._finish_notifying()
                if self.left is None:  # else the other ranks have left when they were notified
                    self.synchronize_here(Header(call), None, True, leaving=True)
        finally:
            departure.leave(self._member)
            if self.left is None and self._all_leave:
                self.free()
            else:
                self.drop()

    def notify(self, error: BaseException, deadline_s: float | None = 0.0) -> departure.Departure | None:
        """Notify the other ranks of an exception raised here between two calls; their next call raises a `RankError`.

        The rank waits for them for `deadline_s` at most; 0: for the deadline of this coordinator. Returns the thread
        that waits for them, or None if they know already or cannot be notified.
        """
        if self._is_silent or self.is_known(error):
            return None
        return self._sent(error, False, deadline_s=deadline_s)

    @property
    def _is_silent(self) -> bool:
        """Return whether no failure can be reported here between two calls."""
        return self.size == 1 or self.closed or self.running or self.left is not None

    def leave(self, error: BaseException, ended: Callable[[], object]) -> departure.Departure | None:
        """Notify the other ranks that an exception has ended this rank's part, then call `ended`.

        Returns as `notify`.
        """
        return self._sent(error, True, ended)

    def _sent(
        self,
        error: BaseException,
        last: bool,
        ended: Callable[[], object] | None = None,
        deadline_s: float | None = 0.0,
    ) -> departure.Departure | None:
        """Send a header that reports a failure, here and by all other coordinators that this thread uses.

        No thread communicates by these until all ranks have reached the header.
        """

        def after_header(reports: list[Report]) -> None:
            self._headers += 1
            self.mark(error)
            if not last:
                self._after_report(sent, reports)
                return
            all_leave = reports and all(report.leaving for report in reports)
            if all_leave and self.frees_after_failure and not departure.is_exiting():
                self.free()
            else:
                self.drop()
            if ended is not None:
                ended()

        with held_signals():
            report = report_between_calls(error, last)
            with self.exclusive.used("notifying the other ranks"):
                sent = self._departing(report, after_header)
                if deadline_s != 0:
                    sent.deadline_s = deadline_s
                if last:
                    self.closed = True
                    departure.leave(self._member)
            every = [sent]
            for other in departure.members():
                if not (other._is_silent or other.nested or other.is_known(error)):
                    every += other._reporting(replace(report, leaving=False))
        departure.send(every)
        return sent if sent.is_alive() else None

    def _departing(self, report: Report, after_header: Callable[[list[Report]], object]) -> departure.Departure:
        """Make the departure that sends a report."""
        self._reported = report.identity
        sent = self._departure = departure.Departure(
            self.rendezvous, report, self.watchdog.deadline_s, after_header, self._departure
        )
        return sent

    def _reporting(self, report: Report) -> list[departure.Departure]:
        """Make the departure that reports what has failed elsewhere, unless this was done or other threads call."""
        if report.identity == self._reported or self.exclusive.last not in (None, threading.get_ident()):
            return []
        this = weakref.ref(self)  # an object that is dropped meanwhile must not be kept alive

        def after_header(reports: list[Report]) -> None:
            coordinator = this()
            if coordinator is not None:
                coordinator._headers += 1
                coordinator._after_report(sent, reports)

        with suppress(BusyError), self.exclusive.used("notifying the other ranks"):
            sent = self._departing(report, after_header)
            return [sent]
        return []

    def _after_report(self, sent: departure.Departure, reports: list[Report]) -> None:
        """Note that all ranks have received the report of a failure."""
        if sent.others_leave and (common := common_error(reports, self.rank)) is not None:
            self.lose(common)

    def _finish_notifying(self) -> None:
        """Wait until all ranks have been notified of a failure here, so that headers match again."""
        sent, self._departure = self._departure, None
        if sent is not None:
            sent.join()

    def free(self) -> None:
        """Free all communicators (collective)."""
        self.closed = True
        # Not exclusive: a closed runtime has no other user; a departure's thread runs beside the one that leaves.
        with self.watchdog.watching("freeing a runtime's communicators on all ranks"):
            self.holding.free()
        self.comms.clear()

    def close_in_child(self) -> None:
        """Close in a child process, which was forked from the one that made the runtime."""
        self.closed = self.forked = True
        self.holding.detach()

    def check_open(self) -> None:
        """Raise a `ClosedError` after `free`, or the error by which another rank has left."""
        if self.closed:
            raise closed_error("runtime", "closed", self.forked)
        if self.left is None:
            self._finish_notifying()  # and learn whether the other ranks have left meanwhile
        if isinstance(self.left, RankLost):
            raise closed_error("runtime", f"closed by a loss ({self.left})")
        if self.left is not None:
            raise copy.copy(self.left)  # a copy, since each exception has its own traceback

    def check_idle(self) -> None:
        """Raise a `BusyError` unless the calling thread may make MPI calls of the library now."""
        if self.running or self.closed or self.left is not None or self._departure is not None:
            self.check_open()
            self.check_not_running()

    def check_not_running(self) -> None:
        """Raise a `BusyError` while a job runs."""
        if self.running:
            raise BusyError(
                "a pipeline of this runtime is running: expected one at a time, and no other call "
                f"of the runtime meanwhile{IN_SLICES}"
            )
