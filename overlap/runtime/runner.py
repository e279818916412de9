"""`Runner`: what pipelines need of their runtime, to run the job of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import RankLost, SliceError
from ..interrupts import held_signals
from .coordinator.coordinator import Coordinator
from .coordinator.watchdog import abort_on
from .load import Load
from .scheduling.executor import Executor
from .scheduling.job import Job
from .threads.placement import COMMUNICATOR_THREAD
from .threads.threads import Threads
from .trace import Trace


class Runner:
    """Runs jobs, in the calling thread or by the runtime's threads.

    Parameters
    ----------
    coordinator : Coordinator
    executor : Executor
    threads : Threads
    workers : int
    load : Load
        How long this rank has computed and waited in the calls of all pipelines.

    Attributes
    ----------
    trace : Trace or None
    """

    def __init__(
        self, coordinator: Coordinator, executor: Executor, threads: Threads, workers: int, load: Load
    ) -> None:
        self.coordinator, self.executor, self.threads = coordinator, executor, threads
        self.workers, self.load = workers, load
        self.trace: Trace | None = None

    def run(self, job: Job, waiting: Any, placement: str, run: Callable[[], Exception | None] | None = None) -> float:
        """Run one job to its end, by `run` if it is given; raises what all ranks agreed on.

        Returns the time of its computing.
        """
        coordinator, signals, here = self.coordinator, held_signals(), placement != COMMUNICATOR_THREAD
        runner = self.executor if here else self.threads
        failed_before = signals.fail(job)  # what a signal's handler raises from now on fails the job
        coordinator.running = True  # nobody else may talk
        try:
            error = runner.run(job, waiting) if run is None else run()
        except BaseException as broken:
            if here and not isinstance(broken, RankLost):  # the other ranks go on
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
            cause = None  # what has failed here, if anything, came of what failed there, or in another slice
        raise error from cause
