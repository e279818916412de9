"""Waiting without spinning: nonblocking calls, several in flight, and sleep between polls."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ...ranks.wait import LONGEST_SLEEP_S, SHORTEST_SLEEP_S, pause, wait_for
from ..requests.agreement import AGREEMENT
from ..requests.operations import Operation, Pending, Persistent
from ..requests.signatures import is_receive, is_send
from .waiting import Waiting

if TYPE_CHECKING:
    from .slots import Slice, Slot

POLLS_PER_EXCHANGE = 8  # the default
TESTS = 8  # number of tests of the oldest operation before all operations are tested
# Before a step in the thread that calls MPI: at most so many looks at what is in flight, if the last was so long ago,
# and as long as a look takes so long, because MPI has moved data within it and there may be more.
LOOKS, LOOK_S, PROGRESS_S = 8, 50e-6, 5e-6


class Polling(Waiting):
    """Keeps several nonblocking calls in flight and sleeps between polls, which frees the core.

    The length of a sleep is a `polls`-th of the time between two completions, from 20 to 500 us, so that polling costs
    little and a finished exchange is found soon. If exchanges are shorter than a sleep and no step of this rank runs,
    they are polled without sleep.

    At most `limit` operations are in flight at once.
    """

    naps = True
    _sleep_s = SHORTEST_SLEEP_S
    _interval_s = 0.0  # time between the last completions
    _last_completion = 0.0
    _looked_s = 0.0
    _watching = False  # operations in flight are registered with the watchdog, because this thread is idle

    def make_room(self) -> None:
        # Operations to be awaited later do not count: the message that matches them may need this room.
        while len(self._requests) - len(self._pending) >= self._limit:
            self._poll()

    def wait_unused(self, operation: Operation) -> None:
        if not self._uses(operation):
            return
        with self.watched(f"{operation}, which is under way for another slice,"):  # perhaps for ever
            while self._uses(operation):
                self._poll()

    def _uses(self, operation: Operation) -> bool:
        return any(owner.operation is operation for owner in self._in_flight)

    def issue(self, slot: Slot, operation: Operation) -> None:
        self.make_room()
        request = self._started(slot, operation)
        if request is not None:
            self.track(slot, operation, request)

    def track(self, slot: Slot, operation: Operation, request: Any) -> None:
        self._watch(slot, operation)
        self._track(slot, request)

    def _watch(self, slot: Slot, operation: Operation | Pending) -> None:
        """Have the slot wait; the deadline counts at once or, in a thread that computes, when the thread is idle."""
        slot.operation, slot.since_s = operation, perf_counter()
        if not self._here:
            self._outstanding[slot] = slot.since_s

    def _leave_mpi(self) -> None:
        now = perf_counter()
        if self._requests and now - self._looked_s > LOOK_S:
            for _ in range(LOOKS):
                began, collected = now, self._collected()
                now = self._looked_s = perf_counter()
                if not collected and now - began < PROGRESS_S:
                    break
        if self._watching:  # the deadline does not count while a step runs
            self._watching = False
            for slot in self._awaiting():
                self._outstanding.pop(slot, None)

    def _watch_all(self) -> None:
        self._watching = True
        now = perf_counter()
        for slot in self._awaiting():
            self._outstanding.setdefault(slot, now)

    def _awaiting(self) -> list[Slot]:
        """List the slots that wait for operations in flight."""
        slots = (owner.slot if type(owner) is Pending else owner for owner in self._in_flight)
        return [slot for slot in slots if slot is not None]

    def _track(self, owner: Slot | Pending, request: Any) -> None:
        if not self._requests:
            self._last_completion = perf_counter()
        self._in_flight.append(owner)
        self._requests.append(request)

    def _keep(self, run: Slice, pending: Pending) -> None:
        super()._keep(run, pending)
        request, pending.request = pending.request, None
        self._track(pending, request)

    def wait_pending(self, slot: Slot, pending: Pending) -> None:
        if pending.done:
            slot.operation = pending
            self.completed(slot, pending.error)
            return
        pending.slot = slot
        self._pending.remove(pending)
        self._watch(slot, pending)

    def wait(self, request: Any, label: object) -> None:
        def test() -> bool:
            return request.Test() or (self._collected() and False)  # slices go on meanwhile

        with self.watched(label):
            wait_for(test, self._sleep, self._host.hot_s if self._idle() else 0.0)

    def reduced(self, comm: Any, values: Any, op: Any) -> None:
        self.wait(comm.Iallreduce(MPI.IN_PLACE, values, op), AGREEMENT)

    def finish(self) -> None:
        while self._requests:
            self._poll()

    def abandon(self) -> list[Any]:
        left = []
        for place, owner in enumerate(self._in_flight):
            if is_receive(owner.operation):
                self._requests[place].Cancel()  # then it completes
            elif is_send(owner.operation):
                left.append(place)  # the send only reads its buffer, which the request keeps alive
        requests = [self._requests[place] for place in left]
        for place in reversed(left):
            owner = self._in_flight[place]
            if owner in self._pending:
                self._pending.remove(owner)
            else:
                slot = owner.slot if type(owner) is Pending else owner
                self._end(slot, slot.since_s, perf_counter())
            del self._in_flight[place], self._requests[place]
        self.finish()
        return requests

    def forget(self) -> list[Any]:
        for slot in self._awaiting():
            self._outstanding.pop(slot, None)
        self._in_flight.clear()
        return super().forget()

    def _pause(self) -> None:
        """Sleep until the next poll; not at all while exchanges are short and there is nothing else to do."""
        if not self._requests:
            self._wake_event.sleep()
            return
        if self._here:
            self._watch_all()
        started = perf_counter()
        hot = self._is_hot() and started - self._last_completion < self._host.hot_s
        self._sleep(0.0 if hot else self._sleep_s)
        self.waited_s += perf_counter() - started

    def _sleep(self, seconds: float) -> None:
        if self._wake_event is None:
            pause(seconds)
        else:
            self._wake_event.sleep(seconds)

    def _collected(self) -> bool:
        if not self._requests:
            return False
        done, error = self._done()
        if not done:
            return False
        now = perf_counter()
        interval = (now - self._last_completion) / len(done)
        self._last_completion, self._interval_s = now, interval
        self._sleep_s = min(
            max(interval / self._polls, 0.5 * self._sleep_s, SHORTEST_SLEEP_S), 2 * self._sleep_s, LONGEST_SLEEP_S
        )
        for gone, place in enumerate(sorted(done)):
            del self._requests[place - gone]
            slot = owner = self._in_flight.pop(place - gone)
            if type(owner) is Pending:
                owner.done, owner.error = True, error
                slot, owner.slot = owner.slot, None
                if slot is None:
                    self._pending.remove(owner)
                    continue
            self._end(slot, slot.since_s, now)
            self.completed(slot, error)
        return True

    def _is_hot(self) -> bool:
        """Return whether exchanges are shorter than a sleep and there is nothing else to do."""
        return self._interval_s < self._host.hot_s and self._idle()

    def _oldest_is_over(self) -> bool:
        """Test the oldest operation a few times; testing all operations costs as much as six such tests."""
        test = self._requests[0].Test
        for _ in range(TESTS):  # noqa: SIM110 (a generator takes twice the time)
            if test():
                return True
        return False

    def _done(self) -> tuple[list[int] | None, MPI.Exception | None]:
        """Return the indices of the requests that have completed, and MPI's error, or None."""
        try:
            if self._is_hot() and self._oldest_is_over():
                return [0], None
            return self._host.test_some(self._requests), None
        except MPI.Exception as failure:
            # MPI does not report which requests have completed and which have failed: the statuses are lost.
            done = [
                place
                for place, request in enumerate(self._requests)
                if request == MPI.REQUEST_NULL
                or (type(self._in_flight[place].operation) is Persistent and request.Test())
            ]
            if not done:  # the error belongs to no request in particular
                self._failed(None, failure)
            return done, failure
