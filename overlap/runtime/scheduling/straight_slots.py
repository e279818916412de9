"""The slots of the straight path: slices one after another, as they are handed to the scheduler where the path ends."""

from ...errors import text_of
from ..requests.operations import Pending


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
    operation, flight : Operation or Pending, and MPI.Request, or None
        What it waits for in MPI.
    pending : list of Pending
        What the current slice has started to await it later.
    answer : Pending or None
        What its last await gives.
    error : BaseException or None
        What its last await is to raise.
    raised : BaseException or None
        What it has raised.
    taken, awaited : int
        Requests that were issued: in all, and for the current slice.
    over : bool
        No slice is left.
    """

    __slots__ = (
        "_coroutine",
        "_depth",
        "_keys",
        "_next",
        "_resources",
        "answer",
        "awaited",
        "error",
        "flight",
        "gate",
        "identity",
        "index",
        "key",
        "operation",
        "ordinal",
        "over",
        "pending",
        "raised",
        "request",
        "send",
        "taken",
    )

    def __init__(self, index, depth, keys, resources):
        self.index = index
        self._depth = depth
        self._keys = keys
        self._resources = resources
        self._next = 0  # in `keys`
        self.taken = self.awaited = 0
        self.over = False
        self.ordinal = self.key = self.identity = self._coroutine = self.send = None
        self.request = self.gate = self.operation = self.flight = self.answer = self.error = self.raised = None
        self.pending = []

    def begin(self, coroutine):
        """Begin with the next slice."""
        self.key = self._keys[self._next]
        self.ordinal = self.index + self._next * self._depth
        self.identity = object()
        self.awaited = 0
        self._coroutine = coroutine(self.key, self._resources)
        self.send = self._coroutine.send

    def __str__(self):
        """Tell what it waits for, for the watchdog."""
        return f"{self.operation or self.request} of slice {text_of(self.key)}"

    def end(self):
        """Note that the slice has ended."""
        self._next += 1
        self.over = self._next == len(self._keys)
        self.send = self._coroutine = None
        if self.pending:
            self.pending = []

    def started(self, operation, request):
        """Note that the slice has started an operation, to await it later."""
        self.answer = pending = Pending(operation, len(self.pending))
        pending.request = request
        self.pending.append(pending)

    def hand_over(self, slot, waiting):
        """Have a `Slot` go on from here, and a way to wait with what its slice has started."""
        resumed = None
        if self.send is not None or self.raised is not None:
            resumed = _Resumed(self._coroutine, self.gate or self.request, self.raised)
        slot.go_on(self._next, self.taken, resumed, self.awaited, self.error)
        if slot.current is not None:
            slot.current.answer = self.answer
            for pending in self.pending:
                waiting.keep(slot.current, pending)


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
