"""Defects put back into the runtime, on purpose: the explorer must find each of them.

Every defect is a change as one would make it by mistake: of what a method of the runtime does, where its name says it
all, or else inside of one (`mutation.Within`). Where the runtime has changed so that one no longer fits,
`mutation.Outdated` says so: write the defect anew, for the new code.
"""

from .mutation import Within, around, everywhere
from .schedule import explore


def issued_again(runtime):
    """Take an exception that came when MPI had the operation for a refusal."""

    @everywhere(runtime, "issue")
    def issue(original, operation, blocking=True):
        error = original(operation, blocking)
        if error is not None and not isinstance(error, runtime.host.MPI.Exception):
            raise runtime.host.NotIssued from error
        return error


def held_to_nothing(runtime):
    @around(runtime.learning.Recorded, "problem")
    def problem(original, self, position, request):
        return None


def agrees_late(runtime):
    @around(runtime.executor.Executor, "__init__")
    def made(original, self, coordinator, comms, outstanding, agree_every):
        original(self, coordinator, comms, outstanding, agree_every + (coordinator.rank == 1))


def drains_one_less(runtime):
    @everywhere(runtime, "_skip")
    def skip(original, coroutine, count, pending):
        return original(coroutine, count + 1, pending)


def leaves_out_the_refused(runtime):
    @around(runtime.executor.Executor, "_drained")
    def drained(original, self, slot, error):
        slot.current.awaited += 1
        return original(self, slot, error)


def drops_errors(runtime):
    @around(runtime.polling.Polling, "_done")
    def done(original, self):
        return original(self)[0], None


def opens_early(runtime):
    @around(runtime.requests.WaitForSlices, "is_open")
    def is_open(original, self, ended):
        return ended.find(0, self.start, self.stop - 1) < 0


def keeps_tokens(runtime):
    @around(runtime.ready_steps.CoreTokens, "__exit__")
    def leave(original, self, *exc_info):
        if exc_info[0] is None:
            original(self, *exc_info)


def one_more_in_flight(runtime):
    @around(runtime.waiting.Waiting, "__init__")
    def made(original, self, job, outstanding, workers, here, limit, *options):
        original(self, job, outstanding, workers, here, limit + 1, *options)


def closes_at_once(runtime):
    @around(runtime.waiting.Waiting, "quiet")
    def quiet(original, self):
        pass


# What it does: edits as of `source.load`.
DEFECTS = {
    "an operation is issued once more after an exception that came when MPI had it": (issued_again,),
    "a wait that can never end is not seen": (
        Within("Waiting.take", "item is None and self._idle() and len(self._requests) <= len(self._pending)", "False"),
    ),
    "slices that differ from the first one are drained like it": (held_to_nothing,),
    "a wake-up is lost: `_awaited` is set after the item was looked for": (
        Within("Waiting.take", "self._awaited = None if item is not None else slot", "pass"),
        Within(
            "Waiting.take",
            "if item is not None:\n    return item",
            "self._awaited = None if item is not None else slot\nif item is not None:\n    return item",
        ),
    ),
    "one rank agrees one operation late": (agrees_late,),
    "slots are visited as they become ready": (
        Within(
            "Executor._issue_all",
            "visited, rotation = rotation, []",
            "visited, rotation = sorted(rotation, key=lambda slot: slot.item is None), []",
        ),
    ),
    "draining leaves out one operation": (drains_one_less,),
    "draining leaves out the operation that did not start": (leaves_out_the_refused,),
    "an error that Testsome reports is dropped": (drops_errors,),
    "an error of Testsome that belongs to no request is dropped": (
        Within("Polling._done", "self._failed(None, failure)", "None"),
    ),
    "a barrier lets slices pass before the last one has come": (
        Within("Executor._issue_all", "not rotation", "len(rotation) < len(parked)"),
        Within("Executor._issue_all", "sorted(parked, key=lambda slot: slot.index)", "list(parked)"),
        Within(
            "Executor._issue_all",
            "rotation = list(parked)\nparked = []",
            "arrived, rotation = parked, sorted(rotation + parked, key=lambda slot: slot.index)\nparked = []",
        ),
        Within(
            "Executor._issue_all",
            "for slot in rotation:\n    slot.release_barrier()\n    waiting.resume(slot)",
            "for slot in arrived:\n    slot.release_barrier()\n    waiting.resume(slot)",
        ),
    ),
    "a slot is resumed twice at a gate": (
        Within("Job._open_gates", "self._gates.pop(slot, False)", "self._gates.get(slot, False)"),
        Within("Job._open_gates", "slot.gate = None", "pass"),
    ),
    "a gate opens before the last slice has ended": (opens_early,),
    "a core token is not given back after an exception": (keeps_tokens,),
    "only the beginning of a program is learned": (
        Within("Job.record", "run.ordinal == 0", "run.ordinal == 0 and not self.recorded.requests"),
    ),
    "slices are compared before the first one has come as far": (
        Within("Slot.advance", "not job.recorded.reaches(run.awaited)", "False"),
    ),
    "a slice that fails before the first one has come as far is not drained": (
        Within("Executor._taken", "item is FAILED", "False"),
    ),
    "one operation too many is in flight": (one_more_in_flight,),
    "a rank that failed does not wait for the agreement": (
        Within(
            "Executor._agree",
            "self._none_failed(problem)",
            "self._job.failure is None and self._none_failed(problem)",
        ),
    ),
    "a rank that failed begins no slice": (
        Within("Executor._issue_all", "self._ending", "job.stopping"),
        Within("Executor._taken", "self._ending", "job.stopping"),
    ),
    "the parts of `parallel` are counted without a lock": (
        Within(
            "Slot._split.task",
            "with lock:\n    remaining -= 1\n    self.computing_s += took_s\n    last = remaining == 0",
            "left = remaining\nremaining = left - 1\nself.computing_s += took_s\nlast = remaining == 0",
        ),
    ),
    "the ready steps are kept without a lock": (
        Within(
            "ReadySteps.next_step",
            "with self._lock:\n    return heappop(self._ready)[2] if self._ready else None",
            "ready = sorted(self._ready)\nself._ready = ready[1:]\nreturn ready[0][2] if ready else None",
        ),
    ),
    "a worker counts on the step for which it was woken": (
        Within("ReadySteps.work", "if task is None:\n    continue", "pass"),
    ),
    "slots are closed while workers have them": (closes_at_once,),
    "an agreement under way when learning fails is dropped": (
        Within("Executor.run", "self._none_failed(agreements.ended())", "None"),
    ),
}

RARE = {  # take thousands of schedules
    "slots are closed while workers have them",
    "a slice that fails before the first one has come as far is not drained",
}


def schedules_until_found(edits, limit):
    """How many schedules it takes to find a defect, and what is found; None, None if it is not."""
    for seed in range(limit):
        if (finding := explore(seed, edits)) is not None and explore(seed) is None:
            return seed + 1, finding
    return None, None
