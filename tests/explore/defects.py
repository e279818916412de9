"""Defects put back into the runtime, on purpose: the explorer must find each of them.

Every defect is a change as one would make it by mistake: of what a method of the runtime does, where its name says it
all, or else inside of one (`mutation.Within`). Where the runtime has changed so that one no longer fits,
`mutation.Outdated` says so: write the defect anew, for the new code.
"""

from .mutation import Within, around, everywhere
from .schedule import explore


def issued_again(runtime):
    """Take an exception that came when MPI had the operation for a refusal."""

    @everywhere(runtime, "made")
    def made(original, operation, blocking=True):
        error = original(operation, blocking)
        if error is not None and not isinstance(error, runtime.waiting.MPI.Exception):
            raise runtime.waiting.NotIssued from error
        return error


def held_to_nothing(runtime):
    @around(runtime.learning.Recorded, "problem")
    def problem(original, self, run, position, request):
        return None


def agrees_late(runtime):
    @around(runtime.scheduler.Scheduler, "__init__")
    def made(original, self, control, comms, outstanding, agree_every):
        original(self, control, comms, outstanding, agree_every + (control.rank == 1))


def drains_one_less(runtime):
    @everywhere(runtime, "_skip")
    def skip(original, coroutine, count, pending):
        return original(coroutine, count + 1, pending)


def leaves_out_the_refused(runtime):
    @around(runtime.scheduler.Scheduler, "_drained")
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
    @around(runtime.workers.CoreTokens, "__exit__")
    def leave(original, self, *exc_info):
        if exc_info[0] is None:
            original(self, *exc_info)


def one_more_in_flight(runtime):
    @around(runtime.polling.Polling, "__init__")
    def made(original, self, job, outstanding, workers, limit, *options):
        original(self, job, outstanding, workers, limit + 1, *options)


def closes_at_once(runtime):
    @around(runtime.waiting.Waiting, "quiet")
    def quiet(original, self):
        pass


def forgets_what_flies(runtime):
    @around(runtime.straight.StraightPath, "_handed_over")
    def handed_over(original, self, *args):
        begun = original(self, *args)
        begun.in_flight = {}
        return begun


# What it does: edits as of `source.load`.
DEFECTS = {
    "an operation is issued once more after an exception that came when MPI had it": (issued_again,),
    "a wait that can never end is not seen": (
        Within(
            "Waiting.take", "item is None and not job.running and len(self._requests) <= len(self._pending)", "False"
        ),
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
        Within("Scheduler._issue_all", "visited", "sorted(visited, key=lambda slot: slot.item is None)"),
    ),
    "draining leaves out one operation": (drains_one_less,),
    "draining leaves out the operation that did not start": (leaves_out_the_refused,),
    "an error that Testsome reports is dropped": (drops_errors,),
    "an error of Testsome that belongs to no request is dropped": (
        Within("Polling._done", "self._job.fail(None, failure)", "None"),
    ),
    "a barrier lets slices pass before the last one has come": (
        Within("Scheduler._issue_all", "not rotation", "len(rotation) < len(parked)"),
        Within("Scheduler._issue_all", "sorted(parked, key=lambda slot: slot.index)", "list(parked)"),
        Within(
            "Scheduler._issue_all",
            "rotation = list(parked)\nparked: list[Any] = []",
            "arrived, rotation = parked, sorted(rotation + parked, key=lambda slot: slot.index)\nparked = []",
        ),
        Within(
            "Scheduler._issue_all",
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
    "a program is learned from a slice that has not ended": (
        Within("Scheduler._take", "job.first_ended", "slot.taken"),
    ),
    "one operation too many is in flight": (one_more_in_flight,),
    "a rank that failed does not wait for the agreement": (
        Within("Scheduler._agree", "self._is_well(problem)", "self._job.failure is None and self._is_well(problem)"),
    ),
    "a rank that failed begins no slice": (Within("Scheduler._take", "self._ending", "job.stopping"),),
    "the parts of `parallel` are counted without a lock": (
        Within(
            "Job.split.task",
            "with lock:\n    remaining -= 1\n    slot.computing_s += took_s\n    last = remaining == 0",
            "left = remaining\nremaining = left - 1\nslot.computing_s += took_s\nlast = remaining == 0",
        ),
    ),
    "the ready steps are kept without a lock": (
        Within(
            "ReadySteps._next",
            "with self._lock:\n    return heappop(self._ready)[2] if self._ready else None",
            "ready = sorted(self._ready)\nself._ready = ready[1:]\nreturn ready[0][2] if ready else None",
        ),
    ),
    "a worker counts on the step for which it was woken": (
        Within("ReadySteps.work", "if task is None:\n    continue", "pass"),
    ),
    "slots are closed while workers have them": (closes_at_once,),
    "an agreement under way when learning fails is dropped": (
        Within("Scheduler.run", "self._is_well(self._agreements.ended())", "None"),
    ),
    "the scheduler begins the rotation anew where the straight path has left it": (
        Within(
            "StraightPath._issue_all",
            "rotation[place + 1:] + visited",
            "sorted(visited + rotation[place + 1:], key=lambda one: one.index)",
        ),
    ),
    "what is in flight is not handed over where the straight path ends": (forgets_what_flies,),
    "what a slice has started is not handed over where the straight path ends": (
        Within("StraightSlot.hand_over", "waiting.keep(slot.current, pending)", "slot.current.pending.append(pending)"),
    ),
    "ranks that have agreed to stop go on where the straight path ends": (
        Within("AgreedPath._same", "self._left, self._stopped = True, []", "self._left = True"),
    ),
    "the straight path waits for what some ranks did not start": (
        Within("AgreedPath._make", "self._scheduler.control.size", "1"),
    ),
    "what was learned on the straight path is forgotten where it ends": (
        Within("AgreedPath._handed_over", "self.job.recorded.requests += self._requests", "pass"),
    ),
    "the straight path starts more at once than it may": (
        Within("StraightPath._has_room", "len(self._flying) >= self._in_flight", "False"),
    ),
    "the straight path goes on before an operation in flight is over": (
        Within("StraightPath._arrive", "slot.gate is None and slot.flight is None", "slot.gate is None"),
    ),
    "nobody waits at a gate of the straight path": (
        Within("StraightPath._step", "not request.is_open(self._ended)", "False"),
    ),
    "what the straight path has been told is told once more": (
        Within(
            "StraightPath._counted",
            "if self._problem is None:\n    agreements.start(self._left)",
            "agreements.start(self._left)",
        ),
    ),
}

RARE = {"slots are closed while workers have them"}  # takes thousands of schedules


def schedules_until_found(edits, limit):
    """How many schedules it takes to find a defect, and what is found; None, None if it is not."""
    for seed in range(limit):
        if (finding := explore(seed, edits)) is not None and explore(seed) is None:
            return seed + 1, finding
    return None, None
