"""Defects put back into the runtime, on purpose: the explorer must find each of them.

Every defect is a change of the source as one would make it by mistake. Where the runtime has changed so
that it no longer fits, `source.Outdated` says so: write the defect anew, for the new code.
"""

from .schedule import explore

# What it does: edits as of `source.load`.
DEFECTS = {
    "an operation is issued once more after an exception that came when MPI had it": (
        ("waiting", "if operation.made or (", "if ("),
    ),
    "a wait that can never end is not seen": (
        ("waiting", "never = item is None and not (job.running or self._requests)", "never = False"),
    ),
    "slices that differ from the first one are drained like it": (
        ("learning", "        if request is expected:\n            return None\n", "        return None\n"),
    ),
    "a wake-up is lost: `_awaited` is set after the item was looked for": (
        (
            "waiting",
            """\
                self._awaited = None if item is not None else slot
                never = item is None and not (job.running or self._requests)
""",
            """\
                never = item is None and not (job.running or self._requests)
            self._awaited = None if item is not None else slot
""",
        ),
    ),
    "one rank agrees one operation late": (
        (
            "scheduler",
            "if issued % self.agree_every == 0",
            "if (issued - (self.control.rank == 1)) % self.agree_every == 0",
        ),
    ),
    "slots are visited as they become ready": (
        ("scheduler", "for slot in visited:", "for slot in sorted(visited, key=lambda slot: slot.item is None):"),
    ),
    "draining leaves out one operation": (("slots", "run.awaited, run.pending)", "run.awaited + 1, run.pending)"),),
    "draining leaves out the operation that did not start": (("scheduler", "        run.awaited -= 1\n", ""),),
    "an error that Testsome reports is dropped": (("polling", "return done, failure", "return done, None"),),
    "an error of Testsome that belongs to no request is dropped": (
        ("polling", "                self._job.fail(None, failure)\n", "                pass\n"),
    ),
    "a barrier lets slices pass before the last one has come": (
        (
            "scheduler",
            """\
            if not rotation:  # the last slot has arrived at the barrier
                rotation = sorted(parked, key=lambda slot: slot.index)
                parked = []
                for slot in rotation:
                    slot.release_barrier()
                    waiting.resume(slot)
""",
            """\
            if len(rotation) < len(parked):
                for slot in parked:
                    slot.release_barrier()
                    waiting.resume(slot)
                rotation = sorted(rotation + parked, key=lambda slot: slot.index)
                parked = []
""",
        ),
    ),
    "a slot is resumed twice at a gate": (
        ("job", "self._gates.pop(slot, False):\n                slot.gate = None\n", "self._gates.get(slot, False):\n"),
    ),
    "a gate opens before the last slice has ended": (
        ("requests", "self.start, self.stop) < 0", "self.start, self.stop - 1) < 0"),
    ),
    "a core token is not given back after an exception": (
        (
            "workers",
            "    def __exit__(self, *exc_info):\n        self._free.put(None)\n",
            "    def __exit__(self, *exc_info):\n        if exc_info[0] is None:\n            self._free.put(None)\n",
        ),
    ),
    "a program is learned from a slice that has not ended": (
        ("scheduler", "slot.index == 0 and job.first_ended", "slot.index == 0 and slot.taken"),
    ),
    "one operation too many is in flight": (
        ("polling", "- len(self._pending) >= self._limit:", "- len(self._pending) > self._limit:"),
    ),
    "a rank that failed does not wait for the agreement": (
        ("scheduler", "if self._is_well(problem):", "if self._job.failure is None and self._is_well(problem):"),
    ),
    "a rank that failed begins no slice": (
        ("scheduler", "while self._ending and not (", "while job.stopping and not ("),
    ),
    "the parts of `parallel` are counted without a lock": (
        (
            "job",
            "            with lock:\n                remaining -= 1\n",
            "            if True:\n                left = remaining\n                remaining = left - 1\n",
        ),
    ),
    "the ready steps are kept without a lock": (
        (
            "workers",
            "        with self._lock:\n            return heappop(self._ready)[2] if self._ready else None\n",
            "        ready = sorted(self._ready)\n        self._ready = ready[1:]\n"
            "        return ready[0][2] if ready else None\n",
        ),
    ),
    "a worker counts on the step for which it was woken": (
        ("workers", "            if task is None:\n                continue\n", ""),
    ),
    "slots are closed while workers have them": (("scheduler", "        waiting.quiet()\n", "        pass\n"),),
    "an agreement under way when learning fails is dropped": (
        ("scheduler", "            self._is_well(self._agreements.ended())  #", "            #"),
    ),
    "the scheduler begins the rotation anew where the straight path has left it": (
        (
            "straight",
            "rotation[place + 1 :] + visited",
            "sorted(visited + rotation[place + 1 :], key=lambda one: one.index)",
        ),
    ),
    "what is in flight is not handed over where the straight path ends": (
        ("straight", "for own in self._flying}", "for own in ()}"),
    ),
    "what a slice has started is not handed over where the straight path ends": (
        ("straight_slots", "waiting.keep(slot.current, pending)", "slot.current.pending.append(pending)"),
    ),
    "ranks that have agreed to stop go on where the straight path ends": (
        ("agreed_path", "self._left, self._stopped = True, []", "self._left = True"),
    ),
    "the straight path waits for what some ranks did not start": (
        (
            "agreed_path",
            "if (started := agreements.sum([len(made)])[0]) < self._scheduler.control.size:",
            "if (started := agreements.sum([len(made)])[0]) < 1:",
        ),
    ),
    "what was learned on the straight path is forgotten where it ends": (
        ("agreed_path", "self.job.recorded.requests += self._requests", "pass"),
    ),
    "the straight path starts more at once than it may": (
        ("straight", "len(self._flying) >= self._in_flight)\n", "False)\n"),
    ),
    "the straight path goes on before an operation in flight is over": (
        ("straight", "if slot.gate is None and slot.flight is None:", "if slot.gate is None:"),
    ),
    "nobody waits at a gate of the straight path": (
        ("straight", "elif not request.is_open(self._ended):", "elif False:"),
    ),
    "what the straight path has been told is told once more": (
        ("straight", "            if self._problem is None:\n", "            if True:\n"),
    ),
}

RARE = {"slots are closed while workers have them"}  # takes thousands of schedules


def schedules_until_found(edits, limit):
    """How many schedules it takes to find a defect, and what is found; None, None if it is not."""
    for seed in range(limit):
        if (finding := explore(seed, edits)) is not None and explore(seed) is None:
            return seed + 1, finding
    return None, None
