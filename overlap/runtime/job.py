"""One run of a pipeline on one rank: its slots, its state, its first failure."""

from threading import Lock, RLock, current_thread
from time import perf_counter

from ..errors import formatted, text_of
from .requests import Operation
from .slots import Slot


class Failure:
    """The first thing that went wrong on this rank."""

    def __init__(self, key, error):
        self.key = "?" if key is None else text_of(key)
        self.error = error
        self.summary, self.traceback_text = formatted(error)


class Job:
    """One run of a pipeline on this rank: its slots and its state.

    Parameters
    ----------
    keys : sequence
        The slices.
    coroutine : callable
        ``coroutine(key, resources)`` makes a slice's coroutine.
    skeleton : callable or None
        Same arguments; a coroutine that awaits what the slice awaits and computes nothing. None:
        learned from the first slice, whose operations are agreed on one by one.
    resources : list
        One entry per slot; None where the program has no slot buffers.
    workers : Workers or None
        None: everything runs inline.
    trace : Trace or None

    Attributes
    ----------
    posted : callable
        ``posted(slot)`` tells the communicator that the slot has an item, or waits at a gate; set
        by it.
    resume : callable
        ``resume(slot)`` has a worker advance the slot; set by the communicator.
    """

    def __init__(self, keys, coroutine, skeleton, resources, depth, workers, trace):
        self.slices = len(keys)
        self.depth = depth
        self.coroutine = coroutine
        self.skeleton = skeleton
        self.posted = self.resume = None
        self.trace = trace
        self.failure = None
        self.first_ended = False
        self.stopping = False  # no more computing: this rank failed, or all have agreed to stop
        self._workers = workers
        self._lock = RLock()  # a signal handler may fail the job as well
        self._recorded = []
        self._ended = bytearray(len(keys))  # which slices have
        self._gates = {}  # slots that wait for some of them; None: they stay
        numbered = list(enumerate(keys))
        self.slots = [Slot(self, index, resources[index], numbered[index::depth])
                      for index in range(min(depth, len(keys)))]

    def fail(self, key, error):
        """Keep the first failure of this rank; from now on the slots drain."""
        with self._lock:
            if self.failure is None:
                self.failure = Failure(key, error)
            self.stopping = True
            self._open_gates()

    def ended(self, ordinal):
        """A slice has ended: those that waited for it go on."""
        if ordinal == 0:
            self.first_ended = True
        with self._lock:
            self._ended[ordinal] = True
            self._open_gates()

    def passes(self, slot, gate):
        """Whether the slices of an `WaitForSlices` have ended; if not, the slot is resumed when they have."""
        with self._lock:
            if self._is_open(gate):
                return True
            slot.gate = gate
            slot.busy = False
            if self._gates is not None:
                self._gates[slot] = True
        self.posted(slot)
        return False

    def lock_gates(self):
        """From now on no slot is resumed at a gate."""
        with self._lock:
            self._gates = None

    def _is_open(self, gate):
        return self.stopping or self._ended.find(0, gate.start, gate.stop) < 0

    def _open_gates(self):
        for slot in tuple(self._gates or ()):
            # A signal handler that fails the job may have opened it meanwhile.
            if self._is_open(slot.gate) and self._gates.pop(slot, False):
                slot.gate = None
                self.resume(slot)

    def record(self, request):
        if self.skeleton is None:
            self._recorded.append(request)

    def learned(self):
        """The first slice has ended on all ranks: what it awaited stands for every slice."""
        recorded = self._recorded

        async def skeleton(key, resources):
            for request in recorded:
                await (request.on_scratch() if isinstance(request, Operation) else request)

        self.skeleton = skeleton

    def traced(self, label, started):
        self.trace.add(current_thread().name, "compute", label, started, perf_counter())

    def split(self, slot, request):
        """Run the parts of a `Parallel` request; True if they are done on return."""
        run = slot.current
        if not request.parts:
            return True
        if self._workers is None:
            for part in request.parts:
                self._part(run, request.function, part)
            return True
        remaining = len(request.parts)
        lock = Lock()

        def task(part):
            nonlocal remaining
            self._part(run, request.function, part)
            with lock:
                remaining -= 1
                last = remaining == 0
            if last:
                slot.advance()

        for part in request.parts:
            self._workers.submit(slot.place, lambda part=part: task(part))
        return False

    def _part(self, run, function, part):
        started = perf_counter()
        try:
            if run.error is None and not self.stopping:
                function(part)
        except BaseException as error:
            run.error = error
            self.fail(run.key, error)
        if self.trace is not None:
            self.traced(f"slice {text_of(run.key)} part", started)
