"""Refining: settings that were not measured for this plan are compared with others in the user's own calls.

Nothing is measured when a plan is made, so it comes at once. Its first calls then run with one candidate's settings
after another, twice each; one of the two may be disturbed, the first one also touches new memory, so the faster one
counts. The best run again before what is worth a try once the best is known. In the end the best two run in turns until
one of them has been faster so much more often that the order is significant. Results do not depend on the settings,
only the time of these calls does. A call's time is that of the rank which came last, the smallest of all ranks' times:
the others have waited for it.

What was found is kept with its time, and with the second best. In another process the two are compared once more: the
first time may have been a bad hour. Later plans trust it as long as its time still fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from ...timing.turns import fastest
from .candidates import Tunable
from .settings import Settings, Trial

ENTRANTS, CALLS = 6, 2
SUCCESSOR_CALLS = 3
SEMIFINALISTS, SEMIFINAL_ROUNDS = 3, 2
# Wald's sequential test of signs (Annals of Mathematical Statistics 16, 1945, 117): if the better one is faster in 4 of
# 5 rounds, a lead of 3 rounds belongs to the worse one in 1 of 65 comparisons.
LEAD, FINAL_ROUNDS = 3, 11
NEAR_TIE = 0.97
FITS = 1.1  # times as long as it was, at most
PROCESSES = 2  # that have compared, before a choice is trusted


@dataclass(frozen=True)
class Choice:
    """What was found to be the fastest, for later processes.

    Attributes
    ----------
    settings : Settings
    second : Settings or None
        The next best.
    seconds : float
        Time of a call.
    processes : int
        So many have compared the two, one after another.
    """

    settings: Settings
    second: Settings | None
    seconds: float
    processes: int = 1


class Refinement:
    """What is left to be compared in the next calls of a transform.

    Parameters
    ----------
    transform : Transform
    entrants : callable
        ``entrants()`` gives what is worth a try, the most promising settings first (collective). Without `known` the
        transform is configured with the first ones, with `known` with the known ones.
    successors : callable
        ``successors(settings)`` gives what else is to be tried if these are the fastest of the entrants.
    keep : callable
        ``keep(choice)`` is called on all ranks when the fastest is known.
    known : Choice, optional
        What an earlier process has found.
    """

    def __init__(
        self,
        transform: Tunable,
        entrants: Callable[[], list[Settings]],
        successors: Callable[[Settings], list[Settings]],
        keep: Callable[[Choice], object],
        known: Choice | None = None,
    ) -> None:
        self._transform, self._successors, self._keep = transform, successors, keep
        self._entrants: list[Settings] = []
        self._times_s: list[list[float]] = []
        self._chosen: Choice | None = None
        self._turns = self._all_turns(entrants) if known is None else self._turns_of_known(known, entrants)
        self._turn = next(self._turns)

    def run(self, call: Callable[[], None]) -> bool:
        """Make a call with the settings whose turn it is; whether others are left (collective)."""
        transform = self._transform
        settings = self._entrants[self._turn]
        if settings != transform.settings:
            self._configure(settings)
        started = perf_counter()
        call()
        seconds = transform.runtime.coordinator.minimum(perf_counter() - started)
        self._times_s[self._turn].append(seconds)
        turn = next(self._turns, None)
        if turn is not None:
            self._turn = turn
            return True
        if self._chosen is None:  # what was known still fits
            return False
        self._configure(self._chosen.settings)
        medians = [float(np.median(times_s[1:])) for times_s in self._times_s]
        transform.trials = tuple(
            sorted(
                (Trial(entrant, median / max(1, transform.slices)) for entrant, median in zip(self._entrants, medians)),
                key=lambda trial: trial.seconds_per_slice,
            )
        )
        self._keep(self._chosen)
        return False

    @property
    def _fastest(self) -> list[int]:
        """Numbers of the entrants, those with the fastest calls first."""
        return np.argsort(list(map(min, self._times_s)), kind="stable").tolist()

    def _all_turns(self, entrants: Callable[[], list[Settings]]) -> Iterator[int]:
        """Return the number of the entrant whose turn it is, for every call."""
        yield from self._first([one for one in entrants() if one not in self._entrants][:ENTRANTS], CALLS)
        if len(self._entrants) > SEMIFINALISTS:
            best = sorted(self._fastest[:SEMIFINALISTS])
            for _ in range(SEMIFINAL_ROUNDS):
                yield from best
        found = self._successors(self._entrants[self._fastest[0]])
        yield from self._first([one for one in found if one not in self._entrants], SUCCESSOR_CALLS)
        yield from self._final(1)

    def _turns_of_known(self, known: Choice, entrants: Callable[[], list[Settings]]) -> Iterator[int]:
        """Return the turns of what an earlier process has found: two of its calls tell whether its time still fits."""
        yield from self._first([known.settings], 1 + CALLS)
        if min(self._times_s[0][1:]) > FITS * known.seconds:
            yield from self._all_turns(entrants)
        elif known.second is not None and known.processes < PROCESSES:
            yield from self._first([known.second], CALLS)
            yield from self._final(known.processes + 1)

    def _first(self, entrants: list[Settings], calls: int) -> Iterator[int]:
        """Return so many calls of each of these."""
        for settings in entrants:
            self._entrants.append(settings)
            self._times_s.append([])
            yield from [len(self._entrants) - 1] * calls

    def _final(self, processes: int) -> Iterator[int]:
        """Let the best two run in turns until their order is significant, and choose."""
        finalists = sorted(self._fastest[:2])
        if len(finalists) == 1:
            (one,) = finalists
            self._chosen = Choice(self._entrants[one], None, min(self._times_s[one]), processes)
            return
        before = [len(self._times_s[number]) for number in finalists]
        lead = 0
        for _ in range(FINAL_ROUNDS):
            yield from finalists
            one_s, other_s = (self._times_s[number][-1] for number in finalists)
            lead += (one_s < other_s) - (other_s < one_s)
            if abs(lead) == LEAD:
                break
        times_s = [self._times_s[number][start:] for number, start in zip(finalists, before)]
        # Without a significant order the simpler one stays, unless it is clearly slower.
        best = 0 if lead == LEAD else 1 if lead == -LEAD else fastest((0, 1), times_s, NEAR_TIE)
        settings, second = (self._entrants[finalists[place]] for place in (best, 1 - best))
        self._chosen = Choice(settings, second, float(np.median(times_s[best])), processes)

    def _configure(self, settings: Settings) -> None:
        transform, before = self._transform, self._transform.settings

        def restore() -> None:
            with suppress(Exception):
                transform.configure(before)

        with transform.runtime.collective_section("refining a transform's settings", restore):
            transform.configure(settings)
