"""Planning: the choice of a transform's settings.

Settings that a request leaves open are those that an earlier plan of the same kind has found (`plan_cache`), or else
those that the model expects to be the fastest (`expected`). Both are compared with others in later calls (`refining`),
so such a plan is ready at once. With an effort of "measure" or "patient" they are chosen by measured runs before the
plan is used. The model (`overlap.timing.model`) then uses what `Trials` measures on the transform's own messages, and
drops candidates that it expects to be much slower than the best one. The others run once, and the best few of them in
turns for some further rounds. All ranks keep the settings with the smallest median of the slowest rank's times; in a
near tie simpler settings win.

If there is nothing to hide, or if the way to wait was requested, nothing is measured: rules of thumb complete the
settings.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from ...timing.turns import fastest
from .candidates import DEPTH, Tunable
from .expected import Expected
from .plan_cache import PlanCache
from .refining import Choice, Refinement
from .settings import Settings, Trial
from .trials import Trials, on_trial

TRIAL_SECONDS = 0.08
TRIAL_NBYTES = 2**27
ROUNDS = 3  # number of rounds after the first
FINALISTS = 4
MEASURED = ("measure", "patient")  # efforts with measured runs


def choose(transform: Tunable, requested: Settings, memory: PlanCache | None = None) -> None:
    """Configure a transform as requested, and with the best known settings for fields that are open (collective).

    Parameters
    ----------
    transform : Transform
    requested : Settings
    memory : PlanCache, optional
        The cache of its plan, from which settings are taken and in which they are stored.
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
                chosen, transform.trials = planned(Trials(candidates))
        else:
            entrants = Expected(candidates).entrants()
            chosen = entrants[0]
    transform.configure(chosen)
    if transform.trials and memory is not None:
        memory.keep(transform.name, chosen, len(transform.trials))
    if len(entrants) > 1 or choice is not None:

        def keep(settled: Choice) -> None:
            if memory is not None:
                memory.keep(transform.name, settled.settings, len(transform.trials), settled)

        transform.refinement = Refinement(
            transform,
            lambda: entrants or Expected(candidates).entrants(),
            candidates.late_shares,
            keep,
            choice,
        )


def use_settings(transform: Tunable, requested: Settings, settings: Settings) -> None:
    """Configure a transform with settings found before, except for what is requested (collective)."""
    transform.requested, transform.refinement = requested, None
    if requested.wait not in ("auto", settings.wait):
        settings = replace(transform.candidates(transform, requested).default(), effort=settings.effort)
    settings = replace(settings, **requested.given())
    depth = 1 if settings.wait == "off" else settings.depth or DEPTH
    transform.configure(replace(settings, depth=depth, in_flight=min(settings.in_flight or depth, depth)))


def planned(trials: Trials) -> tuple[Settings, tuple[Trial, ...]]:
    """Return the best of the settings that planning tries, and all trials (collective)."""
    candidates = trials.candidates
    entrants = trials.promising(candidates.planned(trials.compute_s, trials.exchange_s))
    count = trials.count(entrants, TRIAL_SECONDS, TRIAL_NBYTES)
    first = trials.race(entrants, count, range(1))
    measured = dict(zip(entrants, first))
    places = sorted(np.argsort(first[:, 0], kind="stable")[:FINALISTS])
    finalists = [entrants[place] for place in places]
    times_s = np.hstack((first[places], trials.race(finalists, count, range(ROUNDS))))
    measured |= zip(finalists, times_s)
    return fastest(finalists, times_s, candidates.near_tie), trials.records(measured, count)


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
