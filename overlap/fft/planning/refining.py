"""Refining: the settings that a model chose are compared with others in the user's own calls.

Nothing is measured when a plan is made, so it comes at once. Its first calls then run with one candidate's settings
after another, twice each; one of the two may be disturbed, the first one also touches new memory, so the faster one
counts. The best run again before what is worth a try once the best is known, and in the end the best two, whose medians
decide. Results do not depend on the settings, only the time of these calls does. A call's time is that of the rank
which came last, the smallest of all ranks' times: the others have waited for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter

import numpy as np

from ...timing.turns import fastest
from .candidates import Tunable
from .settings import Settings, Trial

ENTRANTS, CALLS = 6, 2
SUCCESSOR_CALLS = 3
SEMIFINALISTS, SEMIFINAL_ROUNDS = 3, 2
FINALISTS, FINAL_ROUNDS = 2, 3
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

    def __init__(
        self,
        transform: Tunable,
        entrants: list[Settings],
        successors: Callable[[Settings], list[Settings]],
        keep: Callable[[Settings], object],
    ) -> None:
        self._transform, self._successors, self._keep = transform, successors, keep
        self._entrants: list[Settings] = []
        self._times_s: list[list[float]] = []
        self._finalists: list[int] = []
        self._turns = self._all_turns(entrants[:ENTRANTS])
        self._turn = next(self._turns)

    def run(self, call: Callable[[], None]) -> bool:
        """Make a call with the settings whose turn it is; whether others are left (collective)."""
        transform = self._transform
        coordinator = transform.runtime.coordinator
        settings = self._entrants[self._turn]
        if settings != transform.settings:
            self._configure(settings)
        started = perf_counter()
        call()
        seconds = coordinator.minimum(perf_counter() - started)
        self._times_s[self._turn].append(seconds)
        turn = next(self._turns, None)
        if turn is not None:
            self._turn = turn
            return True
        medians = [float(np.median(times_s[1:])) for times_s in self._times_s]
        chosen = self._entrants[
            fastest(self._finalists, [self._times_s[number][1:] for number in self._finalists], NEAR_TIE)
        ]
        self._configure(chosen)
        transform.trials = tuple(
            sorted(
                (Trial(entrant, median / max(1, transform.slices)) for entrant, median in zip(self._entrants, medians)),
                key=lambda trial: trial.seconds_per_slice,
            )
        )
        self._keep(chosen)
        return False

    @property
    def _fastest(self) -> list[int]:
        """Numbers of the entrants, those with the fastest calls first."""
        return np.argsort(list(map(min, self._times_s)), kind="stable").tolist()

    def _all_turns(self, entrants: list[Settings]) -> Iterator[int]:
        """Return the number of the entrant whose turn it is, for every call."""
        yield from self._first(entrants, CALLS)
        if len(self._entrants) > SEMIFINALISTS:
            yield from self._again(SEMIFINALISTS, SEMIFINAL_ROUNDS)
        found = self._successors(self._entrants[self._fastest[0]])
        yield from self._first([one for one in found if one not in self._entrants], SUCCESSOR_CALLS)
        yield from self._again(FINALISTS, FINAL_ROUNDS if len(self._entrants) > 1 else 0)

    def _first(self, entrants: list[Settings], calls: int) -> Iterator[int]:
        """Return so many calls of each of these."""
        for settings in entrants:
            self._entrants.append(settings)
            self._times_s.append([])
            yield from [len(self._entrants) - 1] * calls

    def _again(self, number: int, rounds: int) -> Iterator[int]:
        """Find the best so far in turns."""
        self._finalists = sorted(self._fastest[:number])
        for _ in range(rounds):
            yield from self._finalists

    def _configure(self, settings: Settings) -> None:
        transform, before = self._transform, self._transform.settings

        def restore() -> None:
            with suppress(Exception):
                transform.configure(before)

        with transform.runtime.collective_section("refining a transform's settings", restore):
            transform.configure(settings)
