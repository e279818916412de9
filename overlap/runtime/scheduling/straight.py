"""The straight path: steps and MPI calls in turn, in the calling thread, as long as all goes well.

Where nothing is hidden (``wait="off"``, a single slice), or where slices are too short to wake a thread for, no thread
is needed, nor what threads need: the calling thread computes and talks to MPI. This is `Scheduler.run` for a program
whose operations are known and that awaits nothing but operations, at once or later, turns and earlier slices. It makes
the same MPI calls in the same order: blocking ones, or nonblocking ones, several in flight, while other slices compute.
So each rank may leave it by itself, as soon as anything else shows: a failure, an operation that MPI refuses, a request
of another kind. Then a `Job` is made of what there is, and the scheduler goes on with it, while the other ranks are
still here; the next agreement tells them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from os import sched_yield
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..control.watchdog import Watched
from ..requests.agreement import Agreements
from ..requests.operations import Collective, Operation, Pending, Persistent, Start, not_awaited, steps
from ..requests.requests import Parallel, TakeTurn, WaitForSlices
from .scheduler import Begun, Scheduler
from .slots import END
from .straight_slots import StraightSlot
from .waiting import NotIssued, made, wait_for

if TYPE_CHECKING:
    from .job import Job
    from .waiting import Waiting


_ISSUED = frozenset((Collective, Operation, Persistent, Start, TakeTurn))
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
    in_flight : int
        So many nonblocking calls at once, as ``wait="poll"`` has them; 0: blocking ones.
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

    def __init__(
        self,
        scheduler: Scheduler,
        keys: list[Any],
        coroutine: Callable[..., Coroutine[Any, Any, Any]],
        resources: list[Any],
        in_flight: int,
        splits: bool,
        job: Callable[[], tuple[Job, Waiting]],
    ) -> None:
        self._scheduler = scheduler
        self._coroutine = coroutine
        self._in_flight = in_flight
        self._splits = splits
        self._make_job = job
        self._failure: tuple[Any, BaseException] | None = None
        self._left = False  # something has shown that is the scheduler's matter
        self._problem: str | None = None  # what an agreement has found: see `Agreements.ended`
        self._over = False  # that was the last one
        self._issued = 0  # operations and turns,
        self._failed_at = 0  # as many of them when something failed: see `Failure.issued`
        depth = len(resources)
        self._slots = [
            StraightSlot(index, depth, keys[index::depth], resources[index]) for index in range(min(depth, len(keys)))
        ]
        self._flying: list[StraightSlot] = []  # those whose operations are in flight, in the issue order
        self._ended = bytearray(len(keys))  # which slices have
        self._waiting_s = 0.0  # in MPI
        self.job: Any = None
        self.computing_s = 0.0

    def fail(self, key: Any, error: BaseException) -> None:
        """Note that a signal handler has raised an exception: leave the straight path."""
        if self.job is not None:
            self.job.fail(key, error)
        elif self._failure is None:
            self._failure, self._left = (key, error), True
            self._failed_at = self._issued

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
        """Run the scheduler's rotation, as far as the path goes; returns the slots left, the next one first."""
        rotation = self._slots
        while rotation:
            visited: list[Any] = []
            for place, slot in enumerate(rotation):
                if (slot.request is None or self._left) and not self._arrive(slot):
                    return rotation[place:] + visited
                if slot.request is END:
                    continue
                if not self._issue(slot, agreements):
                    return rotation[place:] + visited
                visited.append(slot)
                if not self._counted(agreements):
                    return rotation[place + 1 :] + visited
                if slot.flight is None:
                    self._step(slot)
            rotation = visited
        return rotation

    def _counted(self, agreements):
        """Count an operation or turn, and agree if that is due; whether the path goes on."""
        self._issued += 1
        if self._issued % self._scheduler.agree_every == 0:
            self._problem = agreements.ended()
            if self._problem is None:
                agreements.start(self._left)
        return not self._left and self._problem is None

    def _leave(self, agreements, rotation):
        """Have the scheduler go on."""
        self.job, waiting = self._make_job()
        self.job.issued = self._issued if self._failure is None else self._failed_at
        begun = Begun(agreements, self._issued, None, self._problem, self._over)
        if not self._over:
            begun = self._handed_over(begun, rotation, waiting)
        if self._failure is not None:
            self.job.fail(*self._failure)
        return self._scheduler.run(self.job, waiting, begun)

    def _handed_over(self, begun, rotation, waiting):
        """Give the job's slots what these have, and say what was begun."""
        slots = self.job.slots
        begun.rotation = [slots[own.index] for own in rotation]
        begun.in_flight = {slots[own.index]: (own.operation, own.flight) for own in self._flying}
        for slot, own in zip(slots, self._slots):
            own.hand_over(slot, waiting)
        for own in self._slots:
            if own.error is not None:
                self.job.fail(own.key, own.error)
        return begun

    # ---- computing ---------------------------------------------------------------------------

    def _arrive(self, slot):
        """Have a slot come to its next operation, turn or end; False if it does not on this path."""
        while slot.request is None and not self._left:
            if slot.gate is None and slot.flight is None:
                self._step(slot)
            elif not self._go_on(slot):
                return False
        return not self._left

    def _go_on(self, slot):
        """Have some slot go on, this one if it can; False if none ever will."""
        if slot.flight is not None and self._landed(slot):
            ready = slot
        else:
            ready = next(
                (
                    one
                    for one in self._slots  # a step of some slot opens a gate, if anything does
                    if one.gate is not None and one.gate.is_open(self._ended)
                ),
                None,
            )
            if ready is None:
                if not self._flying:
                    return False
                ready = self._first_landed(slot)
        if not self._left:
            self._step(ready)
        return True

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
                    answer, slot.answer = slot.answer, None
                    request = slot.send(answer)
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
                    if slot.pending and not all(pending.waited for pending in slot.pending):
                        slot.raised = StopIteration()  # it ends there, and is told what it has left
                        break
                    self._ended[slot.ordinal] = True
                    slot.end()
                elif kind is Pending and not request.waited and request in slot.pending:
                    slot.request = request
                    return
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
        kind = type(request)
        if kind is Pending:
            self._finish(slot, request)
        elif kind is Start:
            if not self._make(slot, request.operation, True, agreements):
                return False
        elif kind is not TakeTurn and not self._make(slot, request, False, agreements):
            return False
        slot.request = None
        slot.taken += 1
        slot.awaited += 1
        return True

    def _make(self, slot, operation, later, agreements):
        """Make a slot's operation, or start it to be awaited later; False as of `_issue`."""
        blocking = not (self._in_flight or later)
        if not ((blocking and type(operation) is not Persistent) or self._has_room(operation, later, slot)):
            return False
        outstanding = self._scheduler.outstanding
        started = outstanding[slot] = perf_counter()
        try:
            error = made(operation, blocking)
        except NotIssued as refusal:
            slot.error, self._left = refusal.__cause__, True
            return False
        finally:
            del outstanding[slot]
            self._waiting_s += perf_counter() - started
        agreements.note(operation)
        if operation.made and not blocking:
            request, operation.made = operation.made[0], []
            if later:
                slot.started(operation, request)
            else:
                self._fly(slot, operation, request)
        if error is not None:
            slot.error, self._left = error, True
        return True

    def _has_room(self, operation, later, slot):
        """Have other slots go on until an operation may be started; False if the path ends first."""
        kept = type(operation) is Persistent
        if kept and any(
            pending.operation is operation and not pending.done for one in self._slots for pending in one.pending
        ):
            self._left = True
        while not self._left and (
            (not later and self._in_flight and len(self._flying) >= self._in_flight)
            or (kept and any(one.operation is operation for one in self._flying))
        ):
            self._go_on(slot)
        return not self._left

    def _finish(self, slot, pending):
        """Have a slice await what it has started."""
        pending.waited = True
        if self._in_flight:
            self._fly(slot, pending, pending.request)
            return
        try:
            self._watched(slot, pending.request.Wait)
        except MPI.Exception as failure:
            slot.error, self._left = failure, True
        pending.done, pending.request = True, None

    def _fly(self, slot, operation, request):
        slot.operation, slot.flight = operation, request
        self._flying.append(slot)

    def _landed(self, slot):
        """Whether the slot's operation in flight is over."""
        try:
            if not slot.flight.Test():
                return False
        except MPI.Exception as failure:
            slot.error, self._left = failure if slot.error is None else slot.error, True
        if type(slot.operation) is Pending:
            slot.operation.done, slot.operation.request = True, None
        slot.flight = slot.operation = None
        self._flying.remove(slot)
        return True

    def _first_landed(self, slot):
        """Wait until an operation in flight is over, whose slot is returned; for want of anything to compute for
        `slot`.
        """
        ready = None

        def landed():
            nonlocal ready
            ready = next((one for one in self._flying if self._landed(one)), None)
            return ready is not None

        self._watched(slot if slot.flight is not None else self._flying[0], wait_for, landed, _pause)
        return ready

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
        if self._in_flight:
            self._watched(label, wait_for, request.Test, _pause)
        else:
            self._watched(label, request.Wait)

    def reduced(self, comm, values, op):
        label = "agreement of all ranks"
        if self._in_flight:
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


def _pause(seconds):
    """Sleep, or let another process have the core: a sleep of no time may take tens of microseconds."""
    if seconds:
        sleep(seconds)
    else:
        sched_yield()
