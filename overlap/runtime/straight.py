"""The straight path: a call of one slice whose operations are known, in the calling thread.

Behind a single slice nothing can be hidden, so no thread is woken for it: the calling thread computes and
talks to MPI. This is `Scheduler.run` for the one case in which all goes well, and it makes the same MPI calls
in the same order. So each rank may leave it by itself, as soon as anything else shows: a failure, an operation
that MPI refuses, a request that is no operation. Then a `Job` is made of what there is, and the
scheduler goes on with it, while the other ranks are still here; the last agreement tells them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from os import sched_yield
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .agreement import Agreements
from .operations import Operation, Persistent, not_awaited, steps
from .requests import TakeTurn
from .scheduler import Begun, Scheduler
from .waiting import Label, NotIssued, made, wait_for

if TYPE_CHECKING:
    from .job import Job
    from .waiting import Waiting


_STRAIGHT = frozenset((Operation, Persistent, TakeTurn))


class StraightPath:
    """One call.

    Parameters
    ----------
    scheduler : Scheduler
        Goes on where this cannot.
    key : object
        The slice.
    polls : bool
        Nonblocking calls, as ``wait="poll"`` has them; else blocking ones.
    job : callable
        Makes the `Job` of the call and its way to wait.
    """

    __slots__ = ("_agreements", "_failure", "_job", "_key", "_polls", "_scheduler", "_waiting_s", "computing_s", "job")

    def __init__(self, scheduler: Scheduler, key: Any, polls: bool,
                 job: Callable[[], tuple[Job, Waiting]]) -> None:
        self._scheduler = scheduler
        self._key = key
        self._polls = polls
        self._job = job
        self._failure: tuple[Any, BaseException] | None = None
        self._agreements = Agreements(scheduler.control, None)
        self.job: Job | None = None  # what the scheduler went on with, if it did
        self.computing_s = 0.0  # on the path
        self._waiting_s = 0.0  # in MPI

    def fail(self, key: Any, error: BaseException) -> None:
        """A signal handler has raised an exception: leave the straight path."""
        if self.job is not None:
            self.job.fail(key, error)
        elif self._failure is None:
            self._failure = key, error

    def run(self, program: Callable[[], Coroutine[Any, Any, Any]]) -> Exception | None:
        """Run the slice to its end; returns the error of all ranks, or None."""
        scheduler, agreements = self._scheduler, self._agreements
        most = scheduler.agree_every - 1  # from there on the scheduler agrees in between
        issued, started = 0, perf_counter()
        coroutine = request = error = None
        raised: BaseException | None = None
        identity, steps.dropped = object(), None
        try:
            coroutine = program()
            send = coroutine.send
            while True:
                steps.owner = identity
                try:
                    request = send(None)
                finally:
                    steps.owner = None
                kind = type(request)
                if (kind not in _STRAIGHT or issued == most or self._failure is not None
                        or steps.dropped is not None):
                    break
                if kind is not TakeTurn:
                    try:
                        error = self._issued(request)
                    except NotIssued as refusal:  # the others still wait for it
                        error = refusal.__cause__
                        break
                    agreements.note(request)
                issued += 1
                request = None
                if error is not None:
                    break
        except StopIteration:
            raised = StopIteration()  # that of the coroutine would keep this frame alive
        except BaseException as failure:
            raised = failure
        self.computing_s = perf_counter() - started - self._waiting_s
        if steps.dropped is not None:
            error = not_awaited(steps.dropped)
        if error is None and self._failure is None and isinstance(raised, StopIteration):
            sums = agreements.summands(False)
            self._reduce(sums)
            if not (sums[0] or sums[1]):
                return None
            return self._leave(Begun(agreements, issued, sums))
        return self._leave(Begun(agreements, issued), coroutine, request, raised, error)

    def _issued(self, operation):
        """Make one MPI call; see `made`."""
        outstanding, label = self._scheduler.outstanding, Label(operation, self._key)
        started = outstanding[label] = perf_counter()
        try:
            if not self._polls:
                return made(operation, operation.call)
            error = made(operation, operation.start)
            if operation.made:
                request, operation.made = operation.made[0], []
                try:
                    wait_for(request, _pause)
                except MPI.Exception as failure:
                    error = error or failure
            return error
        finally:
            del outstanding[label]
            self._waiting_s += perf_counter() - started

    def _reduce(self, sums):
        control, outstanding = self._scheduler.control, self._scheduler.outstanding
        label = "agreement of all ranks"
        outstanding[label] = perf_counter()
        try:
            if self._polls:
                wait_for(control.Iallreduce(MPI.IN_PLACE, sums, MPI.SUM), _pause)
            else:
                control.Allreduce(MPI.IN_PLACE, sums, MPI.SUM)
        finally:
            del outstanding[label]

    def _leave(self, begun, coroutine=None, request=None, raised=None, error=None):
        """Have the scheduler go on.

        Parameters
        ----------
        begun : Begun
        coroutine : coroutine
            The slice.
        request : Request, optional
            What it awaits now.
        raised : BaseException, optional
            What it has raised.
        error : BaseException, optional
            What its last await is to raise.
        """
        job, waiting = self._job()
        self.job = job
        if begun.sums is None:
            job.slots[0].go_on(_Resumed(coroutine, request, raised), begun.issued, error)
        if error is not None:
            job.fail(self._key, error)
        if self._failure is not None:
            job.fail(*self._failure)
        return self._scheduler.run(job, waiting, begun)


def _pause(seconds):
    """Sleep, or let another process have the core: a sleep of no time may take tens of microseconds."""
    if seconds:
        sleep(seconds)
    else:
        sched_yield()


class _Resumed:
    """The slice's coroutine, which first awaits `request` or raises an exception once more."""

    __slots__ = ("_coroutine", "_raised", "_request")

    def __init__(self, coroutine, request, raised):
        self._coroutine, self._request, self._raised = coroutine, request, raised

    def send(self, value):
        if self._raised is not None:
            raise self._raised
        if self._request is not None:
            request, self._request = self._request, None
            return request
        return self._coroutine.send(value)

    def throw(self, error):
        return self._coroutine.throw(error)

    def close(self):
        if self._coroutine is not None:
            self._coroutine.close()
