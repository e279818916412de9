"""One run of a pipeline on one rank: its slots, its state, its first failure.

Threads share the state below, guarded by `Job.lock`. A worker posts an item and then checks whether the issuing thread
sleeps for it; the issuing thread notes what it sleeps for and then checks for the item. Each pair is one critical
section, so that its store and load cannot be reordered; nothing relies on the GIL. (On a free-threaded Python 3.13
slice programs were right on two ranks in all modes. Plans were not tried there, because pyFFTW and numba are not
available.)

* ``Slot.item``, ``Slot.gate``, `Job.running` and ``Waiting._awaited``: which of a worker and the issuing thread owns a
  slot, and whether anything is left to wait for;
* which slices have ended, and the slots that wait for them at a gate;
* `Job.failure` and `Job.stopping`. They are also read without the lock: they change once, and a thread that still reads
  the old value computes a little in vain, or reports the failure one agreement later.

Shared with locks of their own are the heap of ready steps (`ReadySteps`), the count of a `Parallel` (in `Slot._split`)
and the `WakeEvent`, which remembers one ring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import current_thread
from typing import TYPE_CHECKING, Any

from ...errors import formatted, text_of
from ..requests.learning import Follows, Recorded
from ..requests.requests import Request, WaitForSlices

if TYPE_CHECKING:
    from ..trace import Trace
    from .ready_steps import ReadySteps

AGREE = "agree"  # given instead of a skeleton: nothing is learned, the ranks agree on every operation


class Failure:
    """The first failure on this rank."""

    # Number of operations and turns that this rank had begun to issue; all ranks issue in the same order. A draining
    # slice sends meaningless values, which may cause another rank's slice to fail, too. That failure follows an
    # operation that the draining rank has issued after its own failure, so the first cause has the smaller number.
    issued = 0
    # The slice's index and how many requests it had awaited. If all ranks fail at the same position of the program,
    # this is equal on all of them, whatever other slices have issued. None: the failure is not that of a slice.
    place: tuple[int, int] | None = None

    def __init__(self, key: Any, error: BaseException) -> None:
        self.key = "?" if key is None else text_of(key)
        self.error = error
        self.summary, self.traceback_text = formatted(error)


class Job:
    """One run of a pipeline on this rank, with its slots and its state.

    Parameters
    ----------
    source : callable
        ``source(key, resources)`` makes a slice's source of requests: a coroutine or an object with its methods.
    skeleton : callable, "agree" or None
        Takes the same arguments and makes a source that awaits what the slice awaits and computes nothing. None:
        learned from the first slice, whose operations the ranks agree on one by one. ``"agree"``: they agree on all
        operations.
    resources : list
        One entry per slot; None if the program has no slot buffers.
    workers : ReadySteps or None
        None: the issuing thread runs all steps.
    lock : threading.RLock
        Reentrant, because a signal handler may call `fail` while this thread holds it.

    Attributes
    ----------
    posted, resume : callable
        Set by the issuing thread. ``posted(slot)`` notifies it that a worker has left the slot, and is called with
        `lock` held; ``resume(slot)`` has the slot's next step run.
    issued : int
        Number of operations and turns issued so far, including the current one.
    running : int
        Number of slots that a worker runs or will run.
    timed : bool
        Steps are timed one by one.
    computing_s : float
        Time that steps of slices have taken, known when the job is over.
    issued_before : dict
        What compiled code has issued of a job that it began, see `Agreements.issued`.
    """

    def __init__(
        self,
        keys: Sequence[Any],
        source: Callable[..., Any],
        skeleton: Any,
        resources: list[Any],
        depth: int,
        workers: ReadySteps | None,
        trace: Trace | None,
        lock: Any,
    ) -> None:
        self.slices = len(keys)
        self.depth = depth
        self.source = source
        self.recorded = Recorded() if skeleton is None else None
        self.skeleton = None if skeleton == AGREE else skeleton
        self.posted: Any = None
        self.resume: Any = None
        self.trace = trace
        self.alone = workers is None  # the issuing thread runs all steps
        self.timed = not self.alone or trace is not None
        self.lock = lock
        self.running = self.issued = 0
        self.failure: Failure | None = None
        self.failed_itself = False  # false if only another rank has failed; known at the end
        self.stopping = False  # compute no more: this rank has failed, or all have agreed to stop
        self.closing = False  # all ranks have agreed to stop: slices that have not begun do not begin
        self.computing_s = 0.0
        self.issued_before: dict[Any, list[Any]] = {}
        self.keys, self.resources, self.workers = keys, resources, workers
        self.slots: list[Any] = []
        self.returned: dict[int, Any] = {}  # by the slice's number, what slices have returned, if not None
        self.which_ended = bytearray(len(keys))  # for each slice, whether it has ended
        # Slots that wait for slices to end; None: they are not resumed any more.
        self._gates: dict[Any, bool] | None = {}

    def fail(self, key: Any, error: BaseException) -> None:
        """Keep the first failure of this rank; from now on the slots drain."""
        # The error's text is made without the lock, because that runs the user's code.
        issued = self.issued
        failure = Failure(key, error) if self.failure is None else None
        if failure is not None:
            failure.issued = issued
            failure.place = self._place(key)
        with self.lock:
            if self.failure is None:
                self.failure = failure
            self.stopping = True
            self._open_gates()

    def _place(self, key: Any) -> tuple[int, int] | None:
        for slot in self.slots:
            run = slot.current
            if run is not None and run.key is key:
                return run.ordinal, run.awaited
        return None

    def stop(self, closing: bool) -> None:
        """Stop computing, as all ranks have agreed; if `closing`, begin no further slice."""
        with self.lock:
            self.stopping = True
            self.closing = closing
            self._open_gates()

    def leave(self, slot: Any) -> None:
        """Note that a worker leaves a slot, which has an item or waits at a gate; `lock` is held."""
        if not self.alone:
            self.running -= 1
            self.posted(slot)

    def ended(self, ordinal: int) -> None:
        """Note that a slice has ended, and resume slices that waited for it."""
        with self.lock:
            self.which_ended[ordinal] = True
            if ordinal == 0 and self.recorded is not None:
                self.recorded.complete = True
            if self._gates:
                self._open_gates()

    def passes(self, slot: Any, gate: WaitForSlices | Follows) -> bool:
        """Return whether a gate is open; if not, the slot is resumed when it opens."""
        with self.lock:
            if self._is_open(gate):
                return True
            slot.gate = gate
            if self._gates is not None:
                self._gates[slot] = True
            self.leave(slot)
        return False

    def lock_gates(self) -> None:
        """Resume no slot at a gate any more."""
        with self.lock:
            self._gates = None

    def release(self) -> None:
        """Drop all references of a job that is over, so that nothing keeps its slices' arrays alive."""
        with self.lock:
            self.posted = self.resume = self._gates = None
        self.slots = []

    def _is_open(self, gate: WaitForSlices | Follows | None) -> bool:
        return self.stopping or (gate is not None and gate.is_open(self.which_ended))

    def _open_gates(self) -> None:
        for slot in tuple(self._gates or ()):
            # A signal handler that has failed the job may have opened the gate meanwhile.
            if self._is_open(slot.gate) and self._gates and self._gates.pop(slot, False):
                slot.gate = None
                self.resume(slot)

    def record(self, run: Any, request: Request) -> None:
        """Record what the first slice awaits, when it is issued or a barrier; slices that follow it go on."""
        if self.recorded is not None and run.ordinal == 0:
            with self.lock:
                self.recorded.requests.append(request)
                if self._gates:
                    self._open_gates()

    def learned(self) -> None:
        """Note that the first slice has ended on all ranks, so that its awaits are the program's."""
        assert self.recorded is not None
        self.skeleton = self.recorded.skeleton()

    def agrees_on(self, slot: Any) -> bool:
        """Return whether the ranks agree on a slot's items one by one (to be asked by the issuing thread)."""
        return self.skeleton is None and (self.recorded is None or slot.index == 0)

    def skeleton_of(self, ordinal: int, position: int) -> Any:
        """Return a skeleton from which a slice drains, from a position on; None if its next item is not known yet."""
        if self.skeleton is not None or self.recorded is None or not ordinal or not self.recorded.reaches(position):
            return self.skeleton
        # As far as the first slice has come. That is enough: at the first slice's next item all ranks stop.
        return self.recorded.skeleton()

    def traced(self, label: str, started: float, ended: float) -> None:
        assert self.trace is not None
        self.trace.add(current_thread().name, "compute", label, started, ended)
