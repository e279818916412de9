"""Calls that the compiled loop makes, and what Python does for them: functions, errors, signals, traces."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from threading import current_thread
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from ..compiled.execute import EXECUTE
from ..compiled.memory import address_of
from ..compiled.mpi import handle_of, mpi_function
from ..errors import BusyError
from ..ranks.header import Header
from ..ranks.interrupts import held_signals
from ..ranks.rendezvous import Rendezvous
from ..ranks.wait import wait_for
from .load import Load
from .loop import words as w
from .loop.loop import abandon, run
from .requests.agreement import AGREEMENT, Agreements, Issued
from .requests.operations import Operation, label_of
from .scheduling.host import ARGUMENT_ERRORS, NotIssued, issue
from .scheduling.job import AGREE, Failure, Job
from .threads.threads import INLINE
from .trace import CALLS

_UNKNOWN_NS = 2**50  # computing of a call that has not been made yet


class CallKind:
    """What all calls of a plan's transform have in common, whatever their arrays.

    Their `name` and what is `agreed` are the same on all ranks. If they wait by "poll", exchanges are nonblocking, at
    most `limit` at once; by "off", the crew takes no part. Whether they compute and exchange is said by the last two.
    """

    def __init__(
        self,
        threads: Any,
        name: str,
        agreed: dict[str, Any],
        wait: str,
        limit: int,
        computes: bool = True,
        exchanges: bool = True,
    ) -> None:
        self.threads, self.wait, self.limit = threads, wait, limit
        self.title = f"{name}: {wait}, depth {agreed['depth']}"
        self.computes, self.exchanges = computes, exchanges
        call = f"a call of the pipeline {name}"
        self.header = Header(call, agreed)
        self.used = threads.coordinator.exclusive.used(call)
        self.load = Load()

    def refuse(self, error: BaseException) -> NoReturn:
        """Raise an error on all ranks instead of a call (collective)."""
        coordinator = self.threads.coordinator
        with held_signals(), self.used:
            coordinator.check_idle()
            coordinator.synchronize_here(self.header, error, not coordinator.nested)
        raise AssertionError("the header has raised the error")


class PlanCall:
    """A call that the compiled loop makes, any number of times, on arrays of one kind.

    Parameters
    ----------
    tables : callable
        ``tables(mpi, state)`` returns the list of tables (an object with its `words`), given two of them, and the
        slots' words.
    items : ndarray of int64
        The items of all slots.
    labels : sequence
        Names of the slices.
    functions, exchanges : sequence of (object, int)
        The Python functions, which are called with the addresses of the call's arrays, and the exchanges, each with the
        number of its slice.
    rows : sequence of int
        The slice of every row.
    """

    def __init__(
        self,
        kind: CallKind,
        tables: Callable[[np.ndarray, np.ndarray], tuple[Any, np.ndarray]],
        items: np.ndarray,
        depth: int,
        labels: Sequence[Any],
        functions: Sequence[tuple[Callable[[Any], None], int]],
        exchanges: Sequence[tuple[Any, int]],
        rows: Sequence[int],
    ) -> None:
        self._kind, self._items, self._labels = kind, items, labels
        self._functions, self._exchanges, self._rows = functions, exchanges, rows
        threads = kind.threads
        self._coordinator, self._crew = threads.coordinator, threads.crew
        # An array beside the ndarray, because Python reads single words of it much faster.
        self._words = words = array("q", bytes(8 * w.STATE_WORDS))
        alone = self._coordinator.size == 1
        words[w.ALONE], words[w.DEPTH], words[w.LIMIT] = alone, depth, kind.limit
        words[w.POLLED], words[w.COMPUTES_TOO], words[w.EXCHANGES_TOO] = (
            kind.wait == "poll",
            kind.computes,
            kind.exchanges,
        )
        words[w.CONTROL], words[w.COMPUTED] = self._crew.control, _UNKNOWN_NS
        words[w.EXECUTE] = EXECUTE.address
        if kind.wait != "off" and threads.workers > 1:
            words[w.CREW] = threads.workers - 1
            self._crew.start()
        for place, load in ((w.LOADS, kind.load), (w.OTHER_LOAD, threads.load)):
            words[place] = load.words.buffer_info()[0]
        self._stamps = None
        if threads.trace is not None:
            self._stamps = np.zeros((len(rows) + len(exchanges), w.STAMP_WORDS), np.int64)
            words[w.STAMPS] = address_of(self._stamps)
        self._issued: Issued = {}
        mpi = np.zeros(w.MPI_WORDS, np.int64)
        if not alone:
            agreements = Agreements(self._coordinator.comm, None)  # waits for nothing
            for exchange, _ in exchanges if kind.exchanges else ():
                agreements.note(exchange.operation())
            self._issued = agreements.issued
            numbers = array("q", (True, kind.header.signature, -kind.header.signature))
            mpi = _table(self._coordinator.rendezvous, numbers, agreements.summands(False))
            self._coordinator.watchdog.watch(self)
        self._kept, self._slots = tables(mpi, np.frombuffer(words, np.int64))
        self._tables = address_of(self._kept.words)
        self._addresses: Any = None
        self._failure: Failure | None = None

    def make(self, addresses: array[int]) -> None:
        """Make the call (collective); the caller keeps the arrays at these addresses alive.

        On one rank the call touches only its own memory and the user's, so another thread may be in MPI meanwhile.
        """
        coordinator = self._coordinator
        if self._functions:
            self._addresses = addresses
            self._crew.shared[0] = self
        if coordinator.size == 1:
            coordinator.check_idle()
            self._run(addresses)
        else:
            with self._kind.used:
                coordinator.check_idle()
                if held_signals().error is not None:  # the call is made inside of another one
                    coordinator.synchronize_here(self._kind.header, None, not coordinator.nested)
                self._run(addresses)
        if self._functions:
            self._crew.shared[0] = None
        if self._stamps is not None:
            self._trace()

    def _run(self, addresses: array[int]) -> None:
        try:
            while True:
                outcome = run(self._tables, addresses.buffer_info()[0])
                if outcome == w.OVER:
                    self._coordinator.count_header()
                elif outcome != w.BUSY_ELSEWHERE and not self._go_on(outcome, None):
                    continue
                break
        except BaseException as error:
            # A signal handler, which runs after compiled code, has raised: other ranks may wait for this one.
            if self._words[w.DOOR] == w.OVER:
                raise
            self._go_on(self._words[w.DOOR], error)
            raise
        if outcome == w.BUSY_ELSEWHERE:
            raise BusyError(
                "expected threads to call a transform one at a time, received a call while another thread is in one"
            )

    def _go_on(self, outcome: int, error: BaseException | None) -> bool:
        """Go on with a call for which compiled code needs Python, up to its end.

        Returns False if the call has not begun on any rank, because its header was void.
        """
        words, coordinator = self._words, self._coordinator
        with held_signals() as signals:
            signals.keep(error)
            before, running = signals.fail(self), coordinator.running
            coordinator.running = True  # no other thread may call MPI
            try:
                while outcome > w.BROKEN or w.CALLS_PYTHON <= outcome < w.BROKEN:
                    if outcome == w.CALLS_PYTHON:
                        self.call_python(words[w.AT])
                    elif outcome != w.TICK:
                        self._refused(outcome)
                    outcome = run(self._tables, 0)
                if outcome == w.BROKEN:
                    raise self._broken()
            except BaseException:
                threads = self._kind.threads
                threads.executor.keep(self)  # MPI may still read and write its memory
                abandon(self._tables)
                words[w.DOOR] = w.OVER
                raise
            finally:
                coordinator.running = running
                signals.fail(before)
            words[w.DOOR] = w.OVER
            failure, self._failure = self._failure, None
            if outcome == w.UNLIKE:
                begins = coordinator.check_header(self._kind.header, None, words[w.NUMBERS : w.SUMS])
                if not begins and signals.error is not None:
                    coordinator.synchronize_here(self._kind.header, None, not coordinator.nested)
                return begins
            coordinator.count_header()
            if outcome != w.OVER:
                self._conclude(failure)
            return True

    # ---- what Python does in the middle ----------------------------------------------------------

    def call_python(self, slot: int) -> None:
        """Call the Python function to which a slot comes, in any thread that owns the slot."""
        function, number = self._functions[self._items[self._slots[slot, w.POSITION], w.FIRST]]
        trace, started = self._kind.threads.trace, perf_counter()
        try:
            function(self._addresses)
        except BaseException as error:
            self.fail(self._labels[number], error, (number, 0))
        if trace is not None:
            trace.add(current_thread().name, "compute", f"slice {self._labels[number]}", started, perf_counter())

    def fail(self, key: Any, error: BaseException, place: tuple[int, int] | None = None) -> None:
        """Keep the first failure of this rank; from now on its slices only exchange."""
        words = self._words
        issued = words[w.VISIT]
        failure = Failure(key, error) if self._failure is None else None
        if failure is not None:
            failure.issued, failure.place = issued, place
            self._failure = failure
        words[w.FAILED] = 1
        words[w.COMPUTES] = 0

    def _refused(self, outcome: int) -> None:
        """Fail because of an exchange that MPI has rejected or not completed.

        If MPI has sent nothing, the exchange is made on scratch memory, because the other ranks make it.
        """
        slot, error = self._words[w.AT], MPI.Exception(self._words[w.ERROR])
        back = 0 if outcome == w.NOT_ISSUED else 1
        exchange, number = self._exchanges[self._items[self._slots[slot, w.POSITION] - back, w.FIRST]]
        label = label_of(exchange.operation(), self._labels[number])
        guard = self._coordinator.guard
        if guard is not None and (lost := guard.loss(error, label)):
            raise lost from error
        self.fail(self._labels[number], error, (number, 1))
        if outcome != w.NOT_ISSUED or error.Get_error_class() not in ARGUMENT_ERRORS:
            return
        operation: Operation = exchange.on_scratch()
        try:
            with self._coordinator.watchdog.watching(label):
                issue(operation, not self._words[w.POLLED])
                if self._words[w.POLLED]:
                    wait_for(operation.requests[0].Test)
        except (MPI.Exception, NotIssued):
            pass  # the failure is kept already

    def _broken(self) -> BaseException:
        """Return the error to raise if MPI has failed at the header or at the agreement."""
        error = MPI.Exception(self._words[w.ERROR])
        if self._words[w.STAGE] == w.ENTERING:
            return self._coordinator.failed(error, self._kind.header.call)
        guard = self._coordinator.guard
        return (guard and guard.loss(error, AGREEMENT)) or error

    def _conclude(self, failure: Failure | None) -> None:
        """Agree with the other ranks on the error to raise, and raise it."""
        threads = self._kind.threads
        executor = threads.executor
        job = Job([], None, AGREE, [], 0, None, threads.trace, executor.lock)  # type: ignore[arg-type]  # no slices
        job.failure, job.issued_before = failure, self._issued
        threads.run(job, executor.waiting(self._kind.wait, job, None, 1, 1, True), INLINE)

    # ---- what others ask -------------------------------------------------------------------------

    def under_way(self) -> tuple[bool, str, float] | None:
        """Return, for the watchdog, whether the call waits at a header, for what it waits, and since when.

        None: it does not wait.
        """
        words = self._words
        # Not since the last progress: a test that takes long counts as such, and does on a busy machine.
        waits, about, since_s = words[w.WAITS], words[w.ABOUT], words[w.SINCE] * 1e-9
        if not waits or not since_s:  # it is about to go on
            return None
        if waits == w.MEETING:
            return not self._coordinator.nested, self._kind.header.call, since_s
        if about == w.NONE:
            return False, AGREEMENT, since_s
        exchange, number = self._exchanges[about]
        return False, label_of(exchange.operation(), self._labels[number]), since_s

    def _trace(self) -> None:
        """Add the spans of the call to the trace."""
        trace, stamps, here = self._kind.threads.trace, self._stamps, current_thread().name
        assert stamps is not None
        spans: list[tuple[str, str]] = [("compute", f"slice {self._labels[number]}") for number in self._rows]
        for exchange, number in self._exchanges:
            spans.append(("communicate", label_of(exchange.operation(), self._labels[number])))
        trace.add(CALLS, "call", self._kind.title, self._words[w.BEGAN] * 1e-9, self._words[w.ENDED_AT] * 1e-9)
        for (kind, label), stamp in zip(spans, stamps.tolist()):
            if stamp[w.TO]:
                worker = stamp[w.THREAD]
                thread = f"worker {worker}" if worker > 0 else here
                if worker == w.NONE and self._words[w.POLLED]:
                    thread = "communicator"
                trace.add(thread, kind, label, stamp[w.FROM] * 1e-9, stamp[w.TO] * 1e-9)
        stamps[:] = 0


def _table(rendezvous: Rendezvous, numbers: Sequence[int], sums: Iterable[int]) -> np.ndarray:
    """Return the table of MPI: its functions and handles as words, and the numbers that are reduced."""
    words = [
        *map(mpi_function, ("Allreduce", "Iallreduce", "Alltoallv", "Ialltoallv", "Test", "Iprobe")),
        *map(handle_of, (rendezvous.comm, MPI.LONG_LONG, MPI.UNSIGNED_LONG_LONG, MPI.MIN, MPI.SUM)),
        int(MPI.IN_PLACE),
        MPI.ANY_SOURCE,
        MPI.ANY_TAG,
        int(rendezvous.hot_s * 1e9),
        rendezvous.state.buffer_info()[0] if rendezvous.has_board else 0,
        *numbers,
        *sums,
    ]
    return np.array([word % 2**64 for word in words], np.uint64).view(np.int64)
