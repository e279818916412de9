"""`Runner`: what pipelines need of their runtime, to make a job of a call and to run it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from ..errors import SliceError
from ..interrupts import held_signals
from .control.control import Control
from .control.watchdog import abort_on
from .load import Load
from .scheduling.executor import Executor
from .scheduling.job import Job
from .threads.crew import THREADS
from .threads.threads import Threads
from .trace import Trace


class Runner:
    """Makes jobs and runs them, in the calling thread or by the runtime's threads.

    Parameters
    ----------
    control : Control
    executor : Executor
    threads : Threads
    workers : int
    load : Load
        How long this rank has computed and waited in the calls of all pipelines.

    Attributes
    ----------
    trace : Trace or None
    """

    def __init__(self, control: Control, executor: Executor, threads: Threads, workers: int, load: Load) -> None:
        self.control, self.executor, self._threads = control, executor, threads
        self.workers, self.load = workers, load
        self.trace: Trace | None = None

    def job(
        self,
        slices: list[Any],
        source: Callable[..., Any],
        skeleton: Any,
        slots: list[Any],
        depth: int,
        wait: str,
        in_flight: int,
        polls: int,
        crew: str,
    ) -> tuple[Job, Any]:
        """Make a `Job` and its way to wait; nothing of this is collective."""
        workers, executor = self._threads.workers(crew, wait), self.executor
        job = Job(slices, source, skeleton, slots, depth, workers, self.trace, executor.lock)
        return job, executor.waiting(wait, job, workers, in_flight, polls, crew != THREADS)

    def run(self, job: Job, waiting: Any, crew: str, run: Callable[[], Exception | None] | None = None) -> float:
        """Run one job to its end, by `run` if it is given; raises what all ranks agreed on.

        Returns the time of its computing.
        """
        here = crew != THREADS
        runner = self.executor if here else self._threads
        with _Running(self.control, job, here):
            error = runner.run(job, waiting) if run is None else run()
        if error is not None:
            self._raise(error, job)
        return job.computing_s

    def _raise(self, error: Exception, job: Job) -> NoReturn:
        signals, control = held_signals(), self.control
        cause: BaseException | None = None if job.failure is None else job.failure.error
        control.mark(error)
        if cause is not None and (isinstance(cause, KeyboardInterrupt) or cause is signals.error):
            raise control.mark(cause) from error
        if isinstance(error, SliceError) and not job.failed_itself:
            cause = None  # what has failed here, if anything, came of what failed there, or in another slice
        raise error from cause


class _Running:
    """The time in which a job runs: signals fail it, and nobody else may talk."""

    __slots__ = ("_before", "_control", "_here", "_job", "_signals")

    def __init__(self, control: Control, job: Any, here: bool) -> None:
        self._control, self._job, self._here = control, job, here

    def __enter__(self) -> None:
        self._signals = held_signals()
        self._before = self._signals.fail(self._job)
        self._control.running = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._control.running = False
        self._signals.fail(self._before)
        if error is not None and self._here:  # the other ranks go on
            abort_on(error)
