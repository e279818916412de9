"""Tuning: a longer search for a transform's settings, within a budget of time.

It continues after planning. Combinations of way to wait, slices per message and depth run, as many as the budget
allows, those that the model prefers first; after every heat the slower half is dropped (successive halving; Jamieson
and Talwalkar, AISTATS 2016). Then, for the best one, exchanges in flight, the late share and FFTW's effort
are tried one after the other. At the end the best few run in turns against the choice of planning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np

from ...errors import repr_of
from ...runtime.coordinator.coordinator import Coordinator
from ...timing.turns import fastest
from ..engine.fftw import learned, relearn
from .candidates import Tunable
from .search import FINALISTS, ROUNDS, planned
from .settings import Settings, Trial, Tuned
from .trials import Trials, on_trial

TRIAL_SECONDS = 0.25
TRIAL_NBYTES = 2**29
NEAR_TIE = 0.99
SEARCH_SHARE, REFINED_SHARE = 0.5, 0.75  # shares of the budget at which the heats and the refining end
FEWEST_ENTRANTS = 8
FINAL_ROUNDS = 5, 15  # least and largest number of rounds
WORTH = 0.98  # another effort is tried if computing a fifth faster would reduce the model's time below this share

Progress = Callable[[str, float, float], object]


def tune(transform: Tunable, budget_s: float, progress: Progress | None = None) -> None:
    """Configure a transform with the best settings found in about `budget_s` seconds (collective).

    Parameters
    ----------
    transform : Transform
        Settings that were requested for its plan, such as a depth, stay.
    budget_s : float
        Making FFTW's plans may take longer; every race runs at least one round.
    progress : callable, optional
        ``progress(what, done, total)``, called on rank 0, in seconds.
    """
    coordinator = transform.runtime.coordinator
    clock = _Clock(coordinator, budget_s, progress)
    with on_trial(transform, "tuning"):
        clock.report("planning")
        candidates = transform.candidates(transform, transform.requested)
        if candidates.hides:
            trials = Trials(candidates)
            default = planned(trials)[0] if transform.requested.wait == "auto" else candidates.default()
            search = _Search(trials, clock)
            chosen, gain = search.run(default, transform.settings)
            transform.trials = search.records()
        else:
            default, gain, transform.trials = candidates.default(), 1.0, ()
            chosen = default
        chosen = coordinator.bcast(chosen)
    transform.tuned, transform.refinement = Tuned(str(default), gain, len(transform.trials)), None
    transform.configure(chosen)


def budget_problem(budget_s: object, progress: object = None) -> str | None:
    """Return what is wrong with the arguments of `tune`, or None."""
    if isinstance(budget_s, bool) or not isinstance(budget_s, (int, float)) or not 0 < budget_s < np.inf:
        return f"expected budget_s to be a positive number of seconds, received {repr_of(budget_s)}"
    if progress is not None and not callable(progress):
        return f"expected progress to be a function or None, received {repr_of(progress)}"
    return None


class _Search:
    """The search for one transform's settings; see the module's docstring."""

    def __init__(self, trials: Trials, clock: _Clock) -> None:
        self._trials, self._clock = trials, clock
        self._candidates = trials.candidates
        self._requested = trials.candidates.requested
        self._measured: dict[Settings, np.ndarray] = {}  # seconds of each round of the last race

    def records(self) -> tuple[Trial, ...]:
        """Return all measurements, fastest first."""
        return self._trials.records(self._measured, self._count)

    def run(self, default: Settings, present: Settings) -> tuple[Settings, float]:
        """Return the best settings, and how many times as fast as `default` they are (collective)."""
        trials = self._trials
        field = list(dict.fromkeys((default, present, *self._candidates.grid())))
        self._count = trials.count(field[:2], TRIAL_SECONDS, TRIAL_NBYTES)
        survivors = self._heats(field)
        challengers = survivors[:1]
        for what, find in (
            ("exchanges in flight", self._in_flights),
            ("late exchanges", self._candidates.late_shares),
        ):
            variants = find(challengers[0])
            if variants and self._clock.left(REFINED_SHARE):
                challengers = self._ranked([challengers[0], *variants], what, REFINED_SHARE)
        challengers = challengers[:2] + survivors[:3]
        before = learned()
        patient = self._efforts(challengers[0])
        kernels = [trials.transform.kernels_of(settings) for settings in patient]
        finalists = list(dict.fromkeys((default, *challengers, *patient)))
        times_s = self._race(finalists, "final", 1.0, *FINAL_ROUNDS)
        best = fastest(finalists, times_s, NEAR_TIE)
        del kernels
        if patient and best not in patient:
            relearn(before)  # else later plans would use the wisdom of slower settings
        gain = float(np.median(times_s[0] / times_s[finalists.index(best)]))
        return best, gain

    def _heats(self, field: list[Settings]) -> list[Settings]:
        """Return the best few of some settings, of which the slower half is dropped after every heat."""
        keep = field[:2]
        first = self._race(field[:1], "a first run", SEARCH_SHARE, 2, 2)
        affordable = SEARCH_SHARE * self._clock.budget_s / (2 * ROUNDS * first[0, 1])
        field = sorted(field, key=lambda entrant: (entrant not in keep, self._trials.predicted_s(entrant)))
        field = field[: max(FEWEST_ENTRANTS, int(affordable))]
        while len(field) > FINALISTS and self._clock.left(SEARCH_SHARE):
            field = self._ranked(field, f"{len(field)} settings", SEARCH_SHARE)
            field = field[: max(FINALISTS, len(field) // 2)]
        return field

    def _in_flights(self, best: Settings) -> list[Settings]:
        if best.wait != "poll" or self._requested.in_flight:
            return []
        depth = best.depth or 1
        return [
            replace(best, in_flight=count)
            for count in sorted({max(1, depth // 2), max(1, depth // 4), 2})
            if count < (best.in_flight or depth)
        ]

    def _efforts(self, best: Settings) -> list[Settings]:
        """Return settings with other efforts, if computing a fifth faster would be worth it."""
        worth = self._trials.predicted_s(best, 1.2) < WORTH * self._trials.predicted_s(best)
        if not worth or not self._clock.left(REFINED_SHARE):
            return []
        return [replace(best, effort=effort) for effort in self._candidates.efforts()]

    def _ranked(self, entrants: list[Settings], what: str, share: float) -> list[Settings]:
        """Sort the entrants, fastest first (collective)."""
        times_s = np.median(self._race(entrants, what, share, 1, ROUNDS), axis=1)
        return [entrants[position] for position in np.argsort(times_s, kind="stable")]

    def _race(self, entrants: Sequence[Settings], what: str, share: float, fewest: int, most: int) -> np.ndarray:
        """Run a race of up to `most` rounds; stop after `fewest` when `share` of the budget is spent (collective)."""

        def rounds() -> Iterator[None]:
            for number in range(most):
                if number >= fewest and not self._clock.left(share):
                    return
                self._clock.report(what)
                yield

        times_s = self._trials.race(entrants, self._count, rounds())
        self._measured |= zip(entrants, times_s)
        return times_s


class _Clock:
    """The time that tuning has taken, the same on all ranks."""

    def __init__(self, coordinator: Coordinator, budget_s: float, progress: Progress | None) -> None:
        self.budget_s = budget_s
        self._coordinator = coordinator
        self._progress = progress if coordinator.rank == 0 else None
        self._started = perf_counter()

    def left(self, share: float) -> bool:
        """Return whether less than `share` of the budget is spent (collective)."""
        spent_s = self._coordinator.maximum(perf_counter() - self._started)
        return spent_s < share * self.budget_s

    def report(self, what: str) -> None:
        """Report the progress to the caller of `tune`."""
        if self._progress is not None:
            self._progress(what, min(perf_counter() - self._started, self.budget_s), self.budget_s)
