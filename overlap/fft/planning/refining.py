"""Refining: settings that were not measured for a plan are compared with others in the user's own calls.

Nothing is measured when a plan is made, so it is ready at once. Its first calls run with the settings of one candidate
after another. The first call with other settings does not count, because it touches new memory, more of it for some
settings than for others. Of two more the faster one counts, because one may be disturbed. The best candidates run
again, and then further candidates that depend on the best one. At the end the best two run in turns until one of them
has been faster so much more often that the order is significant. Results do not depend on the settings, only the time
of these calls does. The time of a call is the smallest of all ranks' times, that of the rank which arrived last,
because the others have waited for it.

The best settings are kept with their time, and with the second best. Another process compares the two once more,
because the load of the machine may have been unusual at first. Later plans use the result as long as its time still
fits.
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
SEMIFINALISTS, SEMIFINAL_ROUNDS = 3, 2
# Wald's sequential test of signs (Annals of Mathematical Statistics 16, 1945, 117): if the better one is faster in 4 of
# 5 rounds, a lead of 3 rounds belongs to the worse one in 1 of 65 comparisons.
LEAD, FINAL_ROUNDS = 3, 11
NEAR_TIE = 0.97
FITS = 1.1  # a time still fits if it is at most this many times the kept one
PROCESSES = 2  # number of processes that compare before a choice is trusted


@dataclass(frozen=True)
class Choice:
    """The fastest settings found, for later processes.

    Attributes
    ----------
    settings : Settings
    second : Settings or None
        The next best.
    seconds : float
        Time of a call.
    processes : int
        Number of processes that have compared the two.
    """

    settings: Settings
    second: Settings | None
    seconds: float
    processes: int = 1


class Refinement:
    """Compares settings in the next calls of a transform.

    Parameters
    ----------
    transform : Transform
    entrants : callable
        ``entrants()`` returns the settings to try, the most promising first (collective). The transform is configured
        with the first of them, or with `known` if that is given.
    successors : callable
        ``successors(settings)`` returns further settings to try if `settings` are the fastest of the entrants.
    keep : callable
        ``keep(choice)`` is called on all ranks when the fastest settings are known.
    known : Choice, optional
        The choice of an earlier process.
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
        self._ran: Settings | None = None  # settings of the last call
        self._turns = self._all_turns(entrants) if known is None else self._turns_of_known(known, entrants)
        self._turn = next(self._turns)

    def run(self, call: Callable[[], None]) -> None:
        """Make a call with the settings whose turn it is; after the last turn, the transform loses its refinement
        (collective).
        """
        transform = self._transform
        settings = self._entrants[self._turn]
        if settings != transform.settings:
            self._configure(settings)
        if settings != self._ran:
            call()
            self._ran = settings
            return  # the time of a first call is that of new memory: the turn is not over
        started = perf_counter()
        call()
        seconds = transform.runtime.coordinator.minimum(perf_counter() - started)
        self._times_s[self._turn].append(seconds)
        turn = next(self._turns, None)
        if turn is not None:
            self._turn = turn
            return
        transform.refinement = None
        if self._chosen is None:  # the known choice still fits
            return
        self._configure(self._chosen.settings)
        medians = [float(np.median(times_s)) for times_s in self._times_s]
        transform.trials = tuple(
            sorted(
                (Trial(entrant, median / max(1, transform.slices)) for entrant, median in zip(self._entrants, medians)),
                key=lambda trial: trial.seconds_per_slice,
            )
        )
        self._keep(self._chosen)

    @property
    def _fastest(self) -> list[int]:
        """Return the indices of the entrants, those with the fastest calls first."""
        return np.argsort(list(map(min, self._times_s)), kind="stable").tolist()

    def _all_turns(self, entrants: Callable[[], list[Settings]]) -> Iterator[int]:
        """Yield, for every call that counts, the index of the entrant whose turn it is."""
        yield from self._first(
            [settings for settings in entrants() if settings not in self._entrants][:ENTRANTS], CALLS
        )
        if len(self._entrants) > SEMIFINALISTS:
            best = sorted(self._fastest[:SEMIFINALISTS])
            for _ in range(SEMIFINAL_ROUNDS):
                yield from best
        followers = self._successors(self._entrants[self._fastest[0]])
        yield from self._first([settings for settings in followers if settings not in self._entrants], CALLS)
        yield from self._final(1)

    def _turns_of_known(self, known: Choice, entrants: Callable[[], list[Settings]]) -> Iterator[int]:
        """Yield the turns with an earlier process's choice: two calls show whether its time still fits."""
        yield from self._first([known.settings], CALLS)
        if min(self._times_s[0]) > FITS * known.seconds:
            yield from self._all_turns(entrants)
        elif known.second is not None and known.processes < PROCESSES:
            yield from self._first([known.second], CALLS)
            yield from self._final(known.processes + 1)

    def _first(self, entrants: list[Settings], calls: int) -> Iterator[int]:
        """Yield `calls` turns of each of the entrants."""
        for settings in entrants:
            self._entrants.append(settings)
            self._times_s.append([])
            yield from [len(self._entrants) - 1] * calls

    def _final(self, processes: int) -> Iterator[int]:
        """Let the best two run in turns until their order is significant, and choose."""
        finalists = sorted(self._fastest[:2])
        if len(finalists) == 1:
            (finalist,) = finalists
            self._chosen = Choice(self._entrants[finalist], None, min(self._times_s[finalist]), processes)
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
        # If the order is not significant, the simpler settings stay, unless they are clearly slower.
        best = 0 if lead == LEAD else 1 if lead == -LEAD else fastest((0, 1), times_s, NEAR_TIE)
        settings, second = (self._entrants[finalists[place]] for place in (best, 1 - best))
        self._chosen = Choice(settings, second, float(np.median(times_s[best])), processes)

    def _configure(self, settings: Settings) -> None:
        transform, before = self._transform, self._transform.settings

        def restore() -> None:
            transform.refinement = self  # after the last turn too: the next call tries again
            with suppress(Exception):
                transform.configure(before)

        # The text tells two transforms apart: if the ranks refine different ones, neither may be configured.
        with transform.runtime.collective_section(f"refining the settings of {transform.known_as}", restore):
            transform.configure(settings)
