"""One run of a pipeline on one rank: its slots, its state, its first failure.

What threads share, all of it guarded by `Job.lock` (a store and a load that must not pass each other, as
"post the item, then see whether somebody sleeps for it" and "say what I sleep for, then look for the item",
are steps of one critical section each; nothing rests on the GIL. On a free-threaded Python 3.13, without the GIL,
slice programs were right on two ranks in all modes; plans were not tried there, as pyFFTW and numba cannot be had):

* ``Slot.item``, ``Slot.gate``, `Job.running` and the way to wait's ``_awaited``: the change of hands between a
  worker and the issuing thread, and the question whether anything is left to wait for;
* which slices have ended, and the gates that wait for them;
* `Job.failure` and `Job.stopping`. They are read without the lock too: they change once, and a reader who
  comes too early computes a little in vain, or tells the others one agreement later.

Also shared, with locks of their own: the heap of ready steps (`ReadySteps`), the count of a `Parallel` (in
`split`), the `WakeEvent`, which remembers one ring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import current_thread
from typing import TYPE_CHECKING, Any

from ...errors import formatted, text_of
from ..requests.learning import Recorded
from ..requests.requests import WaitForSlices

if TYPE_CHECKING:
    from ..trace import Trace
    from .ready_steps import ReadySteps

AGREE = "agree"  # in place of a skeleton: nothing is learned, every operation is agreed on


class Failure:
    """The first thing that went wrong on this rank.

    Attributes
    ----------
    issued : int
        Operations and turns that this rank had begun to issue by then; the order in which they are issued is that of
        all ranks. What a draining slice sends means nothing, and may have another rank's slice fail too. Such a failure
        comes after an operation that the draining rank issued after its own: so the cause has the smaller number.
    place : tuple of (int, int) or None
        The slice's number, and how many requests it had awaited: where all ranks fail by the same place of the
        program, it is the same on all of them, whatever other slices have issued by then. None: of no known slice.
    """

    issued = 0
    place: tuple[int, int] | None = None

    def __init__(self, key: Any, error: BaseException) -> None:
        self.key = "?" if key is None else text_of(key)
        self.error = error
        self.summary, self.traceback_text = formatted(error)


class Job:
    """One run of a pipeline on this rank: its slots and its state.

    Parameters
    ----------
    keys : sequence
        The slices.
    source : callable
        ``source(key, resources)`` makes a slice's source of requests: a coroutine, or what has its methods.
    skeleton : callable, "agree" or None
        Same arguments; a source that awaits what the slice awaits and computes nothing. None:
        learned from the first slice, whose operations are agreed on one by one. ``"agree"``: all are.
    resources : list
        One entry per slot; None where the program has no slot buffers.
    workers : ReadySteps or None
        None: the issuing thread runs all steps.
    trace : Trace or None
    lock : threading.RLock
        A signal handler may fail the job too, hence the R.

    Attributes
    ----------
    posted : callable
        ``posted(slot)`` tells the issuing thread that the slot was left; set by it, called with `lock` held.
    resume : callable
        ``resume(slot)`` has the slot's next step run; set by the issuing thread.
    issued : int
        Operations and turns that were issued, the one among them that is being issued.
    running : int
        Slots that a worker has, or will have.
    alone : bool
        The issuing thread runs all steps.
    timed : bool
        Steps are timed one by one.
    closing : bool
        All ranks have agreed to stop: slices that have not begun do not begin.
    recorded : Recorded or None
        What the first slice awaits; None where that is not to be learned.
    computing_s : float
        Time that steps of slices have taken, known when the job is over.
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
        self.alone = workers is None
        self.timed = not self.alone or trace is not None
        self.lock = lock
        self.running = self.issued = 0
        self.failure: Failure | None = None
        self.failed_itself = False  # not as a consequence of what failed on another rank; known at the end
        self.first_ended = False
        self.stopping = False  # no more computing: this rank failed, or all have agreed to stop
        self.closing = False
        self.computing_s = 0.0
        self.keys, self.resources, self.workers = keys, resources, workers
        self.slots: list[Any] = []
        self.which_ended = bytearray(len(keys))  # which slices have
        self._gates: dict[Any, bool] | None = {}  # slots that wait for some of them; None: they stay

    def fail(self, key: Any, error: BaseException) -> None:
        """Keep the first failure of this rank; from now on the slots drain."""
        # The text is made without the lock: that runs the user's code.
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
        """No more computing, as all ranks have agreed; if `closing`, no slice begins any more."""
        with self.lock:
            self.stopping = True
            self.closing = closing
            self._open_gates()

    def leave(self, slot: Any) -> None:
        """Let a worker leave a slot, which has an item or waits at a gate; `lock` is held."""
        if not self.alone:
            self.running -= 1
            self.posted(slot)

    def ended(self, ordinal: int) -> None:
        """Note that a slice has ended: those that waited for it go on."""
        with self.lock:
            if ordinal == 0:
                self.first_ended = True
            self.which_ended[ordinal] = True
            if self._gates:
                self._open_gates()

    def passes(self, slot: Any, gate: WaitForSlices) -> bool:
        """Tell whether the slices of a `WaitForSlices` have ended; if not, the slot is resumed when they have."""
        with self.lock:
            if self._is_open(gate):
                return True
            slot.gate = gate
            if self._gates is not None:
                self._gates[slot] = True
            self.leave(slot)
        return False

    def lock_gates(self) -> None:
        """From now on no slot is resumed at a gate."""
        with self.lock:
            self._gates = None

    def release(self) -> None:
        """Let go of what the job is over with: nothing keeps its slices' arrays alive."""
        with self.lock:
            self.posted = self.resume = self._gates = None
        self.slots = []

    def _is_open(self, gate: WaitForSlices | None) -> bool:
        return self.stopping or (gate is not None and gate.is_open(self.which_ended))

    def _open_gates(self) -> None:
        for slot in tuple(self._gates or ()):
            # A signal handler that fails the job may have opened it meanwhile.
            if self._is_open(slot.gate) and self._gates and self._gates.pop(slot, False):
                slot.gate = None
                self.resume(slot)

    def learned(self) -> None:
        """Note that the first slice has ended on all ranks: what it awaited stands for every slice."""
        assert self.recorded is not None
        self.skeleton = self.recorded.skeleton()

    def traced(self, label: str, started: float, ended: float) -> None:
        assert self.trace is not None
        self.trace.add(current_thread().name, "compute", label, started, ended)
