"""Requests of the explored network, and the errors that they may carry: what the runtime waits for."""

from mpi4py import MPI as real

from . import threads


class Violation(Exception):
    """The ranks broke a rule of MPI, or of the runtime."""


class Failed(Exception):
    """In the place of `MPI.Exception`."""

    def __init__(self, code):
        super().__init__(f"MPI error {code}")
        self.code = code

    def Get_error_class(self):
        return self.code


class Interrupted(Exception):
    """What a signal handler raises."""


class Ticket:
    """One rank's part in an operation: the request of MPI."""

    __slots__ = ("_sleeper", "counted", "done", "error", "network", "null", "priority", "rank")

    def __init__(self, network, rank, error=None, counted=False):
        self.network = network
        self.rank = rank
        self.done = False
        self.null = False
        self.error = error
        self.counted = counted
        self.priority = threads.schedule.random()
        self._sleeper = None
        network.open.add(self)

    def __eq__(self, other):
        return self.null if other is Request.NULL else self is other

    __hash__ = object.__hash__

    def happen(self):
        """The operation is over."""
        self.done = True
        if self._sleeper is not None:
            threads.schedule.ready(self._sleeper)

    def collect(self):
        """The rank has seen it."""
        self.null = True
        self.network.open.discard(self)
        if self.counted:
            self.network.in_flight[self.rank] -= 1

    def raise_error(self):
        if self.error is not None:
            error, self.error = self.error, None
            try:
                raise error
            finally:
                del error  # its traceback holds this frame

    def Test(self):
        if self.null:
            return True
        if self.done:
            self.collect()
            self.raise_error()
        return self.done

    def Cancel(self):
        self.happen()

    def Wait(self):
        while not self.done:
            self._sleeper = threads.getcurrent()
            threads.schedule.suspend()
        if not self.null:
            self.collect()
            self.raise_error()
        return True


class Request:
    NULL = object()

    @staticmethod
    def Testsome(tickets):
        network = tickets[0].network
        if fault := network.testsome.pop(tickets[0].rank, None):
            network.fire(fault)
            raise Failed(real.ERR_OTHER)
        done = [place for place, ticket in enumerate(tickets) if ticket.done and not ticket.null]
        error = None
        for place in done:
            ticket = tickets[place]
            ticket.collect()
            error = error or ticket.error
        if error is not None:
            raise error
        return done
