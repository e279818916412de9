"""Trials: a transform that runs on arrays of zeros with one candidate's settings after another.

`Trials` measures the quantities of a transform that the timing model (`overlap.timing.model`) needs, selects by that
model the candidates that are worth a run, and lets candidates run in turns. Planning and tuning both use its
measurements. All times that it returns are those of the slowest rank, so that all ranks choose alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ...timing.messages import fit_message_time
from ...timing.model import pipeline_s
from ...timing.turns import in_turns
from .candidates import Candidates, Tunable
from .settings import Settings, Trial


class Trials:
    """A transform on trial arrays, and the model's expectation for it. Making one is collective.

    Parameters
    ----------
    candidates : Candidates
        The transform, with its candidates.

    Attributes
    ----------
    compute_s, exchange_s : float
        C and T of the trial of computing and exchanging alone, whose size is in `candidates.parts`.
    """

    def __init__(self, candidates: Candidates) -> None:
        self.candidates = candidates
        self.transform = candidates.transform
        self.coordinator = self.transform.runtime.coordinator
        self._arrays: tuple[int, tuple] | None = None
        self._measure_parts()

    def _measure_parts(self) -> None:
        """Measure the time of computing, the overhead of a message, latency and bandwidth."""
        candidates = self.candidates
        count, short, long = candidates.parts
        slices = count * candidates.slices_of_one
        messages = {chunk: -(-slices // chunk) for chunk in (short, long)}
        compute, exchange = {}, {}
        for chunk in (short, long):
            self.transform.configure(candidates.settings("off", chunk, 1), count)
            compute[chunk] = self._shortest_s("compute", count)
            exchange[chunk] = self._shortest_s("exchange", count)
        self.compute_s, self.exchange_s = compute[long], exchange[long]
        self._overhead_s = max(0.0, compute[short] - compute[long]) / (messages[short] - messages[long])
        self._slice_s = max(0.0, compute[short] - messages[short] * self._overhead_s) / slices
        self._handover_s = 0.0
        self._link = fit_message_time(
            [candidates.nbytes * chunk for chunk in (short, long)],
            [exchange[chunk] / messages[chunk] for chunk in (short, long)],
        )
        # The additional cost of passing a message between threads.
        polling = candidates.settings("poll", short, min(messages[short], candidates.shallow))
        self.transform.configure(polling, count)
        excess_s = self._shortest_s("whole", count) - self._predicted_s(polling, slices)
        self._handover_s = max(0.0, excess_s) * self.transform.runtime.workers / messages[short]

    def _shortest_s(self, what: str, count: int) -> float:
        """Return the shorter of two times, after a first run that touches new memory."""
        arrays = self._trial_arrays(count)
        return self.coordinator.maximum(min([seconds(self.transform, arrays, what) for _ in range(3)][1:]))

    def predicted_s(self, settings: Settings, speedup: float = 1.0) -> float:
        """Return the model's time of the whole batch in seconds, if computing were `speedup` times as fast."""
        return self._predicted_s(settings, self.candidates.slices, speedup)

    def _predicted_s(self, settings: Settings, slices: int, speedup: float = 1.0) -> float:
        handover_s = 0.0 if settings.wait == "off" else self._handover_s
        return pipeline_s(
            self._slice_s / speedup * slices,
            self.candidates.nbytes * slices,
            self._link,
            slices=slices,
            chunk=settings.chunk or 1,
            workers=self.transform.runtime.workers,
            wait=settings.wait,
            message_overhead_s=self._overhead_s + handover_s,
            depth=settings.depth,
        )

    def promising(self, entrants: Iterable[Settings]) -> list[Settings]:
        """Return the settings that the model does not expect to be hopeless, each once, in their order."""
        entrants = list(dict.fromkeys(entrants))
        predicted = [self.predicted_s(entrant) for entrant in entrants]
        limit_s = self.candidates.hopeless * min(predicted)
        return [entrant for entrant, time_s in zip(entrants, predicted) if time_s <= limit_s]

    def count(self, entrants: list[Settings], time_s: float, nbytes: int) -> int:
        """Return the entries of the batch for a trial of about `time_s` seconds; see `Candidates.count`."""
        batch_s = min(map(self.predicted_s, entrants))
        return self.candidates.count(entrants, time_s / batch_s, nbytes)

    def race(self, entrants: Sequence[Settings], count: int, rounds: Iterable) -> NDArray[np.float64]:
        """Let settings run in turns (collective).

        Parameters
        ----------
        entrants : list of Settings
        count : int
            Number of entries of the batch in a run; see `Candidates.count`.
        rounds : iterable
            One item per round.

        Returns
        -------
        ndarray
            Seconds, (entrants, rounds).
        """
        arrays = self._trial_arrays(count)
        # Kept here, because otherwise kernels would be planned anew in every round.
        kernels = [self.transform.kernels_of(entrant) for entrant in entrants]
        times_s = in_turns([partial(self._run, entrant, count, arrays) for entrant in entrants], rounds)
        del kernels
        return self.coordinator.maximum(times_s)

    def _run(self, settings: Settings, count: int, arrays: tuple) -> float:
        self.transform.configure(settings, count)
        return seconds(self.transform, arrays)

    def records(self, measured: Mapping[Settings, NDArray[np.float64]], count: int) -> tuple[Trial, ...]:
        """Return a record of the times of all settings in trials of `count` entries, fastest first."""
        slices = count * self.candidates.slices_of_one
        trials = []
        for settings, times_s in measured.items():
            typical_s = float(np.median(times_s))
            model_s = self.predicted_s(settings) / self.candidates.slices
            spread = float(np.ptp(times_s)) / typical_s if len(times_s) > 1 and typical_s > 0 else None
            trials.append(Trial(settings, typical_s / slices, model_s, spread))
        return tuple(sorted(trials, key=lambda trial: trial.seconds_per_slice))

    def _trial_arrays(self, count: int) -> tuple:
        if self._arrays is None or self._arrays[0] != count:
            self._arrays = None  # freed before new arrays are allocated
            self._arrays = count, self.transform.trial_arrays(count)
        return self._arrays[1]


def seconds(transform: Tunable, arrays: tuple, what: str = "whole") -> float:
    """Measure the wall time of one run on trial arrays, on this rank (collective)."""
    transform.runtime.coordinator.barrier()
    started = perf_counter()
    inputs, outputs = arrays
    transform.run_planes(inputs, outputs, what)
    return perf_counter() - started


def median_seconds(transform: Tunable, count: int, runs: int = 5) -> float:
    """Measure the median time of a transform with its present settings, on trial arrays (collective)."""
    arrays = transform.trial_arrays(count)
    return median(transform.runtime.coordinator.maximum(seconds(transform, arrays)) for _ in range(runs))


@contextmanager
def on_trial(transform: Tunable, what: str) -> Iterator[None]:
    """Return a ``with`` block in which a transform runs on arrays of zeros and calls no user functions (collective).

    A failure on one rank is one on all; the transform then has its previous settings again.
    """
    before = getattr(transform, "settings", None)
    held = before and transform.kernels_of(before)  # kernels made anew could give other last bits of results

    def restore() -> None:
        if before is not None:
            transform.configure(before)

    with transform.runtime.collective_section(what, restore):
        transform.planning = True
        try:
            yield
        finally:
            transform.planning = False
    del held
