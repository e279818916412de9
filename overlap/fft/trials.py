"""The choice of mode, depth and units per message for a `Volume`: measured, the slow ones dropped.

All candidates run once; those that are near the best run twice more. All ranks keep the one with the
smallest median of the slowest rank's times; a simpler one wins a near tie.
"""

from statistics import median

from .settings import Settings, Trial
from .tune import DEPTH, NEAR_TIE, SHALLOW, _agreed, _seconds

MESSAGE_NBYTES = (128 * 1024, 512 * 1024, 2**21)
FEWEST_MESSAGES = 8  # per leg
PROMISING = 1.25  # times the best's: worth another run
ROUNDS = 2  # more of these


def choose_volume(transform, *, overlap, depth, chunk, in_flight):
    """Configure `transform` with the settings asked for, and the best ones where None or "auto"."""
    transform.planning = True
    try:
        chosen = _chosen(transform, overlap, depth, chunk, in_flight)
    finally:
        transform.planning = False
    transform.configure(chosen)


def _chosen(transform, overlap, depth, chunk, in_flight):
    comm = transform.runtime.comm
    units = max(1, transform.units)
    unit_nbytes = max(1, _agreed(comm, transform.message_nbytes(1)))
    sizes = sorted({max(1, min(nbytes // unit_nbytes, units // FEWEST_MESSAGES))
                    for nbytes in MESSAGE_NBYTES})

    def settings(overlap, chunk, depth=depth):
        depth = 1 if overlap == "off" else depth or DEPTH
        return Settings(overlap, depth, chunk, min(in_flight or depth, depth))

    if overlap != "auto":
        return settings(overlap, chunk or sizes[len(sizes) // 2])
    fields = transform.trial_fields()
    if units == 1 or fields == 0:
        alone = "off" if transform.runtime.workers == 1 else "poll"
        return settings(alone, chunk or 1)
    sizes = [chunk] if chunk else sizes
    candidates = list(dict.fromkeys((
        *(settings("off", size) for size in sizes),
        *(settings("block", size, depth or SHALLOW) for size in sizes[:2]),
        *(settings("poll", size) for size in sizes),
        settings("poll", sizes[0], depth or SHALLOW))))
    arrays = transform.trial_arrays(fields)
    seconds = {candidate: [] for candidate in candidates}

    def run(candidates):
        for candidate in candidates:
            transform.configure(candidate, fields)
            seconds[candidate].append(
                _agreed(comm, _seconds(comm, transform, "whole", arrays)))

    run(candidates[:1])
    seconds[candidates[0]].clear()  # the first run touches new memory
    run(candidates)
    best = min(min(values) for values in seconds.values())
    promising = [candidate for candidate in candidates
                 if seconds[candidate][0] <= PROMISING * best]
    for _ in range(ROUNDS):
        run(promising)
    chosen = promising[0]
    for candidate in promising[1:]:
        if median(seconds[candidate]) < NEAR_TIE * median(seconds[chosen]):
            chosen = candidate
    slices = units * fields
    transform.trials = tuple(sorted(
        (Trial(candidate, median(values) / slices, 0.0)
         for candidate, values in seconds.items()),
        key=lambda trial: trial.seconds_per_slice))
    return chosen
