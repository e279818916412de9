"""The straight path: blocking calls and steps in turn, in the calling thread, as long as all goes well.

Where nothing is hidden (``wait="off"``, a single slice, slices too short to wake a thread for), no thread is
needed, nor what threads need: the calling thread computes and talks to MPI. This is `Scheduler.run` for a
program whose operations are known and that awaits nothing but operations, turns and earlier slices; of several
slices that poll, for one that has no operations at all. It makes the same MPI calls in the same order. So each
rank may leave it by itself, as soon as anything else shows: a failure, an operation that MPI refuses, a request
of another kind. Then a `Job` is made of what there is, and the scheduler goes on with it, while the other ranks
are still here; the next agreement tells them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from os import sched_yield
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..errors import text_of
from .agreement import Agreements
from .operations import Collective, Operation, Persistent, not_awaited, steps
from .requests import Parallel, TakeTurn, WaitForSlices
from .scheduler import Begun, Scheduler
from .slots import END
from .waiting import NotIssued, made, wait_for
from .watchdog import Watched

if TYPE_CHECKING:
    from .job import Job
    from .waiting import Waiting


_ISSUED = frozenset((Collective, Operation, Persistent, TakeTurn))
_OVER = object()  # in place of a request: the slice has ended


class StraightPath:
    """One call.

    Parameters
    ----------
    scheduler : Scheduler
        Goes on where this cannot.
    keys : sequence
        The slices.
    coroutine : callable
        ``coroutine(key, resources)`` makes a slice's coroutine.
    resources : list
        One entry per slot.
    polls : bool
        Nonblocking calls, as ``wait="poll"`` has them; else blocking ones.
    splits : bool
        Workers take part in what a slice splits: then that is the scheduler's matter.
    job : callable
        Makes the `Job` of the call and its way to wait.

    Attributes
    ----------
    job : Job or None
        What the scheduler went on with, if it did.
    computing_s : float
        Time of steps on the path.
    """

    def __init__(self, scheduler: Scheduler, keys: list[Any],
                 coroutine: Callable[..., Coroutine[Any, Any, Any]], resources: list[Any], polls: bool,
                 splits: bool, job: Callable[[], tuple[Job, Waiting]]) -> None:
        self._scheduler = scheduler
        self._coroutine = coroutine
        self._polls = polls
        self._splits = splits
        self._make_job = job
        self._failure: tuple[Any, BaseException] | None = None
        self._left = False  # something has shown that is the scheduler's matter
        self._problem: str | None = None  # what an agreement has found: see `Agreements.ended`
        self._over = False  # that was the last one
        self._issued = 0  # operations and turns
        depth = len(resources)
        self._slots = [StraightSlot(index, depth, keys[index::depth], resources[index])
                       for index in range(min(depth, len(keys)))]
        self._ended = bytearray(len(keys))  # which slices have
        self._waiting_s = 0.0  # in MPI
        self.job: Job | None = None
        self.computing_s = 0.0

    def fail(self, key: Any, error: BaseException) -> None:
        """A signal handler has raised an exception: leave the straight path."""
        if self.job is not None:
            self.job.fail(key, error)
        elif self._failure is None:
            self._failure, self._left = (key, error), True

    def run(self) -> Exception | None:
        """Run all slices to their end; returns the error of all ranks, or None."""
        agreements = Agreements(self._scheduler.control, self)
        started, steps.dropped = perf_counter(), None
        rotation = self._issue_all(agreements)
        if not (rotation or self._left or self._problem is not None):
            differs = agreements.ended()  # or "": some rank has failed, as the last one says again
            problem = agreements.at_once(bool(differs))
            self._problem, self._over = differs or problem, True
        self.computing_s = perf_counter() - started - self._waiting_s
        if self._over and self._problem is None:
            return None
        return self._leave(agreements, rotation)

    def _issue_all(self, agreements):
        """The scheduler's rotation, as far as the path goes; returns the slots left, the next one first."""
        agree_every = self._scheduler.agree_every
        rotation = self._slots
        while rotation:
            visited = []
            for place, slot in enumerate(rotation):
                if (slot.request is None or self._left) and not self._arrive(slot):
                    return rotation[place:] + visited
                if slot.request is END:
                    continue
                if not self._issue(slot, agreements):
                    return rotation[place:] + visited
                visited.append(slot)
                self._issued += 1
                if self._issued % agree_every == 0:
                    self._problem = agreements.ended()
                    if self._problem is None:
                        agreements.start(self._left)
                if self._left or self._problem is not None:
                    return rotation[place + 1:] + visited
                self._step(slot)
            rotation = visited
        return rotation

    def _leave(self, agreements, rotation):
        """Have the scheduler go on."""
        self.job, waiting = self._make_job()
        begun = Begun(agreements, self._issued, None, self._problem, self._over)
        if not self._over:
            begun.rotation = [self.job.slots[slot.index] for slot in rotation]
            for slot, own in zip(self.job.slots, self._slots):
                own.hand_over(slot)
            for own in self._slots:
                if own.error is not None:
                    self.job.fail(own.key, own.error)
        if self._failure is not None:
            self.job.fail(*self._failure)
        return self._scheduler.run(self.job, waiting, begun)

    # ---- computing ---------------------------------------------------------------------------

    def _arrive(self, slot):
        """Have a slot come to its next operation, turn or end; False if it does not on this path."""
        while slot.request is None and not self._left:
            ready = slot
            if slot.gate is not None:  # a step of some slot opens it, if anything does
                ready = next((one for one in self._slots
                              if one.gate is not None and one.gate.is_open(self._ended)), None)
                if ready is None:
                    return False
            self._step(ready)
        return not self._left

    def _step(self, slot):
        """Run a slot's slices up to a request that is to be issued, a gate, or what ends the path."""
        slot.gate = None
        try:
            while True:
                if slot.send is None:
                    if slot.over:
                        slot.request = END
                        return
                    slot.begin(self._coroutine)
                steps.owner = slot.identity
                try:
                    request = slot.send(None)
                except StopIteration:
                    request = _OVER
                finally:
                    steps.owner = None
                if steps.dropped is not None:
                    slot.error = not_awaited(steps.dropped)
                    break
                kind = type(request)
                if kind in _ISSUED:
                    slot.request = request
                    return
                if request is _OVER:
                    self._ended[slot.ordinal] = True
                    slot.end()
                elif kind is Parallel and not self._splits:
                    slot.error = _error_of_parts(request)
                    if slot.error is not None:
                        break
                elif kind is not WaitForSlices or request.stop > slot.ordinal:
                    slot.request = request
                    break
                elif not request.is_open(self._ended):
                    slot.gate = request
                    return
        except BaseException as error:
            slot.raised = error
        self._left = True

    # ---- MPI ---------------------------------------------------------------------------------

    def _issue(self, slot, agreements):
        """Issue a slot's request; False if that is not done here, or MPI has refused it and the others wait for it."""
        request = slot.request
        if type(request) is not TakeTurn:
            if self._polls and len(self._ended) > 1:  # several are to be in flight
                self._left = True
                return False
            try:
                slot.error = self._watched(slot, _polled if self._polls else made, request)
            except NotIssued as refusal:
                slot.error, self._left = refusal.__cause__, True
                return False
            agreements.note(request)
            if slot.error is not None:
                self._left = True
        slot.request = None
        slot.taken += 1
        slot.awaited += 1
        return True

    def _watched(self, label, function, *args):
        """Call what waits for MPI, watched by the watchdog."""
        outstanding = self._scheduler.outstanding
        started = outstanding[label] = perf_counter()
        try:
            return function(*args)
        finally:
            del outstanding[label]
            self._waiting_s += perf_counter() - started

    # What agreements wait with: see `Waiting`.

    def wait(self, request, label):
        if self._polls:
            self._watched(label, wait_for, request, _pause)
        else:
            self._watched(label, request.Wait)

    def reduced(self, comm, values, op):
        label = "agreement of all ranks"
        if self._polls:
            self.wait(comm.Iallreduce(MPI.IN_PLACE, values, op), label)
        else:
            self._watched(label, comm.Allreduce, MPI.IN_PLACE, values, op)

    def watched(self, label):
        return Watched(self._scheduler.outstanding, label)


def _error_of_parts(request):
    """Call all parts of a slice; what one of them has raised, or None."""
    try:
        for part in request.parts:
            request.function(part)
    except BaseException as error:
        return error
    return None


def _polled(operation):
    """Make an MPI call and wait until it is over, as `made`, without blocking."""
    error = made(operation, blocking=False)
    if operation.made:
        request, operation.made = operation.made[0], []
        try:
            wait_for(request, _pause)
        except MPI.Exception as failure:
            error = failure if error is None else error
    return error


def _pause(seconds):
    """Sleep, or let another process have the core: a sleep of no time may take tens of microseconds."""
    if seconds:
        sleep(seconds)
    else:
        sched_yield()


class StraightSlot:
    """The slices of one slot, one after another.

    Attributes
    ----------
    index : int
    ordinal : int
        The current slice's place in the call.
    key : object
        The current slice.
    identity : object
        Stands for it.
    send : callable or None
        Has it go on; None: none has begun.
    request : Request, END or None
        What is to be issued next.
    gate : WaitForSlices or None
        What the slice waits for.
    error : BaseException or None
        What its last await is to raise.
    raised : BaseException or None
        What it has raised.
    taken, awaited : int
        Requests that were issued: in all, and for the current slice.
    over : bool
        No slice is left.
    """

    __slots__ = ("_coroutine", "_depth", "_keys", "_next", "_resources", "awaited", "error", "gate", "identity",
                 "index", "key", "ordinal", "over", "raised", "request", "send", "taken")

    def __init__(self, index, depth, keys, resources):
        self.index = index
        self._depth = depth
        self._keys = keys
        self._resources = resources
        self._next = 0  # in `keys`
        self.taken = self.awaited = 0
        self.over = False
        self.ordinal = self.key = self.identity = self._coroutine = self.send = None
        self.request = self.gate = self.error = self.raised = None

    def begin(self, coroutine):
        """Begin with the next slice."""
        self.key = self._keys[self._next]
        self.ordinal = self.index + self._next * self._depth
        self.identity = object()
        self.awaited = 0
        self._coroutine = coroutine(self.key, self._resources)
        self.send = self._coroutine.send

    def __str__(self):
        """What it waits for, for the watchdog."""
        return f"{self.request} of slice {text_of(self.key)}"

    def end(self):
        """The slice has ended."""
        self._next += 1
        self.over = self._next == len(self._keys)
        self.send = self._coroutine = None

    def hand_over(self, slot):
        """Have a `Slot` go on from here."""
        resumed = None
        if self.send is not None or self.raised is not None:
            resumed = _Resumed(self._coroutine, self.gate or self.request, self.raised)
        slot.go_on(self._next, self.taken, resumed, self.awaited, self.error)


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
