"""Defects put back into the runtime, on purpose: the explorer must find each of them.

Every defect is a change of the source as one would make it by mistake. Where the runtime has changed so
that it no longer fits, `source.Outdated` says so: write the defect anew, for the new code.
"""

from .schedule import explore

# What it does: edits as of `source.load`.
DEFECTS = {
    "a wake-up is lost: the item is looked for before `_awaited` is set": (
        ("waiting", """\
                self._awaited = None if item is not None else slot
                never""", """\
                never"""),
        ("waiting", """\
            else:
                self._look()

    def quiet""", """\
            else:
                self._awaited = slot
                self._look()
                self._awaited = None

    def quiet"""),),
    "a wait that can never end is not seen (issue 11, defect 3)": (
        ("waiting", "never = item is None and not (job.running or self._requests)",
         "never = False"),),
    "an operation is issued again after an exception (issue 11, defect 2)": (
        ("waiting", "if operation.made or (isinstance", "if (isinstance"),),
    "one rank agrees one operation late": (
        ("scheduler", "if issued % self.agree_every == 0",
         "if (issued - (self.control.rank == 1)) % self.agree_every == 0"),),
    "slots are visited as they become ready": (
        ("scheduler", "for slot in visited:",
         "for slot in sorted(visited, key=lambda slot: slot.item is None):"),),
    "draining leaves out one operation": (
        ("slots", "self.resources), run.awaited)", "self.resources), run.awaited + 1)"),),
    "draining repeats the operation that did not start": (
        ("scheduler", "        run.awaited -= 1\n", ""),),
    "an error that Testsome reports is dropped": (
        ("waiting", "            self.completed(slot, error)\n\n    def _done",
         "            self.completed(slot)\n\n    def _done"),
    ),
    "a barrier lets slices pass before the last one has come": (
        ("scheduler", """\
            if not rotation:  # the last slot has arrived at the barrier
                rotation = sorted(parked, key=lambda slot: slot.index)
                parked = []
                for slot in rotation:
                    slot.release_barrier()
                    waiting.resume(slot)
""", """\
            if len(rotation) < len(parked):
                for slot in parked:
                    slot.release_barrier()
                    waiting.resume(slot)
                rotation = sorted(rotation + parked, key=lambda slot: slot.index)
                parked = []
"""),),
    "a slot is resumed twice at a gate": (
        ("job", "self._gates.pop(slot, False):\n                slot.gate = None\n",
         "self._gates.get(slot, False):\n"),),
    "a gate opens before the last slice has ended": (
        ("job", "gate.start, gate.stop) < 0", "gate.start, gate.stop - 1) < 0"),),
    "a core token is not given back after an exception": (
        ("workers", "    def __exit__(self, *exc_info):\n        self._free.put(None)\n",
         "    def __exit__(self, *exc_info):\n        if exc_info[0] is None:\n"
         "            self._free.put(None)\n"),),
    "a program is learned from a slice that has not ended": (
        ("scheduler", "slot.index == 0 and job.first_ended", "slot.index == 0"),),
    "one operation too many is in flight": (
        ("waiting", "while len(self._requests) >= self._limit:",
         "while len(self._requests) > self._limit:"),),
    "a rank that failed stops at once": (
        ("scheduler", "                    if self._all_well():\n",
         "                    if self._job.failure is None and self._all_well():\n"),),
    "the parts of `parallel` are counted without a lock": (
        ("job", "            with lock:\n                remaining -= 1\n",
         "            if True:\n                left = remaining\n"
         "                remaining = left - 1\n"),),
    "the ready steps are kept without a lock": (
        ("workers", "            with self._lock:\n                _, _, task = heappop(self._ready)\n",
         "            if True:\n                _, _, task = self._ready[0]\n"
         "                heappop(self._ready)\n"),),
    "the last agreement is not looked at": (
        ("scheduler", "        self._all_well()  # the last agreement may still be under way\n", ""),),
}


def schedules_until_found(edits, limit):
    """How many schedules it takes to find a defect, and what is found; None, None if it is not."""
    for seed in range(limit):
        if (finding := explore(seed, edits)) is not None and explore(seed) is None:
            return seed + 1, finding
    return None, None
