"""Waiting without spinning: nonblocking calls, several in flight, and sleep between polls."""

from typing import Any

from mpi4py import MPI

from ..requests.operations import Pending, Persistent
from ..requests.signatures import is_receive, is_send
from .waiting import HOT_S, LONGEST_SLEEP_S, SHORTEST_SLEEP_S, Label, OneThread, Waiting, wait_for

POLLS_PER_EXCHANGE = 8  # by default


class Polling(Waiting):
    """Nonblocking calls, several in flight, and sleep in between: the core is given back.

    The sleep follows the exchanges: a `polls`-th of the time between two completions, so that
    looking costs little and a finished exchange waits little, between 20 and 500 us. Exchanges shorter
    than a sleep are polled for without any, while no step of this rank runs.
    """

    naps = True
    test_some = staticmethod(MPI.Request.Testsome)
    hot_s = HOT_S

    def __init__(self, job, outstanding, workers, limit, polls=POLLS_PER_EXCHANGE):
        super().__init__(job, outstanding, workers)
        self._limit = limit
        self._polls = polls
        self._in_flight = []  # (slot, label), in the order of `_requests`
        self._sleep_s = SHORTEST_SLEEP_S
        self._interval_s = 0.0  # between the last completions
        self._last_completion: Any = None

    def make_room(self):
        # What is awaited later does not count: its other half may be what there must be room for.
        while len(self._requests) - len(self._pending) >= self._limit:
            self._look()

    def wait_unused(self, operation):
        if type(operation) is not Persistent:
            return
        label = None
        while any(flying.operation is operation for _, flying in self._in_flight):
            if label is None:  # other ranks may never come to complete it: the deadline counts
                label = f"{operation}, which is under way for another slice,"
                self.begin(label)
            self._look()
        if label is not None:
            self.end(label)

    def issue(self, slot, operation):
        self.make_room()
        request = self._started(slot, operation)
        if request is not None:
            self.adopt(slot, operation, request)

    def adopt(self, slot, operation, request):
        label = Label(operation, slot.current.key)
        self.begin(label)
        self._fly(slot, label, request)

    def _fly(self, owner, label, request):
        if not self._requests:
            self._last_completion = self.clock()
        self._in_flight.append((owner, label))
        self._requests.append(request)

    def keep(self, run, pending):
        super().keep(run, pending)
        if not pending.done:
            request, pending.request = pending.request, None
            self._fly(pending, Label(pending.operation, run.key), request)

    def wait_pending(self, slot, pending):
        if pending.done:
            self.completed(slot, pending.error)
            return
        pending.slot = slot
        self._pending.remove(pending)
        for owner, label in self._in_flight:
            if owner is pending:
                self.begin(label)  # the deadline counts from here

    def wait(self, request, label):
        with self.watched(label):
            wait_for(request.Test, self._wake_event.sleep, 0.0 if self._job.running else self.hot_s, self.clock)

    def reduced(self, comm, values, op):
        self.wait(comm.Iallreduce(MPI.IN_PLACE, values, op), "agreement of all ranks")

    def finish(self):
        while self._requests:
            self._look()

    def abandon(self):
        left = []
        for place, (_, label) in enumerate(self._in_flight):
            if is_receive(label.operation):
                self._requests[place].Cancel()  # then it ends
            elif is_send(label.operation):
                left.append(place)  # it reads its buffer only, and keeps it alive
        requests = [self._requests[place] for place in left]
        for place in reversed(left):
            owner, label = self._in_flight[place]
            if owner in self._pending:
                self._pending.remove(owner)
            else:
                self.end(label)
            del self._in_flight[place], self._requests[place]
        self.finish()
        return requests

    def _look(self):
        """Collect what has completed; if nothing has, sleep until the next look or item."""
        if not self._requests:
            self._wake_event.sleep()
        elif not self._collected():
            self._pause(self._job.running)

    def _pause(self, busy):
        """Until the next look: no time at all while exchanges are short and nothing else is to do."""
        hot = not busy and self._interval_s < self.hot_s and self.clock() - self._last_completion < self.hot_s
        self._wake_event.sleep(0.0 if hot else self._sleep_s)

    def _collected(self):
        """Collect what has completed; False if nothing has."""
        done, error = self._done()
        if not done:
            return False
        now = self.clock()
        interval = (now - self._last_completion) / len(done)
        self._last_completion, self._interval_s = now, interval
        self._sleep_s = min(
            max(interval / self._polls, 0.5 * self._sleep_s, SHORTEST_SLEEP_S), 2 * self._sleep_s, LONGEST_SLEEP_S
        )
        finished = [self._in_flight[place] for place in done]
        for place in sorted(done, reverse=True):
            del self._in_flight[place], self._requests[place]
        for owner, label in finished:
            if type(owner) is not Pending:
                self.end(label)
                self.completed(owner, error)
                continue
            owner.done, owner.error = True, error
            if owner.slot is None:
                self._pending.remove(owner)
            else:
                self.end(label)
                slot, owner.slot = owner.slot, None
                self.completed(slot, error)
        return True

    def _done(self):
        """Places of the requests that have completed, and what MPI says is wrong with them, or None."""
        try:
            return self.test_some(self._requests), None
        except MPI.Exception as failure:
            # MPI does not tell which has completed well and which has not: what it took is lost.
            done = [
                place
                for place, request in enumerate(self._requests)
                if request == MPI.REQUEST_NULL
                or (type(self._in_flight[place][1].operation) is Persistent and request.Test())
            ]
            if not done:  # the error is of none in particular
                self._job.fail(None, failure)
            return done, failure


class PollingInline(OneThread, Polling):
    """`Polling` on the calling thread: it looks between steps, and hot for a while before it sleeps."""

    def _advance(self):
        """As of `OneThread`; the deadline does not count the time of a step."""
        watched = [label for _, label in self._in_flight if self._outstanding.pop(label, None) is not None]
        try:
            return super()._advance()
        finally:
            now = self.clock()
            self._outstanding.update((label, now) for label in watched)

    def _look(self):
        """Collect what has completed; if nothing has, run a step; if none is ready, look again or sleep."""
        if (self._requests and self._collected()) or self._advance():
            return
        if not self._requests:
            self._wake_event.sleep()  # workers have steps
        else:
            self._pause(self._job.running)
