"""A runtime's threads, which run the jobs of its pipelines: the calling thread, the communicator and the workers.

The communicator thread and the workers are started when a pipeline first needs them.

They refer to their queues and to what they work on, but not to the `Runtime`. So a runtime that is not referenced any
more is garbage-collected, and `Threads.stop` ends its threads.
"""

from __future__ import annotations

import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ...compiled.memory import address_of, line_zeros
from ...errors import RankLost, SliceError
from ...ranks.interrupts import held_signals
from ...ranks.watchdog import abort_on
from ..loop import words as w
from ..loop.loop import dismiss, serve
from ..scheduling.host import WakeEvent
from ..scheduling.ready_steps import CoreTokens
from .workers import Workers, set_exact_timers, take_short_slices, worker_threads

if TYPE_CHECKING:
    from ...ranks.coordinator import Coordinator
    from ..load import Load
    from ..scheduling.executor import Executor
    from ..scheduling.job import Job
    from ..scheduling.waiting import Waiting
    from ..trace import Trace

SIGNAL_LATENCY_S = 0.2


class Threads:
    """The threads that run jobs; `load` counts the calls of all pipelines, `crew` computes in the calls of plans."""

    trace: Trace | None = None

    def __init__(self, coordinator: Coordinator, executor: Executor, workers: int, nice: int, load: Load) -> None:
        self.coordinator, self.executor = coordinator, executor
        self.workers, self.load = workers, load
        self._nice = nice
        self.crew = Crew(workers, nice)
        self._jobs: SimpleQueue[tuple[Job, Waiting, list[Any], WakeEvent] | None] = SimpleQueue()
        self._core_tokens = CoreTokens(workers)
        self._thread: threading.Thread | None = None
        self._pool: Workers | None = None
        self._helpers: Workers | None = None

    def pool(self, placement: str, wait: str) -> Workers | None:
        """Return the workers of a placement (see `PlacementChoice`) for a job that waits this way, or None."""
        if placement == INLINE:
            return None
        if placement == INLINE_WITH_WORKERS:
            if self._helpers is None:
                self._helpers = Workers(range(1, self.workers), self._nice, abort_on)
            return self._helpers
        if self._pool is None:
            self._pool = Workers(range(self.workers), self._nice, abort_on)
            self._thread = threading.Thread(
                target=_communicate, args=(self._jobs, self.executor), daemon=True, name="communicator"
            )
            self._thread.start()
        self._pool.core_tokens = self._core_tokens if wait == "block" else None
        return self._pool

    def run(self, job: Job, waiting: Waiting, placement: str) -> float:
        """Run one job to its end; raise the error on which all ranks have agreed.

        Returns the job's computing time in seconds.
        """
        coordinator, signals, issues_here = self.coordinator, held_signals(), placement != COMMUNICATOR_THREAD
        failed_before = signals.fail(job)  # from now on an exception of a signal handler fails the job
        coordinator.running = True  # no other thread may call MPI
        try:
            error = self.executor.run(job, waiting) if issues_here else self._communicated(job, waiting)
        except BaseException as broken:
            if issues_here and not isinstance(broken, RankLost):  # the other ranks would wait for ever
                abort_on(broken)
            raise
        finally:
            coordinator.running = False
            signals.fail(failed_before)
        if error is not None:
            self._raise(error, job)
        return job.computing_s

    def _raise(self, error: Exception, job: Job) -> NoReturn:
        signals, coordinator = held_signals(), self.coordinator
        cause: BaseException | None = None if job.failure is None else job.failure.error
        coordinator.mark(error)
        if cause is not None and (isinstance(cause, KeyboardInterrupt) or cause is signals.error):
            raise coordinator.mark(cause) from error
        if isinstance(error, RankLost):
            raise error
        if isinstance(error, SliceError) and not job.failed_itself:
            cause = None  # the failure here, if any, is a consequence of the first one
        raise error from cause

    def _communicated(self, job: Job, waiting: Waiting) -> Exception | None:
        """Run a job to its end on the communicator thread; return the error of all ranks or None.

        An exception raised in the calling thread meanwhile is raised after the job has ended.
        """
        outcome: list[Any] = []
        done = WakeEvent()
        self._jobs.put((job, waiting, outcome, done))
        raised: BaseException | None = None
        while not outcome:
            try:
                # A signal that arrives just before the sleep does not end it, so sleep for a short time only.
                done.sleep(SIGNAL_LATENCY_S)
            except BaseException as error:
                raised = error if raised is None else raised
                job.fail(None, error)
        if raised is not None and outcome[0] is None:
            raise raised
        found: Exception | None = outcome[0]
        return found

    def stop(self) -> None:
        """Have the threads end, without waiting for them. No job may be running."""
        self.crew.end()
        self._jobs.put(None)
        for workers in filter(None, (self._pool, self._helpers)):
            workers.end()

    def close(self) -> None:
        """Stop the threads and join them."""
        self.crew.close()
        if self._pool is not None and self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._pool.close()
        if self._helpers is not None:
            self._helpers.close()


def _communicate(jobs: SimpleQueue[Any], executor: Executor) -> None:
    """Run jobs, one after another, until None."""
    take_short_slices()
    exact = False
    while (work := jobs.get()) is not None:
        job, waiting, outcome, done = work
        if waiting.naps != exact:
            exact = waiting.naps
            set_exact_timers(exact)
        try:
            error = executor.run(job, waiting)
        except RankLost as lost:
            error = lost
        except BaseException as problem:
            abort_on(problem)
        del work, job, waiting  # keep nothing alive when the caller goes on
        outcome.append(error)
        done.ring()
        del outcome, done, error


# ---- placements ----------------------------------------------------------------------------------
#
# Which threads run a call: a short call is over before all threads have woken.
#
# Each rank chooses by itself which thread calls MPI and which threads compute, because the MPI calls are the same.

INLINE = "alone"  # the calling thread does everything
INLINE_WITH_WORKERS = "helped"  # the calling thread calls MPI and is worker 0; the other workers compute beside it
COMMUNICATOR_THREAD = "threads"  # the communicator thread calls MPI, all workers compute
SHORT_S = 5e-3  # a shorter call may be faster with fewer threads: all placements are tried,
SHORT_SLICE_S = 50e-6  # as for shorter slices, each of which threads pass to each other,
TRIES = 3  # trials of each: the first one touches new memory or starts the threads


class PlacementChoice:
    """Chooses the placement of a pipeline's calls from the times of its last calls on this rank.

    If the pipeline is `local` there is nothing to hide, and slices wait for each other only by an `await`.
    """

    def __init__(self, workers: int, local: bool = False) -> None:
        inline = [INLINE_WITH_WORKERS, INLINE] if workers > 1 else [INLINE]
        self._several = inline if local else [COMMUNICATOR_THREAD, *inline]  # placements for several slices
        self._single = inline[0]
        self._count: int | None = None  # slices
        self._taken_s: dict[tuple[str, str], list[float]] = {}  # (way to wait, placement) -> times of the first calls

    def next(self, count: int, wait: str) -> str:
        """Choose the placement of the next call, which has `count` slices."""
        if wait == "off":
            return INLINE
        if count <= 1:
            return self._single
        if count != self._count:
            self._count = count
            self._taken_s.clear()
        best = []
        for placement in self._several:
            taken_s = self._taken_s.setdefault((wait, placement), [])
            if len(taken_s) < TRIES:
                return placement
            best.append(min(taken_s))
            if best[-1] > _short_s(count):
                return self._several[0]
        return self._several[best.index(min(best))]

    def took(self, count: int, wait: str, placement: str, seconds: float) -> None:
        """Note the time of a call that has ended without an error."""
        taken_s = self._taken_s.get((wait, placement))
        if count != self._count or taken_s is None:
            return
        if len(taken_s) < TRIES:
            taken_s.append(seconds)
        elif seconds > 2 * _short_s(count) and placement != self._several[0]:
            self._count = None  # calls have become longer: try all placements again


def _short_s(count: int) -> float:
    """Return the time below which a call of `count` slices may be faster with fewer threads."""
    return max(SHORT_S, SHORT_SLICE_S * count)


class Crew:
    """Threads that sleep in compiled code until a call needs them. They are started by the first such call.

    Of the `workers` that compute one is the calling thread: the crew has one less. `control` is the address of the
    runtime's control (see `words`); `shared` holds the call whose Python functions the threads call.
    """

    def __init__(self, workers: int, nice: int) -> None:
        self._workers, self._nice = workers, nice
        self._memory = line_zeros(8 * (w.WORKERS + w.LINE_WORDS * workers)).view(np.int64)
        self.control = address_of(self._memory)
        self.shared: list[Any] = [None]
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads, if that has not been done."""
        if not self._threads:
            serve_calls = partial(_serve, self._memory, self.shared)
            self._threads = worker_threads(range(1, self._workers), self._nice, serve_calls)

    def end(self) -> None:
        """Have all threads end, without waiting for them. No call may be under way."""
        dismiss(self.control)

    def close(self) -> None:
        """End and join the threads. No call may be under way."""
        self.end()
        for thread in self._threads:
            thread.join()
        self._threads = []


def _serve(memory: np.ndarray, shared: list[Any], worker: int) -> None:
    """Serve calls in a thread, which keeps the control's memory alive."""
    slot, control = w.NONE, address_of(memory)
    try:
        while (slot := serve(control, worker, slot)) != w.LEFT:
            shared[0].call_python(slot)
    except BaseException as error:
        abort_on(error)
