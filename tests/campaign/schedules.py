"""Schedules by the batch: of slice programs (`tests.explore`) and of the compiled loop (`tests.loop_model`)."""

import loop_model
from explore.defects import DEFECTS, schedules_until_found
from explore.schedule import explore

from .harness import Part

DEFECT = "draining leaves out one operation"
LIMIT = 2000
BATCH = 250  # schedules of a seed
# A call that does not wait for its crew.
CHANGE = "    while load_acquire(state[CONTROL] + 8 * INSIDE):", "    while False:"


def run(seed):
    """The schedules of one batch find nothing."""
    every = map(explore, range(seed * BATCH, (seed + 1) * BATCH))
    found = [finding for finding in every if finding is not None]
    assert not found, "\n".join(map(str, found))


def defect():
    """A defect of the runtime is put back, and found."""
    _, finding = schedules_until_found(DEFECTS[DEFECT], LIMIT)
    assert finding is None, str(finding)


PROGRAMS = Part(
    "schedules",
    "drawn programs under drawn schedules of all ranks' threads: no deadlock, the order of issue, one error on all "
    "ranks",
    100_000,
    run,
    defect,
    "for ever",
    BATCH,
)

LOOP = Part(
    "loop_schedules",
    "calls of drawn plans by the source of the compiled loop, with up to four threads in drawn orders on a model of "
    "memory with store buffers: each row runs once and in time, exchanges are issued in order, each call ends, and no "
    "thread touches a call that has ended",
    100_000,
    lambda seed: loop_model.explore(seed, count=BATCH),
    lambda: loop_model.explore(0, [CHANGE], LIMIT),
    "touches a call that has ended",
    BATCH,
)

PARTS = (PROGRAMS, LOOP)
