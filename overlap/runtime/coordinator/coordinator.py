"""`Coordinator`: all that the library does in MPI for itself, in one place.

The awaited traffic of slice programs travels on `AsyncComm`; every other collective of the library is
made here, on one communicator of its own. Each begins with the same small meeting of all ranks, the *header*:
the minimum over all ranks of three integers, ``(well, signature, -signature)``, where the signature
is a checksum of what the rank is about to do. So whatever two ranks do, their headers match each
other, and nobody is left alone:

* a rank that has failed sends ``well = 0``: all ranks exchange what went wrong and raise one and the
  same exception (`InputError`, or `RankError` for anything that is no fault of the input);
* ranks that are about to do different things see that the signatures differ, exchange what each
  wants and raise one `InputError` that names it.

The last header of every rank says that it leaves: see `departure`.

All of this is watched by the deadline. The one exception is the header with which a public call (a
pipeline's, a constructor's) begins: to wait there for a rank that still computes or writes a file
outside of the library is no fault, so the deadline starts when all ranks have entered, unless
`Runtime`'s ``entry_deadline_s`` says otherwise.
"""

from __future__ import annotations

import copy
import gc
import itertools
import os
import pickle
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from ...errors import BusyError, InputError, OverlapError, RankLost, formatted
from ...freed import check_process, closed_error
from ...interrupts import held_signals
from ...losses import Guard, guard_of
from ..requests.requests import AsyncComm
from . import departure
from .exclusive import Exclusive
from .header import Header, disagreement
from .rendezvous import Rendezvous
from .reports import Report, common_error, failure_report
from .watchdog import Watchdog

MANY, MOST = 500, 1500  # communicators of runtimes that are open; MPI has about 2,000
T = TypeVar("T")  # any value

_open = 0
_open_lock = threading.Lock()
_numbers = itertools.count()
_dropped: list[Coordinator] = []  # the `Coordinator` of runtimes that were collected here, but not yet on all ranks


class Coordinator:
    """The library's own collectives over the ranks of a runtime.

    Every method that talks is collective, and raises the same exception on all ranks.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Duplicated (collective).
    watchdog : Watchdog
        Watches what is under way.
    guard : Guard, optional
        That of `comm`, by default.

    Attributes
    ----------
    rank, size : int
    comm : mpi4py.MPI.Intracomm
        The duplicate; for modules of `overlap.runtime` only.
    rendezvous : Rendezvous
        Where the ranks of `comm` meet.
    comms : list of AsyncComm
        The communicators that slice programs may use.
    runtime : weakref.ref
        To the runtime that it belongs to.
    running : bool
        A job runs: nobody but its communicator may talk.
    nested : int
        How many `collective_section` blocks the calling thread is in.
    paused : bool
        The runtime is not in use.
    left : OverlapError or None
        What has been raised here when another rank left by an exception, or ended: the next calls raise it too. A rank
        that is lost has left, and what its loss has raised is raised once; then the coordinator is closed.
    crowded : bool
        So many communicators were open on some rank when it was made that none should be kept for later.
    """

    frees_after_failure = True  # all ranks may free the communicators when exceptions have ended all of them

    def __init__(self, comm: MPI.Intracomm, watchdog: Watchdog, guard: Guard | None = None) -> None:
        check_process("runtime")
        self.watchdog = watchdog
        self.guard = watchdog.guard = guard or guard_of(comm)
        self.running = False
        self.nested = 0
        self.paused = False
        self.crowded = False
        self.runtime: weakref.ref[Any] | None = None
        self.closed = self.forked = False
        self.left: OverlapError | None = None
        self.exclusive = Exclusive("this runtime")
        self.comms: list[AsyncComm] = []
        self._wrapped = 0
        self._headers = 0
        self._all_leave = False  # at the last header
        self._departure: departure.Departure | None = None  # of this rank, with what has failed between two calls
        with watchdog.watching("duplicating the communicator on all ranks", entry=True):
            self.comm = comm.Dup()
        if self.guard is None:
            self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        else:
            self.guard.add(self.comm)
        self.rank = self.comm.rank
        self.size = self.comm.size
        _count(1)
        with watchdog.watching("finding the ranks of a node"):
            self.rendezvous = Rendezvous(self.comm)
        self._member = departure.enter(self.rendezvous, watchdog.deadline_s)
        self._identity: tuple[str, int, int] | None = None
        self._numbers = array("q", (0, 0, 0))
        if self.guard is not None:
            self.guard.register(self)  # now that all is there that a loss ends

    # ---- agreement ---------------------------------------------------------------------------

    def synchronize(
        self,
        call: str,
        agreed: dict[str, Any] | None = None,
        *,
        error: BaseException | None = None,
        entry: bool = False,
    ) -> None:
        """Meet all ranks at a header: all are well and about to do the same, or all raise.

        Parameters
        ----------
        call : str
            What this rank is about to do.
        agreed : dict, optional
            Values that must be the same on all ranks. What compares equal is the same: 4 and
            ``np.int64(4)``, a list and a tuple of the same values.
        error : BaseException, optional
            This rank has failed.
        entry : bool
            A public call begins here: nobody is late yet.

        Raises
        ------
        InputError
            A rank failed with one, or the ranks want different things.
        RankError
            A rank failed with anything else. On that rank the original is the cause; an exception
            that is none (`KeyboardInterrupt`, `SystemExit`) or that a signal handler raised is
            raised there itself.
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
        """As `synchronize`, for a `Header` that was made before: of a call that is made again and again."""
        with self.exclusive.used(header.call):
            self.check_idle()
            self.synchronize_here(header, error, entry)

    def synchronize_here(self, header: Header, error: BaseException | None, entry: bool, leaving: bool = False) -> None:
        """Meet as `synchronize_for`, where nobody else is in a call; `leaving`: for the last time."""
        if error is None and not leaving:  # the end is made all the same, and what a handler has raised is raised then
            error = held_signals().error
        call, numbers = header.call, self._numbers
        numbers[0], numbers[1], numbers[2] = error is None, header.signature, -header.signature
        watched = self.watchdog.entries if entry else self.watchdog.outstanding
        try:
            watched[call] = perf_counter()
            try:
                self.rendezvous.minimum(numbers)
            finally:
                del watched[call]
        except MPI.Exception as broken:
            raise self.failed(broken, call) from broken
        self.check_header(header, error, numbers, leaving)

    def count_header(self) -> None:
        """Note that all ranks have come to a header: what an exception was marked with before is known no more."""
        self._headers += 1

    def check_header(
        self, header: Header, error: BaseException | None, numbers: Sequence[int], leaving: bool = False
    ) -> None:
        """Raise what is wrong on any rank: all have come to a header, at which `numbers` were reduced."""
        self._headers += 1
        well, agreed = numbers[0], numbers[1] == -numbers[2]
        if well and agreed:
            return
        signals = held_signals()
        try:
            report = Report(leaving, header=header.values) if well else failure_report(error, leaving)
            with self.watchdog.watching(f"the report of what failed in {header.call}"):
                found = self.comm.allgather(report)
        except MPI.Exception as broken:
            self.mark(broken)
            raise
        common = self._judged(found, leaving)
        if common is None:
            return
        if error is None:
            raise common
        if error is signals.error or not isinstance(error, Exception):
            raise self.mark(error) from common
        cause = error if error.__traceback__ is not None else None
        if isinstance(
            error, StopIteration
        ):  # a RuntimeError with such a cause is dropped by contextlib, for Python makes some
            cause = RuntimeError("raised a StopIteration")
            cause.__cause__ = error
        raise common from cause

    def _judged(self, reports: list[Report], leaving: bool) -> BaseException | None:
        """Return what to raise on all ranks, if anything: some rank has failed, wants something else, or leaves."""
        self._all_leave = all(report.leaving for report in reports)
        if reports[0].header is not None:
            common: OverlapError | None = InputError(disagreement([report.header or {} for report in reports]))
        else:
            common = common_error(reports)
        if common is None:
            return None
        if not leaving and any(report.leaving for report in reports):
            self.left = common
            departure.leave(self._member)  # all ranks know that one has left: nobody meets here any more
        return self.mark(common)

    def failed(self, error: MPI.Exception, what: str) -> BaseException:
        """Return what to raise where MPI has failed and no rank hears of it here any more."""
        lost = None if self.guard is None else self.guard.loss(error, what)
        self.count_header()
        return self.mark(lost or error)

    def lose(self, lost: RankLost) -> None:
        """Note that a rank is lost: all ranks meet no more."""
        self.left = lost
        departure.leave(self._member)

    def mark(self, error: BaseException) -> BaseException:
        """Note that all ranks know of this failure; returns it."""
        with suppress(Exception):  # where it cannot be set, the error is told once more
            error._overlap_header = self, self._headers  # type: ignore[attr-defined]  # the exception carries it
        return error

    def is_known(self, error: BaseException) -> bool:
        """Tell whether all ranks have failed with this exception, and have not met since."""
        try:
            return getattr(error, "_overlap_header", None) == (self, self._headers)
        except Exception:  # its attributes cannot be asked for: it has no mark, and is told once more
            return False

    def enter(self, call: str, agreed: dict[str, Any], error: BaseException | None = None) -> None:
        """Begin a call: as `synchronize`, at which nobody is late yet outside of `collective_section`."""
        self.synchronize(call, agreed, error=error, entry=not self.nested)

    @contextmanager
    def collective_section(
        self, what: str, undo: Callable[[], object] | None = None, problem: str | None = None, **agreed: Any
    ) -> Iterator[None]:
        """Do something on all ranks, or fail on all of them: as `Runtime.collective_section`."""
        with held_signals(), self.exclusive.used(what):
            entry, self.nested = not self.nested, self.nested + 1
            try:
                self.synchronize(what, agreed, entry=entry, error=None if problem is None else InputError(problem))
                yield
                if entry:  # an outer block meets at its own end
                    self.synchronize(f"the end of {what}")
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

    # ---- collectives -------------------------------------------------------------------------

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        self.synchronize("barrier")

    def allgather(self, value: T) -> list[T]:
        """Gather the values of all ranks, in their order, as a list; anything that can be pickled."""
        return [
            pickle.loads(data) for data in self._talk("allgather", {}, lambda data: self.comm.allgather(data), value)
        ]

    def gather(self, value: T, root: int = 0) -> list[T] | None:
        """Gather the values of all ranks on rank `root`, as a list; None on the others."""
        found = self._talk("gather", {"root": root}, lambda data: self.comm.gather(data, root), value)
        return None if found is None else [pickle.loads(data) for data in found]

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

    def alltoall_s(self, nbytes: int) -> float:
        """Seconds that an all-to-all with `nbytes` bytes from every rank to every rank takes here."""
        send, receive = np.zeros((2, self.size * nbytes), np.uint8)
        self.synchronize("all-to-all", {"nbytes": nbytes})
        with self.exclusive.used("all-to-all"), self.watchdog.watching("all-to-all"):
            started = perf_counter()
            self.comm.Alltoall(send, receive)
            return perf_counter() - started

    def _talk(self, call: str, agreed: dict[str, Any], collective: Callable[[Any], Any], value: object) -> Any:
        error = data = None
        try:
            data = pickle.dumps(value)
        except Exception as problem:
            error = problem
        self.synchronize(call, agreed, error=error)
        return self._heard_of_all(call, lambda: collective(data))

    def _heard_of_all(self, call: str, collective: Callable[[], T]) -> T:
        """Make a collective of MPI, of which ranks that may be lost have all had their part when it ends."""
        error: Exception | None = None
        with self.exclusive.used(call), self.watchdog.watching(call):
            if self.guard is None:
                return collective()
            try:
                found = collective()
            except MPI.Exception:
                raise
            except Exception as broken:  # what has come makes no sense
                error = broken
        # If a rank dies in it, Open MPI 5.0.11 may return success where nothing has come. The rank that is lost does
        # not come to this header, so nobody takes such a result for good.
        self.synchronize(f"the end of {call}", error=error)
        return found

    def _reduced(self, call: str, operation: MPI.Op, value: T) -> T:
        values = np.array(value)
        self.synchronize(call, {"shape": values.shape, "dtype": values.dtype.str})
        self._heard_of_all(call, lambda: self.comm.Allreduce(MPI.IN_PLACE, values, operation))
        kind: Any = type(value)
        found: Any = values if isinstance(value, np.ndarray) else kind(values[()])
        return found

    def ranks_of(self, comm: object) -> tuple[int, ...] | None:
        """Return the ranks here of the ranks of `comm`, a tuple; None if it is none or has others too."""
        if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
            return None
        theirs, ours = comm.Get_group(), self.comm.Get_group()
        found = tuple(theirs.Translate_ranks(None, ours))
        theirs.Free()
        ours.Free()
        return None if MPI.UNDEFINED in found else found

    # ---- communicators -----------------------------------------------------------------------

    def wrap(self, comm: Any, kind: Callable[..., Any] = AsyncComm) -> Any:
        """Make an awaitable communicator of one of mpi4py's, collective over that one.

        `kind` makes it. `comm` can be a function that makes one: that one is ours to free. Returns None on ranks for
        which it makes none.
        """
        with (
            self.exclusive.used("making a communicator"),
            self.watchdog.watching("making a communicator on all its ranks"),
        ):
            self.check_idle()
            owned = callable(comm)
            if not owned:
                self.synchronize_members(comm)
            # Counted on every rank, also on those that get none: the number names it everywhere.
            number = self._wrapped
            self._wrapped += 1
            source = comm() if owned else comm
            if source == MPI.COMM_NULL:
                return None
            if owned and self.guard is not None:
                self.guard.add(source)
            wrapped = kind(source, number, self.wrap, owned)
        self.comms.append(wrapped)
        _count(1 + owned)
        return wrapped

    def synchronize_members(self, comm: object) -> None:
        """Meet all ranks, if all of them are about to call MPI on `comm` (collective over that one).

        A rank that has failed is seen at a header. In MPI's own call it would be waited for.
        """
        if isinstance(comm, MPI.Intracomm) and comm != MPI.COMM_NULL and self.size > 1 and comm.size == self.size:
            self.synchronize_for(Header("making a communicator"))

    def drop(self) -> None:
        """Remember the communicators, until all ranks can free them: this one does not use them any more."""
        self.closed = True
        if self._identity is not None and not isinstance(self.left, RankLost):
            _dropped.append(self)

    def free_dropped(self) -> None:
        """Free the communicators of runtimes that all their ranks have dropped (collective).

        The runtimes are known by names that their ranks agree on here, as the first thing they do.

        Raises
        ------
        InputError
            On all ranks, when too many communicators are open all the same.
        """
        for crowded in (False, True):
            waiting = {
                coordinator._identity: coordinator
                for coordinator in tuple(_dropped)
                if coordinator._identity is not None
            }
            found = self.allgather(
                (
                    _open,
                    {identity: coordinator.size for identity, coordinator in waiting.items()},
                    (MPI.Get_processor_name(), os.getpid(), next(_numbers)),
                )
            )
            self._identity = self._identity or found[0][2]
            sizes = {identity: size for _, known, _ in found for identity, size in known.items()}
            for identity in sorted(sizes):
                dropped_by_all = sum(identity in known for _, known, _ in found) == sizes[identity]
                if dropped_by_all and (coordinator := waiting.get(identity)):
                    _dropped.remove(coordinator)
                    coordinator.free(self.watchdog)
            self.crowded = max(count for count, _, _ in found) > MANY
            if crowded or not self.crowded:
                break
            gc.collect()  # perhaps some ranks have not noticed yet that one was dropped
        most = self.maximum(_open) if crowded else 0
        if most > MOST:
            raise InputError(
                f"expected at most {MOST} communicators of open runtimes and plans, "
                f"received {most}: close() those that are in use no more"
            )

    def end(self, call: str) -> None:
        """Meet all ranks for the last time, and free the communicators (collective).

        Raises
        ------
        RankError
            Another rank has left by an exception. This one has let go of the communicators all the same.
        """
        self._all_leave = True
        try:
            if self.left is None and self.size > 1 and not MPI.Is_finalized():
                self._finish_telling()
                self.synchronize_here(Header(call), None, True, leaving=True)
        finally:
            departure.leave(self._member)
            if self.left is None and self._all_leave:
                self.free()
            else:
                self.drop()

    def notify(self, error: BaseException) -> departure.Departure | None:
        """Tell the other ranks of an exception on this one, between two calls; they raise a `RankError` in their next.

        Returns the thread that waits for them, or None where they know already, or cannot be told.
        """
        if self.size == 1 or self.closed or self.running or self.left is not None or self.is_known(error):
            return None
        return self._sent(error, False)

    def leave(self, error: BaseException, ended: Callable[[], object]) -> departure.Departure | None:
        """Tell the other ranks that an exception has ended this one's part; `ended` is called when all have heard it.

        Returns as `notify`.
        """
        return self._sent(error, True, ended)

    def _sent(
        self, error: BaseException, last: bool, ended: Callable[[], object] | None = None
    ) -> departure.Departure | None:
        """Have a thread send a header that says what has failed here; it is ours alone until all ranks have met it."""

        def met(all_leave: bool) -> None:
            self._headers += 1
            self.mark(error)
            if not last:
                return
            if all_leave and self.frees_after_failure:
                self.free()
            else:
                self.drop()
            if ended is not None:
                ended()

        with held_signals(), self.exclusive.used("telling what has failed"):
            found = self._departure = departure.Departure(
                self.rendezvous, failure_report(error, last), self.watchdog.deadline_s, met, self._departure
            )
            if last:
                self.closed = True
                departure.leave(self._member)
        found.send()
        return found if found.is_alive() else None

    def _finish_telling(self) -> None:
        """Wait until all ranks have heard of what has failed here: headers are in step again."""
        found, self._departure = self._departure, None
        if found is not None:
            found.wait()

    def free(self, watchdog: Watchdog | None = None) -> None:
        """Free all communicators (collective), under some other watchdog if this one has ended."""
        self.closed = True
        departure.leave(self._member)
        if not MPI.Is_finalized():
            with (
                self.exclusive.used("closing a runtime"),
                (watchdog or self.watchdog).watching("freeing a runtime's communicators on all ranks"),
            ):
                for comm in reversed(self.comms):
                    comm.free()
                    _count(-1 - comm.owns_source)
                self.comm.Free()
                _count(-1)
        self.comms.clear()
        self.rendezvous.end()

    def close_in_child(self) -> None:
        """Be closed: this process was forked from the one that made it."""
        self.closed = self.forked = True

    def check_open(self) -> None:
        """Raise a `ClosedError` after `free`, or what has ended another rank."""
        if self.closed:
            raise closed_error("runtime", "closed", self.forked)
        if isinstance(self.left, RankLost):
            raise closed_error("runtime", f"closed by a loss ({self.left})")
        if self.left is not None:
            raise copy.copy(self.left)  # each with a traceback of its own
        if self._departure is not None:
            self._finish_telling()

    def check_idle(self) -> None:
        """Only the communicator may talk while a job runs."""
        if self.running or self.closed or self.left is not None or self._departure is not None:
            self.check_open()
            self.check_not_running()

    def check_not_running(self) -> None:
        """Raise a `BusyError` while a job runs."""
        if self.running:
            raise BusyError(
                "a pipeline of this runtime is running: expected one at a time, and no other call "
                "of the runtime meanwhile"
            )


def _count(change: int) -> None:
    """Count this process's open communicators."""
    global _open
    with _open_lock:
        _open += change
