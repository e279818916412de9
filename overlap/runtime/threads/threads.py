"""A runtime's threads, which run the jobs of its pipelines: the calling thread, the communicator and the workers.

The communicator thread and the workers are started when a pipeline first needs them.

They refer to their queues and to what they work on, but not to the `Runtime`. So a runtime that is not referenced any
more is garbage-collected, and `Threads.stop` ends its threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

from ...errors import RankLost, SliceError
from ...ranks.interrupts import held_signals
from ...ranks.watchdog import abort_on
from ..scheduling.host import WakeEvent
from ..scheduling.ready_steps import CoreTokens
from .crew import Crew
from .placement import COMMUNICATOR_THREAD, INLINE, INLINE_WITH_WORKERS
from .priority import set_exact_timers, take_short_slices
from .workers import Workers

if TYPE_CHECKING:
    from ...ranks.coordinator import Coordinator
    from ..load import Load
    from ..scheduling.executor import Executor
    from ..scheduling.job import Job
    from ..scheduling.waiting import Waiting
    from ..trace import Trace

SIGNAL_LATENCY_S = 0.2


class Threads:
    """The threads that run jobs.

    Parameters
    ----------
    coordinator : Coordinator
    executor : Executor
        Issues the operations of the jobs.
    workers : int
    nice : int
        Nice value added to the workers; see `Workers`.
    load : Load
        How long this rank has computed and waited in the calls of all pipelines.

    Attributes
    ----------
    trace : Trace or None
    crew : Crew
        The threads that compute in the calls of plans.
    """

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
        """Return the workers of a placement (see `placement`) for a job that waits this way, or None."""
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

    def run(
        self, job: Job, waiting: Waiting, placement: str, run: Callable[[], Exception | None] | None = None
    ) -> float:
        """Run one job to its end, by `run` if it is given; raise the error on which all ranks have agreed.

        Returns the job's computing time in seconds.
        """
        coordinator, signals, issues_here = self.coordinator, held_signals(), placement != COMMUNICATOR_THREAD
        failed_before = signals.fail(job)  # from now on an exception of a signal handler fails the job
        coordinator.running = True  # no other thread may call MPI
        try:
            if run is not None:
                error = run()
            else:
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
