"""The choice of settings: a model first, measured runs second.

Planning (`choose`) and tuning (`tune`) are one engine. The model (`overlap.timing.model`) is fed with what
is measured on the plan's own messages: C per slice, latency and bandwidth of the exchange, and what
a message costs beyond that, alone and handed from thread to thread. It drops the candidates it finds
much slower than its best. The others race on trial arrays, in turns (`Course.race`), and all ranks
keep the one with the smallest median of the slowest rank's times. A simpler one wins a near tie.

Planning lets about a dozen candidates race over one short round, and the best few over some more.
Tuning goes on from there, within its budget: a grid of mode, slices per message and depth, as much
of it as the budget allows, those first that the model likes best; the slower half leaves after every
heat (successive halving; Jamieson and Talwalkar, AISTATS 2016). Then, for the best, exchanges in
flight, polls per exchange and FFTW's effort, one after the other; then a longer race of the best few
against what planning chose.
"""

from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

import numpy as np

from ...runtime import POLLS_PER_EXCHANGE
from ...timing.messages import fit_message_time
from ...timing.model import pipeline_s
from ..engine.fftw import learned, relearn
from .settings import Trial, Tuned

DEPTH = 16
SHALLOW = 4  # slots that stay in the cache: enough where an exchange is a copy
DEPTHS = (2, 4, 8, 16, 32)
LOOKS = (2, 4, 16, 32)
MESSAGE_NBYTES = 256 * 1024  # without measuring, chunk smaller messages to about this size
FEWEST_CHUNKS = 4 * DEPTH
HOPELESS = 2.0  # times the best by the model: not worth a measured run, however wrong the model
NEAR_TIE = 0.98
TRIAL_SECONDS = 0.08
TRIAL_NBYTES = 2**27
ROUNDS = 3
FINALISTS = 4

TUNING_TRIAL_SECONDS = 0.25
TUNING_TRIAL_NBYTES = 2**29
TUNING_NEAR_TIE = 0.99
SEARCH_SHARE, REFINED_SHARE = 0.5, 0.75  # of the budget, when the heats and the refining end
FEWEST_ENTRANTS = 8
FINAL_ROUNDS = 5, 15  # at least, at most


def choose(transform, requested):
    """Configure `transform` with the settings asked for, and the best ones where None or "auto".

    Parameters
    ----------
    transform : Transform
    requested : Settings
    """
    transform.requested = requested
    with _planning(transform):
        course = Course(transform) if requested.wait == "auto" and _hides(transform) else None
        chosen, transform.trials = _planned(transform, course)
    transform.configure(chosen)


def adopt(transform, requested, settings):
    """Configure `transform` with `settings`, except for what was asked for by name."""
    transform.requested = requested
    if requested.wait not in ("auto", settings.wait):
        settings = replace(_planned(transform, None)[0], effort=settings.effort,
                           rows=settings.rows)
    given = requested.given()
    if given.get("effort", settings.effort) != settings.effort:
        given.setdefault("rows", None)  # they were the best for the other effort
    settings = replace(settings, **given)
    depth = 1 if settings.wait == "off" else settings.depth
    transform.configure(replace(settings, depth=depth, in_flight=min(settings.in_flight, depth)))


def tune(transform, budget_s, progress=None):
    """Configure `transform` with the best settings found in about `budget_s` seconds (collective).

    Parameters
    ----------
    transform : Transform
        What its plan was asked for by name (depth, say) stays.
    budget_s : float
        Making FFTW's plans may take longer; a race always runs one round.
    progress : callable, optional
        ``progress(what, done, total)`` on rank 0, seconds.
    """
    control = transform.runtime.control
    clock = _Clock(control, budget_s, progress)
    with _planning(transform):
        clock.says("planning")
        course = Course(transform) if _hides(transform) else None
        default, transform.trials = _planned(
            transform, course if transform.requested.wait == "auto" else None)
        chosen, gain = default, 1.0
        if course is not None:
            search = _Search(course, clock)
            chosen, gain = search.run(default, transform.settings)
            transform.trials = search.trials()
        chosen = replace(chosen, rows=control.bcast(transform.kernels_of(chosen).rows))
    transform.tuned = Tuned(str(default), gain, len(transform.trials))
    transform.configure(chosen)


def budget_problem(budget_s):
    """What is wrong with a budget for `tune`, or None."""
    if (isinstance(budget_s, bool) or not isinstance(budget_s, (int, float))
            or not 0 < budget_s < np.inf):
        return f"expected budget_s to be a positive number of seconds, received {budget_s!r}"
    return None


@contextmanager
def _planning(transform):
    transform.planning = True
    try:
        yield
    finally:
        transform.planning = False


def _hides(transform):
    """Whether there is something to hide, and something to hide it behind."""
    return transform.slices > 1 and transform.runtime.control.maximum(
        transform.nbytes_per_slice()) > 0


class Course:
    """One transform on trial arrays, and what the model expects of it.

    Attributes
    ----------
    transform : Transform
    slices : int
        Of the whole batch.
    size : int
        Slices per message, unless measured.
    """

    def __init__(self, transform):
        self.transform = transform
        self.control = transform.runtime.control
        self.slices = transform.slices
        self.nbytes = self.control.maximum(transform.nbytes_per_slice())
        self.size = transform.requested.chunk or _chunk_by_size(
            self.slices, self.nbytes / max(1, self.control.size))
        self._arrays = 0, None
        self._measure_parts()

    def _measure_parts(self):
        """C, a message's overhead, latency and bandwidth: from messages of one and a few slices."""
        few = min(self.slices, 8)
        arrays = self._trial_arrays(few)
        times = {}
        for chunk in sorted({1, few}):
            self.transform.configure(
                _completed(self.transform.requested, "off", 1, chunk), few)
            for what in ("compute", "exchange"):
                seconds = [_seconds(self.transform, what, arrays) for _ in range(3)]
                times[what, chunk] = self.control.maximum(min(seconds[1:]))
        self._overhead_s = max(0.0, times["compute", 1] - times["compute", few]) / (few - 1)
        self._compute_s = max(0.0, times["compute", 1] / few - self._overhead_s) * self.slices
        self._handover_s = 0.0
        self._link = fit_message_time([self.nbytes, self.nbytes * few],
                                      [times["exchange", 1] / few, times["exchange", few]])
        polling = _completed(replace(self.transform.requested, in_flight=None), "poll",
                             min(few, SHALLOW), 1)
        self.transform.configure(polling, few)
        seconds = [_seconds(self.transform, "whole", arrays) for _ in range(3)]
        excess = self.control.maximum(min(seconds[1:])) - self._predicted_s(polling, few)
        self._handover_s = max(0.0, excess) * self.transform.runtime.workers / few

    def predicted_s(self, settings, speedup=1.0):
        """The model's time of the whole batch in seconds, of computing that much faster."""
        return self._predicted_s(settings, self.slices, speedup)

    def _predicted_s(self, settings, slices, speedup=1.0):
        handover_s = 0.0 if settings.wait == "off" else self._handover_s
        return pipeline_s(
            self._compute_s / speedup * slices / self.slices, self.nbytes * slices, self._link,
            slices=slices, chunk=settings.chunk, workers=self.transform.runtime.workers,
            wait=settings.wait, message_overhead_s=self._overhead_s + handover_s,
            depth=settings.depth)

    def promising(self, candidates):
        """The candidates that the model does not find hopeless, in their order."""
        candidates = list(dict.fromkeys(candidates))
        predicted = [self.predicted_s(candidate) for candidate in candidates]
        best = min(predicted)
        return [candidate for candidate, seconds in zip(candidates, predicted)
                if seconds <= HOPELESS * best]

    def trial_slices(self, entrants, seconds, nbytes):
        """Slices of a trial run: enough to fill the pipelines, and for so long; within `nbytes`."""
        best = min(map(self.predicted_s, entrants))
        filled = max(3 * entrant.depth * entrant.chunk for entrant in entrants)
        return self.control.maximum(min(
            self.slices, max(filled, int(seconds / (best / self.slices))),
            max(1, nbytes // self.transform.nbytes_of_arrays())))

    def race(self, entrants, count, rounds):
        """Let settings run in turns, on `count` slices.

        Parameters
        ----------
        entrants : list of Settings
        count : int
        rounds : iterable
            One item per round.

        Returns
        -------
        ndarray
            Seconds of the slowest rank, (entrants, rounds); the same on all ranks.
        """
        arrays = self._trial_arrays(count)
        # Held here, or those of an effort would be planned anew in every round.
        kernels = [self.transform.kernels_of(entrant) for entrant in entrants]
        seconds = []
        for number, _ in enumerate(rounds):
            row = np.empty(len(entrants))
            for turn in range(len(entrants)):
                at = (turn + number) % len(entrants)
                self.transform.configure(entrants[at], count)
                row[at] = _seconds(self.transform, "whole", arrays)
            seconds.append(row)
        del kernels
        return self.control.maximum(np.array(seconds).T.copy())

    def _trial_arrays(self, count):
        held, arrays = self._arrays
        if held != count:
            self._arrays = 0, None  # free before there is more
            self._arrays = count, self.transform.trial_arrays(count)
        return self._arrays[1]


def _planned(transform, course):
    """The settings to use and the trials; the request and rules of thumb alone without a course."""
    requested = transform.requested
    wait, depth, chunk = requested.wait, requested.depth, requested.chunk
    slices = max(1, transform.slices)
    nbytes = transform.runtime.control.maximum(transform.nbytes_per_slice())
    size = chunk or _chunk_by_size(slices, nbytes / max(1, transform.runtime.control.size))

    def settings(wait, chunk, depth=depth or DEPTH):
        depth = 1 if wait == "off" else depth
        return _completed(requested, wait, depth, chunk)

    if course is None:
        if wait == "auto":  # nothing to hide, or nothing to hide it behind
            wait = "off" if min(slices, transform.runtime.workers) == 1 else "poll"
        return settings(wait, size), ()
    shallow = depth or SHALLOW
    smaller, double, quadruple, largest = (chunk or min(slices, max(1, int(factor * size)))
                                           for factor in (0.5, 2, 4, 16))
    entrants = course.promising((
        settings("off", size), settings("off", quadruple), settings("off", largest),
        settings("block", size), settings("block", size, shallow),
        settings("block", quadruple, shallow),
        *(settings("poll", chunk) for chunk in (size, smaller, double, quadruple)),
        settings("poll", size, shallow), settings("poll", quadruple, shallow)))
    count = course.trial_slices(entrants, TRIAL_SECONDS, TRIAL_NBYTES)
    first = course.race(entrants, count, range(1))[:, 0]
    places = sorted(np.argsort(first, kind="stable")[:FINALISTS])
    seconds = np.median(np.hstack((first[places, None], course.race(
        [entrants[place] for place in places], count, range(ROUNDS)))), axis=1)
    first[places] = seconds
    return (entrants[places[_winner(seconds, NEAR_TIE)]],
            _trials(course, entrants, first / count))


def _winner(seconds, near_tie):
    """Position of the best: an earlier one stays unless a later one is clearly faster."""
    best = 0
    for position, value in enumerate(seconds):
        if value < near_tie * seconds[best]:
            best = position
    return best


def _trials(course, entrants, seconds_per_slice):
    return tuple(sorted(
        (Trial(entrant, float(seconds), course.predicted_s(entrant) / course.slices)
         for entrant, seconds in zip(entrants, seconds_per_slice)),
        key=lambda trial: trial.seconds_per_slice))


class _Search:
    """Tuning's search; see the module's docstring."""

    def __init__(self, course, clock):
        self._course, self._clock = course, clock
        self._requested = course.transform.requested
        self._measured = {}  # Settings to seconds per slice

    def trials(self):
        """All that was measured, fastest first."""
        return _trials(self._course, self._measured, self._measured.values())

    def run(self, default, present):
        """The best settings found, and how many times faster they are than `default`."""
        field = list(dict.fromkeys((default, present, *self._grid())))
        self._count = self._course.trial_slices(
            field[:2], TUNING_TRIAL_SECONDS, TUNING_TRIAL_NBYTES)
        survivors = self._heats(field)
        challengers = survivors[:1]
        for what, variants in (("exchanges in flight", self._in_flights), ("polls", self._polls)):
            variants = variants(challengers[0])
            if variants and self._clock.left(REFINED_SHARE):
                challengers = self._ranked([challengers[0], *variants], what, REFINED_SHARE)
        challengers = challengers[:2] + survivors[:3]
        before = learned()
        patient = self._efforts(challengers[0])
        kernels = [self._course.transform.kernels_of(settings) for settings in patient]
        finalists = list(dict.fromkeys((default, *challengers, *patient)))
        seconds = self._race(finalists, "final", 1.0, *FINAL_ROUNDS)
        winner = finalists[_winner(np.median(seconds, axis=1), TUNING_NEAR_TIE)]
        del kernels
        if patient and winner not in patient:
            relearn(before)  # or later plans would be made of a loser's
        gain = float(np.median(seconds[0] / seconds[finalists.index(winner)]))
        return winner, gain

    def _grid(self):
        """Mode, slices per message and depth in all combinations, as far as they are free."""
        requested = self._requested
        wait, depth = requested.wait, requested.depth
        slices, size = self._course.slices, self._course.size
        sizes = [requested.chunk] if requested.chunk else sorted(
            {min(slices, max(1, int(size * 2.0**power))) for power in range(-2, 5)},
            key=lambda chunk: abs(np.log(chunk / size)))
        for mode in ("off", "poll", "block") if wait == "auto" else (wait,):
            for chunk in sizes:
                depths = (1,) if mode == "off" else [depth] if depth else sorted(
                    {min(depth, -(-slices // chunk)) for depth in DEPTHS})
                for slots in depths:
                    yield _completed(requested, mode, slots, chunk)

    def _heats(self, field):
        """The best few of a field, the slower half of which leaves after every heat."""
        keep = field[:2]
        first = self._race(field[:1], "a first run", SEARCH_SHARE, 2, 2)
        affordable = SEARCH_SHARE * self._clock.budget_s / (2 * ROUNDS * first[0, 1])
        field = sorted(field, key=lambda entrant: (entrant not in keep,
                                                   self._course.predicted_s(entrant)))
        field = field[:max(FEWEST_ENTRANTS, int(affordable))]
        while len(field) > FINALISTS and self._clock.left(SEARCH_SHARE):
            field = self._ranked(field, f"{len(field)} settings", SEARCH_SHARE)
            field = field[:max(FINALISTS, len(field) // 2)]
        return field

    def _in_flights(self, best):
        if best.wait != "poll" or self._requested.in_flight:
            return []
        return [replace(best, in_flight=count)
                for count in sorted({max(1, best.depth // 2), max(1, best.depth // 4), 2})
                if count < best.in_flight]

    def _polls(self, best):
        if best.wait != "poll" or self._requested.polls:
            return []
        return [replace(best, polls=polls) for polls in LOOKS]

    def _efforts(self, best):
        """A patient plan, where computing a fifth faster would be worth it."""
        worth = self._course.predicted_s(best, 1.2) < NEAR_TIE * self._course.predicted_s(best)
        if self._requested.effort is not None or not worth or not self._clock.left(REFINED_SHARE):
            return []
        return [replace(best, effort="patient")]

    def _ranked(self, entrants, what, share):
        """The entrants, fastest first."""
        seconds = np.median(self._race(entrants, what, share, 1, ROUNDS), axis=1)
        return [entrants[position] for position in np.argsort(seconds, kind="stable")]

    def _race(self, entrants, what, share, fewest, most):
        """A race of some rounds, fewer when that share of the budget is spent."""
        def rounds():
            for number in range(most):
                if number >= fewest and not self._clock.left(share):
                    return
                self._clock.says(what)
                yield
        seconds = self._course.race(entrants, self._count, rounds())
        self._measured |= zip(entrants, np.median(seconds, axis=1) / self._count)
        return seconds


class _Clock:
    """The time that tuning takes, the same on all ranks."""

    def __init__(self, control, budget_s, progress):
        self.budget_s = budget_s
        self._control = control
        self._progress = progress if control.rank == 0 else None
        self._started = perf_counter()

    def left(self, share):
        """Whether less than that share of the budget is spent (collective)."""
        return self._control.maximum(perf_counter() - self._started) < share * self.budget_s

    def says(self, what):
        if self._progress is not None:
            self._progress(what, min(perf_counter() - self._started, self.budget_s), self.budget_s)


def _completed(requested, wait, depth, chunk, late=0.0):
    """Settings of this mode, depth and chunk, in all else as requested."""
    return replace(requested, wait=wait, depth=depth, chunk=chunk,
                   in_flight=min(requested.in_flight or depth, depth),
                   polls=requested.polls or POLLS_PER_EXCHANGE, late=late)


def _chunk_by_size(slices, piece_nbytes):
    """Slices per message of about `MESSAGE_NBYTES`, but enough messages to fill the pipeline."""
    return max(1, min(int(MESSAGE_NBYTES // max(1, piece_nbytes)), slices // FEWEST_CHUNKS))


def _seconds(transform, what, arrays):
    """Wall time of one run on trial arrays, on this rank."""
    transform.runtime.control.barrier()
    started = perf_counter()
    transform.run_planes(*arrays, what=what)
    return perf_counter() - started
