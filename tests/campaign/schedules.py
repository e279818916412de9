"""Schedules of the runtime on the simulator: `tests.explore`, by the batch."""

from explore.defects import DEFECTS, schedules_until_found
from explore.schedule import explore

from .harness import Part

DEFECT = "draining leaves out one operation"
LIMIT = 2000
BATCH = 250  # schedules of a seed


def run(seed):
    """The schedules of one batch find nothing."""
    every = map(explore, range(seed * BATCH, (seed + 1) * BATCH))
    found = [finding for finding in every if finding is not None]
    assert not found, "\n".join(map(str, found))


def defect():
    """A defect of the runtime is put back, and found."""
    _, finding = schedules_until_found(DEFECTS[DEFECT], LIMIT)
    assert finding is None, str(finding)


PART = Part(
    "schedules",
    "drawn programs under drawn schedules of all ranks' threads: no deadlock, the order of issue, one error on all "
    "ranks",
    100_000,
    run,
    defect,
    "for ever",
    BATCH,
)
