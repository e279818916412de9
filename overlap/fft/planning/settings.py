"""Settings of transforms, requested and chosen, and measurements of them.

One record, `Settings`, serves for requests and for choices. In a request, None (for `wait`: "auto") leaves the choice
to planning; settings that planning or tuning passes to a transform are complete.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

from ...checks import WAITS, choice_problem, count_problem

EFFORTS = ("estimate", "measure", "patient")  # efforts of FFTW's planning, by increasing cost
PROCESSES = 2  # number of processes that compare before a `Choice` is trusted
COUNTS = ("depth", "chunk", "in_flight")  # the fields that are positive integers


@dataclass(frozen=True)
class Settings:
    """Settings of a transform. The plan chooses fields that are None (`wait`: "auto") in a request.

    Attributes
    ----------
    wait : {"auto", "off", "block", "poll"}
        How exchanges are hidden; see `Runtime`. The results of all ways agree to the last bit. ``"auto"`` takes the
        fastest way; `effort` decides how it is found.
    depth : int, optional
        Slots: messages that are under way or computed on at the same time. The depth bounds the memory in flight.
    chunk : int, optional
        Slices per message, at most: planes of an `FFT2`, units of an `FFT3` (`FFT3.describe` names them).
    in_flight : int, optional
        Exchanges in flight at once, with ``"poll"``; at most `depth`.
    effort : {None, "estimate", "measure", "patient"}
        How much is measured before the plan can be used. None: little. FFTW's plans come from short searches, and the
        calls compare the settings of an earlier plan, or of the timing model, with others. "measure" and
        "patient" are efforts of FFTW's planning, which take seconds per plan; the plan then compares ways to wait and
        depths in measured runs when it is made. "estimate": FFTW measures nothing.
    late : float, optional
        Share, 0 to 1, of the last field of an `FFT3` whose exchange waits until all FFTs that it needs are done, so
        that little remains to be done when it ends. Late exchanges take work memory. Transforms without late exchanges
        ignore the share.

    Examples
    --------
    >>> settings = overlap.Settings(wait="poll", depth=4)
    >>> with overlap.FFT2(comm, (8, 16, 16), settings=settings) as plan:
    ...     plan.forward.settings.wait
    'poll'
    """

    wait: str = "auto"
    depth: int | None = None
    chunk: int | None = None
    in_flight: int | None = None
    effort: str | None = None
    late: float | None = None

    def __post_init__(self) -> None:
        # numpy's numbers become Python's, so that equal records have the same text on all ranks and in files.
        kinds: Any = (COUNTS, Integral, int), (("late",), Real, float)
        for names, kind, convert in kinds:
            for name in names:
                value = getattr(self, name)
                if isinstance(value, kind) and not isinstance(value, bool):
                    with suppress(OverflowError):  # numbers that are too large are rejected later
                        object.__setattr__(self, name, convert(value))

    def given(self) -> dict[str, Any]:
        """Return the fields that leave no choice, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value not in (None, "auto")}

    def __str__(self) -> str:
        words = [self.wait]
        if self.depth is not None:
            words.append(f"depth {self.depth}")
        if self.chunk is not None:
            words.append(f"{self.chunk} slice(s) per message")
        if self.wait == "poll" and self.in_flight is not None:
            words.append(f"{self.in_flight} in flight")
        if self.late:
            words.append(f"{100 * self.late:.0f} % late")
        if self.effort is not None:
            words.append(f"effort {self.effort}")
        return ", ".join(words)


def settings_problem(settings: object, complete: bool = False) -> str | None:
    """Return what is wrong with settings, or None.

    In a request all fields may be left open; `complete` settings come from planning or a tuning file, so only `effort`
    may be None.
    """
    if not isinstance(settings, Settings):
        return f"expected settings to be a Settings, received {settings!r}"
    choices = {"wait": WAITS if complete else ("auto", *WAITS), "effort": (None, *EFFORTS)}
    for name, allowed in choices.items():
        if problem := choice_problem(name, getattr(settings, name), allowed):
            return problem
    for name in COUNTS:
        value = getattr(settings, name)
        if value is None and not complete:
            continue
        if problem := count_problem(name, value):
            return problem if complete else problem.replace(", received", ", or None, received")
    late = settings.late
    if late is None and not complete:
        return None
    if type(late) is not float or not 0 <= late <= 1:
        return f"expected late to be a share, 0 to 1{'' if complete else ', or None'}, received {late!r}"
    return None


@dataclass(frozen=True)
class Trial:
    """The measurement of one candidate.

    Attributes
    ----------
    settings : Settings
    seconds_per_slice : float
        Measured time per slice (median).
    model_s : float or None
        The model's time per slice, if there is one.
    spread : float or None
        Range of the measured times divided by their median, if several were measured.

    Examples
    --------
    >>> from overlap.fft import Trial
    >>> print(Trial(overlap.Settings(wait="off"), seconds_per_slice=2e-5))
      off: measured 20 us per slice
    """

    settings: Settings
    seconds_per_slice: float
    model_s: float | None = None
    spread: float | None = None

    def __str__(self) -> str:
        model = "" if self.model_s is None else f", model {self.model_s * 1e6:.0f}"
        return f"  {self.settings}: measured {self.seconds_per_slice * 1e6:.0f} us per slice{model}"


@dataclass(frozen=True)
class Choice:
    """The fastest settings that a comparison in calls has found, for later processes."""

    settings: Settings
    second: Settings | None  # the next fastest
    seconds: float  # time of a call
    processes: int = 1  # number of processes that have compared the two


@dataclass(frozen=True)
class Tuned:
    """The result of tuning a transform.

    Attributes
    ----------
    default : str
        The settings that planning alone has chosen.
    gain : float
        Their time divided by that of the settings found, as the median over the same interleaved rounds; 1 if nothing
        better was found.
    tried : int
        Number of settings that were measured.

    Examples
    --------
    >>> with overlap.FFT2(comm, (8, 16, 16)) as plan:
    ...     tuned = plan.tune(budget_s=0.5)
    >>> tuned["forward"].gain >= 1
    True
    """

    default: str
    gain: float
    tried: int

    def __str__(self) -> str:
        return f"tuned: {self.gain:.2f}x the speed of {self.default}; {self.tried} settings tried"
