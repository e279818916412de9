"""Refining: the settings that a model chose are compared with others in the user's own calls.

Nothing is measured when a plan is made, so it comes at once. Its first calls then run with one candidate's
settings after another, twice each (the first time touches new memory), then with what is worth a try once the best
of these is known, and the best two a few times more.
Results do not depend on the settings, only the time of these calls does. A call's time is that of the rank
which came last, the smallest of all ranks' times: the others have waited for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import perf_counter

import numpy as np

from .candidates import Tunable
from .settings import Settings, Trial
from .trials import winner

ENTRANTS = 6
FINAL_ROUNDS = 3
NEAR_TIE = 0.97


class Refinement:
    """What is left to be compared in the next calls of a transform.

    Parameters
    ----------
    transform : Transform
    entrants : list of Settings
        The first one is what the transform is configured with.
    successors : callable
        ``successors(settings)`` gives what else is to be tried if these are the fastest of the entrants.
    keep : callable
        ``keep(settings)`` is called on all ranks when the fastest is known.
    """

    def __init__(self, transform: Tunable, entrants: list[Settings],
                 successors: Callable[[Settings], list[Settings]], keep: Callable[[Settings], object]) -> None:
        self._transform, self._keep = transform, keep
        self._successors: Callable[[Settings], list[Settings]] | None = successors
        self._entrants: list[Settings] = []
        self._times_s: list[list[float]] = []
        self._turns: list[int] = []
        self._final = False
        self._enter(entrants[:ENTRANTS])

    def run(self, call: Callable[[], None]) -> bool:
        """Make a call with the settings whose turn it is; whether others are left (collective)."""
        transform = self._transform
        control = transform.runtime.control
        settings = self._entrants[self._turns[0]]
        if settings != transform.settings:
            self._configure(settings)
        started = perf_counter()
        call()
        seconds = control.minimum(perf_counter() - started)
        self._times_s[self._turns.pop(0)].append(seconds)
        if self._turns:
            return True
        medians = [float(np.median(times_s[1:])) for times_s in self._times_s]
        if self._successors is not None:
            found = self._successors(self._entrants[int(np.argmin(medians))])
            self._successors = None
            self._enter([one for one in found if one not in self._entrants])
            if self._turns:
                return True
        if not self._final and len(medians) > 1:
            self._final = True
            best = sorted(np.argsort(medians, kind="stable")[:2])
            self._turns = [int(number) for _ in range(FINAL_ROUNDS) for number in best]
            return True
        finalists = range(len(medians))
        if self._final:
            fewest = max(map(len, self._times_s))
            finalists = [number for number in finalists if len(self._times_s[number]) == fewest]  # type: ignore[assignment]
        chosen = self._entrants[finalists[winner([medians[number] for number in finalists], NEAR_TIE)]]
        self._configure(chosen)
        transform.trials = tuple(sorted(
            (Trial(entrant, median / max(1, transform.slices))
             for entrant, median in zip(self._entrants, medians)), key=lambda trial: trial.seconds_per_slice))
        self._keep(chosen)
        return False

    def _enter(self, entrants: list[Settings]) -> None:
        """Give each of these its turns."""
        for settings in entrants:
            self._turns += [len(self._entrants)] * 2
            self._entrants.append(settings)
            self._times_s.append([])

    def _configure(self, settings: Settings) -> None:
        transform, before = self._transform, self._transform.settings

        def restore() -> None:
            with suppress(Exception):
                transform.configure(before)

        with transform.runtime.together("refining a transform's settings", restore):
            transform.configure(settings)
