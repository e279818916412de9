"""Tournaments: settings of a transform are compared, two by two, in the user's calls or in runs of their own.

A champion, at first the settings that the model (`candidates.Model`) expects to be the fastest, meets one challenger
after another. In every round both run once, and the duel ends when one of them has been faster so much more often that
the order is significant. A challenger becomes the champion if it is clearly faster; else the champion stays.

In the user's calls (`Comparison`) nothing is measured when a plan is made, so it is ready at once. Most calls run with
the champion's settings: a challenger runs only while all that challengers have cost so far is a small share of the time
of all calls. Results do not depend on the settings, only the time of these calls does. The time of a call is the
smallest of all ranks' times, that of the rank which arrived last, because the others have waited for it. The fastest
settings are kept with their time, and with the second fastest. Another process compares the two once more, because the
load of the machine may have been unusual at first. Later plans use the result as long as its time still fits.

In runs of their own (`choose` with an effort of "measure" or "patient", `tune`) the transform runs on arrays of zeros.
The time of a run is that of the slowest rank.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import ceil, inf
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ...checks import function_problem, number_problem
from ...ranks.coordinator import Coordinator
from ...timing.messages import fit_message_time
from ..engine.fftw import learned, relearn
from .candidates import DEPTH, Candidates, Model, Tunable, estimated
from .plan_cache import PlanCache
from .settings import PROCESSES, Choice, Settings, Trial, Tuned

# Wald's sequential test of signs (Annals of Mathematical Statistics 16, 1945, 117): if the better one is faster in 4 of
# 5 rounds, a lead of 3 rounds belongs to the worse one in 1 of 65 duels.
LEAD, ROUNDS = 3, 11
FASTER = 0.998  # a challenger with that lead wins if its median time is less than this share of the champion's,
CLEARLY_FASTER = 0.97  # and without that lead if it is less than this share
HOPELESS = 1.5, 1.1  # a challenger has lost that takes longer than this many times the champion's in 1, in 2 runs
SHARE = 0.05  # of the time of all calls, that challengers may cost
CALLS, FITS = 2, 1.1  # calls that show whether a known time fits: at most this many times the kept one
MEASURED = ("measure", "patient")  # efforts with measured runs
PLANNING_S, PLANNING_SHARE = 60.0, 0.25  # of a budget, in which planning ends: its own, or that of tuning
TRIAL_SECONDS, TRIAL_NBYTES = 0.08, 2**27  # of a run when a plan is made,
TUNING_SECONDS, TUNING_NBYTES = 0.25, 2**29  # and when it is tuned
GAIN_ROUNDS = 5, 15  # least and largest number of rounds that measure what tuning has gained
WORTH = 0.98  # another effort is tried if computing a fifth faster would reduce the model's time below this share

Progress = Callable[[str, float, float], object]
Turns = Generator[Settings, float, None]
"""Yields the settings whose turn it is, and is sent the seconds of their run."""


class Tournament:
    """A tournament of settings, and the times of all their runs."""

    def __init__(self, champion: Settings) -> None:
        self.champion = champion  # the fastest settings so far
        self.times_s: dict[Settings, list[float]] = {}  # settings -> seconds of their runs
        self._scores = {champion: 1.0}  # time over that of the first champion, measured in turns with other settings

    def met(self) -> Turns:
        """Run the champion a few times, to know its time."""
        for _ in range(CALLS):
            yield from self.run(self.champion)

    def meet(self, challengers: Iterable[Settings]) -> Turns:
        """Let the champion meet those challengers that it has not met yet."""
        for challenger in challengers:
            if challenger not in self._scores:
                yield from self._duel(challenger)

    def run(self, settings: Settings) -> Turns:
        """Run some settings once."""
        time_s = yield settings
        self.times_s.setdefault(settings, []).append(time_s)

    def _duel(self, challenger: Settings) -> Turns:
        champion, lead = self.champion, 0
        first = {settings: len(self.times_s.get(settings, ())) for settings in (challenger, champion)}
        for number in range(ROUNDS):
            for settings in first:
                yield from self.run(settings)
            theirs, own = (self.times_s[settings][start:] for settings, start in first.items())
            lead += (theirs[-1] < own[-1]) - (own[-1] < theirs[-1])
            ratio = median(theirs) / max(median(own), 1e-12)
            tie = number + 1 >= LEAD and all(FASTER * b <= a <= b / FASTER for a, b in zip(theirs, own))
            if abs(lead) == LEAD or tie or min(theirs) > HOPELESS[min(number, 1)] * max(own):
                break
        self._scores[challenger] = self._scores[champion] * ratio
        if ratio < (FASTER if lead == LEAD else CLEARLY_FASTER):
            self.champion = challenger

    @property
    def second(self) -> Settings | None:
        """Return the fastest settings but the champion; None if there are no others."""
        others = [settings for settings in self._scores if settings != self.champion]
        return min(others, key=self._scores.__getitem__, default=None)

    @property
    def champion_s(self) -> float:
        """Return the median time of the champion's last runs."""
        return median(self.times_s[self.champion][-ROUNDS:])

    def records(self, slices: int, model: Model | None = None) -> tuple[Trial, ...]:
        """Return a record of the times of all settings in runs of some slices, fastest first."""
        trials = []
        for settings, times_s in self.times_s.items():
            typical_s = median(times_s)
            model_s = None if model is None else model.predicted_s(settings) / model.slices
            spread = (max(times_s) - min(times_s)) / typical_s if len(times_s) > 1 and typical_s > 0 else None
            trials.append(Trial(settings, typical_s / slices, model_s, spread))
        return tuple(sorted(trials, key=lambda trial: trial.seconds_per_slice))


class Configurations:
    """The settings for which a transform has been configured, for `count` entries of the batch, by default all.

    It returns to them without new schedules.
    """

    def __init__(self, transform: Tunable, count: int | None = None) -> None:
        self._transform, self._count = transform, count
        self._made: dict[Settings, Any] = {}
        if count is None:
            self._made[transform.settings] = transform.configuration

    def __contains__(self, settings: Settings) -> bool:
        return settings in self._made

    def forget(self) -> None:
        """Let all of them forget the calls that were prepared."""
        for made in self._made.values():
            made.forget()

    def use(self, settings: Settings) -> bool:
        """Configure the transform; return whether this was the first time."""
        transform, made = self._transform, self._made.get(settings)
        if made is not None:
            transform.configuration = made
            return False
        transform.configure(settings, self._count)
        self._made[settings] = transform.configuration
        return True


# ---- in the user's calls -------------------------------------------------------------------------


class Comparison:
    """Compares settings in the next calls of a transform, which is configured with the champion's."""

    def __init__(
        self,
        transform: Tunable,
        entrants: Callable[[], list[Settings]],  # returns the settings to try, the most promising first (collective)
        # Returns further settings to try if its argument is the fastest of the entrants.
        successors: Callable[[Settings], list[Settings]],
        keep: Callable[[Choice], object],  # called on all ranks when the fastest settings are known
        known: Choice | None = None,  # the choice of an earlier process, with which the transform is configured
    ) -> None:
        self._transform, self._keep = transform, keep
        self.share = SHARE  # of the time of all calls that challengers may cost; the same on all ranks
        self._tournament = Tournament(transform.settings)
        self._made = Configurations(transform)
        self._turns = self._all_turns(entrants, successors, known)
        self._turn = next(self._turns)
        self._processes = 1  # that have compared the two fastest; 0: nothing new is known
        self._setup_s: float | None = None  # time of the first call of this turn, which does not count
        self._first_s = 0.0  # time by which the first call with new settings takes longer
        self._cost_s = 0.0  # what challengers have cost
        self._calls = 0  # with the champion's settings, all that are due before the next turn included
        self._plain = 0  # the next turn is due when the transform's load has counted so many calls

    def _all_turns(
        self,
        entrants: Callable[[], list[Settings]],
        successors: Callable[[Settings], list[Settings]],
        known: Choice | None,
    ) -> Turns:
        tournament = self._tournament
        yield from tournament.met()
        if known is not None and min(tournament.times_s[tournament.champion]) <= FITS * known.seconds:
            self._processes = 0
            if known.second is not None and known.processes < PROCESSES:
                yield from tournament.meet([known.second])
                self._processes = known.processes + 1
            return
        yield from tournament.meet(entrants())
        yield from tournament.meet(successors(tournament.champion))

    def forget(self) -> None:
        """Forget the calls that were prepared for any settings."""
        self._made.forget()

    def end(self) -> None:
        """Compare no more: the transform keeps the fastest settings so far, and nothing is remembered."""
        self._transform.refinement = None
        self._use(self._tournament.champion)

    def pauses(self) -> bool:
        """Return whether the next call is an ordinary one; the same on all ranks, which have made the same calls."""
        return self.share < inf and self._transform.load.calls < self._plain

    def run(self, call: Callable[[], None]) -> None:
        """Make a call with the settings whose turn it is; after the last turn, the transform loses its comparison
        (collective).
        """
        self._plain = 0  # the load of other settings has other counts
        begun = perf_counter()
        self._use(self._turn)
        started = perf_counter()
        call()
        ended = perf_counter()
        if self._setup_s is None:
            self._setup_s = ended - begun
            return
        times_s = np.array((ended - started, self._setup_s))
        seconds, setup_s = self._transform.runtime.coordinator.minimum(times_s).tolist()
        self._setup_s = None
        self._end_turn(seconds, setup_s)

    def _end_turn(self, seconds: float, setup_s: float) -> None:
        tournament, ended = self._tournament, self._turn
        new = len(tournament.times_s.get(ended, ())) == 0
        try:
            self._turn = self._turns.send(seconds)
        except StopIteration:
            self._conclude()
            return
        if new:
            self._first_s = max(0.0, setup_s - seconds)
        champion = tournament.champion
        champion_s = tournament.champion_s
        if ended == champion:
            self._calls += CALLS
        else:
            self._cost_s += max(0.0, setup_s + seconds - 2 * champion_s)
        if self._turn != champion:
            expected_s = self._cost_s + self._first_s * (self._turn not in self._made)
            due = max(0, ceil(expected_s / (self.share * max(champion_s, 1e-9))) - self._calls)
            self._use(champion)
            self._calls += due
            self._plain = self._transform.load.calls + due

    def _conclude(self) -> None:
        transform, tournament = self._transform, self._tournament
        self.end()
        if not self._processes:  # the known choice still fits
            return
        transform.trials = tournament.records(max(1, transform.slices))
        self._keep(Choice(tournament.champion, tournament.second, tournament.champion_s, self._processes))

    def _use(self, settings: Settings) -> None:
        """Configure the transform with some settings, if it is not (collective the first time)."""
        transform, before = self._transform, self._transform.settings
        if settings == before:
            return
        if settings in self._made:
            self._made.use(settings)
            return

        def restore() -> None:
            transform.refinement = self  # after the last turn too: the next call tries again
            with suppress(Exception):
                transform.configure(before)

        # The text tells two transforms apart: if the ranks compare settings of different ones, neither is configured.
        with transform.runtime.collective_section(f"comparing the settings of {transform.known_as}", restore):
            self._made.use(settings)


# ---- in runs of their own ------------------------------------------------------------------------


class Clock:
    """The time that tuning has taken, the same on all ranks."""

    def __init__(self, coordinator: Coordinator, budget_s: float, progress: Progress | None = None) -> None:
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


class Trials:
    """A transform on trial arrays. Making one measures the quantities of its `model` (collective)."""

    def __init__(self, candidates: Candidates) -> None:
        self.candidates, self.transform = candidates, candidates.transform
        self.coordinator = self.transform.runtime.coordinator
        self._arrays: tuple[int, tuple] | None = None
        self.model = self._measured()

    def _measured(self) -> Model:
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
        overhead_s = max(0.0, compute[short] - compute[long]) / (messages[short] - messages[long])
        slice_s = max(0.0, compute[short] - messages[short] * overhead_s) / slices
        link = fit_message_time(
            [candidates.nbytes * chunk for chunk in (short, long)],
            [exchange[chunk] / messages[chunk] for chunk in (short, long)],
        )
        shares = compute[long] / slices, exchange[long] / slices
        model = Model(candidates, slice_s, overhead_s, link, shares)
        # The additional cost of passing a message between threads.
        polling = candidates.settings("poll", short, min(messages[short], candidates.shallow))
        self.transform.configure(polling, count)
        excess_s = self._shortest_s("whole", count) - model.predicted_s(polling, slices=slices)
        return replace(model, handover_s=max(0.0, excess_s) * candidates.workers / messages[short])

    def _shortest_s(self, what: str, count: int) -> float:
        """Return the shorter of two times, after a first run that touches new memory."""
        arrays = self.arrays(count)
        return self.coordinator.maximum(min([seconds(self.transform, arrays, what) for _ in range(3)][1:]))

    def count(self, entrants: list[Settings], time_s: float, nbytes: int) -> int:
        """Return the entries of the batch for a run of about `time_s` seconds; see `Candidates.count`."""
        return self.candidates.count(entrants, time_s / min(map(self.model.predicted_s, entrants)), nbytes)

    def arrays(self, count: int) -> tuple:
        """Return arrays for runs of `count` entries of the batch."""
        if self._arrays is None or self._arrays[0] != count:
            self._arrays = None  # freed before new arrays are allocated
            self._arrays = count, self.transform.trial_arrays(count)
        return self._arrays[1]

    def play(self, turns: Turns, count: int, goes_on: Callable[[], bool]) -> None:
        """Make runs of `count` entries for a tournament as long as it `goes_on` (collective)."""
        arrays, made = self.arrays(count), Configurations(self.transform, count)
        with suppress(StopIteration):
            settings = next(turns)
            while True:
                if made.use(settings):
                    seconds(self.transform, arrays)  # touches new memory
                settings = turns.send(self.coordinator.maximum(seconds(self.transform, arrays)))
                if not goes_on():
                    return

    def planned(self, clock: Clock) -> Tournament:
        """Return the tournament of the settings that planning tries, as long as a clock allows (collective)."""
        entrants = self.model.promising()
        tournament = Tournament(entrants[0])
        count = self.count(entrants, TRIAL_SECONDS, TRIAL_NBYTES)
        self.play(chained(tournament.met(), tournament.meet(entrants)), count, lambda: clock.left(PLANNING_SHARE))
        self.slices = count * self.candidates.slices_of_one
        return tournament


def chained(*turns: Turns) -> Turns:
    """Yield the turns of several tournaments, one after the other."""
    for each in turns:
        yield from each


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
    before = transform.configuration  # with its kernels: new ones could give other last bits of results

    def restore() -> None:
        transform.configuration = before

    with transform.runtime.collective_section(what, restore):
        transform.planning = True
        try:
            yield
        finally:
            transform.planning = False


# ---- the choice ----------------------------------------------------------------------------------


def choose(transform: Tunable, requested: Settings, memory: PlanCache | None = None) -> None:
    """Configure a transform as requested, and with the best known settings for fields that are open (collective).

    If there is nothing to hide, or if the way to wait was requested, rules of thumb complete the settings. Others are
    those that an earlier plan of the same kind has found and put into the `memory`, or else, with an effort of
    "measure" or "patient", the winner of a tournament in runs of its own, or else those that the model expects to be
    the fastest. Settings that were not measured in this process are compared with others in later calls.
    """
    transform.requested, transform.refinement, transform.trials = requested, None, ()
    entrants: list[Settings] = []
    with on_trial(transform, "planning"):
        candidates = transform.candidates(transform, requested)
        known = memory and memory.settings(transform.name)
        choice: Choice | None = None
        if requested.wait != "auto" or not candidates.hides:
            chosen = candidates.default()
        elif known:
            chosen, choice = known[0], memory.choice(transform.name) if memory else None
        elif requested.effort in MEASURED:
            with _progress_line(transform):
                trials = Trials(candidates)
                tournament = trials.planned(Clock(transform.runtime.coordinator, PLANNING_S))
            chosen, transform.trials = tournament.champion, tournament.records(trials.slices, trials.model)
        else:
            entrants = estimated(candidates).entrants()
            chosen = entrants[0]
    transform.configure(chosen)
    if transform.trials and memory is not None:
        memory.keep(transform.name, chosen, len(transform.trials))
    if len(entrants) > 1 or choice is not None:

        def keep(settled: Choice) -> None:
            if memory is not None:
                memory.keep(transform.name, settled.settings, len(transform.trials), settled)

        transform.refinement = Comparison(
            transform, lambda: entrants or estimated(candidates).entrants(), candidates.late_shares, keep, choice
        )


def use_settings(transform: Tunable, requested: Settings, settings: Settings) -> None:
    """Configure a transform with settings found before, except for what is requested (collective)."""
    transform.requested, transform.refinement = requested, None
    if requested.wait not in ("auto", settings.wait):
        settings = replace(transform.candidates(transform, requested).default(), effort=settings.effort)
    settings = replace(settings, **requested.given())
    depth = 1 if settings.wait == "off" else settings.depth or DEPTH
    transform.configure(replace(settings, depth=depth, in_flight=min(settings.in_flight or depth, depth)))


def tune(transform: Tunable, budget_s: float, progress: Progress | None = None) -> None:
    """Configure a transform with the best settings found in about `budget_s` seconds (collective).

    All combinations of way to wait, slices per message and depth are challengers, those that the model prefers first.
    Then variants of the champion follow, with other limits of exchanges in flight, late shares, and efforts of FFTW. At
    the end it runs in turns against the choice of planning, to measure the gain. Settings that were requested for the
    plan stay. Making FFTW's plans may take longer than the budget; what is measured first takes its time in any case.
    """
    clock = Clock(transform.runtime.coordinator, budget_s, progress)
    with on_trial(transform, "tuning"):
        clock.report("planning")
        candidates = transform.candidates(transform, transform.requested)
        if candidates.hides:
            default, chosen, gain, transform.trials = _search(candidates, transform, clock)
        else:
            default = chosen = candidates.default()
            gain, transform.trials = 1.0, ()
    transform.tuned, transform.refinement = Tuned(str(default), gain, len(transform.trials)), None
    transform.configure(chosen)


def _search(
    candidates: Candidates, transform: Tunable, clock: Clock
) -> tuple[Settings, Settings, float, tuple[Trial, ...]]:
    """Return planning's choice, the best settings, how many times as fast they are, and all measurements."""
    present, trials = transform.settings, Trials(candidates)
    default = trials.planned(clock).champion if transform.requested.wait == "auto" else candidates.default()
    tournament, model = Tournament(default), trials.model
    count = trials.count([default, present], TUNING_SECONDS, TUNING_NBYTES)

    def play(what: str, turns: Turns, share: float) -> None:
        clock.report(what)
        if clock.left(share):
            trials.play(turns, count, lambda: clock.left(share))

    play("a first run", tournament.met(), 1.0)
    play("settings", tournament.meet([present, *sorted(candidates.grid(), key=model.predicted_s)]), 0.5)
    play("exchanges in flight", tournament.meet(candidates.in_flights(tournament.champion)), 0.6)
    play("late exchanges", tournament.meet(candidates.late_shares(tournament.champion)), 0.7)
    before, champion = learned(), tournament.champion
    patient: list[Settings] = []
    if model.predicted_s(champion, 1.2) < WORTH * model.predicted_s(champion) and clock.left(0.7):
        patient = [replace(champion, effort=effort) for effort in candidates.efforts()]
        play("efforts of planning", tournament.meet(patient), 0.85)
    if patient and tournament.champion not in patient:
        relearn(before)  # else later plans would use the wisdom of slower settings
    gain, chosen = 1.0, tournament.champion
    if chosen != default:
        fewest, most = GAIN_ROUNDS
        final = Tournament(default)
        rounds = chained(*(final.run(settings) for _ in range(most) for settings in (default, chosen)))
        clock.report("final")
        trials.play(rounds, count, lambda: len(final.times_s.get(chosen, ())) < fewest or clock.left(1.0))
        times_s = [np.array(final.times_s[settings]) for settings in (default, chosen)]
        rounds_made = min(map(len, times_s))
        gain = float(np.median(times_s[0][:rounds_made] / times_s[1][:rounds_made]))
        if gain <= 1.0:
            chosen, gain = default, 1.0
    return default, chosen, gain, tournament.records(count * candidates.slices_of_one, model)


def budget_problem(budget_s: object, progress: object = None) -> str | None:
    """Return what is wrong with the arguments of `tune`, or None."""
    return number_problem("budget_s", budget_s, positive=True) or function_problem("progress", progress, none=True)


@contextmanager
def _progress_line(transform: Tunable) -> Iterator[None]:
    """Return a ``with`` block in which rank 0 shows, if it writes to a terminal, what is being measured."""
    shown = transform.runtime.coordinator.rank == 0 and sys.stderr.isatty()
    text = f"overlap: measuring {transform.name} ..."
    if shown:
        print(text, end="\r", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print(" " * len(text), end="\r", file=sys.stderr, flush=True)
