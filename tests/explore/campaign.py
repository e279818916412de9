"""Many schedules, on several processes."""

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context

from .schedule import explore

BATCH = 250  # schedules that a process takes at a time


def batch(schedules, edits, first):
    """Explore the seeds of one batch; their findings."""
    return [
        finding
        for seed in range(first, min(first + BATCH, schedules.stop))
        if (finding := explore(seed, edits)) is not None
    ]


def campaign(schedules, jobs=1, edits=()):
    """Explore a range of seeds; their findings, by seed."""
    work = partial(batch, schedules, edits)
    starts = range(schedules.start, schedules.stop, BATCH)
    if jobs == 1:
        return list(chain.from_iterable(map(work, starts)))
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        return list(chain.from_iterable(pool.map(work, starts)))
