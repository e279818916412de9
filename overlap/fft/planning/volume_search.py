"""The choice of mode, depth and units per message for a transform of fields: measured.

C and T alone, measured once, tell which candidates are worth a run. Those run once; what comes near
the best runs again, and again. All ranks keep the candidate with the smallest median of the slowest
rank's times; a simpler one wins a near tie.
"""

from statistics import median

from .search import DEPTH, SHALLOW, _completed, _seconds
from .settings import Trial

MESSAGE_NBYTES = (2**18, 2**19, 2**20, 2**21)
FEWEST_MESSAGES = 8  # per leg
RESERVE = 1.2  # what goes early must keep the link busy for so many times C
LITTLE = 0.1  # of a field: not worth the work memory that late exchanges take
NEAR_TIE = 0.99
PROMISING = 1.15  # times the best's: worth another run
SLOTS_SHARE = 4  # of an input and an output: slots are to be smaller, where `SHALLOW` allows
ROUNDS = 4  # more of these


def choose_volume(transform, requested):
    """Configure `transform` with the settings asked for, and the best ones where None or "auto"."""
    transform.planning = True
    try:
        chosen = _chosen(transform, requested)
    finally:
        transform.planning = False
    transform.configure(chosen)


def seconds_of(transform):
    """Median time of a transform as it is configured, on trial arrays; the same on all ranks."""
    arrays = transform.trial_arrays(transform.trial_fields())
    return median(transform.runtime.control.maximum(_seconds(transform, "whole", arrays))
                  for _ in range(1 + ROUNDS))


def _chosen(transform, requested):
    wait, depth, chunk, late = requested.wait, requested.depth, requested.chunk, requested.late
    maximum = transform.runtime.control.maximum
    units = max(1, transform.units)
    unit_nbytes = max(1, maximum(transform.message_nbytes(1)))
    sizes = sorted({chunk or max(1, min(nbytes // unit_nbytes, units // FEWEST_MESSAGES))
                    for nbytes in MESSAGE_NBYTES})
    middle = sizes[len(sizes) // 2]

    def settings(wait, chunk=middle, depth=depth, late=late or 0.0):
        if wait == "off":
            depth = 1
        elif depth is None:
            slots = transform.nbytes_of_arrays() // (SLOTS_SHARE * transform.slot_nbytes(chunk))
            depth = maximum(min(DEPTH, max(SHALLOW, slots)))
        return _completed(requested, wait, depth, chunk, late)

    if wait != "auto":
        return settings(wait)
    fields = transform.trial_fields()
    if units == 1 or fields == 0:
        return settings("off" if transform.runtime.workers == 1 else "poll")
    arrays = transform.trial_arrays(fields)

    def seconds(candidate, what="whole"):
        transform.configure(candidate, fields)
        return maximum(_seconds(transform, what, arrays))

    off = settings("off")
    seconds(off)  # the first run touches new memory
    compute_s, exchange_s = seconds(off, "compute"), seconds(off, "exchange")
    if exchange_s > compute_s:  # a pause between two exchanges costs more than one in computing
        shallow = [settings("poll", sizes[0], depth or SHALLOW)]
    else:
        shallow = [settings("block", size, depth or SHALLOW) for size in sizes if size != middle]
    candidates = [off, settings("block", middle, depth or SHALLOW), *shallow,
                  *(settings("poll", size) for size in sizes)]
    share = round(1.0 - RESERVE * compute_s / exchange_s, 2) if exchange_s else 0.0
    if transform.can_be_late and late is None and share > LITTLE:
        candidates += [settings("poll", size, late=share) for size in sizes[-2:]]
    measured = {candidate: [seconds(candidate)] for candidate in candidates}
    best = min(values[0] for values in measured.values())
    promising = [candidate for candidate, values in measured.items()
                 if values[0] <= PROMISING * best]
    for _ in range(ROUNDS if len(promising) > 1 else 0):
        for candidate in promising:
            measured[candidate].append(seconds(candidate))
    chosen = promising[0]
    for candidate in promising[1:]:
        if median(measured[candidate]) < NEAR_TIE * median(measured[chosen]):
            chosen = candidate
    transform.trials = tuple(sorted(
        (Trial(candidate, median(values) / (units * fields))
         for candidate, values in measured.items()),
        key=lambda trial: trial.seconds_per_slice))
    return chosen
