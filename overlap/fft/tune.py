"""The choice of mode, depth and slices per message: a model first, a short measured run second.

The model (`overlap.model`) is fed with what is measured on the plan's own messages: C per slice, and
latency and bandwidth of the exchange. It drops the candidates it finds much slower than its best; the
others run on a few slices, in turns, and all ranks keep the one with the smallest median of the
slowest rank's times. A simpler one wins a near tie.
"""

from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np
from mpi4py import MPI

from ..model import fit_message_time, pipeline_s
from .transform import Settings

DEPTH = 16
SHALLOW = 4  # lanes that stay in the cache: enough where an exchange is a copy
MESSAGE_NBYTES = 256 * 1024  # without measuring, chunk smaller messages to about this size
FEWEST_CHUNKS = 4 * DEPTH
HOPELESS = 1.5  # times the model's best: not worth a measured run
NEAR_TIE = 0.98
TRIAL_SECONDS = 0.08
TRIAL_NBYTES = 2**27
ROUNDS = 3


@dataclass(frozen=True)
class Trial:
    """One candidate of the measured planning run.

    Attributes
    ----------
    settings : Settings
    seconds_per_slice, model_s : float
        Measured (median), and as the model had it, per slice.
    """

    settings: Settings
    seconds_per_slice: float
    model_s: float

    def __str__(self):
        return (f"  {self.settings}: measured {self.seconds_per_slice * 1e6:.0f} us per slice, "
                f"model {self.model_s * 1e6:.0f}")


def choose(transform, *, overlap, depth, chunk, in_flight):
    """Configure `transform` with the settings asked for, and the best ones where None or "auto"."""
    transform.planning = True
    try:
        chosen = _chosen(transform, overlap, depth, chunk, in_flight)
    finally:
        transform.planning = False
    transform.configure(chosen)


def _chosen(transform, overlap, depth, chunk, in_flight):
    """The settings to use; leaves the measured candidates in ``transform.trials``."""
    comm = transform.runtime.comm
    slices = max(1, transform.slices)
    nbytes = _agreed(comm, transform.nbytes_per_slice())
    size = chunk or _chunk_by_size(slices, nbytes / max(1, comm.size))
    shallow = depth or SHALLOW
    depth = depth or DEPTH
    in_flight = in_flight or depth

    def settings(overlap, chunk, depth=depth):
        depth = 1 if overlap == "off" else depth
        return Settings(overlap, depth, chunk, min(in_flight, depth))

    if overlap != "auto":
        return settings(overlap, size)
    if slices == 1 or nbytes == 0:  # nothing to hide, or nothing to hide it behind
        alone = "off" if min(slices, transform.runtime.workers) == 1 else "poll"
        return settings(alone, size)
    sizes = [chunk] if chunk else sorted({max(1, size // 2), size, min(slices, 2 * size)})
    candidates = list(dict.fromkeys((
        settings("off", size), settings("block", size), settings("block", size, shallow),
        *(settings("poll", chunk) for chunk in sizes), settings("poll", size, shallow))))
    predicted = _predict(transform, candidates, nbytes)
    best = min(predicted)
    pairs = [(candidate, model) for candidate, model in zip(candidates, predicted)
             if model <= HOPELESS * best]
    count = _agreed(comm, min(
        slices, max(3 * depth * size, int(TRIAL_SECONDS / (best / slices))),
        max(1, TRIAL_NBYTES // transform.nbytes_of_arrays())))
    arrays = transform.trial_arrays(count)
    seconds = {candidate: [] for candidate, _ in pairs}
    for _ in range(ROUNDS):
        for candidate, _ in pairs:
            transform.configure(candidate, count)
            seconds[candidate].append(_seconds(comm, transform, "whole", arrays))
    measured = [(_agreed(comm, median(seconds[candidate])), candidate, model)
                for candidate, model in pairs]
    chosen = measured[0]
    for row in measured[1:]:
        if row[0] < NEAR_TIE * chosen[0]:
            chosen = row
    transform.trials = tuple(sorted(
        (Trial(candidate, value / count, model / slices) for value, candidate, model in measured),
        key=lambda trial: trial.seconds_per_slice))
    return chosen[1]


def _chunk_by_size(slices, piece_nbytes):
    """Slices per message of about `MESSAGE_NBYTES`, but enough messages to fill the pipeline."""
    return max(1, min(int(MESSAGE_NBYTES // max(1, piece_nbytes)), slices // FEWEST_CHUNKS))


def _predict(transform, candidates, nbytes):
    """The model's time of the whole batch for each candidate, in seconds."""
    comm = transform.runtime.comm
    slices = transform.slices
    few = min(slices, 8)
    arrays = transform.trial_arrays(few)
    times = {}
    for chunk in sorted({1, few}):
        transform.configure(Settings("off", 1, chunk, 1), few)
        for what in ("compute", "exchange"):
            seconds = [_seconds(comm, transform, what, arrays) for _ in range(3)]
            times[what, chunk] = _agreed(comm, min(seconds[1:]))
    compute_s = times["compute", 1] * slices / few
    link = fit_message_time([nbytes, nbytes * few],
                            [times["exchange", 1] / few, times["exchange", few]])
    return [pipeline_s(compute_s, nbytes * slices, link, slices=slices, chunk=candidate.chunk,
                       threads=transform.runtime.workers, wait=candidate.overlap,
                       depth=candidate.depth) for candidate in candidates]


def _seconds(comm, transform, what, arrays):
    """Wall time of one run on trial arrays, on this rank."""
    comm.handle.Barrier()
    started = perf_counter()
    transform.run_planes(*arrays, what=what)
    return perf_counter() - started


def _agreed(comm, value):
    """The largest of all ranks' values."""
    array = np.array([value], dtype=float)
    comm.handle.Allreduce(MPI.IN_PLACE, array, MPI.MAX)
    return type(value)(array[0])
