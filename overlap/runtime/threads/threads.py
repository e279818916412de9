"""A runtime's threads: the communicator and the workers, started when a pipeline first needs them.

They refer to their queues and to what they work on, and to no `Runtime`: one that nobody holds any
more is collected, and `Threads.stop` ends them.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ...errors import RankLost
from ..coordinator.watchdog import abort_on
from ..scheduling.host import WakeEvent
from ..scheduling.ready_steps import CoreTokens
from .placement import INLINE, INLINE_WITH_WORKERS
from .priority import set_exact_timers, take_short_slices
from .workers import Workers

if TYPE_CHECKING:
    from ..scheduling.executor import Executor
    from ..scheduling.job import Job
    from ..scheduling.waiting import Waiting

SIGNAL_LATENCY_S = 0.2


class Threads:
    """The threads that run jobs.

    Parameters
    ----------
    executor : Executor
        Runs the jobs, on the communicator thread.
    workers : int
    nice : int
        Nice value added to the workers; see `Workers`.
    """

    def __init__(self, executor: Executor, workers: int, nice: int) -> None:
        self._executor = executor
        self._count = workers
        self._nice = nice
        self._jobs: SimpleQueue[tuple[Job, Waiting, list[Any], WakeEvent] | None] = SimpleQueue()
        self._core_tokens = CoreTokens(workers)
        self._thread: threading.Thread | None = None
        self._pool: Workers | None = None
        self._helpers: Workers | None = None

    def workers(self, placement: str, wait: str) -> Workers | None:
        """Return the workers of a placement (see `placement`) for a job that waits this way, or None."""
        if placement == INLINE:
            return None
        if placement == INLINE_WITH_WORKERS:
            if self._helpers is None:
                self._helpers = Workers(range(1, self._count), self._nice, abort_on)
            return self._helpers
        if self._pool is None:
            self._pool = Workers(range(self._count), self._nice, abort_on)
            self._thread = threading.Thread(
                target=_communicate, args=(self._jobs, self._executor), daemon=True, name="communicator"
            )
            self._thread.start()
        self._pool.core_tokens = self._core_tokens if wait == "block" else None
        return self._pool

    def run(self, job: Job, waiting: Waiting) -> Any:
        """Run a job to its end, on the communicator thread; returns the error of all ranks or None.

        The job ends first, whatever is raised in the calling thread meanwhile.
        """
        outcome: list[Any] = []
        done = WakeEvent()
        self._jobs.put((job, waiting, outcome, done))
        raised: BaseException | None = None
        while not outcome:
            try:
                # A signal just before the sleep does not end it: look now and then.
                done.sleep(SIGNAL_LATENCY_S)
            except BaseException as error:
                raised = error if raised is None else raised
                job.fail(None, error)
        if raised is not None and outcome[0] is None:
            raise raised
        return outcome[0]

    def stop(self) -> None:
        """Have the threads end, without waiting for them. No job may be running."""
        self._jobs.put(None)
        for workers in filter(None, (self._pool, self._helpers)):
            workers.end()

    def close(self) -> None:
        """Stop the threads and join them."""
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
        del work, job, waiting  # nothing is held any more when the caller goes on
        outcome.append(error)
        done.ring()
        del outcome, done, error
